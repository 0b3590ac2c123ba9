"""Processes without ranks, such as forked children that train, are not ranks of one job."""

from itertools import pairwise

import pytest

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.measures.steps.base import base_of, independent_processes
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace, TraceInfo
from traceprof.render.formatting import note_text
from traceprof.session.contents import Contents, ProcessContents
from traceprof.session.pace import on_pace
from traceprof.session.selection import select

MS = 1_000_000
OWN = TraceInfo(format="traceprof", profiler="traceprof")


def family(ranks=(ABSENT,) * 3, info: TraceInfo = OWN, n_children: int = 2) -> Trace:
    """A parent trains 10 steps of 10 ms, waits 200 ms for children that train, then 4 more."""
    builder = TraceBuilder()
    starts = [10 * MS * number for number in range(10)] + [290 * MS + 10 * MS * i for i in range(4)]
    steps = {1: [*zip(starts, [*starts[1:], 330 * MS], strict=True)]}
    for child, n_steps in zip((2, 3)[:n_children], (6, 15), strict=False):
        at = [100 * MS + 10 * MS * number for number in range(n_steps + 1)]
        steps[child] = [*pairwise(at)]
    for process, rank in zip(steps, ranks, strict=False):
        builder.process(process, rank=rank)
        for number, (start, end) in enumerate(steps[process]):
            place = {"process": process}
            builder.phase("step", start, end, payload=float(number), kind="start_end", **place)
            builder.phase("forward", start, start + 3 * MS, **place)
            builder.phase("backward", start + 3 * MS, start + 7 * MS, **place)
            builder.phase("optimizer", start + 7 * MS, start + 9 * MS, **place)
    recorded = {"ranges", "collectives", "processes", "marks", "samples", "environment"}
    return builder.build(recorded=recorded, info=info)


def in_window(trace: Trace) -> Ranks:
    ranks = Ranks.of(trace)
    return ranks.within(select(ranks, None).window)


@pytest.mark.parametrize("n_children", [1, 2])
def test_the_steps_of_children_count_while_their_parent_waits(n_children: int) -> None:
    ranks = in_window(family(n_children=n_children))
    assert independent_processes(ranks) == n_children + 1
    base = base_of(ranks)
    counted = {process: int((base.processes == process).sum()) for process in (1, 2, 3)}
    assert counted[1] >= 12  # 14 without the slow one, and without one that the recording cuts
    assert counted[2] >= 5
    assert counted[3] >= (14 if n_children == 2 else 0)
    assert base.step_ns == pytest.approx(10 * MS)


def test_page_and_tables_say_independent_processes() -> None:
    ranks = in_window(family())
    steps = run("steps", ranks)
    (pace, *_) = (note_text(note) for note in on_pace(steps))
    n_steps = len(base_of(ranks).lengths_ns)
    assert f"mean of {n_steps} steps of 3 independent processes" in pace
    assert "rank" not in pace
    assert any("of 3 independent processes" in note_text(note) for note in steps.notes)
    table = run("ranks", ranks)
    assert [row["process"] for row in table.table.rows()] == [1, 2, 3]
    assert [row["step_ns"] for row in table.table.rows()] == pytest.approx([10 * MS] * 3)
    assert "3 independent processes" in note_text(table.notes[0])


@pytest.mark.parametrize(
    ("ranks", "info"),
    [
        ((0, 1, 2), OWN),
        ((ABSENT,) * 3, TraceInfo(format="nsys", profiler="Nsight Systems")),
    ],
)
def test_ranks_and_recordings_without_hooks_keep_their_words(ranks, info: TraceInfo) -> None:
    found = in_window(family(ranks, info))
    assert not independent_processes(found)
    (pace, *_) = (note_text(note) for note in on_pace(run("steps", found)))
    assert "ranks" in pace
    assert "independent" not in pace


def test_children_that_inherit_the_rank_of_their_parent_are_not_ranks() -> None:
    assert independent_processes(in_window(family((0, 0, 0)))) == 3


@pytest.mark.parametrize(
    ("ranks", "n_ranges", "expected"),
    [((None, None), 5, 2), ((0, 1), 5, 0), ((None, None), 0, 0), ((0, 0), 5, 2)],
)
def test_contents_count_processes_that_are_not_ranks(ranks, n_ranges: int, expected: int) -> None:
    processes = tuple(
        ProcessContents(place, "", rank, "", 0, n_ranges, 0) for place, rank in enumerate(ranks)
    )
    contents = Contents(OWN, family().span, None, (), 0, processes, {}, {}, ())
    assert contents.independent_count == expected
