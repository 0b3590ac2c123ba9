"""The analyses that are tables by name: kernels, copies, ranges, operators, phases."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from traceprof.analysis.device.copies import measure_copies
from traceprof.analysis.device.kernels import measure_kernels
from traceprof.analysis.host.ops import measure_operators
from traceprof.analysis.host.ranges import measure_ranges, plain_name
from traceprof.analysis.training.phases import UNCLAIMED, measure_phases, phase_of
from traceprof.model.window import TimeWindow


def test_kernels_by_name_the_longest_total_first() -> None:
    trace = TraceBuilder().kernel("b", 0, 4).kernel("a", 4, 14).kernel("b", 20, 22).build()
    table = measure_kernels(trace).to_frame()
    assert table[["name", "count", "total_ns", "min_ns", "max_ns"]].values.tolist() == [
        ["a", 1, 10, 10, 10],
        ["b", 2, 6, 2, 4],
    ]
    assert table["share_ratio"].tolist() == [10 / 16, 6 / 16]
    assert table["median_ns"].tolist() == [10, 3]


def test_copies_have_bytes_and_a_rate_per_direction() -> None:
    trace = (
        TraceBuilder()
        .copy("h2d", 0, 10, n_bytes=100)
        .copy("h2d", 5, 15, n_bytes=300)
        .copy("d2h", 20, 30, n_bytes=50)
        .build()
    )
    table = measure_copies(trace).to_frame().set_index("direction")
    assert table.loc["h2d", ["count", "total_ns", "busy_ns", "size_bytes"]].tolist() == [
        2,
        20,
        15,
        400,
    ]
    assert table.loc["h2d", "rate_bytes_per_s"] == 400 / 20e-9
    assert table.loc["d2h", "rate_bytes_per_s"] == 50 / 10e-9


def test_ranges_know_what_is_their_own() -> None:
    trace = TraceBuilder().range("outer", 0, 100).range("inner", 10, 40).range("inner", 50, 60)
    table = measure_ranges(trace.build()).to_frame().set_index("name")
    assert table["total_ns"].to_dict() == {"outer": 100, "inner": 40}
    assert table["self_ns"].to_dict() == {"outer": 60, "inner": 40}


def test_operators_are_ranked_by_self_time() -> None:
    trace = TraceBuilder().host_op("linear", 0, 100).host_op("addmm", 5, 95).build()
    table = measure_operators(trace).to_frame()
    assert table[["name", "self_ns", "total_ns"]].values.tolist() == [
        ["addmm", 90, 90],
        ["linear", 10, 100],
    ]
    assert table["self_ratio"].tolist() == [0.9, 0.1]


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("aten::copy_, op_id = 999602", "aten::copy_"),
        ("AddmmBackward0, seq = 12, op_id = 7", "AddmmBackward0"),
        ("aten::mm, op_id = 3, sizes = [[2, 3], [3, 4]]", "aten::mm"),
        ("step 3, seq", "step 3, seq"),
    ],
)
def test_numbers_that_make_each_range_unique_are_left_out(raw: str, plain: str) -> None:
    assert plain_name(raw) == plain


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("Forward pass", "forward"),
        ("fwd", "forward"),
        ("loss.backward", "backward"),
        ("data loading", "data"),
        ("optimizer.step", "optimizer"),
        ("Optimizer Step", "optimizer"),
        ("zero_grad", "optimizer"),
        ("backward hooks of my own", None),
        ("forwarding", None),
    ],
)
def test_phases_by_the_names_that_people_write(name: str, phase: str | None) -> None:
    assert phase_of(name, "") == phase


def test_phases_are_exclusive_and_add_up_to_the_window() -> None:
    trace = (
        TraceBuilder()
        .range("forward", 10, 40)
        .range("backward", 40, 90)
        .range("all_reduce", 60, 80)
        .build()
        .within(TimeWindow(0, 100))
    )
    found = {phase.phase: phase.host_ns for phase in measure_phases(trace).phases}
    assert found == {"forward": 30, "backward": 30, "communication": 20, UNCLAIMED: 20}


def test_a_trace_without_phases_says_so() -> None:
    result = measure_phases(TraceBuilder().range("something", 0, 10).build())
    assert result.phases == ()
    assert "no range names a phase" in result.notes[0]
