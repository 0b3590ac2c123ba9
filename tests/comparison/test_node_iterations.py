"""From traces to the rounds of each rank."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.truth.loops import Training
from tests.truth.machine import MS, Machine, run
from traceprof.comparison.iterations import iterations_of_run
from traceprof.measures.steps.find import decide_steps
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.session.run import run_of

N_STEPS = 8


def recorded(ranks: tuple[int, ...], n_ranks: int = 2) -> Ranks:
    loop = Training(n_steps=N_STEPS, ranks=ranks, is_reduce_hidden=False, reduce_ns=4 * MS)
    machines = [Machine(rank=rank, n_ranks=n_ranks, jitter_ratio=0) for rank in range(n_ranks)]
    return decide_steps(run(machines, loop))


def test_ranks_that_reduce_are_synchronized() -> None:
    found = iterations_of_run(run_of(recorded((0, 1))), "together")
    assert [one.rank for one in found] == [0, 1]
    for one in found:
        assert (one.mode, one.ranks) == ("forward+backward", "synchronized")
        assert one.iterations_count + one.warmup_count == N_STEPS
        # Four buckets of 25 MB in every round but the first.
        assert one.calls_count == 4 * (one.iterations_count - 1)
        assert one.calls_bytes == 25e6 * one.calls_count
        assert one.samples_count == 32 * one.iterations_count
        assert one.phases["forward"] > 0
        assert one.waited_ns is not None


@pytest.mark.parametrize("phase", ["forward", "eval"])  # with gradients, and without
def test_ranks_that_do_not_are_independent(phase: str) -> None:
    builders = [TraceBuilder().process(100 + rank, rank=rank, world_size=2) for rank in range(2)]
    for rank, builder in enumerate(builders):
        own = {"process": 100 + rank}
        # What is exchanged once, at first, does not make them keep step.
        builder.collective("broadcast", 1, 2, n_bytes=8, group_size=2, sequence=0, **own)
        for step in range(5):
            start = 100 * step
            builder.phase("data", start, start + 10, **own)
            builder.phase(phase, start + 10, start + 40 + 20 * rank, **own)
            builder.batch(start + 9, 16, **own)
    parts = tuple(builder.build() for builder in builders)
    found = iterations_of_run(run_of(Ranks(parts, parts[0].info)), "alone")
    assert [(one.rank, one.mode, one.ranks) for one in found] == [
        (0, "forward", "independent"),
        (1, "forward", "independent"),
    ]
    # The last round has no next batch, so the time between the rounds is missing from it.
    assert [one.phases["forward"] for one in found] == [4 * 30, 4 * 50]
    assert [one.samples_count for one in found] == [64, 64]


def test_ranks_in_one_file_are_told_apart() -> None:
    builder = TraceBuilder()
    for rank in range(2):
        own = {"process": 100 + rank}
        builder.process(100 + rank, rank=rank, world_size=2)
        for step in range(4):
            start = 100 * step
            builder.step(start, start + 90, step, **own)
            builder.phase("forward", start, start + 30 * (rank + 1), **own)
    found = iterations_of_run(run_of(decide_steps(Ranks.of(builder.build()))), "one file")
    assert [(one.rank, one.phases["forward"] // one.iterations_count) for one in found] == [
        (0, 30),
        (1, 60),
    ]


def test_layers_have_their_backward_pass_on_the_host() -> None:
    builder = TraceBuilder()
    own = {"domain": TRACEPROF_DOMAIN}
    for step in range(4):
        start = 100 * step
        builder.step(start, start + 90, step)
        builder.range("layer:module.block:Sequential", start + 5, start + 25, **own)
        builder.range("layer:module.block.a:Conv2d", start + 6, start + 16, **own)
        builder.range("layer:module.block.b:Conv2d", start + 16, start + 20, **own)
        for name, first, last in (("b", 40, 47), ("a", 47, 60)):
            path = f"layer.backward:module.block.{name}:Conv2d"
            builder.range(path, start + first, start + last, kind="start_end", **own)
    (found,) = iterations_of_run(run_of(decide_steps(Ranks.of(builder.build()))), "one")
    layers = found.layers.to_frame().set_index("layer")
    n = found.iterations_count
    assert (layers["host_ns"] // n).to_dict() == {"block": 20, "block.a": 10, "block.b": 4}
    assert (layers["host_backward_ns"] // n).to_dict() == {
        "block": 20,
        "block.a": 13,
        "block.b": 7,
    }


def test_what_the_profiler_takes_between_rounds_is_no_time_of_theirs() -> None:
    """A window opens before the fifth of six rounds."""
    own = {"process": 100}
    builder = TraceBuilder().process(100, rank=0, world_size=2)
    for step, start in enumerate([0, 100, 200, 300, 450, 550]):
        if step == 4:
            builder.phase("traceprof.window.start", 400, 450, **own)
        builder.phase("forward", start, start + 30, **own)
        builder.phase("backward", start + 30, start + 90, **own)
        builder.collective(
            "all_reduce", start + 40, start + 50, n_bytes=8, group_size=2, sequence=step, **own
        )
        builder.phase("optimizer", start + 90, start + 100, **own)
    part = builder.build()
    (one,) = iterations_of_run(run_of(Ranks((part,), part.info)), "one")
    assert one.iterations_count + one.warmup_count == 6
    assert one.calls_iterations_ns == 100 * (one.iterations_count - 1)
    assert one.calls_count == one.iterations_count - 1


def test_a_slow_round_in_between_is_in_no_sum() -> None:
    """Ten rounds of 100 ms, of which the sixth takes 900 ms and has a collective of 800 ms."""
    own = {"process": 100}
    builder = TraceBuilder().process(100, rank=0, world_size=2)
    start = 0
    for step in range(10):
        more = 800 * MS if step == 5 else 0
        builder.phase("forward", start, start + 30 * MS, **own)
        builder.phase("backward", start + 30 * MS, start + 90 * MS + more, **own)
        builder.collective(
            *("all_reduce", start + 40 * MS, start + 50 * MS + more),
            **{"n_bytes": 8, "group_size": 2, "sequence": step, **own},
        )
        builder.phase("optimizer", start + 90 * MS + more, start + 100 * MS + more, **own)
        builder.batch(start, 16, **own)
        start += 100 * MS + more
    part = builder.build()
    (one,) = iterations_of_run(run_of(Ranks((part,), part.info)), "one")
    n = one.iterations_count
    assert n + one.warmup_count == 9
    assert one.iterations_ns == 100 * MS * n
    assert one.phases == {"forward": 30 * MS * n, "backward": 60 * MS * n, "optimizer": 10 * MS * n}
    assert one.samples_count == 16 * n
    assert one.calls_count == n - 1
    assert one.calls_bytes == 8 * (n - 1)
    assert one.calls_iterations_ns == 100 * MS * (n - 1)
