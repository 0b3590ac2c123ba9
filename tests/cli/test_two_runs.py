"""Two runs where one is expected, at every command that takes a trace: side by side, or refused."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from socket import socket
from typing import Final

import pytest
from typer.testing import CliRunner

import traceprof
from tests.builders import TraceBuilder
from traceprof.cli import app
from traceprof.cli.commands import COMMANDS
from traceprof.errors import SeveralRunsError
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.trace import TraceInfo
from traceprof.viewer import server
from traceprof.viewer.panes import Pane

MINUTE_NS = 60_000_000_000
NAMES = ("before", "after")
TRACE: Final = "TRACE"

ONE_RUN: Final[Mapping[str, Sequence[str]]] = {
    "analyze": (TRACE,),
    "findings": (TRACE,),
    "show": ("kernels", TRACE),
    "ops": (TRACE,),
    "explain": (TRACE, "all", "--against", "active"),
    "memory": (TRACE,),
    "cut": (TRACE, "-w", "all", "-o", "OUT"),
    "export": (TRACE, "--to", "perfetto", "-o", "OUT"),
    "query": (TRACE, "SELECT count(*) FROM kernels"),
    "info": (TRACE,),
}
"""What looks at one run, and takes all that is named for it."""
BESIDE: Final = {"timeline": "OUT.html", "report": "OUT.html"}
"""What shows two runs side by side."""
EACH: Final[Mapping[str, Sequence[str]]] = {
    "compare": (TRACE, TRACE),
    "scaling": (TRACE,),
    "elastic": (TRACE,),
    "accuracy": (TRACE,),
    "nodes": (TRACE,),
    "runs": ("add", TRACE, "--db", "OUT"),
}
"""What takes each word for a run of its own."""
OTHERS: Final = {
    "view": "a test below",
    "try": "it takes a recording of its own",
    "mcp": "a test below",
}
NO_TRACE: Final = {"record", "recover", "doctor", "demo", "watch", "capture"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two recordings of two GPUs of 0.3 s, taken 80 minutes apart."""
    for number, name in enumerate(NAMES):
        builder = TraceBuilder()
        for device in (0, 1):
            process = 144 + 4 * number + device
            for at_ns in range(0, 300_000_000, 30_000_000):
                builder.kernel(
                    "gemm", at_ns, at_ns + 10_000_000 + number, device=device, process=process
                )
        info = TraceInfo(utc_epoch_ns=10**18 + 80 * number * MINUTE_NS)
        path = tmp_path / "both" / f"{name}.sqlite"
        path.parent.mkdir(exist_ok=True)
        write_nsys(builder.build(info=info), path)
        (tmp_path / name).mkdir()
        shutil.copy2(path, tmp_path / name)
    return tmp_path


def entrances(folder: Path) -> list[list[str]]:
    """Return how one may name the two runs as one: folder, pattern, files, two folders."""
    both = folder / "both"
    files = [str(both / f"{name}.sqlite") for name in NAMES]
    return [[str(both)], [f"{both}/*.sqlite"], files, [str(folder / name) for name in NAMES]]


def run(command: str, arguments: Sequence[str], traces: Sequence[str], folder: Path) -> str:
    """Run a command that is to be refused, and return its message."""
    words = [
        word
        for argument in arguments
        for word in (traces if argument == TRACE else [argument.replace("OUT", f"{folder}/out")])
    ]
    done = CliRunner().invoke(app, [command, *words])
    assert done.exit_code == 2, (command, words, done.output)
    assert done.stdout == ""
    assert not list(folder.glob("out*"))
    return done.stderr


def test_every_command_is_in_one_of_these() -> None:
    known = {*ONE_RUN, *BESIDE, *EACH, *OTHERS, *NO_TRACE}
    assert {command.name for command in COMMANDS} <= known


@pytest.mark.parametrize("command", ONE_RUN)
def test_what_looks_at_one_run_refuses_two(command: str, folder: Path) -> None:
    for traces in entrances(folder):
        said = run(command, ONE_RUN[command], traces, folder)
        assert "look like two runs" in said
        assert "they were not recorded at the same time" in said
        todo = re.search(r"`traceprof view (\S+) (\S+)`", said)
        assert todo
        assert [Path(word).stem for word in todo.groups()] == ["before", "after"]


@pytest.mark.parametrize("command", EACH)
def test_a_word_that_is_two_runs_is_no_run(command: str, folder: Path) -> None:
    for traces in entrances(folder)[:2]:
        assert "look like two runs" in run(command, EACH[command], traces, folder)


@pytest.mark.parametrize("command", BESIDE)
def test_two_runs_are_shown_side_by_side(command: str, folder: Path) -> None:
    for number, traces in enumerate(entrances(folder)):
        page = folder / f"page{number}.html"
        done = CliRunner().invoke(app, [command, *traces, "-o", str(page)])
        assert done.exit_code == 0, done.output
        text = page.read_text("utf-8")
        assert all(name in text for name in NAMES)
        title = re.findall(r"<title>(.*?)</title>", text)[0]
        assert all(name in title for name in NAMES), title


def test_a_picture_of_two_runs_is_refused(folder: Path) -> None:
    both = [str(folder / "both")]
    assert "look like two runs" in run("timeline", (TRACE, "-o", "OUT.svg"), both, folder)


def test_three_runs_are_no_two_sides(folder: Path) -> None:
    third = TraceBuilder().kernel("gemm", 0, 10)
    info = TraceInfo(utc_epoch_ns=10**18 + 200 * MINUTE_NS)
    write_nsys(third.build(info=info), folder / "both" / "last.sqlite")
    for command in BESIDE:
        said = run(command, (TRACE, "-o", "OUT.html"), [str(folder / "both")], folder)
        assert "look like several runs" in said


def test_the_viewer_opens_each_run_of_a_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []

    class Served:
        def __init__(self, panes: Sequence[Pane], listening: socket, address: object) -> None:
            titles.extend(pane.title for pane in panes)
            listening.close()

        def serve(self) -> None:
            pass

        def close(self) -> None:
            pass

    monkeypatch.setattr(server, "ViewerServer", Served)
    done = CliRunner().invoke(app, ["view", str(folder / "both"), "--no-browser"])
    assert done.exit_code == 0, done.output
    assert titles == ["before.sqlite", "after.sqlite"]


def test_python_refuses_two_runs_as_the_commands_do(folder: Path) -> None:
    for traces in entrances(folder):
        with pytest.raises(SeveralRunsError, match="look like two runs"):
            traceprof.open(traces).breakdown()
    one = traceprof.open(str(folder / "both"), one_run=True)
    assert len(one.within("all").breakdown().to_frame()) == 4


def test_an_assistant_is_told_so_too(folder: Path) -> None:
    pytest.importorskip("mcp", reason="the extra `mcp` brings it")
    server = import_module("traceprof.mcp_server")
    tools = server.Tools(server.Folders([folder]))
    for ask in (tools.info, tools.page, tools.findings):
        with pytest.raises(SeveralRunsError, match="look like two runs"):
            ask("both")
