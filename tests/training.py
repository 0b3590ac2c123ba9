"""A simulated training loop, whose trace has exactly the trouble that a test plants.

The host fetches a batch, copies it, launches forward, backward (from the autograd thread),
an all-reduce, and the optimizer; each device runs what was launched, in order. As it stands the
loop is healthy: the host is ahead of the device, and the all-reduce is hidden by the backward
pass.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.builders import TraceBuilder
from traceprof.model.trace import Trace

__all__ = ["MS", "US", "Training"]

US = 1_000
MS = 1_000_000

_AUTOGRAD = 100
_FORWARD = ("ampere_bf16_s16816gemm_128x128", "vectorized_elementwise_kernel")
_BACKWARD = ("ampere_bf16_s16816gemm_dgrad_64x64", "reduce_kernel")
_OPTIMIZER = ("multi_tensor_apply_kernel",)
_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@dataclass
class Training:
    """The loop; times in ns.

    ``kernel_ns`` is the length of each of ``n_kernels`` kernels of a step, ``per_launch_ns`` the
    time of the host from one launch to the next, ``slow_ranks`` factors on the kernels of a
    rank, ``jitter_ratio`` how far kernels and launches deviate at random, ``stalls_ns`` what the
    host does besides in some steps, and ``batch_bytes`` at ``batch_rate`` bytes per ns the copy
    of a batch.
    """

    n_steps: int = 24
    n_ranks: int = 1
    n_kernels: int = 40
    kernel_ns: int = 250 * US
    per_launch_ns: int = 10 * US
    data_ns: int = 200 * US
    stalls_ns: Mapping[int, int] = field(default_factory=dict)
    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    batch_bytes: int = 4_000_000
    batch_rate: float = 24.0
    pageable: bool = False
    all_reduce_ns: int = 0
    overlapped: bool = True
    sync_every_step: bool = False
    jitter_ratio: float = 0.0

    def build(self) -> Trace:
        """Return the trace of the run, with phases and steps as `traceprof record` marks them."""
        builder = TraceBuilder()
        ranks = [_Rank(self, rank, builder) for rank in range(self.n_ranks)]
        for step in range(self.n_steps):
            for rank in ranks:
                rank.run_until_collective(step)
            if self.all_reduce_ns:
                together = max(rank.collective_ready_ns for rank in ranks) + self.all_reduce_ns
                for rank in ranks:
                    rank.finish_collective(together)
            for rank in ranks:
                rank.finish_step(step)
        return builder.build()


class _Rank:
    """The host and the device of one rank, and where each of them has got to."""

    def __init__(self, training: Training, rank: int, builder: TraceBuilder) -> None:
        self.training = training
        self.rank = rank
        self.builder = builder.process(rank + 1, rank=rank).device(rank, "NVIDIA H100")
        self.host_ns = 0
        self.device_ns = 0
        self.collective_ready_ns = 0
        self.step_start_ns = 0
        self.finished_ns: list[int] = []
        self.random = random.Random(rank)

    def run_until_collective(self, step: int) -> None:
        """Fetch and copy a batch, and launch the forward and backward passes."""
        training = self.training
        self.step_start_ns = start = self.host_ns
        self.host_ns += training.data_ns
        self._phase("data", start)
        self.builder.batch(self.host_ns, 32, process=self.rank + 1)
        self.host_ns += training.stalls_ns.get(step, 0)
        self._copy_batch()
        start = self.host_ns
        self._launch(_FORWARD, training.n_kernels * 3 // 8)
        self._phase("forward", start)
        start = self.host_ns
        n_backward = training.n_kernels // 2
        self._launch(_BACKWARD, n_backward // 2, thread=_AUTOGRAD)
        if training.overlapped:
            self.collective_ready_ns = self.device_ns
        self._launch(_BACKWARD, n_backward - n_backward // 2, thread=_AUTOGRAD)
        if not training.overlapped:
            self.collective_ready_ns = self.device_ns
        self._phase("backward", start)

    def finish_collective(self, end_ns: int) -> None:
        """End the all-reduce, which runs on a stream of its own."""
        call = (self.host_ns, self.host_ns + 5 * US)
        self.host_ns += self.training.per_launch_ns
        ready = max(self.collective_ready_ns, call[1])
        self.builder.kernel(
            _ALL_REDUCE,
            ready,
            max(end_ns, ready + 1),
            launched_ns=call,
            device=self.rank,
            stream=20,
            process=self.rank + 1,
        )
        self.device_ns = max(self.device_ns, end_ns)

    def finish_step(self, step: int) -> None:
        """Launch the optimizer; be at most one step ahead of the device."""
        training = self.training
        start = self.host_ns
        self._launch(_OPTIMIZER, training.n_kernels // 8)
        self._phase("optimizer", start)
        self.finished_ns.append(self.device_ns)
        waits_for = self.device_ns if training.sync_every_step else self._finished_before(step)
        if waits_for > self.host_ns:
            name = "cudaDeviceSynchronize" if training.sync_every_step else "cudaEventSynchronize"
            self.builder.api_call(name, self.host_ns, waits_for, process=self.rank + 1)
            self.host_ns = waits_for
        self.builder.step(self.step_start_ns, self.host_ns, number=step, process=self.rank + 1)

    def _finished_before(self, step: int) -> int:
        return self.finished_ns[step - 1] if step else 0

    def _phase(self, name: str, start_ns: int) -> None:
        self.builder.phase(name, start_ns, self.host_ns, process=self.rank + 1)

    def _copy_batch(self) -> None:
        training = self.training
        call = (self.host_ns, self.host_ns + 5 * US)
        self.host_ns += training.per_launch_ns
        length = int(training.batch_bytes / training.batch_rate)
        # A batch in pinned memory is copied beside the kernels, one in pageable memory is not.
        start = max(self.device_ns if training.pageable else 0, call[1] + 2 * US)
        self.builder.copy(
            "h2d",
            start,
            start + length,
            n_bytes=training.batch_bytes,
            launched_ns=call,
            device=self.rank,
            stream=7 if training.pageable else 14,
            process=self.rank + 1,
            src_kind="pageable" if training.pageable else "pinned",
        )
        self.device_ns = max(self.device_ns, start + length)
        if training.pageable:
            self.host_ns = max(self.host_ns, start + length)

    def _launch(self, names: tuple[str, ...], count: int, thread: int | None = None) -> None:
        training = self.training
        usual = training.kernel_ns * training.slow_ranks.get(self.rank, 1.0)
        for i in range(count):
            length = int(usual * self._jitter())
            call = (self.host_ns, self.host_ns + training.per_launch_ns // 2)
            start = max(self.device_ns + 1 * US, call[1] + 3 * US)
            self.builder.kernel(
                names[i % len(names)],
                start,
                start + length,
                launched_ns=call,
                device=self.rank,
                process=self.rank + 1,
                thread=1 if thread is None else thread,
            )
            self.device_ns = start + length
            self.host_ns += int(training.per_launch_ns * self._jitter())

    def _jitter(self) -> float:
        spread = self.training.jitter_ratio
        return self.random.uniform(1 - spread, 1 + spread)
