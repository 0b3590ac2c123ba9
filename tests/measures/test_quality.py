"""Each suspicion is planted in a small trace and found, with its rows; a clean trace has none."""

from __future__ import annotations

import pytest

from tests import real_traces
from tests.builders import TraceBuilder, plain
from tests.reading import rows
from tests.requirements import TRACES, require
from tests.running import run
from traceprof.formats import open_trace
from traceprof.model.activity import Activity
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace, TraceInfo
from traceprof.render.formatting import note_text

NCCL = "ncclDevKernel_AllReduce"
EPOCH = 1_700_000_000_000_000_000


def suspicions(of: Trace | Ranks) -> list[tuple[str, str]]:
    return [(row.check, note_text(row.message)) for row in rows(run("quality", of))]


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


def checks(of: Trace) -> dict[str, str]:
    """The first rows that each check names."""
    return dict(plain(run("quality", of).table.to_frame(), "check", "first_rows"))


def test_a_clean_trace() -> None:
    found = run("quality", clean().build())
    assert found.table.empty
    assert [note_text(note) for note in found.notes] == ["No problem was found in the trace."]
    assert list(found.table) == [column.name for column in found.spec.tables[0].columns]


@pytest.mark.parametrize(
    ("plant", "check", "rows"),
    [
        (lambda t: t.kernel("c", 40, 60, launched_ns=(5, 6)), "overlapping kernels", "2 3"),
        (lambda t: t.kernel("c", 200, 210, correlation=99), "kernels without launch", "3"),
        (lambda t: t.range("before", -10, 5), "negative times", "0"),
        (lambda t: t.kernel("c", 130, 130, launched_ns=(5, 6)), "no duration", "3"),
        (lambda t: t.overhead("Buffer Flush", 30, 39), "profiler flush", "0"),
        (lambda t: t.step(300, 400, 3), "steps without work", "3"),
        (lambda t: t.copy("d2h", 130, 140, n_bytes=ABSENT), "no size", "1"),
    ],
)
def test_what_is_planted_is_found(plant, check: str, rows: str) -> None:
    assert checks(plant(clean()).build()) == {check: rows}


def test_a_flush_after_the_work_is_none() -> None:
    assert run("quality", clean().overhead("Buffer Flush", 150, 190).build()).table.empty


def test_branches_of_a_graph_may_overlap() -> None:
    trace = clean().kernel("c", 40, 60, launched_ns=(5, 6), graph_node=7)
    assert run("quality", trace.build()).table.empty


def test_graphs_that_were_recorded_whole() -> None:
    trace = clean().kernel("g", 300, 400, launched_ns=(6, 7), activity=Activity.CUDA_GRAPH)
    assert list(checks(trace.build())) == ["whole graphs"]


def test_warnings_of_the_reader_come_first() -> None:
    info = TraceInfo(warnings=("3 records were lost {}",))
    trace = clean().step(300, 400).build(info=info)
    assert suspicions(trace) == [
        ("reading", "3 records were lost {}"),
        ("steps without work", "1 steps have no recorded GPU work: 2"),
    ]


def test_calls_that_were_not_recorded_are_not_missed() -> None:
    trace = TraceBuilder().kernel("a", 0, 10).build(recorded=["kernels"])
    assert run("quality", trace).table.empty


def rank_trace(offset_ns: int) -> Trace:
    builder = TraceBuilder().process(1)
    for number in range(3):
        builder.kernel(NCCL, number * 10**7, number * 10**7 + 500)
    return builder.build(info=TraceInfo(utc_epoch_ns=EPOCH + offset_ns))


def test_clocks_that_disagree() -> None:
    members = tuple(
        RankTrace(rank_trace(offset), rank) for rank, offset in enumerate((0, 900_000, -12_000_000))
    )
    ranks = place_run(RunFiles("run", members, 3))
    skew = ("clock skew", "the clock of rank 2 is behind the clock of rank 0")
    assert skew in suspicions(ranks)
    table = run("quality", ranks).table.to_frame()
    assert table.loc[table["check"] == "clock skew", "duration_ns"].tolist() == [12_000_000]


def test_a_run_tells_what_is_missing() -> None:
    missing = "no trace of 1 of the 2 ranks: 1"
    members = tuple(RankTrace(rank_trace(0), rank) for rank in (0, 2))
    ranks = place_run(RunFiles("run", members, 3, (missing,)))
    assert suspicions(ranks)[0] == ("reading", missing)


def test_the_same_suspicion_of_several_ranks_is_one() -> None:
    late = clean().process(1).kernel("c", 40, 60, launched_ns=(5, 6)).build()
    members = (RankTrace(clean().build(), 0), RankTrace(late, 1), RankTrace(late, 2))
    table = run("quality", place_run(RunFiles("run", members, 3), [0, 0, 0])).table
    assert plain(table, "check", "rows_count", "first_rows") == [
        ("overlapping kernels", 4, "rank 1: 2 3")
    ]


@pytest.mark.traces
@pytest.mark.parametrize("name", [*real_traces.KINETO[:6], *real_traces.NVPROF])
def test_real_traces_can_be_judged(name: str) -> None:
    require("traces")
    assert len(run("quality", open_trace(TRACES / name)).table.to_frame()) < 6
