"""Ranks that wait for each other without a straggler: what a page says, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import in_default_window
from tests.findings.test_imbalance import MS, job, of_rules
from tests.reading import said
from tests.running import run
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.trace import RecordingCost, TraceInfo
from traceprof.render.briefing import Briefing, briefing_of
from traceprof.session.answer import page
from traceprof.session.run import run_of

_LATE = (None, 1, 2, 3, 0, 2, 1, 2)
"""The late rank by collective of a step: rank 2 causes 3 of 7 waits."""
_SAME = "the same kernels with the same grid take longer"


def run_files(traces: Any) -> Ranks:
    members = tuple(RankTrace(trace, i, i, "a") for i, trace in enumerate(traces))
    return place_run(RunFiles("planted", members, len(members)))


def in_turn(late_ns: int, n_steps: int) -> Ranks:
    """Return 4 ranks; a step is 8 times a kernel of 20 ms, 1 ms of an all-reduce, and 1 ms."""
    builders = [TraceBuilder() for _ in range(4)]
    now = 0
    for step in range(n_steps):
        begin_step = now
        for place, late in enumerate(_LATE):
            end = now + 21 * MS + (0 if late is None else late_ns)
            for rank, builder in enumerate(builders):
                placed: dict[str, Any] = {"device": rank, "process": 100 + rank}
                key = 9000 + step * len(_LATE) + place
                call = {"n_bytes": 4_000_000, "group_size": 4, "correlation": key}
                ready = now + 20 * MS + (late_ns if rank == late else 0)
                launched = (now + 1, now + 2)
                builder.kernel("gemm", now, now + 20 * MS, launched_ns=launched, **placed)
                builder.collective("all_reduce", now + 3, now + 4, process=100 + rank, **call)
                name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
                builder.kernel(name, ready, end, correlation=key, stream=20, **placed)
                launched = (now + 5, now + 6)
                builder.kernel("adam", end, end + MS, launched_ns=launched, **placed)
            now = end + MS
        for rank, builder in enumerate(builders):
            builder.step(begin_step, now, step, process=100 + rank)
    for rank, builder in enumerate(builders):
        builder.process(100 + rank, rank=rank, world_size=4)
    infos = (TraceInfo(path=f"rank{i}", utc_epoch_ns=0) for i in range(4))
    return run_files(
        builder.build(info=info) for builder, info in zip(builders, infos, strict=True)
    )


def with_costs(ranks: Ranks, *shares: float) -> Ranks:
    """Return the ranks whose profiler took at least ``shares`` of the CPU time (0: unknown)."""
    costs = [RecordingCost((share, share), "slow") if share else None for share in shares]
    return run_files(
        replace(part, info=replace(part.info, recording=cost))
        for part, cost in zip(ranks, costs, strict=True)
    )


def page_of(ranks: Ranks) -> Briefing:
    return briefing_of(page(run_of(ranks)))


def observed(ranks: Ranks) -> list[str]:
    """Return the sentences on waiting of the findings; the page has the same ones."""
    notes = said(run("findings", in_default_window(ranks)))
    found = [note for note in notes if note.startswith("Ranks wait")]
    assert [text for text in page_of(ranks).made_of if text.startswith("Ranks")] == found
    return found


@pytest.mark.parametrize(
    ("n_steps", "why"), [(1, "one step is too few to name a straggler"), (6, "no single rank is")]
)
def test_ranks_that_wait_without_a_straggler_are_no_balanced_load(n_steps: int, why: str) -> None:
    """In 7 of 8 collectives, 3 of 4 ranks wait 8 ms: 42 ms of 232 ms per step and rank."""
    ranks = in_turn(8 * MS, n_steps)
    assert not {"straggler", "load_imbalance"} & {*of_rules(ranks)}
    (text,) = observed(ranks)
    start = "Ranks wait 42.0 ms per step, 42.9% of it for rank 2"
    assert text.startswith(f"{start}; {why}")
    assert page_of(ranks).next_command.startswith("traceprof show ranks --by straggler")
    assert "load balance across ranks" not in page_of(ranks).fine


def test_ranks_that_wait_little_are_balanced_if_every_rule_had_enough_steps() -> None:
    """Ranks wait 2.6 ms of 180 ms per step, which is below 5%."""
    balanced = in_turn(MS // 2, 6)
    assert not observed(balanced)
    assert "load balance across ranks" in page_of(balanced).fine


def test_a_subject_with_a_rule_that_lacks_steps_is_not_fine() -> None:
    few = in_turn(MS // 2, 3)
    briefing, notes = page_of(few), said(run("findings", in_default_window(few)))
    why = "all ranks recorded fewer than 4 usual steps"
    assert "load balance across ranks" not in briefing.fine
    (line,) = [text for text in briefing.unknown if why in text]
    assert f"not checked: {line}" in notes
    assert "load balance across ranks" in page_of(job(lambda *_: (0, 20 * MS, 32))).fine


def test_sending_less_data_does_not_save_the_waiting() -> None:
    evidence = " ".join(of_rules(in_turn(8 * MS, 6))["exposed_communication"].evidence)
    words = "of the exposed time is waiting for late ranks, which sending less data cannot save"
    assert f"42.0 ms per step per GPU {words}" in evidence
    in_step = job(lambda *_: (0, 8 * MS, 32))  # the ranks arrive together
    assert "waiting for late ranks" not in " ".join(
        of_rules(in_step)["exposed_communication"].evidence
    )


@pytest.mark.parametrize(
    ("shares", "is_named"),
    [
        ((0.0, 0.0, 0.3, 0.0), True),
        ((0.1, 0.1, 0.3, 0.1), True),
        ((0.1, 0.2, 0.3, 0.1), False),  # another profiler costs more than half as much
        ((0.3, 0.0, 0.0, 0.0), False),  # the late rank is not the one with the profiler
        ((0.0, 0.0, 0.0, 0.0), False),
    ],
)
def test_a_profiler_that_costs_much_more_on_the_late_rank_is_named(
    shares: tuple[float, ...], is_named: bool
) -> None:
    words = "rank 2 may be late because of its profiler"
    assert (words in observed(with_costs(in_turn(8 * MS, 1), *shares))[0]) == is_named
    late = job(lambda rank, _: ((30 if rank == 2 else 20) * MS, 20 * MS, 32))
    assert (words in of_rules(with_costs(late, *shares))["straggler"].evidence) == is_named


def test_a_profiler_is_not_blamed_for_slow_kernels() -> None:
    late = job(lambda rank, _: (0, (30 if rank == 2 else 20) * MS, 32))
    evidence = " ".join(of_rules(with_costs(late, 0, 0, 0.3, 0))["straggler"].evidence)
    assert _SAME in evidence
    assert "profiler" not in evidence


def test_what_cannot_apply_to_one_gpu_is_not_told_but_what_can_is() -> None:
    builder = TraceBuilder()
    for i in range(3):
        builder.kernel("gemm", i * MS, (i + 1) * MS)
    alone = " ".join(said(run("findings", builder.build())))
    assert "role" not in alone
    assert "weight synchronization" not in alone
    assert "pipeline stages" not in alone
    assert "one GPU" not in alone
    builder.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 3 * MS, 4 * MS)
    told = said(run("findings", builder.build()))
    why = "the trace contains one GPU: pass the traces of all ranks"
    assert f"not checked: load balance across ranks: {why}" in told


def test_the_columns_of_the_straggler_table_are_explained() -> None:
    (legend,) = [text for text in said(run("stragglers", in_turn(8 * MS, 1))) if "Columns" in text]
    for column in ("attributed", "cost", "excess", "late from", "last %", "end skew"):
        assert f"{column} is" in legend
