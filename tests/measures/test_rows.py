"""What measures ask of tables again and again."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.measures.rows import (
    are_first,
    are_named,
    bounds,
    busiest_lanes,
    covered_ns,
    grouped,
    lengths_of,
    overlaps,
    ratio_of,
    span_at,
    sums_at,
    union_of,
    unions_by,
    unions_of,
    where_known,
)
from traceprof.model import grouping
from traceprof.model.intervals import Intervals
from traceprof.model.table import Names, Table

ROWS = Table({"process": [2, 1, 2], "start_ns": [0, 5, 10], "end_ns": [10, 9, 15]})


def test_times_of_rows() -> None:
    assert [own.tolist() for own in bounds(ROWS)] == [[0, 5, 10], [10, 9, 15]]
    assert lengths_of(ROWS).tolist() == [10, 4, 5]
    assert union_of(ROWS) == Intervals.single(0, 15)
    assert unions_by(ROWS) == {1: Intervals.single(5, 9), 2: Intervals.single(0, 15)}


@given(
    st.lists(st.tuples(*(st.integers(0, n) for n in (2, 1, 20, 9)), st.booleans()), max_size=12),
    st.sampled_from((2, 1 << 20)),
    st.booleans(),
)
def test_times_of_rows_with_the_same_keys(
    rows: list[tuple[int, int, int, int, bool]], at_once: int, has_some_devices_only: bool
) -> None:
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(4)]
    one, other, starts, ends = *columns[:3], columns[2] + columns[3]
    where = np.array([row[4] for row in rows], np.bool_) if has_some_devices_only else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "_PIECE_ROWS", at_once)
        found = unions_of(starts, ends, one, other, where=where)
    kept = np.ones(len(rows), np.bool_) if where is None else where
    keys = sorted(set(zip(one[kept].tolist(), other[kept].tolist(), strict=True)))
    assert list(found) == keys
    for key in keys:
        own = kept & (one == key[0]) & (other == key[1])
        assert found[key] == Intervals.union_of(starts[own], ends[own])


def test_what_is_covered_is_that_of_the_process_and_not_known_of_others() -> None:
    covered = covered_ns(ROWS, {2: Intervals.single(8, 12)})
    np.testing.assert_array_equal(covered, [2, np.nan, 2])


def test_the_span_that_holds_an_instant() -> None:
    starts, ends = np.array([0, 10]), np.array([5, 20])
    assert span_at(starts, ends, np.array([-1, 0, 5, 10, 19, 20])).tolist() == [-1, 0, -1, 1, 1, -1]
    nothing = np.empty(0, np.int64)
    assert span_at(nothing, nothing, np.array([1])).tolist() == [-1]


def test_from_when_to_when_spans_overlap() -> None:
    one = np.array([0, 10]), np.array([10, 20])
    other = np.array([5, 15]), np.array([12, 30])
    found = overlaps(*one, *other)
    assert sorted(zip(*(own.tolist() for own in found), strict=True)) == [
        (0, 0, 5, 10),
        (1, 0, 10, 12),
        (1, 1, 15, 20),
    ]


def test_the_first_rows_of_each_stretch() -> None:
    assert are_first(np.array([1, 1, 2]), np.array([0, 0, 0])).tolist() == [True, False, True]
    assert are_first(np.array([], np.int64)).tolist() == []


def test_the_busiest_lane_of_each_process_is_the_first_of_equals() -> None:
    rows = np.arange(2)
    assert busiest_lanes({(1, 7): rows[:1], (1, 8): rows, (1, 9): rows}) == {1: (1, 8)}


def test_rows_of_the_same_names_and_numbers() -> None:
    names = Names(np.array([1, 0, 1]), ["b", "a"])
    groups, keys = grouped({"name": names, "process": ROWS["process"]})
    assert (keys["name"].tolist(), keys["process"].tolist()) == (["b", "a"], [1, 2])
    assert groups.counts.tolist() == [1, 2]


def test_parts_of_nothing_and_of_what_is_not_known_are_not_known() -> None:
    np.testing.assert_array_equal(ratio_of([1, 1, np.nan], [2, 0, 1]), [0.5, np.nan, np.nan])
    sizes = np.array([1, 2])
    assert where_known(sizes, np.array([True, True])) is sizes
    np.testing.assert_array_equal(where_known(sizes, np.array([True, False])), [1, np.nan])


def test_sums_at_places() -> None:
    places = np.array([1, -1, 1])
    assert sums_at(places, np.array([3, 4, 5]), 3).tolist() == [0, 8, 0]
    assert sums_at(places, 1, 2).tolist() == [0, 2]


def test_names_are_found_by_a_pattern() -> None:
    names = Names.of(["load", "save", "save"])
    assert are_named(names, re.compile("oa")).tolist() == [True, False, False]
    assert are_named(names[:0], re.compile("oa")).tolist() == []
