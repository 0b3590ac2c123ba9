"""Runs of several ranks with known clocks, jitter and stragglers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.builders import TraceBuilder
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.trace import Trace, TraceInfo

MS = 1_000_000
_STEP = 200 * MS
_ALL_REDUCE = 5 * MS


@dataclass(frozen=True)
class Clock:
    """Shows ``true + offset_ns + drift · true``."""

    offset_ns: int = 0
    drift_ppm: float = 0.0

    def show(self, true_ns: int) -> int:
        return true_ns + self.offset_ns + round(self.drift_ppm * 1e-6 * true_ns)


@dataclass(frozen=True)
class Plan:
    """``extra_ns[rank, phase]`` is how much longer a rank takes in a phase from ``since_step``.

    ``extra_of_step_ns[rank, phase, step]`` is how much longer it takes in one step.
    """

    n_ranks: int = 4
    n_steps: int = 10
    clocks: Sequence[Clock] = ()
    hosts: Sequence[str] = ()
    extra_ns: Mapping[tuple[int, str], int] = field(default_factory=dict)
    since_step: int = 0
    extra_of_step_ns: Mapping[tuple[int, str, int], int] = field(default_factory=dict)
    jitter_ns: int = 0
    first_step: Mapping[int, int] = field(default_factory=dict)
    on_gpu: bool = True
    numbered: bool = True


def make_host_ahead() -> Trace:
    """Return steps of 20 ms of the device, batches of 32; the host is through with each after 5."""
    builder = TraceBuilder()
    for i in range(8):
        start, begin = 5 * MS * i, 2 * MS + 20 * MS * i
        builder.step(start, start + 5 * MS, number=i).batch(start + MS, 32)
        builder.kernel("gemm", begin, begin + 20 * MS, launched_ns=(start + MS, start + 2 * MS))
    return builder.build(span=(0, 170 * MS))


def make_run(plan: Plan) -> RunFiles:
    """Return the run: per step forward 30 ms, backward 60 ms, an all-reduce, optimizer 5 ms."""
    random = np.random.default_rng(7)
    builders = [TraceBuilder() for _ in range(plan.n_ranks)]
    for rank, builder in enumerate(builders):
        builder.process(100 + rank, rank=rank, world_size=plan.n_ranks)
    for step in range(plan.n_steps):
        _add_step(plan, step, builders, random)
    members = tuple(
        RankTrace(
            builder.build(info=TraceInfo(path=f"rank{rank}", utc_epoch_ns=0)),
            rank,
            rank,
            plan.hosts[rank] if plan.hosts else "",
        )
        for rank, builder in enumerate(builders)
    )
    return RunFiles("generated", members, plan.n_ranks)


def make_ranks_of(plan: Plan) -> Ranks:
    """Return all ranks side by side, each on its own clock."""
    return place_run(make_run(plan))


def make_trace_of(plan: Plan) -> Trace:
    """Return all ranks as one trace, each on its own clock."""
    return place_run(make_run(plan)).merged()


def _add_step(
    plan: Plan, step: int, builders: list[TraceBuilder], random: np.random.Generator
) -> None:
    begin = 1000 * MS + step * _STEP
    ready = []
    for rank in range(plan.n_ranks):
        late = step >= plan.since_step
        extra = {p: n if late else 0 for (r, p), n in plan.extra_ns.items() if r == rank}
        once = {p: plan.extra_of_step_ns.get((rank, p, step), 0) for p in ("forward", "backward")}
        forward = begin + 30 * MS + extra.get("forward", 0) + once["forward"]
        backward = forward + 60 * MS + extra.get("backward", 0) + once["backward"]
        ready.append((forward, backward))
    end = max(backward for _, backward in ready) + _ALL_REDUCE
    for rank, (forward, backward) in enumerate(ready):
        if step >= plan.first_step.get(rank, 0):
            wobble = int(random.integers(-plan.jitter_ns, plan.jitter_ns + 1))
            clock = plan.clocks[rank] if plan.clocks else Clock()
            times = [begin, forward, backward, end + wobble, end + 5 * MS]
            _add_rank(plan, rank, step, builders[rank], [clock.show(time) for time in times])


def _add_rank(plan: Plan, rank: int, step: int, builder: TraceBuilder, times: list[int]) -> None:
    begin, forward, backward, end, done = times
    own = {"process": 100 + rank}
    builder.step(begin, done, step if plan.numbered else None, **own)
    for name, start, stop in (
        ("forward", begin, forward),
        ("backward", forward, backward),
        ("optimizer", end, done),
    ):
        builder.phase(name, start, stop, **own)
        if plan.on_gpu:
            launched = (start, start + 10)
            builder.kernel(
                f"gemm {name}", start + 10, stop, launched_ns=launched, device=rank, **own
            )
    call = {"n_bytes": 4_000_000, "group_size": plan.n_ranks, **own}
    if plan.on_gpu:
        builder.collective(
            "all_reduce", backward - 20, backward - 10, correlation=9000 + step, **call
        )
        builder.kernel(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            backward,
            end,
            correlation=9000 + step,
            device=rank,
            stream=20,
            **own,
        )
    else:
        builder.collective("all_reduce", backward, end, backend="gloo", **call)
