"""What was computed of a recording is kept with it, by name, for as long as it is there."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.builders import TraceBuilder
from traceprof.cache import scratch
from traceprof.measures.facts import fact, kept_on_disk, of_rows, of_window, without_keeping
from traceprof.model.intervals import Intervals
from traceprof.model.table import Names, Table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

ASKED: list[tuple[int, str]] = []


def two_kernels() -> Trace:
    ASKED.clear()
    return TraceBuilder().kernel("a", 0, 10).kernel("b", 20, 30).build()


@of_window
def count_inside(trace: Trace, name: str, factor: int = 1) -> int:
    ASKED.append((len(trace.kernels), name))
    return len(trace.kernels) * factor


@fact
def count_of_whole(trace: Trace) -> int:
    ASKED.append((len(trace.kernels), ""))
    return len(trace.kernels)


@fact
def copies_of_whole(trace: Trace) -> int:
    return len(trace.copies)


def test_what_belongs_to_a_window_is_computed_once_for_each() -> None:
    trace = two_kernels()
    part = trace.within(TimeWindow(0, 15))
    asked = [(trace, "x"), (trace, "x"), (part, "x"), (trace, "y")]
    assert [count_inside(of, name) for of, name in asked] == [2, 2, 1, 2]
    assert count_inside(trace, "x", factor=3) == 6
    assert ASKED == [(2, "x"), (1, "x"), (2, "y"), (2, "x")]


def test_a_fact_sees_the_whole_and_every_window_shares_it() -> None:
    trace = two_kernels()
    windows = [trace.within(TimeWindow(start, start + 5)) for start in (0, 5, 25)]
    assert [count_of_whole(part) for part in windows] == [2, 2, 2]
    assert ASKED == [(2, "")]


def test_two_functions_do_not_share_what_is_kept() -> None:
    trace = two_kernels()
    assert (count_of_whole(trace), copies_of_whole(trace)) == (2, 0)
    with pytest.raises(TypeError, match="name of its own"):
        fact(lambda of: len(of.kernels))


def test_facts_travel_with_the_trace() -> None:
    trace = two_kernels()
    count_of_whole(trace)
    there = pickle.loads(pickle.dumps(trace))
    assert count_of_whole(there.within(TimeWindow(0, 1))) == 2
    assert ASKED == [(2, "")]


def test_another_trace_starts_anew() -> None:
    trace = two_kernels()
    count_of_whole(trace)
    assert count_of_whole(trace.with_warmup(1)) == 2
    assert len(ASKED) == 2


def test_what_is_kept_goes_with_the_trace() -> None:
    class Answer:
        """Something that can be watched."""

    @fact
    def make_answer(_: Trace) -> Answer:
        return Answer()

    trace = two_kernels()
    watched = weakref.ref(make_answer(trace))
    gc.collect()
    assert watched() is make_answer(trace)
    del trace
    gc.collect()
    assert watched() is None


def test_what_is_asked_once_is_not_kept_but_what_is_kept_is_used() -> None:
    @of_window
    def count_kernels(trace: Trace) -> int:
        ASKED.append((len(trace.kernels), "once"))
        return len(trace.kernels)

    trace = two_kernels()
    assert [without_keeping(count_kernels, trace) for _ in range(2)] == [2, 2]
    assert ASKED == [(2, "once")] * 2
    assert not trace.facts
    assert [count_kernels(trace), without_keeping(count_kernels, trace)] == [2, 2]
    assert ASKED == [(2, "once")] * 3


BEGUN, MAY_END = threading.Event(), threading.Event()


@fact
def slow_fact(trace: Trace) -> list[int]:
    BEGUN.set()
    assert MAY_END.wait(60)
    return [len(trace.kernels)]


def test_what_two_threads_ask_is_computed_once() -> None:
    trace = two_kernels()
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append(slow_fact(trace)), daemon=True)
        for _ in range(4)
    ]
    for one in threads:
        one.start()
    assert BEGUN.wait(60)
    MAY_END.set()
    for one in threads:
        one.join(60)
    assert found == [[2]] * 4
    assert all(one is found[0] for one in found)


@fact
def failing_fact(trace: Trace) -> int:
    ASKED.append((len(trace.kernels), "failing"))
    raise ValueError("no")


def test_what_fails_is_asked_again() -> None:
    trace = two_kernels()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            failing_fact(trace)
    assert len(ASKED) == 2


@of_rows
def twice_the_start(trace: Trace, table: str) -> Any:
    ASKED.append((len(trace.table(table).to_frame()), table))
    return 2 * trace.table(table).to_frame()["start_ns"].to_numpy()


def test_a_fact_of_rows_is_computed_of_the_whole_and_told_of_the_window() -> None:
    trace = two_kernels()
    assert twice_the_start(trace.within(TimeWindow(15, 40)), "kernels").tolist() == [40]
    assert twice_the_start(trace, "kernels").tolist() == [0, 40]
    assert ASKED == [(2, "kernels")]


class _Ways(NamedTuple):
    lengths: np.ndarray
    text: str


@dataclass(frozen=True, slots=True)
class _Found:
    names: Names
    time: Intervals
    ways: _Ways
    of_device: dict[int, tuple[np.ndarray, int]]
    table: Table


@fact
def much_of_whole(trace: Trace) -> _Found:
    ASKED.append((len(trace.kernels), "much"))
    starts, ends = trace.kernels["start_ns"], trace.kernels["end_ns"]
    return _Found(
        trace.kernels["name"],
        Intervals.union_of(starts, ends),
        _Ways(ends - starts, "as it is"),
        {0: (ends.copy(), 3)},
        Table({"start_ns": starts + 1}),
    )


def test_large_arrays_of_what_is_known_are_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks sees them, in whatever they are; nobody can change them for the others."""
    monkeypatch.setattr(scratch, "MIN_DISK_BYTES", 1)
    monkeypatch.setattr(scratch, "MAX_KEPT_BYTES", 0)
    trace = two_kernels()
    for _ in range(2):
        found = much_of_whole(trace)
        assert found.names.tolist() == ["a", "b"]
        assert found.time == Intervals.union_of([0, 20], [10, 30])
        assert found.ways.lengths.tolist() == [10, 10]
        assert found.ways.text == "as it is"
        assert found.of_device[0][0].tolist() == [10, 30]
        assert found.table["start_ns"].tolist() == [1, 21]
        for array in (found.ways.lengths, found.time.starts, found.names.packed.stored):
            assert not array.flags.writeable
    assert ASKED == [(2, "much")]
    kept = pickle.loads(pickle.dumps(trace))
    assert much_of_whole(kept).ways.lengths.tolist() == [10, 10]
    assert ASKED == [(2, "much")]


def test_what_is_set_apart_is_the_same_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is on the disk meanwhile, where there is a file for what is large; else as it is."""
    time = Intervals.union_of([0, 20], [10, 30])
    assert kept_on_disk({0: time})()[0] == time
    monkeypatch.setattr(scratch, "MIN_DISK_BYTES", 1)
    monkeypatch.setattr(scratch, "MAX_KEPT_BYTES", 0)
    scratch.store_on_disk(np.arange(8))
    starts = np.array([0, 20])
    give, held = kept_on_disk({0: Intervals(starts, starts + 10)}), weakref.ref(starts)
    del starts
    assert held() is None
    assert give()[0] == time
    assert not give()[0].starts.flags.writeable
