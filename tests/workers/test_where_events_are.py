"""Events of a run stay in the processes that hold them: only what is made of them travels."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from traceprof.cli import app
from traceprof.workers import choice
from traceprof.workers.remote import RemoteTrace

COMMANDS = ("analyze", "findings", "show stragglers", "report", "timeline", "compare")


@pytest.fixture(autouse=True)
def _without_pools_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRACEPROF_CACHE", "0")
    yield
    choice.dismiss()


@pytest.mark.parametrize("command", COMMANDS)
def test_no_table_of_events_comes_to_the_command(
    command: str, generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is written is what one process writes."""
    brought: list[str] = []
    bring = RemoteTrace._events

    def noted(trace: RemoteTrace, name: str) -> object:
        brought.append(name)
        return bring(trace, name)

    monkeypatch.setattr(RemoteTrace, "_events", noted)
    alone, shared = (_written(command, generated, tmp_path, jobs) for jobs in ("1", "2"))
    assert brought == []
    assert shared == alone


def _written(command: str, run: Path, folder: Path, jobs: str) -> str:
    is_page = command in ("report", "timeline")
    page = folder / f"{jobs}.html"
    paths = [run, run] if command == "compare" else [run]
    words = [*command.split(), *map(str, paths), "--jobs", jobs]
    words += ["--output", str(page)] if is_page else []
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return page.read_text("utf-8") if is_page else done.stdout
