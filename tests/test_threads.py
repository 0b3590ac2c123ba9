"""Work side by side in threads."""

import subprocess
import sys
import threading

import pytest

from tests.requirements import ROOT
from traceprof import processes
from traceprof.processes import map_in_threads, run_in_threads, start_thread


@pytest.fixture(params=[1, 2])
def processors(request, monkeypatch):
    monkeypatch.setattr(processes, "n_processors", lambda: request.param)
    return request.param


def test_everything_is_done(processors):
    done = []
    run_in_threads([lambda number=number: done.append(number) for number in range(100)])
    assert sorted(done) == list(range(100))
    run_in_threads([])


def test_two_are_done_at_a_time(monkeypatch):
    monkeypatch.setattr(processes, "n_processors", lambda: 2)
    both = threading.Barrier(2, timeout=60)  # who waits alone breaks it
    run_in_threads([both.wait, both.wait])


def test_the_first_exception_ends_it(processors):
    done = []

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_in_threads([fail, *[lambda: done.append(1)] * 1000, fail])
    assert len(done) < 1000


def test_an_exception_of_the_other_thread_is_raised_here(monkeypatch):
    monkeypatch.setattr(processes, "n_processors", lambda: 2)
    here, has_failed = threading.current_thread(), threading.Event()

    def fail_elsewhere():
        if threading.current_thread() is here:
            assert has_failed.wait(60)
            return
        has_failed.set()
        raise ValueError("there")

    with pytest.raises(ValueError, match="there"):
        run_in_threads([fail_elsewhere, fail_elsewhere])


def test_an_interrupt_does_not_wait_for_the_other_thread(monkeypatch):
    monkeypatch.setattr(processes, "n_processors", lambda: 2)
    here, may_end, is_there = threading.current_thread(), threading.Event(), threading.Event()

    def interrupted():
        if threading.current_thread() is here:
            assert is_there.wait(60)
            raise KeyboardInterrupt
        is_there.set()
        may_end.wait(60)

    with pytest.raises(KeyboardInterrupt):
        run_in_threads([interrupted, interrupted, interrupted])
    may_end.set()


INTERRUPTED = """
import atexit, sys, threading
import traceprof.cli
from traceprof import __main__, processes

processes.n_processors = lambda: 2
here, is_busy = threading.current_thread(), threading.Event()

def task():
    if threading.current_thread() is here:
        assert is_busy.wait(60)
        raise KeyboardInterrupt
    is_busy.set()
    threading.Event().wait()

traceprof.cli.main = lambda: processes.run_in_threads([task, task])
atexit.register(print, "tidied up")
sys.argv = ["traceprof", "analyze"]
__main__.main()
"""


def test_an_interrupted_command_ends_whatever_its_other_thread_does():
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "tidied up\n", "")


def test_work_is_done_in_its_order_also_where_no_thread_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    assert map_in_threads(lambda one: one * one, range(9), 3) == [one * one for one in range(9)]
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert start_thread(lambda: None) is None
    assert map_in_threads(lambda one: one * one, range(9), 3) == [one * one for one in range(9)]
