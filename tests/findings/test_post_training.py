"""The tail of generation and weight synchronization, and iterations without either."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from tests.training import MS
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import Trace

N_STEPS = 6


def iterations(
    running: Sequence[tuple[int, int]] = ((0, 64),), sync_ms: int = 10, *, has_gpu: bool = False
) -> Trace:
    """Return iterations of 1,000 ms: 600 of generation, an update, and ``sync_ms`` of weights.

    ``running`` are the ms in the generation at which the number of sequences changes.
    """
    builder = TraceBuilder()
    for step in range(N_STEPS):
        begin = step * 1000 * MS
        builder.step(begin, begin + 1000 * MS, step)
        builder.phase("generation", begin, begin + 600 * MS)
        builder.phase("forward", begin + 600 * MS, begin + 700 * MS)
        builder.phase("backward", begin + 700 * MS, begin + 800 * MS)
        builder.phase("optimizer", begin + 800 * MS, begin + 810 * MS)
        builder.phase("weight_sync", begin + 990 * MS - sync_ms * MS, begin + 990 * MS)
        for at_ms, n in running:
            builder.mark("generation.running", begin + at_ms * MS, n, domain=TRACEPROF_DOMAIN)
        for at_ms in range(0, 800, 10) if has_gpu else ():
            start = begin + at_ms * MS
            builder.kernel("gemm", start, start + 9 * MS, launched_ns=(start, start + 1))
    return builder.build()


def of_rule(trace: Trace, rule: str) -> Found | None:
    return next(
        (found for found in findings_of(in_default_window(trace)) if found.rule == rule), None
    )


@pytest.mark.parametrize("has_gpu", [False, True])
def test_half_of_the_generation_with_few_sequences_is_a_tail(has_gpu: bool) -> None:
    trace = iterations(((0, 64), (200, 32), (300, 4)), has_gpu=has_gpu)
    found = of_rule(trace, "generation_tail")
    assert found is not None
    assert found.evidence[0] == "half of the generation runs with at most 4 of 64 sequences"
    assert "at most 16 of 64 sequences still run" in found.title
    # 300 of 1,000 ms, in which 4 of 64 sequences run. Gaps between kernels have their own finding.
    expected = 0.27 if has_gpu else 0.3
    assert found.claimed_ratio == pytest.approx(expected, abs=0.01)
    assert found.saving_ratio == pytest.approx(expected * (1 - 4 / 64), abs=0.01)
    assert found.kind == "bounded"


@pytest.mark.parametrize(
    "running",
    [
        ((0, 64),),  # all end together
        ((0, 64), (570, 4)),  # 3% of the step
        ((0, 64), (100, 32), (400, 20)),  # more than a quarter at all times
        (),  # unknown
    ],
)
def test_generation_without_a_tail(running: Sequence[tuple[int, int]]) -> None:
    assert of_rule(iterations(running), "generation_tail") is None


@pytest.mark.parametrize("has_gpu", [False, True])
def test_weight_synchronization_is_named_with_its_length(has_gpu: bool) -> None:
    found = of_rule(iterations(sync_ms=150, has_gpu=has_gpu), "weight_synchronization")
    assert found is not None
    assert "takes 15.0% of step time" in found.title
    assert found.evidence[0].endswith("synchronizations, 150 ms each")
    assert found.saving_ratio == pytest.approx(0.15, abs=0.01)
    assert of_rule(iterations(sync_ms=20, has_gpu=has_gpu), "weight_synchronization") is None
