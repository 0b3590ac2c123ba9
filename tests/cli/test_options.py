"""What commands do of their own accord once their options are read."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from traceprof import processes
from traceprof.cli.options import TracePaths, with_options
from traceprof.session.options import Opening


def _kept(monkeypatch: pytest.MonkeyPatch, name: str, files: list[Path]) -> bool:
    """Return whether a command of this name keeps freed memory for ``files``."""

    def command(opening: Opening, trace: TracePaths) -> None:
        assert opening is not None
        assert len(trace) == len(files)

    command.__name__ = name
    calls: list[str] = []
    monkeypatch.setattr(processes, "keep_freed_memory", lambda: calls.append(name))
    monkeypatch.setattr("traceprof.files._LARGE_BYTES", 1000)
    app = typer.Typer()
    app.command()(with_options(command))
    found = CliRunner().invoke(app, [str(file) for file in files])
    assert found.exit_code == 0, found.output
    return bool(calls)


def test_memory_is_kept_for_a_single_large_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    large, small = tmp_path / "large.sqlite", tmp_path / "small.sqlite"
    large.write_bytes(bytes(1000))
    small.write_bytes(bytes(999))
    assert _kept(monkeypatch, "analyze", [large])
    assert not _kept(monkeypatch, "analyze", [small])
    assert not _kept(monkeypatch, "view", [large])  # it waits, and others need the memory
    assert not _kept(monkeypatch, "analyze", [large, large])
    assert not _kept(monkeypatch, "analyze", [tmp_path])  # a run: each process has its own bounds
