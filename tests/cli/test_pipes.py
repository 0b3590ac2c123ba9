"""What is no regular file is refused by every command: reading it may never end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.builders import TraceBuilder
from traceprof.cli import app
from traceprof.formats.nsys.writer import write_nsys

pytestmark = pytest.mark.skipif(os.name != "posix", reason="named pipes of POSIX")

ENOUGH_S = 300


@pytest.fixture(autouse=True)
def hanging_fails() -> Iterator[None]:
    def over(*_: object) -> None:
        raise AssertionError("it waits for the pipe")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(ENOUGH_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert isinstance(done.exception, SystemExit | None), done.exception
    return done.exit_code, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        *("info", "analyze", "ops", "elastic", "nodes", "accuracy", "recover"),
        *("runs show", "runs add", "runs import-log", "show kernels", "report -o out"),
        *("timeline -o out", "cut -o out", "export --to perfetto -o out", "view"),
    ],
)
def test_a_pipe_is_refused_in_one_line(command: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    first, *more = command.split()
    words = [first, *more, pipe] if first in ("runs", "show") else [first, pipe, *more]
    words = [tmp_path / "out" if word == "out" else word for word in words]
    code, said = run(*words)
    assert code in (2, 3)
    told = [line for line in said.splitlines() if line != "traceprof: reading pipe"]
    assert len(told) == 1
    assert "a named pipe" in told[0] or command == "recover"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe"]


@pytest.mark.parametrize("command", ["query {} SELECT", "explain {} slowest", "show kernels {}"])
def test_so_it_is_beside_traces_and_in_their_folders(command: str, tmp_path: Path) -> None:
    for rank in (0, 1):
        trace = TraceBuilder().kernel("gemm", 0, 9, launched_ns=(0, 1)).process(1, rank=rank)
        write_nsys(trace.build(), tmp_path / f"rank{rank}.sqlite")
    os.mkfifo(tmp_path / "manifest.json")
    os.mkfifo(tmp_path / "rank2.sqlite")
    words = [word.format(tmp_path) for word in command.split()]
    assert run(*["SELECT name FROM kernels" if w == "SELECT" else w for w in words])[0] in (0, 3, 4)
    both = [tmp_path / f"rank{rank}.sqlite" for rank in (0, 1)]
    assert run("show", "kernels", *both)[0] == 0


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
@pytest.mark.parametrize("is_linked", [False, True])
def test_so_it_is_where_sqlite_keeps_files_of_its_own(
    suffix: str, is_linked: bool, tmp_path: Path
) -> None:
    path = tmp_path / "t.sqlite"
    write_nsys(TraceBuilder().kernel("gemm", 0, 9).build(), path)
    os.mkfifo(tmp_path / f"t.sqlite{suffix}")
    if is_linked:
        (tmp_path / "link.sqlite").symlink_to(path)
        path = tmp_path / "link.sqlite"
    code, said = run("info", path)
    assert code == 3
    assert f"t.sqlite{suffix}: a named pipe" in said


@pytest.mark.parametrize("suffix", ["-wal", "-journal", "-shm"])
def test_and_beside_the_database_of_runs(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    assert run("runs", "list", "--db", path)[0] == 0
    path.touch()
    os.mkfifo(tmp_path / f"runs.db{suffix}")
    code, said = run("runs", "list", "--db", path)
    assert code != 0
    assert f"runs.db{suffix}: a named pipe" in said


def test_what_names_of_options_lead_to_is_a_file(tmp_path: Path) -> None:
    write_nsys(TraceBuilder().kernel("gemm", 0, 9).build(), tmp_path / "t.sqlite")
    os.mkfifo(tmp_path / "rules")
    code, said = run("show", "kernels", tmp_path / "t.sqlite", "--rules", tmp_path / "rules")
    assert code == 2
    assert "rules: expected a file, found a named pipe" in said
