"""Several processes at once, and processes that are killed: real ones, on a real file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.requirements import ROOT
from tests.summaries import assert_same_runs, make_summary
from traceprof.errors import StoreError
from traceprof.store import Store, database

ADD_MANY = """
import sys
from pathlib import Path
from tests.summaries import make_summary
from traceprof.store import Store

store = Store(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    print(store.add(make_summary(f"{sys.argv[2]}-{number}")), flush=True)
"""

ADD_HALF = """
import sys
from pathlib import Path
from tests.summaries import make_summary, steps_table
from traceprof.store import Store

class Results(dict):
    def items(self):
        print("half", flush=True)
        sys.stdin.readline()
        return super().items()

steps = steps_table([10] * int(sys.argv[2]))
run = make_summary("half", tables={"steps": steps}, results=Results())
Store(Path(sys.argv[1])).add(run)
"""
"""Stands still when the steps are written and nothing is committed."""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python with a program that uses the tests' runs; it ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def goes_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def journal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-journal")


def test_two_processes_that_add_200_runs_each_lose_none(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "runs.db"
    processes = [start(ADD_MANY, path, name, 200) for name in "ab"]
    for process in processes:
        assert says(process) == "ready"
    for process in processes:
        goes_on(process)  # neither has made the file yet
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    store = Store(path)
    assert sorted(store.names()) == sorted(f"{name}-{i}" for name in "ab" for i in range(200))
    assert_same_runs(store.get("b-199"), make_summary("b-199"))


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize("n_seen", [1, 7, 20])
def test_a_process_that_is_killed_loses_at_most_the_run_it_adds(
    tmp_path: Path, start: Start, n_seen: int
) -> None:
    path = tmp_path / "runs.db"
    process = start(ADD_MANY, path, "a", 10_000)
    goes_on(process)
    assert says(process) == "ready"
    said = [says(process) for _ in range(n_seen)]
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    said += process.stdout.read().split()
    assert process.wait() == -signal.SIGKILL
    store = Store(path)
    kept = store.names()
    assert kept[: len(said)] == said
    assert len(kept) <= len(said) + 1
    for name in kept:
        assert_same_runs(store.get(name), make_summary(name))
    assert store.add(make_summary("next")) == "next"


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
def test_half_of_a_run_that_is_in_the_file_already_is_undone(tmp_path: Path, start: Start) -> None:
    store = Store(tmp_path / "runs.db")
    store.add(make_summary("whole"))
    before = store.path.stat().st_size
    process = start(ADD_HALF, store.path, 100_000)  # more than SQLite keeps in memory
    assert says(process) == "half"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert store.path.stat().st_size > 2 * before
    assert journal_of(store.path).stat().st_size > 0
    assert store.names() == ["whole"]
    assert_same_runs(store.get("whole"), make_summary("whole"))
    assert store.path.stat().st_size == before
    assert not journal_of(store.path).exists()


def test_who_reads_does_not_wait_for_who_writes_and_writers_queue(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "runs.db")
    store.add(make_summary("whole"))
    process = start(ADD_HALF, store.path, 3)
    assert says(process) == "half"
    assert store.names() == ["whole"]
    with monkeypatch.context() as patched:
        patched.setattr(database, "_LOCK_WAIT_S", 0.01)
        with pytest.raises(StoreError, match=re.escape(f"{store.path}: locked for")):
            store.add(make_summary("other"))
    waiting = start(ADD_MANY, store.path, "late", 1)
    goes_on(waiting)
    assert says(waiting) == "ready"
    goes_on(process)
    assert says(waiting) == "late-0"
    assert sorted(store.names()) == ["half", "late-0", "whole"]
