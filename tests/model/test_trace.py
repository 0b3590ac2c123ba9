"""Cutting a trace to a window: clipped rows, shared bytes, what stays known."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from traceprof.errors import NotRecordedError
from traceprof.model.tables import ABSENT, TABLES, empty_table, make_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace, TraceInfo, make_trace

instants = st.integers(0, 60)
spans = st.lists(st.tuples(instants, st.integers(0, 30), st.integers(0, 1000)), max_size=10)


def copies_trace(raw: list[tuple[int, int, int]]) -> Trace:
    builder = TraceBuilder()
    for start, length, n_bytes in raw:
        builder.copy("h2d", start, start + length, n_bytes=n_bytes)
    return builder.build()


def test_a_trace_has_a_field_and_an_advice_for_every_table() -> None:
    assert {field.name for field in fields(Trace)} == {
        "info",
        "recorded",
        "recordings",
        "device_numbers_in_file",
        "span",
        "uncut",
        "hardware",
        "warmup_steps",
        "steps",
        "waits_for_roles",
        "rows",
        "waits_for_roles",
        "facts",
        *TABLES,
    }


def test_rows_are_clipped_and_those_outside_are_gone() -> None:
    trace = TraceBuilder().kernel("a", 0, 10).kernel("b", 10, 20).kernel("c", 20, 30).build()
    cut = trace.within(TimeWindow(5, 20)).kernels.to_frame()
    assert cut[["start_ns", "end_ns"]].values.tolist() == [[5, 10], [10, 20]]
    assert cut["name"].tolist() == ["a", "b"]


def test_bytes_of_a_cut_copy_are_pro_rata() -> None:
    trace = TraceBuilder().copy("h2d", 0, 10, n_bytes=1000).build()
    assert trace.within(TimeWindow(0, 3)).copies.to_frame()["n_bytes"].tolist() == [300]


def test_bytes_beyond_64_bits_in_the_product_stay_exact() -> None:
    hour, n_bytes = 3_600_000_000_000, 10**13
    trace = TraceBuilder().copy("h2d", 0, hour, n_bytes=n_bytes).build()
    assert trace.within(TimeWindow(0, hour // 4)).copies.to_frame()["n_bytes"].tolist() == [
        n_bytes // 4
    ]


@given(spans, instants)
def test_two_adjacent_windows_share_all_time_and_bytes(
    raw: list[tuple[int, int, int]], middle: int
) -> None:
    trace = copies_trace(raw)
    halves = [trace.within(TimeWindow(0, middle)), trace.within(TimeWindow(middle, 100))]
    time = sum(
        int((half.copies.to_frame()["end_ns"] - half.copies.to_frame()["start_ns"]).sum())
        for half in halves
    )
    assert time == sum(length for _, length, _ in raw)
    lasting = sum(n_bytes for _, length, n_bytes in raw if length)
    moved = [
        half.copies.to_frame()[
            half.copies.to_frame()["end_ns"] > half.copies.to_frame()["start_ns"]
        ]
        for half in halves
    ]
    assert sum(int(frame["n_bytes"].sum()) for frame in moved) == lasting


@given(spans, instants, instants, instants, instants)
def test_a_window_in_a_window_is_their_intersection(
    raw: list[tuple[int, int, int]], a: int, b: int, c: int, d: int
) -> None:
    trace = copies_trace(raw)
    outer, inner = TimeWindow(min(a, b), max(a, b)), TimeWindow(min(c, d), max(c, d))
    columns = ["start_ns", "end_ns", "n_bytes"]
    twice = (
        trace.within(outer).within(outer & inner).copies.to_frame()[columns].sort_values(columns)
    )
    once = trace.within(outer & inner).copies.to_frame()[columns].sort_values(columns)
    assert twice[columns[:2]].values.tolist() == once[columns[:2]].values.tolist()
    # Each cut rounds down to a whole byte.
    assert (np.abs(twice["n_bytes"].to_numpy() - once["n_bytes"].to_numpy()) <= 1).all()


def test_what_is_cut_already_is_not_cut_again() -> None:
    window = TimeWindow(5, 20)
    cut = TraceBuilder().kernel("gemm", 0, 30).build().within(window)
    assert cut.within(TimeWindow(5, 20)) is cut
    assert cut.within(TimeWindow(5, 19)).kernels.to_frame()["end_ns"].tolist() == [19]


def test_an_unknown_size_stays_unknown() -> None:
    trace = TraceBuilder().copy("h2d", 0, 10, n_bytes=ABSENT).build()
    assert trace.within(TimeWindow(0, 5)).copies.to_frame()["n_bytes"].tolist() == [ABSENT]


def test_a_device_without_work_in_the_window_still_counts_as_used() -> None:
    trace = TraceBuilder().kernel("a", 0, 10).kernel("b", 50, 60, device=1).build()
    devices = trace.within(TimeWindow(0, 20)).devices.to_frame()
    assert devices[["device", "used"]].values.tolist() == [[0, 1], [1, 1]]


def test_a_device_that_worked_and_is_not_listed_has_no_name() -> None:
    devices = TraceBuilder().device(0, "A").kernel("a", 0, 10, device=1).build().devices.to_frame()
    assert devices[["device", "name", "used"]].values.tolist() == [[0, "A", 0], [1, "", 1]]


def test_what_was_not_recorded_says_how_to_record_it() -> None:
    trace = make_trace(TraceInfo(format="nsys"), {}, recorded=())
    with pytest.raises(NotRecordedError, match=r"no kernels recorded: .*--trace=cuda"):
        trace.require("kernels")


def test_tables_are_sorted_with_the_enclosing_row_first() -> None:
    table = make_table(
        "ranges", {"start_ns": [5, 0, 0], "end_ns": [6, 3, 9], "name": ["c", "b", "a"]}
    )
    assert table["name"].tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("name", TABLES)
def test_an_empty_table_has_the_columns_of_its_contract(name: str) -> None:
    assert list(empty_table(name).columns) == list(TABLES[name].columns)


def test_a_column_that_no_table_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no columns"):
        make_table("marks", {"start_ns": [1], "color": [2]})
