"""Figures of a report hold the numbers of the results, and what is drawn leads to its place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.measures.generated_run import Plan, make_trace_of
from tests.render.figures import figures_in, flames_in, traces_in
from tests.running import run
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.trace import Trace
from traceprof.render.palette import PART_STYLES
from traceprof.render.report.figures import (
    durations_figure,
    idle_figure,
    memory_figure,
    ranks_figure,
    tree_figure,
)
from traceprof.render.report.places import PageContext
from traceprof.render.report.steps import path_figure
from traceprof.render.report.traffic import (
    bandwidth_figure,
    network_figure,
    sizes_of_collectives,
    sizes_of_copies,
)

US, MS = 1_000, 1_000_000
PART_COLUMNS = {part.column for part in PART_STYLES}


def _around(trace: Trace) -> PageContext:
    whole = Ranks.of(trace)
    table = whole.table("processes")
    ranks = dict(zip(table["process"].tolist(), table["rank"].tolist(), strict=True))
    return PageContext(whole, whole.span, whole.span, ranks)


def test_bars_of_ranks_are_the_parts_of_their_time() -> None:
    trace = make_trace_of(Plan(n_ranks=3, n_steps=4))
    table = run("ranks", trace).table
    traces = traces_in(ranks_figure(run("ranks", trace), _around(trace)))
    assert traces["Compute"]["x"] == [f"rank {rank}" for rank in table["rank"]]
    seconds = [*map(float, table["compute_ns"] / 1e6)]
    assert traces["Compute"]["y"] == pytest.approx(seconds, rel=1e-5)
    assert len(traces["waiting for other ranks"]["y"]) == 3
    assert ranks_figure(run("ranks", make_trace_of(Plan(n_ranks=1))), _around(trace)) == ""


def test_ranks_of_which_no_device_was_recorded_have_no_bars() -> None:
    trace = make_trace_of(Plan(n_ranks=3, n_steps=4))
    found = run("ranks", trace)
    columns = [name for name in found.table if name in PART_COLUMNS]

    def without(n_unknown: int) -> Result:
        """Return the result where so many ranks, the first ones, have no devices."""
        table = found.table
        unknown = np.arange(len(table)) < n_unknown
        hidden = {name: np.where(unknown, None, table[name]) for name in columns}
        return replace(found, tables={"ranks": table.assign(**hidden)})

    assert ranks_figure(without(3), _around(trace)) == ""
    assert ranks_figure(without(2), _around(trace)) == ""
    traces = traces_in(ranks_figure(without(1), _around(trace)))
    assert traces["Compute"]["x"] == [f"rank {rank}" for rank in found.table["rank"][1:]]


def test_the_path_of_a_step_fills_it_and_its_pieces_lead_to_their_place() -> None:
    builder = TraceBuilder().process(1, rank=0)
    for number in range(3):
        at = number * MS
        builder.step(at, at + MS, number)
        builder.kernel("gemm", at + 100 * US, at + 900 * US, launched_ns=(at, at + 10 * US))
        builder.api_call("cudaDeviceSynchronize", at + 20 * US, at + 910 * US)
    trace = builder.build(span=(0, 3 * MS))
    html = path_figure(run("path", trace), _around(trace))
    figures = figures_in(html)
    drawn = next(own for label, own in figures.items() if label.startswith("Critical path of"))
    lengths = {trace["name"]: sum(trace["x"]) for trace in drawn["data"]}
    steps = {row["step"]: row for row in run("path", trace).table.rows()}
    (number,) = (step for step in steps if f"path of step {step}," in html)
    assert lengths["compute"] == pytest.approx(0.8)
    assert sum(lengths.values()) == pytest.approx(steps[number]["duration_ns"] / MS)
    links = [link for trace in drawn["data"] for link in trace["meta"]["links"]]
    assert all(link.startswith("#at=") and link.endswith("rank=0") for link in links)
    assert "Critical path of 3 steps by activity" in html


def test_levels_of_bandwidth_fall_to_zero_where_nothing_moved() -> None:
    builder = TraceBuilder()
    for at in (0, 50):
        builder.copy("h2d", at * MS, (at + 1) * MS, n_bytes=12_000_000)
    trace = builder.build(span=(0, 100 * MS))
    traces = traces_in(bandwidth_figure(run("bandwidth", trace), _around(trace)))
    line = traces["GPU 0 h2d"]
    pairs = list(zip(line["x"], line["y"], strict=True))
    assert pairs == [(0, 12), (1, 0), (50, 12), (51, 12)]
    assert line["line"]["shape"] == "hv"
    assert line["meta"]["links"][2].startswith("#at=")


def test_points_of_copies_and_collectives_stand_over_their_size() -> None:
    builder = TraceBuilder().process(1, rank=0, world_size=2).process(2, rank=1, world_size=2)
    for place, size in enumerate((1_000, 1_000_000)):
        at = place * MS
        builder.copy("h2d", at, at + 100 * US, n_bytes=size)
        for process in (1, 2):
            more = {"process": process, "group_size": 2, "backend": "gloo"}
            builder.collective("all_reduce", at, at + 500 * US, n_bytes=size, **more)
    trace = builder.build()
    copies = traces_in(sizes_of_copies(run("transfers", trace), _around(trace)))
    (points,) = (trace for name, trace in copies.items() if name.startswith("h2d"))
    assert points["x"] == [1_000, 1_000_000]
    assert points["y"] == [0.01, 10]
    events = run("collective-events", trace)
    reduces = traces_in(sizes_of_collectives(events, _around(trace)))["all_reduce"]
    assert sorted(reduces["x"]) == [1_000, 1_000, 1_000_000, 1_000_000]
    assert max(reduces["y"]) == 2  # GB/s: 1 MB in 0.5 ms, of two ranks as much on the bus
    (figure,) = figures_in(sizes_of_collectives(events, _around(trace))).values()
    assert figure["layout"]["xaxis"]["ticktext"] == ["1 kB", "10 kB", "100 kB", "1 MB"]


def test_memory_and_traffic_over_time_have_named_units() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 100 * MS)
    for number in range(3):
        at = number * 50 * MS
        builder.sample("memory_used_bytes", at, number * 2e9, source="gpu:0")
        builder.sample("bytes_sent", at, number * 5e7, source="nic:eth0")
        builder.sample("bytes_sent", at, 0, source="nic:lo")
    trace = builder.build()
    (figure,) = figures_in(memory_figure(run("memory", trace), _around(trace))).values()
    assert figure["layout"]["yaxis"]["title"]["text"] == "GB"
    assert figure["data"][0]["y"] == [0, 2, 4]
    network = traces_in(network_figure(run("network-time", trace), _around(trace)))
    assert [*network] == ["nic:eth0 network sent"]
    assert network["nic:eth0 network sent"]["y"] == [1, 1, 1]  # GB/s: 50 MB in 50 ms
    assert memory_figure(run("memory", trace), _around(_without_samples())) == ""


def _without_samples() -> Trace:
    return TraceBuilder().kernel("gemm", 0, 100).build()


def test_a_histogram_counts_every_launch_of_a_kernel_once() -> None:
    random = np.random.default_rng(1)
    lengths = {"gemm": random.integers(1, 10**7, 300), "copy": random.integers(1, 40, 100)}
    builder, at = TraceBuilder(), 0
    for name, own in lengths.items():
        for length in own.tolist():
            builder.kernel(name, at, at + length)
            at += length + 1
    trace = builder.build()
    result = run("durations", trace)
    for row in result.table.rows():
        own = lengths[row["name"]]
        inside = own[(own >= row["lower_bound_ns"]) & (own < row["upper_bound_ns"])]
        assert (row["count"], row["total_ns"]) == (len(inside), inside.sum())
        assert row["upper_bound_ns"] <= 1.1 * row["lower_bound_ns"] + 1
    (figure,) = figures_in(durations_figure(result, _around(trace))).values()
    assert [sum(trace["y"]) for trace in figure["data"]] == [300, 100]
    assert [trace["visible"] for trace in figure["data"]] == [True, False]
    (menu,) = figure["layout"]["updatemenus"]
    assert [button["args"][1]["xaxis.title.text"] for button in menu["buttons"]] == [
        "kernel duration, ms",
        "kernel duration, ns",
    ]


def test_a_tree_is_as_wide_as_the_device_time_inside() -> None:
    builder = TraceBuilder()
    for at in (0, MS):
        builder.range("model", at, at + 900 * US)
        builder.range("a", at + 10 * US, at + 300 * US).range("b", at + 400 * US, at + 800 * US)
        builder.range("a", at + 450 * US, at + 500 * US)
        launched = (at + 460 * US, at + 470 * US)
        builder.kernel("k1", at + 500 * US, at + 700 * US, launched_ns=launched)
        launched = (at + 20 * US, at + 30 * US)
        builder.kernel("k2", at + 100 * US, at + 150 * US, launched_ns=launched)
    trace = builder.build()
    result = run("tree", trace)
    nodes = {row["path"]: row for row in result.table.rows()}
    assert {path: row["device_ns"] for path, row in nodes.items()} == {
        "model": 500 * US,
        "model › b": 400 * US,
        "model › b › a": 400 * US,
        "model › a": 100 * US,
    }
    assert nodes["model › b"]["host_ns"] == 800 * US
    assert nodes["model › b › a"]["count"] == 2
    (flame,) = flames_in(tree_figure(result, _around(trace)))
    device, host = flame["measures"]
    boxes = {"all": -1, "model": 0, "a": 1, "b": 1}
    assert dict(zip(flame["names"][:4], flame["parents"][:4], strict=True)) == boxes
    assert (flame["names"][4], flame["names"][flame["parents"][4]]) == ("a", "b")
    values = dict(zip(flame["names"][:4], device["values"][:4], strict=True))
    assert values == {"all": 500 * US, "model": 500 * US, "b": 400 * US, "a": 100 * US}
    assert device["values"][4] == 400 * US
    assert host["values"][1] == 1_800 * US
    assert [measure["title"] for measure in flame["measures"]] == ["GPU time", "CPU time"]


def test_idle_time_stands_by_the_length_of_its_gaps() -> None:
    builder = TraceBuilder()
    for at in (0, 5 * US, 500 * US):
        builder.kernel("gemm", at, at + US)
    trace = builder.build()
    traces = traces_in(idle_figure(run("idle", trace), _around(trace)))
    assert dict(zip(traces["GPU 0"]["x"], traces["GPU 0"]["y"], strict=True)) == {
        "0 to 10 µs": 4,
        "100 µs to 1 ms": 494,
    }
    assert traces["GPU 0"]["customdata"] == ["1", "1"]
