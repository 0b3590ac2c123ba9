"""A rank that runs a program: host threads, device streams, collectives with other ranks.

The program is a generator over its `Machine`: what it does takes the time that it says, a launch
runs when its stream and the device's order let it, and ``yield`` of a `Meeting` waits until all
its ranks have come, as NCCL's kernels do: the host goes on, the stream does not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from tests.builders import TraceBuilder
from traceprof.model.activity import Activity
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import TraceInfo

__all__ = [
    "AUTOGRAD",
    "COMM",
    "COPY",
    "LOADER",
    "MAIN",
    "MS",
    "US",
    "WORKER",
    "Machine",
    "Meeting",
    "Program",
    "run",
]

US = 1_000
MS = 1_000_000
MAIN, AUTOGRAD, WORKER = 1, 100, 200
COMPUTE, COPY, COMM, LOADER = 7, 14, 20, 30
_CALL_NS = 4 * US
_LATENCY_NS = 3 * US


@dataclass(frozen=True)
class Meeting:
    """A collective (or a send and its receive) of ``ranks``, on the communication stream.

    ``after_compute``: it starts when the compute stream has done what was launched before;
    ``blocks_compute``: what is launched later on the compute stream waits for its end.
    """

    op: str
    ranks: tuple[int, ...]
    length_ns: int
    n_bytes: int = 0
    group: str = "0"
    after_compute: bool = True
    blocks_compute: bool = True
    peer: int = -1


Program = Callable[["Machine"], Generator[Meeting, None, None]]


@dataclass
class Machine:
    """One rank: where its host and its streams have got to, and what was recorded."""

    rank: int = 0
    n_ranks: int = 1
    gpu: str = "NVIDIA H100 80GB HBM3"
    host: str = "node0"
    seed: int = 0
    kernel_factor: float = 1.0
    jitter_ratio: float = 0.01
    begins_ns: int = 0
    builder: TraceBuilder = field(default_factory=TraceBuilder)

    def __post_init__(self) -> None:
        self.process = 100 + self.rank
        self.now = self.begins_ns
        self.stream_ns: dict[int, int] = {}
        self.random = Random(self.seed * 1009 + self.rank)
        self.sequence: dict[str, int] = {}
        self.correlation = 1_000_000
        self.builder.process(self.process, rank=self.rank, world_size=self.n_ranks)
        self.builder.device(self.rank, self.gpu)

    def work(self, length_ns: int) -> None:
        """Let the host compute, with nothing recorded of it."""
        self.now += self._about(length_ns)

    @contextmanager
    def range(self, name: str, *, thread: int = MAIN, domain: str = "") -> Iterator[None]:
        """Let an NVTX range hold what happens."""
        start = self.now
        yield
        self.builder.range(
            name, start, self.now, domain=domain, process=self.process, thread=thread
        )

    def phase(self, name: str):
        """Let a range of the recorder hold what happens."""
        return self.range(name, domain=TRACEPROF_DOMAIN)

    def wait(self, name: str, length_ns: int, *, thread: int = MAIN) -> None:
        """Spend the host's time in a range."""
        with self.range(name, thread=thread):
            self.work(length_ns)

    def beside(self, name: str, start_ns: int, end_ns: int, *, thread: int = WORKER) -> None:
        """Add what another thread did meanwhile."""
        self.builder.range(name, start_ns, end_ns, process=self.process, thread=thread)

    def call(self, name: str, length_ns: int = _CALL_NS, *, thread: int = MAIN) -> int:
        """Call the CUDA runtime; return the correlation."""
        self.correlation += 1
        self.builder.api_call(
            name,
            self.now,
            self.now + length_ns,
            process=self.process,
            thread=thread,
            correlation=self.correlation,
        )
        self.now += length_ns
        return self.correlation

    def launch(
        self,
        name: str,
        length_ns: int,
        *,
        stream: int = COMPUTE,
        thread: int = MAIN,
        after: Sequence[int] = (),
        gap_ns: int = 2 * US,
        api: str = "cudaLaunchKernel",
        activity: Activity | None = None,
        shape: Mapping[str, int] | None = None,
    ) -> int:
        """Launch a kernel (after streams ``after`` have done their work); return when it ends."""
        correlation = self.call(api, thread=thread)
        start = self._ready(stream, after)
        length = max(self._about(length_ns * self.kernel_factor), 1)
        self.builder.kernel(
            name,
            start,
            start + length,
            correlation=correlation,
            device=self.rank,
            stream=stream,
            process=self.process,
            activity=activity,
            shape=shape,
        )
        self.stream_ns[stream] = start + length
        self.now += gap_ns
        return start + length

    def launch_beside(
        self,
        name: str,
        length_ns: int,
        at_ns: int,
        *,
        stream: int = LOADER,
        thread: int = WORKER,
    ) -> int:
        """Launch a kernel from another thread at an instant; return when it ends."""
        self.correlation += 1
        self.builder.api_call(
            "cudaLaunchKernel",
            at_ns,
            at_ns + _CALL_NS,
            process=self.process,
            thread=thread,
            correlation=self.correlation,
        )
        start = max(at_ns + _CALL_NS + US, self.stream_ns.get(stream, 0))
        self.builder.kernel(
            name,
            start,
            start + length_ns,
            correlation=self.correlation,
            device=self.rank,
            stream=stream,
            process=self.process,
        )
        self.stream_ns[stream] = start + length_ns
        return start + length_ns

    def copy(
        self,
        direction: str,
        n_bytes: int,
        *,
        rate: float = 24.0,
        kind: str = "pinned",
        stream: int = COPY,
        blocks: bool = False,
        after: Sequence[int] = (),
        api: str = "",
    ) -> int:
        """Copy ``n_bytes`` at ``rate`` bytes per ns; the host waits where it ``blocks``."""
        api = api or ("cudaMemcpy" if blocks else "cudaMemcpyAsync")
        called = self.now
        start = self._ready(stream, after, called + _CALL_NS)
        end = start + max(int(n_bytes / rate), 1)
        correlation = self.call(api, (end + US - called) if blocks else _CALL_NS)
        sides = {"src_kind": kind} if direction == "h2d" else {"dst_kind": kind}
        self.builder.copy(
            direction,
            start,
            end,
            n_bytes=n_bytes,
            correlation=correlation,
            device=self.rank,
            stream=stream,
            process=self.process,
            **sides,
        )
        self.stream_ns[stream] = end
        return end

    def migrate(self, direction: str, count: int, every_ns: int, start_ns: int) -> None:
        """Let pages of managed memory move, one after the other, as nobody launches it."""
        for i in range(count):
            at = start_ns + i * every_ns
            self.builder.copy(
                direction,
                at,
                at + every_ns // 2,
                n_bytes=65_536,
                device=self.rank,
                process=self.process,
                src_kind="managed",
                dst_kind="managed",
            )

    def join(self, stream: int, *others: int) -> None:
        """Let a stream wait for others, as cudaStreamWaitEvent does."""
        for other in others:
            done = max(self.stream_ns.get(stream, 0), self.stream_ns.get(other, 0))
            self.stream_ns[stream] = done

    def synchronize(self, name: str = "cudaStreamSynchronize", *streams: int) -> None:
        """Wait on the host for streams (all of them)."""
        due = max([self.stream_ns.get(one, 0) for one in streams or self.stream_ns], default=0)
        self.call(name, max(due + 5 * US - self.now, _CALL_NS))

    def wait_until(self, instant_ns: int, name: str = "cudaEventSynchronize") -> None:
        """Wait on the host for an event that is due at an instant."""
        if instant_ns > self.now:
            self.call(name, instant_ns - self.now)

    def batch(self, n_samples: int = 32) -> None:
        self.builder.batch(self.now, n_samples, process=self.process)

    def arrive(self, meeting: Meeting) -> tuple[int, int]:
        """Issue a collective; return its launch's correlation and when its kernel starts."""
        thread = AUTOGRAD if meeting.after_compute else MAIN
        correlation = self.call("cudaLaunchKernelExC", thread=thread)
        after = (COMPUTE,) if meeting.after_compute else ()
        return correlation, self._ready(COMM, after)

    def leave(self, meeting: Meeting, correlation: int, start_ns: int, end_ns: int) -> None:
        """Record the collective's kernel, which ends for all ranks together."""
        number = self.sequence[meeting.group] = self.sequence.get(meeting.group, -1) + 1
        name = {"send": "SendRecv", "recv": "SendRecv"}.get(meeting.op, "AllReduce_Sum_f32_RING_LL")
        self.builder.collective(
            meeting.op,
            self.now - _CALL_NS,
            self.now,
            n_bytes=meeting.n_bytes,
            process=self.process,
            group=meeting.group,
            group_size=len(meeting.ranks),
            group_rank=meeting.ranks.index(self.rank),
            sequence=number,
            peer=meeting.peer,
            correlation=correlation,
        )
        self.builder.kernel(
            f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)",
            start_ns,
            end_ns,
            correlation=correlation,
            device=self.rank,
            stream=COMM,
            process=self.process,
        )
        self.stream_ns[COMM] = end_ns
        if meeting.blocks_compute:
            self.join(COMPUTE, COMM)

    def _ready(self, stream: int, after: Sequence[int], called_ns: int | None = None) -> int:
        due = [self.stream_ns.get(one, 0) for one in (stream, *after)]
        called = self.now if called_ns is None else called_ns
        return max(called + _LATENCY_NS, *due) + US

    def _about(self, length_ns: float) -> int:
        return int(length_ns * self.random.uniform(1 - self.jitter_ratio, 1 + self.jitter_ratio))


def run(machines: Sequence[Machine], program: Program, *, several_files: bool = False) -> Ranks:
    """Run the program on every machine, let them meet, and return what was recorded."""
    programs = {machine.rank: program(machine) for machine in machines}
    machine_of = {machine.rank: machine for machine in machines}
    waiting: dict[int, tuple[Meeting, int, int]] = {}
    running = set(programs)
    while running or waiting:
        for rank in sorted(running):
            meeting = next(programs[rank], None)
            if meeting is not None:
                waiting[rank] = (meeting, *machine_of[rank].arrive(meeting))
        running = set()
        for rank, (meeting, _, _) in sorted(waiting.items()):
            if rank in waiting and all(
                _is_there(waiting, other, meeting) for other in meeting.ranks
            ):
                end = max(waiting[other][2] for other in meeting.ranks) + meeting.length_ns
                for other in meeting.ranks:
                    own, correlation, start = waiting.pop(other)
                    machine_of[other].leave(own, correlation, start, end)
                    running.add(other)
        if not running and waiting:
            raise AssertionError(f"ranks wait for ever: {waiting}")
    return _recorded(machines, several_files)


def _is_there(waiting: dict[int, tuple[Meeting, int, int]], rank: int, meeting: Meeting) -> bool:
    return rank in waiting and waiting[rank][0].ranks == meeting.ranks


def _recorded(machines: Sequence[Machine], several_files: bool) -> Ranks:
    members = [
        RankTrace(
            one.builder.build(
                info=TraceInfo(path=f"rank{one.rank}", format="nsys", utc_epoch_ns=0)
            ),
            one.rank,
            one.rank % 8,
            one.host,
        )
        for one in machines
    ]
    if len(members) == 1:
        return Ranks.of(members[0].trace)
    return place_run(RunFiles("generated", tuple(members), len(members)))
