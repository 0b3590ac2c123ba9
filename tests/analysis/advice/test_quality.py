"""Each suspicion is planted in a small trace and found, with its rows; a clean trace has none."""

from __future__ import annotations

import pytest

from tests import real_traces
from tests.builders import TraceBuilder
from tests.requirements import TRACES, require
from traceprof.analysis.advice.quality import Quality, measure_quality, measure_run_quality
from traceprof.formats import open_trace
from traceprof.model.activity import Activity
from traceprof.model.run import RankTrace, Run
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace, TraceInfo

NCCL = "ncclDevKernel_AllReduce"
EPOCH = 1_700_000_000_000_000_000


def clean() -> TraceBuilder:
    return (
        TraceBuilder()
        .step(0, 100, 1)
        .step(100, 200, 2)
        .kernel("a", 10, 50, launched_ns=(1, 2))
        .kernel("b", 50, 110, launched_ns=(3, 4))
        .kernel("beside", 20, 120, launched_ns=(105, 106), stream=8)
        .copy("h2d", 5, 10, n_bytes=4, launched_ns=(4, 5))
    )


def checks(quality: Quality) -> dict[str, list[int]]:
    return {one.check: one.rows.tolist() for one in quality.suspicions}


def test_a_clean_trace() -> None:
    quality = measure_quality(clean().build())
    assert quality.suspicions == ()
    assert quality.to_frame().empty


@pytest.mark.parametrize(
    ("plant", "check", "rows"),
    [
        (lambda t: t.kernel("c", 40, 60, launched_ns=(5, 6)), "overlapping kernels", [2, 3]),
        (lambda t: t.kernel("c", 200, 210, correlation=99), "kernels without launch", [3]),
        (lambda t: t.range("before", -10, 5), "negative times", [0]),
        (lambda t: t.kernel("c", 130, 130, launched_ns=(5, 6)), "no duration", [3]),
        (lambda t: t.overhead("Buffer Flush", 30, 39), "profiler flush", [0]),
        (lambda t: t.step(300, 400, 3), "steps without work", [3]),
        (lambda t: t.copy("d2h", 130, 140, n_bytes=ABSENT), "no size", [1]),
    ],
)
def test_what_is_planted_is_found(plant, check: str, rows: list[int]) -> None:
    assert checks(measure_quality(plant(clean()).build())) == {check: rows}


def test_a_flush_after_the_work_is_none() -> None:
    assert measure_quality(clean().overhead("Buffer Flush", 150, 190).build()).suspicions == ()


def test_branches_of_a_graph_may_overlap() -> None:
    trace = clean().kernel("c", 40, 60, launched_ns=(5, 6), graph_node=7)
    assert measure_quality(trace.build()).suspicions == ()


def test_graphs_that_were_recorded_whole() -> None:
    trace = clean().kernel("g", 300, 400, launched_ns=(6, 7), activity=Activity.CUDA_GRAPH)
    assert list(checks(measure_quality(trace.build()))) == ["whole graphs"]


def test_warnings_of_the_reader_come_first() -> None:
    info = TraceInfo(warnings=("3 records were lost {}",))
    trace = clean().step(300, 400).build(info=info)
    first, second = measure_quality(trace).suspicions
    assert (first.check, first.message) == ("reading", "3 records were lost {}")
    assert second.message == "1 steps launch no device work: 2"


def test_calls_that_were_not_recorded_are_not_missed() -> None:
    trace = TraceBuilder().kernel("a", 0, 10).build(recorded=["kernels"])
    assert measure_quality(trace).suspicions == ()


def rank_trace(offset_ns: int) -> Trace:
    builder = TraceBuilder()
    for number in range(3):
        builder.kernel(NCCL, number * 10**7, number * 10**7 + 500)
    return builder.build(info=TraceInfo(utc_epoch_ns=EPOCH + offset_ns))


def test_clocks_that_disagree() -> None:
    members = tuple(
        RankTrace(rank_trace(offset), rank) for rank, offset in enumerate((0, 900_000, -12_000_000))
    )
    (skew,) = measure_run_quality(Run("run", members, 3)).suspicions
    assert skew.check == "clock skew"
    assert skew.message == "the clock of rank 2 is 12.00 ms behind rank 0's"


def test_a_run_tells_what_is_missing() -> None:
    run = Run("run", (RankTrace(rank_trace(0), 0),), 2, ("no trace of 1 of the 2 ranks: 1",))
    assert [one.message for one in measure_run_quality(run).suspicions] == list(run.warnings)


@pytest.mark.traces
@pytest.mark.parametrize("name", [*real_traces.KINETO[:6], *real_traces.NVPROF])
def test_real_traces_can_be_judged(name: str) -> None:
    require("traces")
    quality = measure_quality(open_trace(TRACES / name))
    assert len(quality.to_frame()) < 6
