"""Copies in slices of time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder, plain
from tests.running import run
from traceprof.model.timing import TimeWindow


def test_bytes_over_time_are_shared_out_by_time() -> None:
    # Slices of 10 ns; the copy covers a half of the first and all of the second.
    trace = TraceBuilder().copy("h2d", 5, 20, n_bytes=150).build(span=(0, 1000))
    table = run("bandwidth", trace).to_frame()
    assert plain(table, "at_ns", "duration_ns", "size_bytes", "busy_ns") == [
        (0, 10, 50, 5),
        (10, 10, 100, 10),
    ]
    assert table["rate_bytes_per_s"].tolist() == pytest.approx([5e9, 10e9])


def test_a_copy_inside_a_device_reads_and_writes() -> None:
    trace = (
        TraceBuilder()
        .device(0, "NVIDIA GPU", memory_bytes_per_s=2_000_000_000_000)
        .copy("d2d", 0, 1, n_bytes=500)
        .build(span=(0, 1))
    )
    (row,) = run("bandwidth", trace).to_frame().to_dict("records")
    assert row["peak_ratio"] == pytest.approx(0.5)


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 3000), st.integers(1, 10**12)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 9000),
)
def test_slices_add_up_to_all_bytes(copies: list[tuple[int, int, int]], length: int) -> None:
    builder = TraceBuilder()
    for start, duration, n_bytes in copies:
        builder.copy("h2d", start, start + duration, n_bytes=n_bytes)
    trace = builder.build(span=(0, 8000)).within(TimeWindow(0, length))
    table = run("bandwidth", trace).to_frame()
    assert table["size_bytes"].sum() == trace.copies["n_bytes"].sum()
