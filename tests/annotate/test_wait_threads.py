"""Waiting for collectives in threads of our own."""

import sys
import threading
import types
import weakref
from datetime import timedelta

import pytest


class Work:
    """Work that is done when somebody says so; waiting for it may fail."""

    def __init__(self, fails=False):
        self.is_done = threading.Event()
        self.is_waited_for = threading.Event()
        self.fails = fails

    def is_completed(self):
        return self.is_done.is_set()

    done = is_completed

    def wait(self, timeout=timedelta(seconds=10)):
        self.is_waited_for.set()
        if not self.is_done.wait(timeout.total_seconds()):
            raise RuntimeError("Operation timed out!")
        if self.fails:
            raise RuntimeError("the group was destroyed")


@pytest.fixture
def waiting(runtime):
    """The module, in a process that records."""
    runtime("session").begin()
    return runtime("wait_threads")


@pytest.mark.parametrize("kind", ["work", "boxed", "future"])
def test_a_call_is_told_when_its_work_is_done_or_has_failed(waiting, kind):
    wait = {
        "work": lambda work: waiting.WaitsForWork(work, Work.wait),
        "boxed": waiting.WaitsForBoxedWork,
        "future": waiting.WaitsForFuture,
    }[kind]
    threads = waiting.WaitThreads()
    told = []
    is_told = threading.Semaphore(0)
    first, second = Work(), Work(fails=True)
    for name, work in (("first", first), ("second", second)):

        def tell(name=name):
            told.append(name)
            is_told.release()

        threads.put(wait(work), tell)
    assert told == []
    second.is_done.set()
    assert is_told.acquire(timeout=10)
    assert told == ["second"]  # another thread did not have to wait for the first
    first.is_done.set()
    assert is_told.acquire(timeout=10)
    assert told == ["second", "first"]
    threads._stop()
    assert not any(thread.is_alive() for thread in threads._threads)


def has_failed(monkeypatch, _waiting):
    monkeypatch.setattr(sys, "last_value", ValueError(), raising=False)


def is_forked_by_multiprocessing(monkeypatch, waiting):
    monkeypatch.setattr(waiting, "parent_process", object)
    monkeypatch.setattr(waiting, "get_start_method", lambda: "fork")


@pytest.mark.parametrize("kind", ["work", "future"])
@pytest.mark.parametrize("program", [has_failed, is_forked_by_multiprocessing])
def test_work_that_never_ends_does_not_keep_a_program(waiting, monkeypatch, program, kind):
    monkeypatch.setattr(waiting, "_GRACE_S", 0.01)
    program(monkeypatch, waiting)
    work = Work()
    threads = waiting.WaitThreads()
    wait = waiting.WaitsForWork(work, Work.wait) if kind == "work" else waiting.WaitsForFuture(work)
    told = []
    for number in range(9):  # more than there are threads
        threads.put(wait, lambda number=number: told.append(number))
    if kind == "work":
        assert work.is_waited_for.wait(10)
    threads._stop()
    assert not any(thread.is_alive() for thread in threads._threads)
    assert sorted(told) == list(range(9))  # the end of recording is the last that is known of them


def test_calls_of_gloo_are_waited_for_and_nothing_else_is(waiting, monkeypatch):
    """The work is done only when a future, which would never be, has been given up."""
    monkeypatch.setattr(waiting, "_GRACE_S", 0.01)
    work, told = Work(), []

    def give_up():
        told.append("future")
        work.is_done.set()

    threads = waiting.WaitThreads()
    threads.put(waiting.WaitsForWork(work, Work.wait), lambda: told.append("work"))
    threads.put(waiting.WaitsForFuture(Work()), give_up)
    threads._stop()
    assert told == ["future", "work"]
    assert not any(thread.is_alive() for thread in threads._threads)


def test_a_thread_that_is_slow_on_a_busy_machine_is_waited_for(waiting, monkeypatch):
    """It sees that recording is over only when nobody would wait with a limit any more.

    Left alone it would abort the program.
    """
    monkeypatch.setattr(waiting, "_GRACE_S", 0.01)
    has_failed(monkeypatch, waiting)
    sees_it = threading.Event()
    threads = waiting.WaitThreads()
    join = threads._join

    def join_and_let_see(most_s=None):
        if most_s is None:
            sees_it.set()
        join(most_s)

    class Slow:
        is_by_gloo = True

        def __call__(self, is_left):
            is_left.wait()
            sees_it.wait()

    monkeypatch.setattr(threads, "_join", join_and_let_see)
    threads.put(Slow(), lambda: None)
    threads._stop()
    assert not any(thread.is_alive() for thread in threads._threads)


def test_work_is_let_go_of_when_it_is_done_and_kept_when_the_program_ends(waiting, monkeypatch):
    """What gloo's thread lets go of after the interpreter's end would abort the program."""
    now_s, paused_s, is_told = 100.0, [], threading.Semaphore(0)
    threads = waiting.WaitThreads()

    class Clock:
        monotonic = staticmethod(lambda: now_s)
        sleep = staticmethod(paused_s.append)

    monkeypatch.setattr(waiting, "time", Clock)

    def hand_in(work):
        threads.put(waiting.WaitsForWork(work, Work.wait), is_told.release)
        return weakref.ref(work)

    early, late = Work(), Work()
    gone = threading.Event()
    weakref.finalize(early, gone.set)
    early.is_done.set()
    hand_in(early)
    assert is_told.acquire(timeout=10)
    del early
    assert gone.wait(10)
    kept = hand_in(late)
    join, finish = threads._join, late.is_done.set

    def end_and_join(most_s=None):
        finish()
        join(None if most_s is None else 10)

    monkeypatch.setattr(threads, "_join", end_and_join)
    now_s += 0.01
    threads._stop()
    assert paused_s == pytest.approx([waiting._RELEASE_S - 0.01])
    del late
    assert kept() is not None


def test_a_wait_that_blocks_the_program_is_communication(runtime, monkeypatch):
    session, collectives = runtime("session"), runtime("hook_collectives")
    times = iter([1_000, 1_000_000, 2_000_000, 2_001_000])  # the second wait does not block
    ranges = []
    emitter = types.SimpleNamespace(add_past=lambda *row: ranges.append(row))
    monkeypatch.setattr(session, "active", True)
    monkeypatch.setattr(session, "emitter", lambda: emitter)
    monkeypatch.setattr(collectives, "time_ns", lambda: next(times))
    work_class = type("Work", (), {"wait": lambda _self: True})
    collectives._PendingCalls(work_class)
    assert work_class().wait() and work_class().wait()
    assert ranges == [(1_000, 1_000_000, "comm:wait")]
