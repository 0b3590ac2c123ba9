"""Windows that are sets of spans, and what is cut to them: compared with single instants."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from traceprof.model.intervals import Intervals
from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

END = 24
"""All instants are below it."""


@st.composite
def windows(draw: st.DrawFn) -> TimeWindow:
    """Return a window of up to END ns with up to three gaps, none of them at its ends."""
    n_gaps = draw(st.integers(0, 3))
    size = 2 * n_gaps + 2
    borders = draw(st.lists(st.integers(0, END - 1), min_size=size, max_size=size, unique=True))
    start, *inner, end = sorted(borders)
    return TimeWindow(start, end, tuple(zip(inner[::2], inner[1::2], strict=True)))


rows = st.lists(st.tuples(st.integers(0, END - 1), st.integers(0, 12)), max_size=8)


def instants(window: TimeWindow) -> set[int]:
    """Return the instants of a window, one by one."""
    left_out = {i for start, end in window.gaps for i in range(start, end)}
    return set(range(window.start_ns, window.end_ns)) - left_out


def of(times: Intervals) -> set[int]:
    pairs = zip(times.starts.tolist(), times.ends.tolist(), strict=True)
    return {i for start, end in pairs for i in range(start, end)}


def spans_of(own: Iterable[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = [*own]
    starts = np.array([start for start, _ in pairs], np.int64)
    return starts, starts + np.array([length for _, length in pairs], np.int64)


def test_a_window_with_a_gap() -> None:
    window = TimeWindow(10, 50, ((20, 30),), is_of_steps=True)
    assert window.duration_ns == 30
    assert of(window.times) == {*range(10, 20), *range(30, 50)}
    assert window.hull == TimeWindow(10, 50, is_of_steps=True)
    assert window.moved(5) == TimeWindow(15, 55, ((25, 35),), is_of_steps=True)
    at = np.array([0, 10, 19, 20, 29, 30, 49, 50, 60])
    assert window.holds(at).tolist() == [i in (10, 19, 30, 49) for i in at]
    assert window.elapsed_ns(at).tolist() == [0, 0, 9, 10, 10, 10, 29, 30, 30]
    starts, ends = np.array([20, 19, 20, 22, 30, 20]), np.array([30, 21, 31, 22, 30, 20])
    # In the gap, before it, behind it, an instant in it, at its end, at its start.
    assert window.overlaps(starts, ends).tolist() == [False, True, True, False, True, False]


def test_a_window_of_times_has_what_is_between_them_as_gaps() -> None:
    times = Intervals.union_of(np.array([5, 20, 12]), np.array([10, 30, 15]))
    assert TimeWindow.of(times) == TimeWindow(5, 30, ((10, 12), (15, 20)))
    assert TimeWindow.of(Intervals.empty()).duration_ns == 0


@given(windows())
def test_its_times_are_its_instants(window: TimeWindow) -> None:
    assert of(window.times) == instants(window)
    assert window.duration_ns == len(instants(window))
    assert TimeWindow.of(window.times) == window


@given(windows(), windows())
def test_what_is_in_both_is_their_intersection(one: TimeWindow, other: TimeWindow) -> None:
    both = one & other
    assert instants(both) == instants(one) & instants(other)
    assert both == other & one
    assert both.duration_ns == len(instants(both))


@given(windows(), st.integers(-30, 30))
def test_moved_is_each_instant_moved(window: TimeWindow, ns: int) -> None:
    assert instants(window.moved(ns)) == {i + ns for i in instants(window)}


@given(windows(), rows)
def test_rows_overlap_that_have_an_instant_inside(
    window: TimeWindow, own: list[tuple[int, int]]
) -> None:
    starts, ends = spans_of(own)
    inside = instants(window)
    expected = [
        bool(inside & set(range(start, start + length))) if length else start in inside
        for start, length in own
    ]
    assert window.overlaps(starts, ends).tolist() == expected
    assert window.holds(starts).tolist() == [start in inside for start, _ in own]
    elapsed = [len({i for i in inside if i < start}) for start, _ in own]
    assert window.elapsed_ns(starts).tolist() == elapsed


def trace_of(own: list[tuple[int, int]]) -> Trace:
    """Return a trace with a kernel, a copy of 100 bytes a ns, a range and a mark for each row."""
    builder = TraceBuilder()
    for number, (start, length) in enumerate(own):
        end = start + length
        builder.kernel(f"k{number}", start, end).range(f"r{number}", start, end)
        builder.copy("h2d", start, end, n_bytes=100 * length).mark(f"m{number}", start)
    return builder.build(span=(0, 2 * END))


@given(windows(), rows)
def test_rows_are_cut_to_their_instants_inside(
    window: TimeWindow, own: list[tuple[int, int]]
) -> None:
    trace = trace_of(own)
    cut, inside = trace.within(window), instants(window)
    for name in ("kernels", "ranges", "marks", "copies"):
        whole, part = trace.table(name), cut.table(name)
        has_spans = TABLES[name].has_spans
        starts = whole["start_ns"]
        ends = whole["end_ns"] if has_spans else starts
        kept = {}
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            own_instants = inside & set(range(start, end))
            if own_instants:
                kept[row] = (min(own_instants), max(own_instants) + 1)
            elif start == end and start in inside:
                kept[row] = (start, start)
        places = np.arange(len(whole))[cut.rows_in_whole(name)].tolist()
        assert sorted(places) == sorted(kept)
        own_ends = part["end_ns"] if has_spans else part["start_ns"]
        found = zip(part["start_ns"].tolist(), own_ends.tolist(), strict=True)
        assert [*found] == [kept[place] for place in places]
        assert part["start_ns"].tolist() == sorted(part["start_ns"].tolist())
        if name == "copies":
            lengths = own_ends - part["start_ns"]
            assert part["n_bytes"].tolist() == (100 * lengths).tolist()


def test_a_row_in_a_gap_is_gone_and_one_over_it_stays_one() -> None:
    trace = (
        TraceBuilder()
        .kernel("before and in", 15, 25)
        .kernel("in", 21, 29)
        .kernel("in and behind", 25, 35)
        .kernel("over", 18, 40)
        .build(span=(0, 60))
    )
    kernels = trace.within(TimeWindow(10, 50, ((20, 30),))).kernels.to_frame()
    rows_of = {name: (start, end) for name, start, end in kernels[_COLUMNS].values.tolist()}
    assert rows_of == {"before and in": (15, 20), "over": (18, 40), "in and behind": (30, 35)}


_COLUMNS = ["name", "start_ns", "end_ns"]


def test_an_instant_at_the_end_of_a_gap_stays_an_instant() -> None:
    trace = TraceBuilder().kernel("a", 30, 30).range("b", 30, 30).build(span=(0, 60))
    cut = trace.within(TimeWindow(10, 50, ((20, 30),)))
    for table in (cut.kernels, cut.ranges):
        assert (table["start_ns"].tolist(), table["end_ns"].tolist()) == ([30], [30])


@given(windows(), windows(), rows)
def test_a_window_in_a_window_is_cut_as_both_at_once(
    one: TimeWindow, other: TimeWindow, own: list[tuple[int, int]]
) -> None:
    trace = trace_of(own)
    both = one & other
    if both.duration_ns:
        once, twice = trace.within(both), trace.within(one).within(both)
        for name in ("kernels", "ranges", "copies"):
            times = once.table(name).to_frame()[["start_ns", "end_ns"]].values.tolist()
            assert twice.table(name).to_frame()[["start_ns", "end_ns"]].values.tolist() == times


@pytest.mark.parametrize("name", ["kernels", "marks"])
def test_an_empty_table_is_cut_to_an_empty_one(name: str) -> None:
    cut = TraceBuilder().build(span=(0, 60)).within(TimeWindow(10, 50, ((20, 30),)))
    assert cut.table(name).empty
