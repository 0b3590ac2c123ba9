"""A loop of 10 ms steps that one can check in the head, with what makes one of them longer.

Per step the host launches a gemm of 3 ms and a relu of 1 ms right after it; the device is idle for
the other 6 ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.builders import TraceBuilder
from traceprof.model.trace import Trace

__all__ = ["MS", "US", "Loop", "three_ranks"]

MS = 1_000_000
US = 1_000


@dataclass(frozen=True)
class Loop:
    """``slow`` is the step that differs: by what its gemm takes more, by more relus of 1 ms, by
    what the host does in a range before it launches, by a copy of so many ms behind the work.
    """

    slow: int = 3
    longer_ns: int = 0
    more: int = 0
    host_ns: int = 0
    copy_ns: int = 0
    steps: int = 6

    def trace(self) -> Trace:
        """The trace; a span of a step is from the end of the work before to that of its own."""
        builder = TraceBuilder()
        for i in range(self.steps):
            self._add_step(builder, i, 10 * MS * i, is_slow=i == self.slow)
        return builder.build()

    def _add_step(self, builder: TraceBuilder, i: int, at: int, *, is_slow: bool) -> None:
        host_ns = self.host_ns if is_slow else 0
        launch = at + 100 * US + host_ns
        builder.step(at, at + 10 * MS, i)
        builder.phase("forward", at, launch + 200 * US)
        if host_ns:
            builder.range("tokenize", at + 50 * US, at + 50 * US + host_ns)
        start = at + MS + host_ns
        end = start + 3 * MS + (self.longer_ns if is_slow else 0)
        builder.kernel("gemm", start, end, launched_ns=(launch, launch + 5 * US))
        for k in range(1 + (self.more if is_slow else 0)):
            begin = launch + (10 + 10 * k) * US
            builder.kernel("relu", end, end + MS, launched_ns=(begin, begin + 5 * US))
            end += MS
        if is_slow and self.copy_ns:
            builder.copy(
                "h2d",
                end,
                end + self.copy_ns,
                n_bytes=4096,
                src_kind="pageable",
                launched_ns=(launch + 100 * US, launch + 105 * US),
            )


def three_ranks(slow: int = 3, late_ns: int = MS, steps: int = 6) -> Trace:
    """Per step a gemm of 3 ms and an all-reduce of 1 ms; in step ``slow`` rank 1 is late."""
    builder = TraceBuilder()
    for rank in range(3):
        builder.process(10 + rank, rank=rank).device(rank)
    for i in range(steps):
        at = 10 * MS * i
        late = late_ns if i == slow else 0
        for rank in range(3):
            where: dict[str, Any] = {"process": 10 + rank, "thread": 10 + rank}
            done = at + 4 * MS + (late if rank == 1 else 0)
            launch = at + 100 * US
            builder.step(at, at + 10 * MS, i, **where)
            builder.kernel(
                "gemm", at + MS, done, launched_ns=(launch, launch + 5 * US), device=rank, **where
            )
            number = 100_000 + i
            builder.collective(
                "all_reduce",
                launch + 10 * US,
                launch + 30 * US,
                n_bytes=1000,
                group_size=3,
                sequence=i,
                correlation=number,
                **where,
            )
            builder.kernel(
                "ncclDevKernel_AllReduce",
                done,
                at + 5 * MS + late,
                launched_ns=(launch + 15 * US, launch + 20 * US),
                correlation=number,
                device=rank,
                stream=9,
                **where,
            )
    return builder.build()
