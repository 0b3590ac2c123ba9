"""What a machine refuses now and then: processes, threads, reads; each from the first one on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reliability.commands import Server, serving
from tests.reliability.machine import Fault, in_folder, loaded_before
from tests.reliability.workplace import make_trace
from traceprof.formats import open_trace
from traceprof.formats.nsys.writer import write_nsys

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a library before the program")

_UNCACHED = {"TRACEPROF_CACHE": "0"}
_MOST = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("machine") / "place"
    (folder / "run").mkdir(parents=True)
    for rank in (0, 1):
        write_nsys(make_trace(6, rank=rank), folder / "run" / f"rank{rank}.sqlite")
    (folder / "work.py").write_text(
        "import traceprof\nwith traceprof.step(), traceprof.range('work'): pass\nprint('whole')\n"
    )
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder, loaded_before() | _UNCACHED) as running:
        yield running


def _numbers(planned: Iterator[Fault]) -> Iterator[tuple[int, Fault]]:
    """Yield faults from the first time on, until it does not come to one."""
    for number, fault in enumerate(planned, 1):
        yield number, fault
        if not fault.is_hit:
            assert number > 1
            return


@pytest.mark.parametrize("is_once", [False, True])
def test_ranks_side_by_side_where_processes_are_limited(
    server: Server, folder: Path, *, is_once: bool
) -> None:
    command = ("analyze", "run", "-j", "2")
    whole = server.run(command).stdout
    counts = folder / "counts"
    planned = (Fault(counts, "PROCESSES", "", one, is_once=is_once) for one in range(1, _MOST))
    codes = []
    for number, fault in _numbers(planned):
        ended = server.run(command, environment=fault.environment, cpu_s=60)
        codes.append(ended.code)
        if ended.code:
            assert ended.is_one_line, (number, ended.stderr)
            assert "ulimit -u" in ended.stderr
            assert ended.stdout == ""
        else:
            assert ended.stdout == whole, number
    # Without a single worker there is no answer; without threads beside them there is.
    assert codes[-1] == 0
    assert bool(codes[0]) != is_once


def test_a_recorded_program_ends_as_it_would_without_us(server: Server, folder: Path) -> None:
    output = folder / "recorded.sqlite"
    command = ("record", "-f", "-o", output, "--with", "torch", "--", sys.executable, "work.py")
    planned = (Fault(folder / "counts", "PROCESSES", "", one) for one in range(1, _MOST))
    n_recorded = 0
    for number, fault in _numbers(planned):
        output.unlink(missing_ok=True)
        ended = server.run(command, environment=fault.environment, cpu_s=60)
        assert ended.is_one_line, (number, ended.stderr)
        if ended.code:  # it could not even be started
            assert ended.stdout == ""
            assert "cannot be started" in ended.stderr
            assert not output.exists()
            continue
        n_recorded += 1
        assert ended.stdout == "whole\n", number
        assert int((open_trace(output).ranges["name"] == "work").sum()) == 1, number
    assert n_recorded > 1  # at least once without the thread that writes events


@pytest.mark.parametrize("way", ["short", "EIO"])
def test_reads_in_part_change_nothing_and_errors_are_a_line(
    server: Server, folder: Path, way: str
) -> None:
    path = folder / "run" / "rank0.sqlite"
    command = ("show", "kernels", path)
    whole, there = server.run(command), in_folder(folder)
    planned = (Fault(folder / "counts", "READS", way, one) for one in range(1, 10 * _MOST))
    codes = set()
    for number, fault in _numbers(planned):
        ended = server.run(command, environment={**fault.environment, **there}, cpu_s=60)
        codes.add(ended.code)
        if ended.code:
            assert (ended.is_one_line, ended.stdout) == (True, ""), (number, ended.stderr)
        else:
            assert (ended.stdout, ended.stderr) == (whole.stdout, whole.stderr), number
    assert codes == ({0} if way == "short" else {0, 3})


def test_refused_locks_are_said(server: Server, folder: Path) -> None:
    environment = {**in_folder(folder), "FAULT_LOCKS": "ENOLCK"}
    ended = server.run(("show", "kernels", "run"), environment=environment)
    assert (ended.code, ended.stderr) == (0, "")


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_recording_goes_on_while_the_time_of_day_is_set(
    server: Server, folder: Path, seconds: int
) -> None:
    """In the middle, also for the processes that start after it."""
    (folder / "set.py").write_text(
        "import os, subprocess, sys, traceprof\n"
        "for number in range(30):\n"
        "    with traceprof.step(), traceprof.range('work'):\n"
        "        if number == 15 and len(sys.argv) == 1:\n"
        "            open('is_set', 'w').close()\n"
        "            subprocess.run([sys.executable, 'set.py', 'child'], check=True)\n"
    )
    is_set = folder / "is_set"
    is_set.unlink(missing_ok=True)
    environment = {"FAULT_CLOCK": str(seconds), "FAULT_STEP": str(is_set)}
    output = folder / "set.sqlite"
    command = ("record", "-f", "-o", output, "--with", "torch", "--", sys.executable, "set.py")
    ended = server.run(command, environment=environment)
    assert (ended.code, is_set.exists()) == (0, True), ended.stderr
    trace = open_trace(output)
    work = trace.ranges.take(trace.ranges["name"] == "work")
    lengths_ns = work["end_ns"] - work["start_ns"]
    assert len(work) == 60
    assert (lengths_ns >= 0).all()
    assert trace.span.duration_ns < 600 * 10**9  # the hour was nowhere
    # The child ran within the step in which it was started.
    around = int(lengths_ns.argmax())
    children = work["process"] != work["process"][around]
    assert int(children.sum()) == 30
    assert (work["start_ns"][children] >= work["start_ns"][around]).all()
    assert (work["end_ns"][children] <= work["end_ns"][around]).all()
