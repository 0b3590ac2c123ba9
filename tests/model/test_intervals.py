"""The algebra of intervals, against a bitmap of instants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.errors import TraceError
from traceprof.model import intervals as intervals_module
from traceprof.model.activity import DeviceTime
from traceprof.model.intervals import (
    Growing,
    Intervals,
    check_pairs,
    nesting_depth,
    overlapping_pairs,
    union_lengths,
)
from traceprof.model.nesting import parents_of

SIZE = 40
pairs = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=12)


def as_set(raw: list[tuple[int, int]]) -> tuple[Intervals, set[int]]:
    starts, ends = [a for a, _ in raw], [b for _, b in raw]
    bitmap = {instant for a, b in raw for instant in range(a, b)}
    return Intervals.union_of(starts, ends), bitmap


def bitmap_of(intervals: Intervals) -> set[int]:
    spans = zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True)
    return {instant for a, b in spans for instant in range(a, b)}


def assert_canonical(intervals: Intervals) -> None:
    assert (intervals.ends > intervals.starts).all()
    assert (intervals.starts[1:] > intervals.ends[:-1]).all()


@given(pairs)
def test_union_of_any_pairs_is_their_bitmap(raw: list[tuple[int, int]]) -> None:
    intervals, bitmap = as_set(raw)
    assert_canonical(intervals)
    assert bitmap_of(intervals) == bitmap
    assert intervals.total_ns == len(bitmap)


@given(pairs, pairs)
def test_set_operations_are_those_of_bitmaps(
    raw_a: list[tuple[int, int]], raw_b: list[tuple[int, int]]
) -> None:
    (a, in_a), (b, in_b) = as_set(raw_a), as_set(raw_b)
    for result, expected in ((a | b, in_a | in_b), (a & b, in_a & in_b), (a - b, in_a - in_b)):
        assert_canonical(result)
        assert bitmap_of(result) == expected


@given(pairs, pairs)
def test_large_sets_are_put_together_in_pieces(
    raw_a: list[tuple[int, int]], raw_b: list[tuple[int, int]]
) -> None:
    (a, in_a), (b, in_b) = as_set(raw_a), as_set(raw_b)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals_module, "_PIECE_INTERVALS", 4)
        found = ((a | b, in_a | in_b), (a & b, in_a & in_b), (a - b, in_a - in_b))
    for result, expected in found:
        assert_canonical(result)
        assert bitmap_of(result) == expected


@given(pairs)
def test_a_union_of_many_is_made_in_pieces(raw: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals_module, "_PIECE_INTERVALS", 2)
        found, expected = as_set(raw)
    assert_canonical(found)
    assert bitmap_of(found) == expected


@given(st.lists(pairs, max_size=5))
def test_a_union_grows_by_sets_in_any_order(every: list[list[tuple[int, int]]]) -> None:
    sets = [as_set(raw) for raw in every]
    growing = Growing(sum(len(own) for own, _ in sets))
    for own, _ in sets:
        growing.add(own)
    assert_canonical(growing.found())
    assert bitmap_of(growing.found()) == set().union(*(expected for _, expected in sets))


@given(pairs, pairs)
def test_many_queries_are_answered_in_pieces(
    raw: list[tuple[int, int]], queries: list[tuple[int, int]]
) -> None:
    intervals, bitmap = as_set(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals_module, "_PIECE_INTERVALS", 3)
        covered = intervals.covered_ns([a for a, _ in queries], [b for _, b in queries])
    assert covered.tolist() == [len(bitmap & set(range(a, b))) for a, b in queries]


def test_what_a_window_does_not_cut_is_the_same_set() -> None:
    """Then what was derived from it is not computed again."""
    work, window = Intervals.union_of([1, 5], [3, 8]), Intervals.single(1, 8)
    empty = Intervals.empty()
    time = DeviceTime(work, Intervals.single(2, 6), empty, empty)
    assert time.within(window) is time
    assert work.clip(0, 9) is work
    assert (work.clip(1, 7).ends.tolist(), work.ends.tolist()) == ([3, 7], [3, 8])
    assert time.within(Intervals.single(1, 7)).kernel == Intervals.single(1, 7)


@given(pairs, st.integers(0, SIZE), st.integers(0, SIZE))
def test_clip_and_gaps_share_a_window(raw: list[tuple[int, int]], start: int, end: int) -> None:
    intervals, bitmap = as_set(raw)
    window = set(range(start, end))
    assert bitmap_of(intervals.clip(start, end)) == bitmap & window
    assert bitmap_of(intervals.gaps(start, end)) == window - bitmap


@given(pairs, pairs)
def test_covered_ns_counts_instants_of_each_query(
    raw: list[tuple[int, int]], queries: list[tuple[int, int]]
) -> None:
    intervals, bitmap = as_set(raw)
    covered = intervals.covered_ns([a for a, _ in queries], [b for _, b in queries])
    assert covered.tolist() == [len(bitmap & set(range(a, b))) for a, b in queries]


def test_touching_intervals_become_one() -> None:
    assert Intervals.union_of([5, 0], [9, 5]) == Intervals.single(0, 9)


@given(pairs)
def test_depth_and_parent_of_nested_intervals_are_those_of_a_stack(
    raw: list[tuple[int, int]],
) -> None:
    nested = properly_nested(raw)
    starts = np.array([a for a, _ in nested], np.int64)
    ends = np.array([b for _, b in nested], np.int64)
    stack: list[int] = []
    depths, parents = [], []
    for i, (start, _) in enumerate(nested):
        while stack and nested[stack[-1]][1] <= start:
            stack.pop()
        depths.append(len(stack))
        parents.append(stack[-1] if stack else -1)
        stack.append(i)
    assert nesting_depth(starts, ends).tolist() == depths
    assert parents_of(np.array(depths, np.int64)).tolist() == parents


def properly_nested(raw: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return those of ``raw`` (none of them empty) that cross no one before them."""
    kept: list[tuple[int, int]] = []
    for a, b in sorted({(a, b) for a, b in raw if a < b}, key=lambda p: (p[0], -p[1])):
        if all(b <= d or a >= d for _, d in kept):
            kept.append((a, b))
    return kept


def test_an_empty_interval_inside_another_is_one_deeper() -> None:
    starts = np.array([0, 5, 5], np.int64)
    ends = np.array([10, 10, 5], np.int64)
    assert nesting_depth(starts, ends).tolist() == [0, 1, 2]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(-SIZE, SIZE), st.integers(-SIZE, SIZE)),
        max_size=30,
    ),
    st.integers(0, 1 << 62),
    st.sampled_from((2, 400_000)),
)
def test_union_lengths_are_those_of_the_union_of_each_key(
    rows: list[tuple[int, int, int]], offset: int, at_once: int
) -> None:
    keys, starts, ends = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    starts, ends = starts + offset, ends + offset
    expected = [Intervals.union_of(starts[keys == k], ends[keys == k]).total_ns for k in range(6)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals_module, "_PIECE_INTERVALS", at_once)
        assert union_lengths(keys, starts, ends, 6).tolist() == expected


def test_pairs_that_would_fill_memory_are_refused() -> None:
    check_pairs(n_pairs=1_000_000 + 32 * 50, n_rows=50)
    starts, ends = np.zeros(3_000, np.int64), np.full(3_000, 3_000)
    others = np.arange(3_000)
    with pytest.raises(TraceError, match=r"9000000 overlapping pairs.*--window"):
        overlapping_pairs(starts, ends, others, others + 1)


def test_union_lengths_of_instants_that_span_all_that_there_is() -> None:
    far = 1 << 61
    keys, starts = [0, 0, 5, 5], [0, 10, far, 3]
    ends = [20, far, far + 7, 4]
    assert union_lengths(keys, starts, ends, 6).tolist() == [far, 0, 0, 0, 0, 8]
