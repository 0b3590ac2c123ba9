"""Which lanes a trace has, and that nothing is lost on the way to the page."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.formats import open_trace
from traceprof.model.activity import PARTS
from traceprof.model.intervals import Int64Array
from traceprof.model.timing import TimeWindow
from traceprof.render.timeline import marks
from traceprof.render.timeline.channels import (
    Channel,
    LaneGroup,
    LaneRow,
    Lanes,
    bin_width_ns,
    condense,
    condense_channel,
    condense_until,
    find_widening,
    items_by_width,
)
from traceprof.render.timeline.drawn import device_states
from traceprof.render.timeline.events import MAX_LINES, LineAssigner, merge_overlapping
from traceprof.render.timeline.lanes import build_lanes, describe_process
from traceprof.render.timeline.marks import sample_series, thin_out

SPANS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 40)).map(lambda s: (s[0], s[0] + s[1])),
    min_size=1,
    max_size=40,
).map(lambda spans: sorted(spans, key=lambda s: (s[0], -s[1])))


def _arrays(spans: list[tuple[int, int]]) -> tuple[Int64Array, Int64Array]:
    return np.array([s for s, _ in spans], np.int64), np.array([e for _, e in spans], np.int64)


@given(SPANS)
def test_no_two_intervals_of_a_line_overlap(spans: list[tuple[int, int]]) -> None:
    starts, ends = _arrays(spans)
    lines = LineAssigner().of(starts, ends)
    for line in set(lines.tolist()):
        on_line = lines == line
        assert (starts[on_line][1:] >= ends[on_line][:-1]).all()


def test_nested_ranges_get_their_depth() -> None:
    lines = LineAssigner().of(*_arrays([(0, 100), (10, 50), (20, 30), (30, 40), (60, 90)]))
    assert lines.tolist() == [0, 1, 2, 2, 1]


def test_overlaps_that_do_not_nest_use_as_few_lines_as_they_can() -> None:
    assert LineAssigner().of(*_arrays([(0, 10), (5, 15), (12, 20)])).tolist() == [0, 1, 0]


def test_lanes_of_a_rank() -> None:
    trace = (
        TraceBuilder()
        .process(1, rank=0, name="/usr/bin/python3")
        .range("step", 0, 100)
        .range("forward", 10, 40)
        .kernel("gemm", 20, 60, launched_ns=(12, 14))
        .copy("h2d", 60, 70, n_bytes=10, stream=9)
        .host_op("aten::mm", 11, 15)
        .build()
    )
    lanes = build_lanes(trace, trace.span)
    assert [(g.section, g.label, [r.label for r in g.rows]) for g in lanes.groups] == [
        ("rank 0 · python3 · process 1", "GPU 0", ["Stream 7", "Stream 9"]),
        (
            "rank 0 · python3 · process 1",
            "Main thread",
            ["Ranges", "1", "Operators", "CUDA API"],
        ),
    ]
    assert lanes.n_events == 6
    copy = lanes.groups[0].rows[1].channels[0]
    assert (copy.category, copy.starts.tolist(), copy.ends.tolist()) == ("h2d", [60], [70])
    assert copy.n_bytes is not None
    assert copy.n_bytes.tolist() == [10]
    assert lanes.names[copy.names[0]] == "Memcpy host → device (pinned → device)"


def test_start_end_ranges_do_not_shift_the_depth_of_the_others() -> None:
    trace = (
        TraceBuilder().range("async", 5, 95, kind="start_end").range("a", 0, 50).range("b", 10, 20)
    ).build()
    rows = build_lanes(trace, trace.span).groups[0].rows
    assert [row.label for row in rows] == ["Ranges", "1", "Start/end ranges"]


def test_ranks_come_in_order_and_idle_processes_last() -> None:
    builder = TraceBuilder().process(9, rank=0).process(5, rank=1).process(2)
    builder.host_op("read", 0, 1, source="osrt", process=2)
    for process in (5, 9):
        builder.kernel("k", 0, 1, process=process, device=process)
    trace = builder.build()
    sections = [group.section for group in build_lanes(trace, trace.span).groups]
    assert sections == ["rank 0 · process 9", "rank 1 · process 5", "Other processes"]


def test_a_window_keeps_rows_whole_and_moves_the_origin() -> None:
    trace = TraceBuilder().kernel("a", 0, 50).kernel("b", 60, 90).kernel("c", 100, 110).build()
    lanes = build_lanes(trace, TimeWindow(40, 100))
    channel = lanes.channels[0]
    assert list(zip(channel.starts.tolist(), channel.ends.tolist(), strict=True)) == [
        (-40, 10),
        (20, 50),
    ]


@given(SPANS, st.integers(1, 100))
def test_condensing_keeps_events_time_and_bytes(spans: list[tuple[int, int]], width: int) -> None:
    starts, ends = _arrays(spans)
    on_line = LineAssigner().of(starts, ends) == 0
    channel = Channel(
        "compute",
        starts=starts[on_line],
        ends=ends[on_line],
        names=np.zeros(int(on_line.sum()), np.int64),
        n_bytes=np.arange(int(on_line.sum())) - 1,
    )
    condensed = condense_channel(condense_channel(channel, width), 4 * width)
    assert condensed.n_events == len(channel)
    if len(channel) == 0:
        return
    assert condensed.busy_ns is not None
    assert condensed.n_bytes is not None
    assert condensed.busy_ns.sum() == (channel.ends - channel.starts).sum()
    known = np.maximum(channel.n_bytes, 0).sum()
    assert np.maximum(condensed.n_bytes, 0).sum() == known
    assert (condensed.starts[1:] >= condensed.ends[:-1]).all()


@given(SPANS, st.integers(1, 12), st.integers(1, 3))
def test_bins_may_be_widened_at_once_and_their_items_be_told_before(
    spans: list[tuple[int, int]], n_times: int, unit: int
) -> None:
    """Times reach to both sides of 0, where bins start, too."""
    starts, ends = (500 * unit * (column - 20) for column in _arrays(spans))
    on_line = LineAssigner().of(starts, ends) == 0
    names = np.arange(int(on_line.sum()))
    columns = {"starts": starts[on_line], "ends": ends[on_line], "names": names}
    channel = Channel("compute", **columns, correlations=names)
    lanes = Lanes(
        (LaneGroup("s", "l", "device", (LaneRow("r", "gpu", (channel, channel)),), 0),), ()
    )
    expected = items_by_width(lanes)
    step_by_step = lanes
    for times in range(1, n_times + 1):
        assert find_widening(expected, expected[times]) <= times
        step_by_step = condense(step_by_step, bin_width_ns(times))
        assert step_by_step.n_items == expected[times] == items_by_width(step_by_step)[times]
        assert items_by_width(step_by_step)[times:] == expected[times:]
    at_once = condense(lanes, bin_width_ns(n_times))
    for one, other in zip(at_once.channels, step_by_step.channels, strict=True):
        for name in ("starts", "ends", "names", "correlations", "busy_ns", "counts"):
            assert np.array_equal(getattr(one, name), getattr(other, name))


def test_what_is_inside_a_window_is_merged_with_nothing() -> None:
    starts, ends = _arrays([(number * 10, number * 10 + 5) for number in range(100)])
    channel = Channel("compute", starts=starts, ends=ends, names=np.arange(100))
    lanes = Lanes((LaneGroup("s", "l", "device", (LaneRow("r", "gpu", (channel,)),), 0),), ())
    exact = TimeWindow(303, 345)
    (found,) = condense(lanes, 16_000, exact).channels
    assert found.counts is not None
    assert found.counts.tolist() == [30, 1, 1, 1, 1, 1, 65]
    assert found.starts.tolist() == [0, 300, 310, 320, 330, 340, 350]
    assert items_by_width(lanes, exact)[5] == len(found)


def test_long_events_stay_as_they_are() -> None:
    spans = [(0, 10), (10, 12), (20, 400), (400, 405)]
    starts, ends = _arrays(spans)
    channel = Channel("compute", starts=starts, ends=ends, names=np.arange(4))
    condensed = condense_channel(channel, 100)
    assert condensed.starts.tolist() == [0, 20, 400]
    assert condensed.ends.tolist() == [12, 400, 405]
    assert condensed.counts is not None
    assert condensed.counts.tolist() == [2, 1, 1]
    assert condensed.names.tolist() == [0, 2, 3]


def test_lanes_that_fit_are_exact() -> None:
    trace = TraceBuilder().kernel("a", 0, 50).build()
    lanes = build_lanes(trace, trace.span)
    assert condense_until(lanes, 1) == (lanes, 0)
    assert condense_until(Lanes((), ()), 0)[1] == 0


@pytest.mark.traces
@pytest.mark.parametrize(
    "name",
    [
        "nsys/2026.2-2gpu-nccl-before.sqlite",
        "nsys/2022.4-jacobi-p2p-2gpu.sqlite.gz",
        "nsys/2025.1-many-copies.sqlite",
        "nsys/2024.5-cloverleaf-a100.sqlite",
    ],
)
def test_the_states_add_up_to_the_breakdown(name: str, real_trace: Callable[[str], Path]) -> None:
    trace = open_trace(real_trace(name))
    devices = run("breakdown", trace).table.to_frame().to_dict("records")
    groups = [g for g in build_lanes(trace, trace.span).groups if g.kind == "device"]
    assert len(groups) == len(devices)
    for group, device in zip(groups, devices, strict=True):
        states = device_states(group, trace.span.duration_ns)
        found = {c.category: int((c.ends - c.starts).sum()) for c in states}
        assert found.get("compute", 0) + found.get("overlap", 0) == device["compute_ns"]
        assert found.get("overlap", 0) == device["communication_overlap_ns"]
        for part in PARTS[1:]:
            assert found.get(part, 0) == device[f"{part}_ns"]


def test_thinned_out_samples_keep_their_extremes() -> None:
    values = np.sin(np.arange(10_000) / 50)
    values[7_777] = 9.0
    kept = thin_out(values, 100)
    assert len(kept) <= 100
    assert 7_777 in kept
    assert values[kept].min() == values.min()
    assert thin_out(values, 20_000).tolist() == list(range(10_000))


def test_too_many_metrics_are_counted() -> None:
    builder = TraceBuilder()
    for i in range(9):
        builder.sample(f"metric {i}", 10, 1.0)
    trace = builder.build(span=(0, 20))
    series, notes = sample_series(trace, trace.span)
    assert len(series) == 6
    assert notes == ["3 more sampled metrics are not shown"]


def test_of_many_metrics_those_that_move_and_tell_most_are_drawn() -> None:
    builder = TraceBuilder()
    for name in ("Pixel Warps In Flight", "Vertex Warps", "NVLink TX Requests", "GR Active"):
        builder.sample(name, 10, 0.0)
    for name in ("Warps", "DRAM Read", "SM Active", "Tensor Active", "a", "b", "c"):
        builder.sample(name, 10, 1.0)
    series, notes = sample_series(builder.build(span=(0, 20)), TimeWindow(0, 20))
    metrics = [one.metric for one in series]
    assert metrics[:3] == ["SM Active", "Tensor Active", "DRAM Read"]
    assert not {"Pixel Warps In Flight", "Vertex Warps"} & set(metrics)
    assert notes == ["5 more sampled metrics are not shown"]


def test_all_series_together_are_bounded_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MAX_POINTS_TOGETHER", 48)
    builder = TraceBuilder()
    for source in range(4):
        for at in range(30 if source else 7):
            builder.sample("load", at, float((-1) ** at * at), source=f"gpu {source}")
    trace = builder.build(span=(0, 30))
    series, notes = sample_series(trace, trace.span)
    assert [len(one.values) for one in series] == [7, 12, 12, 12]
    assert [one.values.max() for one in series] == [6, 28, 28, 28]
    assert notes == [
        "3 time series have more than 12 points; only the minimum and maximum of each interval "
        "are drawn"
    ]


def test_counters_are_drawn_as_rates() -> None:
    builder = TraceBuilder()
    counter = [(0, 100), (10, 300), (20, 50), (30, 80), (40, float("nan")), (50, 90), (60, 100)]
    for at_s, value in counter:
        builder.sample("pcie_bytes_sent", at_s * 10**9, value, source="gpu:0")
    trace = builder.sample("cpu_seconds", 0, 1.5, source="process:1").build(span=(0, 61 * 10**9))
    by_name = {one.metric: one for one in sample_series(trace, trace.span)[0]}
    assert set(by_name) == {"pcie_sent_bytes_per_s", "cpu_cores"}
    rates = by_name["pcie_sent_bytes_per_s"].values.tolist()
    assert [None if math.isnan(rate) else rate for rate in rates] == [
        *(20, None, 3),  # reset between the second and the third
        *(None, None, 1, None),
    ]


def test_a_lane_of_many_overlaps_is_bounded_and_counts_what_it_merges() -> None:
    builder = TraceBuilder()
    for i in range(100):
        builder.range(f"request {i}", i, 1_000 + 2 * i, kind="start_end")
    trace = builder.range("late", 5_000, 5_010, kind="start_end").build()
    lanes = build_lanes(trace, trace.span)
    rows = lanes.groups[0].rows
    assert len(rows) == MAX_LINES + 1
    merged = rows[-1].channels[0]
    assert rows[-1].label == f"merged below {MAX_LINES}"
    assert merged.counts is not None
    assert merged.counts.tolist() == [100 - MAX_LINES]
    assert (merged.starts.tolist(), merged.ends.tolist()) == ([MAX_LINES], [1_198])
    assert lanes.n_events == 101


@given(SPANS)
def test_merging_keeps_events_and_bytes(spans: list[tuple[int, int]]) -> None:
    starts, ends = _arrays(spans)
    zeros = np.zeros(len(starts), np.int64)
    merged = merge_overlapping(
        Channel("compute", starts=starts, ends=ends, names=zeros, n_bytes=np.arange(len(starts)))
    )
    assert merged.n_events == len(starts)
    assert (merged.starts[1:] > merged.ends[:-1]).all()
    total = 0 if merged.n_bytes is None else int(np.maximum(merged.n_bytes, 0).sum())
    assert total == sum(range(len(starts)))


def test_a_process_is_named_by_rank_and_host_first() -> None:
    builder = TraceBuilder()
    for rank, host in enumerate(("a", "b", "")):
        builder.process(10 + rank, rank=rank, host=host, name="/usr/bin/python3")
    trace = builder.build()
    assert [describe_process(trace, process) for process in (10, 11, 12)] == [
        "rank 0 · host a · python3 · process 10",
        "rank 1 · host b · python3 · process 11",
        "rank 2 · python3 · process 12",
    ]
    alone = TraceBuilder().process(10, rank=0, host="a").build()
    assert describe_process(alone, 10) == "rank 0 · process 10"
