"""Subjects without a problem: what was seen of them, when it is too little, and who is blamed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import in_default_window
from tests.reading import rows, said
from tests.running import run
from traceprof.model.activity import Activity
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.render.briefing import Briefing, briefing_of
from traceprof.session.answer import page
from traceprof.session.run import run_of

US, MS = 1_000, 1_000_000


def busy(n_kernels: int, builder: TraceBuilder | None = None, start_ns: int = 0) -> TraceBuilder:
    """Add kernels of 1 ms each, one after another, launched well ahead of time."""
    builder = builder or TraceBuilder()
    for i in range(n_kernels):
        at, called = start_ns + (i + 1) * MS, start_ns + i * 10 * US
        builder.kernel(f"gemm_{i}", at, at + MS, launched_ns=(called, called + 5 * US))
    return builder


def checked(trace: Trace) -> dict[str, SimpleNamespace]:
    return {row.subject: row for row in rows(run("findings", in_default_window(trace)), "checked")}


def page_of(trace: Trace) -> Briefing:
    return briefing_of(page(run_of(Ranks.of(trace))))


def test_a_subject_without_a_problem_says_what_was_seen() -> None:
    builder = busy(120)
    builder.copy("h2d", 0, 500 * US, n_bytes=10_000_000, launched_ns=(0, US), stream=8)
    trace = builder.build()
    found = checked(trace)
    assert (found["kernel fusion"].seen, found["kernel fusion"].seen_count) == (
        "compute kernels",
        120,
    )
    assert (found["transfers"].seen, found["transfers"].seen_count) == ("copies", 1)
    assert found["memory allocation"].seen_count == 121
    assert found["graph tracing"].seen == ""
    fine = page_of(trace).fine
    assert "memory allocation" in fine
    assert "(121 kernels and copies)" in fine
    assert "kernel fusion (120 compute kernels)" in fine or "kernel fusion, " in fine


def test_the_largest_share_is_that_of_the_lost_time() -> None:
    """The last of 101 kernels is launched 2 ms late: 2% of about 103 ms."""
    builder = busy(100)
    builder.kernel("ampere_sgemm", 103 * MS, 104 * MS, launched_ns=(102 * MS + 990 * US, 103 * MS))
    row = checked(builder.build())["CPU work between launches"]
    assert row.is_fine
    assert row.share_ratio == pytest.approx(2 / 104, abs=0.005)
    assert "CPU work between launches 1.9%" in page_of(builder.build()).fine


@pytest.mark.parametrize(("n_kernels", "is_enough"), [(99, False), (100, True)])
def test_few_kernels_exclude_no_problem(n_kernels: int, is_enough: bool) -> None:
    trace = busy(n_kernels).build()
    row = checked(trace)["memory allocation"]
    assert (row.is_fine, row.is_evaluated) == (is_enough, True)
    briefing = page_of(trace)
    assert ("memory allocation" in briefing.fine) is is_enough
    words = "not enough data: 99 kernels in the analyzed time, 100 are needed"
    assert any(words in text for text in briefing.unknown) is not is_enough


def test_without_a_finding_and_with_too_little_data_nothing_is_excluded() -> None:
    trace = TraceBuilder().memset(0, 1_000, n_bytes=8).build()
    assert page_of(trace).nothing == "No finding, but there is not enough data to exclude problems."
    assert "not enough data: 0 kernels" in said(run("findings", trace))[0]


def test_graphs_that_were_traced_whole_are_not_observed() -> None:
    builder = busy(110)
    for i in range(30):
        at = 111 * MS + i * 100 * MS
        place = {"launched_ns": (at - MS, at - MS + US), "activity": Activity.CUDA_GRAPH}
        builder.kernel("graph 1", at, at + 100 * MS, **place)
    row = checked(builder.build())["memory allocation"]
    assert not row.is_fine
    assert row.lacks is not None


def test_steps_are_checked_however_few_kernels_they_have() -> None:
    builder = TraceBuilder()
    for i in range(12):
        at = i * 10 * MS
        builder.step(at, at + 10 * MS, i)
        builder.kernel("gemm", at, at + 10 * MS, launched_ns=(at, at + US))
    found = checked(builder.build())
    assert page_of(builder.build()).nothing.startswith("No finding, but there is not enough data")
    assert found["step time variation"].is_fine
    assert (found["step time variation"].seen, found["step time variation"].seen_count) == (
        "steps",
        12,
    )
    assert not found["kernel fusion"].is_fine


def test_the_cost_of_a_recorder_without_unprofiled_steps_is_unknown() -> None:
    builder = busy(120).overhead("Buffer flush", 50 * MS, 50 * MS + US)
    row = checked(builder.build())["profiler overhead"]
    assert (row.is_evaluated, row.is_fine) == (True, False)
    assert "profiler overhead" not in page_of(builder.build()).fine


def test_copies_of_pageable_memory_are_a_problem_of_blocking_copies() -> None:
    builder = busy(100)
    for i in range(10):
        at = 110 * MS + i * 4 * MS
        copy = {"n_bytes": 20_000_000, "src_kind": "pageable", "api": "cudaMemcpy"}
        builder.copy("h2d", at, at + 3 * MS, launched_ns=(at - 10 * US, at + 3 * MS), **copy)
    found = checked(builder.build())
    assert not found["pinned memory"].is_fine
    assert not found["blocking copies"].is_fine
    assert not found["transfers"].is_fine


@pytest.mark.parametrize(("name", "is_blamed"), [("cudaMalloc", True), ("cudaStreamCreate", False)])
def test_a_finding_blames_the_calls_that_it_names(name: str, is_blamed: bool) -> None:
    builder = busy(100)
    builder.api_call(name, 101 * MS, 201 * MS)
    busy(100, builder, 201 * MS)
    assert checked(builder.build())["memory allocation"].is_fine is not is_blamed


def test_a_cost_on_the_page_is_no_subject_without_a_problem() -> None:
    builder = TraceBuilder()
    at = 0
    for i in range(30):
        length = 60 * MS if i == 0 else 10 * MS
        builder.step(at, at + length, i)
        for k in range(8):
            begin = at + length - 9 * MS + k * MS
            builder.kernel("gemm", begin, begin + MS, launched_ns=(at + k * US, at + k * US + 500))
        at += length
    briefing = page_of(builder.build())
    assert "warm-up" in briefing.once
    assert "warm-up" not in briefing.fine


def test_one_event_is_singular() -> None:
    builder = busy(120)
    builder.kernel("gemm_graph", 130 * MS, 131 * MS, graph_node=3, launched_ns=(MS, 2 * MS))
    fine = page_of(builder.build()).fine
    assert "1 graph kernel or launch, 121 kernels and copies" in fine


def test_a_warmup_has_one_cost_on_the_page() -> None:
    """The finding has the excess of the first steps; their whole length is not listed again."""
    builder, at = TraceBuilder(), 0
    for number in range(20):
        length = 50 * MS if number < 2 else 10 * MS
        builder.step(at, at + length, number)
        builder.kernel("gemm", at + US, at + length, launched_ns=(at, at + US))
        at += length
    document = page(run_of(Ranks.of(builder.build())))
    (row,) = (row for row in document.results["findings"].table.rows() if row["rule"] == "warmup")
    assert row["one_time_ns"] == 80 * MS
    assert "warm-up" not in briefing_of(document).once
