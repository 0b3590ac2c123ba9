"""A program that only runs forward passes has one rate: on the page, in steps, runs, and nodes."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.comparison.iterations import iterations_of_run
from traceprof.comparison.scaling.compared import scaling
from traceprof.comparison.summary.summarize import summarize
from traceprof.measures.steps.base import base_of
from traceprof.model.ranks import Ranks
from traceprof.session.answer import page
from traceprof.session.run import run_of
from traceprof.session.selection import select

MS = 1_000_000
N_ROUNDS, SLOW, PAUSED = 40, 25, 12


def forward_passes() -> Ranks:
    """Return rounds of 10 and 12 ms in turn, a slow one, and one in which the recorder pauses."""
    builder, now = TraceBuilder(), 0
    for number in range(N_ROUNDS):
        length = (10 + 2 * (number % 2)) * MS
        builder.phase("eval", now, now + 8 * MS)
        now += 60 * MS if number == SLOW else length
        if number == PAUSED:
            builder.phase("traceprof.window.stop", now - MS, now + 29 * MS)
            now += 30 * MS
    return Ranks.of(builder.build())


def test_a_forward_only_program_has_one_rate_everywhere() -> None:
    ranks = forward_passes()
    found = run_of(ranks)
    document = page(found)
    assert document.verdict is not None
    of_page = document.verdict.pace[0].values
    of_steps = run("steps", ranks.within(document.selection.window)).scalars
    of_runs = summarize(run_of(ranks), name="f")
    of_scaling = scaling([of_runs]).results["scaling"].table.row(0)
    (of_nodes,) = iterations_of_run(run_of(ranks), "f")
    # 38 rounds count: not the slow one, and not the last one, which nothing ends.
    n_counted = N_ROUNDS - 2
    rate = n_counted / ((20 * 10 + 18 * 12) * 1e-3)
    assert of_nodes.iterations_count == n_counted
    assert {
        "page": 1e9 / of_page["step"],
        "steps": of_steps["steps_per_s"],
        "runs": of_runs.measure("steps_per_s"),
        "scaling": of_scaling["steps_per_s"],
        "nodes": 1e9 * n_counted / of_nodes.iterations_ns,
    } == pytest.approx(dict.fromkeys(("page", "steps", "runs", "scaling", "nodes"), rate))


def test_a_pause_of_a_process_without_steps_is_no_gap_of_the_learner() -> None:
    """An actor's recorder works for 100 ms, and 30 steps of the learner of 10 ms go on."""
    builder = TraceBuilder().process(1, rank=0).process(2)
    for number in range(30):
        at = number * 10 * MS
        builder.phase("forward", at, at + 4 * MS, process=1)
        builder.phase("backward", at + 4 * MS, at + 8 * MS, process=1)
        builder.phase("optimizer", at + 8 * MS, at + 10 * MS, process=1)
    builder.phase("traceprof.window.stop", 100 * MS, 200 * MS, process=2, thread=77)
    ranks = Ranks.of(builder.build())
    base = base_of(ranks.within(select(ranks, None).window))
    (found,) = iterations_of_run(run_of(ranks), "two")
    assert base.lengths_ns.tolist() == [10 * MS] * 30
    assert (found.iterations_count, found.iterations_ns) == (30, 300 * MS)
