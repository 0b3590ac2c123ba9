"""Jobs with data, pipeline and tensor parallelism in which the slow rank is known.

Every rank carries out its operations one after another; receives and collectives wait, sends do
not. What a slow rank costs is how much longer the job takes with it than without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tests.builders import TraceBuilder
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.trace import Trace, TraceInfo

MS = 1_000_000
US = 1_000
_WIRE = 20 * US


@dataclass(frozen=True)
class Job:
    """Ranks are numbered tensor-parallel first, then by stage, then by replica.

    A forward takes 2 ms, a backward 4 ms, each of ``micro`` per step and stage; ``slow`` is how
    much longer a rank takes for both, ``idle_ns`` how long its host stops before each step.
    ``late_starts`` is how much later ranks begin.
    """

    pp: int = 1
    dp: int = 1
    tp: int = 1
    steps: int = 8
    micro: int = 8
    slow: Mapping[int, float] = field(default_factory=dict)
    idle_ns: Mapping[int, int] = field(default_factory=dict)
    more_kernels: Mapping[int, float] = field(default_factory=dict)
    late_starts: Mapping[int, int] = field(default_factory=dict)
    hosts: Sequence[str] = ()
    jitter: float = 0.01

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.pp * self.dp * self.tp

    def clean(self) -> Job:
        """The same job without what was planted."""
        return replace(self, slow={}, idle_ns={}, more_kernels={})

    def place(self, rank: int) -> tuple[int, int, int]:
        """Tensor-parallel rank, stage and replica of a rank."""
        return rank % self.tp, rank // self.tp % self.pp, rank // self.tp // self.pp


@dataclass(frozen=True)
class Op:
    """A piece of work of one rank; ``key`` is the same on all ranks that share it."""

    kind: str
    ns: int = 0
    key: tuple[object, ...] = ()
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Done:
    op: Op
    start_ns: int
    end_ns: int


def make_job(job: Job) -> Ranks:
    """Return the recordings of a job, all on one clock."""
    members = tuple(
        RankTrace(
            _recorded(job, rank, own), rank, rank, job.hosts[rank] if job.hosts else "one host"
        )
        for rank, own in enumerate(simulate(job))
    )
    return place_run(RunFiles("planted", members, job.size))


def cost_of_planted(job: Job) -> int:
    """Return how much longer the job takes because of what was planted, from its second step."""
    return _duration(job) - _duration(job.clean())


def _duration(job: Job) -> int:
    """From the end of the first step to that of the last, of the last rank."""
    ends = [[done.end_ns for done in own if done.op.kind == "optimizer"] for own in simulate(job)]
    return max(own[-1] for own in ends) - max(own[0] for own in ends)


def simulate(job: Job) -> list[list[Done]]:
    """Return when each rank does what."""
    random = np.random.default_rng(11)
    queues = [list(_ops(job, rank, random)) for rank in range(job.size)]
    now = [1_000 * MS + job.late_starts.get(rank, 0) for rank in range(job.size)]
    at = [0] * job.size
    came: dict[tuple[object, ...], dict[int, int]] = {}
    done: list[list[Done]] = [[] for _ in range(job.size)]
    sends: list[tuple[int, Op, int]] = []
    moved = True
    while moved:
        moved = False
        for rank, queue in enumerate(queues):
            while at[rank] < len(queue):
                op = queue[at[rank]]
                begin = now[rank]
                if op.key:
                    came.setdefault(op.key, {}).setdefault(rank, begin)
                    if op.kind == "send":
                        sends.append((rank, op, begin))
                    elif len(came[op.key]) < len(op.ranks):
                        break
                    else:
                        now[rank] = max(came[op.key].values()) + _WIRE
                        done[rank].append(Done(op, begin, now[rank]))
                else:
                    now[rank] = begin + op.ns
                    done[rank].append(Done(op, begin, now[rank]))
                at[rank] += 1
                moved = True
    for rank, op, begin in sends:
        done[rank].append(Done(op, begin, max(came[op.key].values()) + _WIRE))
    return [sorted(own, key=lambda one: one.start_ns) for own in done]


def _ops(job: Job, rank: int, random: np.random.Generator) -> Iterator[Op]:
    return _Worker(job, rank, random).run()


class _Worker:
    """What one rank does, one forward and one backward in turn once its pipeline is full."""

    def __init__(self, job: Job, rank: int, random: np.random.Generator) -> None:
        self.job, self.rank, self.random = job, rank, random
        self.tensor, self.stage, self.replica = job.place(rank)

    def run(self) -> Iterator[Op]:
        job = self.job
        warm = min(job.pp - self.stage - 1, job.micro)
        for step in range(job.steps):
            if self.rank in job.idle_ns:
                yield Op("idle", job.idle_ns[self.rank])
            for number in range(warm):
                yield from self.pass_on("forward", step, number)
            for number in range(job.micro - warm):
                yield from self.pass_on("forward", step, warm + number)
                yield from self.pass_on("backward", step, number)
            for number in range(job.micro - warm, job.micro):
                yield from self.pass_on("backward", step, number)
            yield from self.all_reduce("dp", step)
            yield Op("optimizer", 1 * MS)

    def pass_on(self, kind: str, step: int, number: int) -> Iterator[Op]:
        """Receive from one neighbor, work, and send to the other."""
        way = 1 if kind == "forward" else -1
        yield from self.message("recv", self.stage - way, kind, step, number)
        yield from self.work(kind, (2 if kind == "forward" else 4) * MS)
        yield from self.all_reduce("tp", step, kind, number)
        yield from self.message("send", self.stage + way, kind, step, number)

    def work(self, kind: str, ns: int) -> Iterator[Op]:
        job, rank = self.job, self.rank
        ns = round(ns * (1 + job.jitter * self.random.standard_normal()))
        yield Op(kind, round(ns * job.slow.get(rank, 1.0)))
        if rank in job.more_kernels:
            yield Op(kind, round(ns * (job.more_kernels[rank] - 1)))

    def message(self, op: str, other: int, *key: object) -> Iterator[Op]:
        """Send to the stage ``other``, or receive from it, where there is one."""
        if not 0 <= other < self.job.pp:
            return
        there = self.rank + self.job.tp * (other - self.stage)
        pair = (there, self.rank) if op == "recv" else (self.rank, there)
        yield Op(op, key=("pp", *pair, *key), ranks=pair)

    def all_reduce(self, kind: str, *key: object) -> Iterator[Op]:
        job = self.job
        if kind == "tp":
            group = tuple(self.rank - self.tensor + i for i in range(job.tp))
        else:
            first = self.tensor + job.tp * self.stage
            group = tuple(first + job.tp * job.pp * i for i in range(job.dp))
        if len(group) > 1:
            yield Op("all_reduce", key=(kind, *group, *key), ranks=group)


def _recorded(job: Job, rank: int, done: Sequence[Done]) -> Trace:
    own = {"process": 100 + rank}
    builder = TraceBuilder().process(100 + rank, rank=rank, world_size=job.size)
    begin = done[0].start_ns
    step = 0
    for number, one in enumerate(done):
        op, start, end = one.op, one.start_ns, one.end_ns
        if op.kind == "idle":
            continue
        if not op.key:
            launched = (start - 20, start - 10)
            name = f"gemm {op.kind}"
            builder.kernel(name, start, end, launched_ns=launched, device=rank, **own)
            builder.phase(op.kind, start - 30, start - 5, **own)
            if op.kind == "optimizer":
                builder.step(begin - 40, end, step, **own)
                begin, step = end + 50, step + 1
            continue
        kind = "AllReduce_Sum_f32_RING_LL" if op.kind == "all_reduce" else "SendRecv"
        name = f"{op.key[0]} {sorted(op.ranks)}"
        call = {"n_bytes": 1_000_000, "group": name, "group_size": len(op.ranks), **own}
        key = 9000 + number
        builder.collective(op.kind, start - 20, start - 10, correlation=key, **call)
        stream = 20 if op.kind in ("all_reduce", "recv") else 21
        kernel = {"correlation": key, "device": rank, "stream": stream, **own}
        builder.kernel(f"ncclDevKernel_{kind}", start, end, **kernel)
    info = TraceInfo(path=f"rank{rank}", utc_epoch_ns=0)
    return builder.build(info=info)
