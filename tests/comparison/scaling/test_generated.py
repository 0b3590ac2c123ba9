"""Generated traces of 1, 2, 4, 8 and 64 ranks: what was planted is what was lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from tests.comparison.scaling.sized_runs import measures
from tests.truth.loops import Training
from tests.truth.machine import MS, Machine, run
from traceprof.comparison.scaling.compared import scaling
from traceprof.comparison.summary.summarize import composition_of_run, summarize
from traceprof.measures.steps.find import decide_steps
from traceprof.model.summary import Summary
from traceprof.session.run import Run, run_of

LAYERS = 3
LOOP = Training(n_steps=6, n_layers=LAYERS, n_buckets=2, is_reduce_hidden=False)
N_STEPS = LOOP.n_steps
COMPUTE_NS = int(LOOP.kernel_ns * (3 * LAYERS + 0.5))
"""Forward once, backward twice as long, half a kernel of the optimizer."""


def reduce_ns(n: int) -> int:
    """Return what the all-reduces of a step take: the more, the more ranks."""
    return (n.bit_length() - 1) * MS


def generated(n: int, factor: Callable[[int], float] = lambda _: 1.0) -> Run:
    loop = replace(LOOP, ranks=tuple(range(n)), reduce_ns=reduce_ns(n))
    machines = [
        Machine(rank=rank, n_ranks=n, jitter_ratio=0, kernel_factor=factor(rank))
        for rank in range(n)
    ]
    return run_of(decide_steps(run(machines, loop)))


def recorded(n: int, factor: Callable[[int], float] = lambda _: 1.0) -> Summary:
    return summarize(generated(n, factor), name=f"{n} ranks")


def of_contents(n: int) -> Summary:
    """Return a run without the results that scaling needs not: of many ranks these take long."""
    made = generated(n)
    devices, makeup, _ = composition_of_run(made.of_ranks())
    step_ns = int(makeup["ns"].sum()) / n / N_STEPS
    sizes = {"world_size": n, "global_batch_count": 32 * n, "samples_per_s": 32e9 * n / step_ns}
    return Summary(
        f"{n} ranks",
        tables={"measures": measures(sizes), "makeup": makeup},
        steps_count=N_STEPS,
        devices_count=devices,
    )


@cache
def one() -> Summary:
    return recorded(1)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_exposed_communication_is_all_that_is_lost(n: int) -> None:
    result = scaling([one(), recorded(n)]).results["scaling"]
    losses = result.to_frame("losses").set_index("loss")
    assert losses.loc["exposed communication", "lost_ns"] == pytest.approx(reduce_ns(n), rel=1e-3)
    assert losses.loc["slower compute", "lost_ns"] == 0
    assert losses.loc["slower compute", "actual_ns"] == COMPUTE_NS
    others = losses.drop("exposed communication")
    assert others["lost_ns"].abs().sum() < 0.01 * reduce_ns(n)
    last = result.table.to_frame().iloc[-1]
    assert last["scaling"] == "weak"
    assert last["ranks"] == "synchronized"
    usual = losses["base_ns"].sum()
    assert last["efficiency_ratio"] == pytest.approx(usual / (usual + reduce_ns(n)), rel=0.01)
    assert losses["lost_ratio"].sum() == pytest.approx(1 - last["efficiency_ratio"], abs=1e-6)


def test_64_ranks_lose_what_was_planted() -> None:
    result = scaling([of_contents(1), of_contents(64)]).results["scaling"]
    lost = result.to_frame("losses").set_index("loss")["lost_ns"]
    assert lost["exposed communication"] == pytest.approx(reduce_ns(64), rel=1e-3)
    assert lost.drop("exposed communication").abs().sum() < 0.01 * reduce_ns(64)


def test_a_straggler_is_slower_compute_and_waiting() -> None:
    n, more = 4, 0.25
    slow = recorded(n, lambda rank: 1 + more if rank == 2 else 1.0)
    losses = scaling([one(), slow]).results["scaling"].to_frame("losses").set_index("loss")
    lost = losses["lost_ns"]
    planted = COMPUTE_NS * more
    assert lost["slower compute"] == pytest.approx(planted / n, rel=1e-3)
    # The first time that it is late nobody can know that the ranks were in step.
    waited = lost["waiting for stragglers"] + lost["ranks not synchronized yet"]
    assert waited == pytest.approx(planted * (n - 1) / n, rel=0.05)
    assert lost["exposed communication"] == pytest.approx(reduce_ns(n), rel=0.02)
    assert lost["ranks not synchronized yet"] <= 1.1 * planted * (n - 1) / n / N_STEPS
