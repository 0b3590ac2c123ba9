"""A program that only runs forward passes has one rate: on the page, in steps, runs, and nodes."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.comparison.iterations import iterations_of_run
from traceprof.comparison.scaling.compared import scaling
from traceprof.comparison.summary.summarize import summarize
from traceprof.model.ranks import Ranks
from traceprof.session.answer import page
from traceprof.session.run import run_of

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
