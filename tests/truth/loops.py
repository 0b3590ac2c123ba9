"""Loops that a rank runs: training with everything that can go wrong in it, and inference."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.truth.machine import (
    AUTOGRAD,
    COMM,
    COMPUTE,
    COPY,
    LOADER,
    MAIN,
    MS,
    US,
    Machine,
    Meeting,
)
from traceprof.model.activity import Activity

__all__ = ["BF16", "FP32", "Inference", "Overlapped", "Pipeline", "Training", "nothing"]

BF16 = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
FP32 = "ampere_sgemm_128x128_tn"
_FORWARD = "{gemm}_layer{i}"
_POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl, "
    "std::array<char*, 2ul>>(int)"
)
_SINGLE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{functor}, "
    "std::array<char*, 3ul>>(int)"
)
_PASSES = ("lerp_scalar", "MulFunctor<float>", "addcmul_op", "sqrt_kernel", "addcdiv_op")
_ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>()"

Hook: TypeAlias = Callable[[Machine, int], None]


def nothing(machine: Machine, step: int) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Training:
    """A training loop that is healthy as it stands: ahead of the device, everything hidden.

    The step range stands inside ``for batch in loader``. ``before`` runs before it (there is
    where an iterator waits), ``fetch`` in it under a range of the recorder's phase "data",
    ``begin`` once it is copied, ``after`` behind the step. ``ahead`` is by how many steps the host
    may be ahead of the device.
    """

    n_steps: int = 30
    n_layers: int = 8
    kernel_ns: int = 900 * US
    gemm: str = BF16
    n_small: int = 0
    small_ns: int = 6 * US
    host_ns: int = 4 * US
    batch_bytes: int = 8_000_000
    batch_kind: str = "pinned"
    is_copy_hidden: bool = True
    is_copy_blocking: bool = False
    copy_api: str = ""
    n_buckets: int = 4
    reduce_ns: int = 2 * MS
    is_reduce_hidden: bool = True
    ranks: tuple[int, ...] = (0,)
    group: str = "0"
    set_up: Callable[[Machine], None] | None = None
    before: Hook = nothing
    fetch: Hook = nothing
    begin: Hook = nothing
    inside: Hook = nothing
    after: Hook = nothing
    ahead: int = 1
    is_item_read: bool = False
    is_graph: bool = False
    n_parameters: int = 0
    pass_ns: int = 3 * US
    is_fused: bool = True
    is_named: bool = True
    extra_ns: Mapping[int, int] = field(default_factory=dict)

    def __call__(self, machine: Machine) -> Generator[Meeting, None, None]:
        if self.set_up:
            self.set_up(machine)
        finished: list[int] = []
        for step in range(self.n_steps):
            self.before(machine, step)
            start = machine.now
            yield from self._step(machine, step)
            finished.append(max(ns for own, ns in machine.stream_ns.items() if own != LOADER))
            if self.is_item_read:
                machine.copy("d2h", 4, stream=COMPUTE, kind="pageable", blocks=True)
            elif step >= self.ahead:
                machine.wait_until(finished[step - self.ahead])
            if self.is_named:
                machine.builder.step(start, machine.now, step, process=machine.process)
            self.after(machine, step)

    def _step(self, machine: Machine, step: int) -> Generator[Meeting, None, None]:
        with machine.phase("data"):
            machine.work(100 * US)
            self.fetch(machine, step)
            machine.batch()
        self._copy(machine)
        self.begin(machine, step)
        if self.is_graph:
            machine.launch(
                "CUDA graph",
                self.kernel_ns * 3 * self.n_layers,
                api="cudaGraphLaunch",
                activity=Activity.CUDA_GRAPH,
            )
            return
        with machine.phase("forward"):
            for i in range(self.n_layers):
                self._layer(machine, f"{self.gemm}_fwd{i}", MAIN, 1)
        self.inside(machine, step)
        with machine.phase("backward"):
            for i in range(self.n_layers):
                self._layer(machine, f"{self.gemm}_dgrad{i}", AUTOGRAD, 2)
                if self.is_reduce_hidden and self._is_bucket(i):
                    yield self._meeting(blocks=False)
            if not self.is_reduce_hidden and len(self.ranks) > 1:
                for _ in range(self.n_buckets):
                    yield self._meeting(blocks=True)
            machine.join(COMPUTE, COMM)
        with machine.phase("optimizer"):
            self._optimize(machine)

    def _optimize(self, machine: Machine) -> None:
        """Run Adam: fused it moves 7/4 of what one pass of the others moves."""
        if not self.n_parameters:
            machine.launch(_ADAM, self.kernel_ns // 2)
        elif self.is_fused:
            machine.launch(_ADAM, self.n_parameters * self.pass_ns * 7 // 4)
        else:
            for _ in range(self.n_parameters):
                for functor in _PASSES:
                    machine.launch(_SINGLE.format(functor=functor), self.pass_ns)

    def _layer(self, machine: Machine, name: str, thread: int, factor: int) -> None:
        machine.launch(name, self.kernel_ns * factor, thread=thread, gap_ns=self.host_ns)
        for _ in range(self.n_small):
            machine.launch(_POINTWISE, self.small_ns, thread=thread, gap_ns=self.host_ns)

    def _copy(self, machine: Machine) -> None:
        if not self.batch_bytes:
            return
        stream = COPY if self.is_copy_hidden else COMPUTE
        machine.copy(
            "h2d",
            self.batch_bytes,
            kind=self.batch_kind,
            rate=50.0 if self.batch_kind == "pinned" else 6.0,
            stream=stream,
            blocks=self.is_copy_blocking,
            api=self.copy_api,
        )
        if self.is_copy_hidden:
            machine.join(COMPUTE, COPY)

    def _is_bucket(self, layer: int) -> bool:
        """Return whether a bucket is full after a layer; the last one leaves time to hide it."""
        every = max((self.n_layers - 1) // self.n_buckets, 1)
        return len(self.ranks) > 1 and layer % every == 0 and layer < self.n_layers - 2

    def _meeting(self, *, blocks: bool) -> Meeting:
        n_bytes = 25_000_000
        length = self.reduce_ns // self.n_buckets
        return Meeting("all_reduce", self.ranks, length, n_bytes, self.group, True, blocks)


@dataclass(frozen=True)
class Overlapped:
    """A training step of which the second half hides an all-reduce, which slows it down."""

    ranks: tuple[int, ...]
    slowed: float = 1.0
    n_steps: int = 24
    n_kernels: int = 10
    n_beside: int = 7

    def __call__(self, machine: Machine) -> Generator[Meeting, None, None]:
        finished: list[int] = []
        for step in range(self.n_steps):
            start = machine.now
            with machine.phase("forward"):
                self._launch(machine, self.n_kernels, 1.0)
            with machine.phase("backward"):
                length = self.n_beside * MS * 14 // 10 - 200 * US
                yield Meeting("all_reduce", self.ranks, length, 250_000_000, "0", True, False)
                self._launch(machine, self.n_beside, self.slowed)
                self._launch(machine, self.n_kernels - self.n_beside, 1.0)
            with machine.phase("optimizer"):
                machine.join(COMPUTE, COMM)
                machine.launch(_ADAM, MS // 2)
            finished.append(max(machine.stream_ns.values()))
            if step:
                machine.wait_until(finished[step - 1])
            machine.builder.step(start, machine.now, step, process=machine.process)

    def _launch(self, machine: Machine, count: int, slowed: float) -> None:
        for _ in range(count):
            machine.launch(BF16, int(MS * slowed))


@dataclass(frozen=True)
class Inference:
    """Requests: a prefill and the decoding of tokens, no backward, no optimizer."""

    n_requests: int = 20
    n_tokens: int = 8
    n_layers: int = 6

    def __call__(self, machine: Machine) -> Generator[Meeting, None, None]:
        for _ in range(self.n_requests):
            with machine.range("request"):
                self._pass(machine, "prefill", 4 * MS)
                for _ in range(self.n_tokens):
                    self._pass(machine, "decode", MS)
        yield from ()

    def _pass(self, machine: Machine, name: str, length_ns: int) -> None:
        with machine.range(name):
            for i in range(self.n_layers):
                machine.launch(f"{BF16}_{name}{i}", length_ns // self.n_layers)
                machine.launch(
                    "void paged_attention_v2_kernel<__nv_bfloat16, 128>()", length_ns // 8
                )


@dataclass(frozen=True)
class Pipeline:
    """A stage of a pipeline, of ``n_replicas`` side by side that reduce their gradients.

    ``is_closed``: each step ends with an all-reduce of all stages (the norm of the gradients).
    """

    stage: int
    n_stages: int
    replica: int = 0
    n_replicas: int = 1
    n_steps: int = 24
    n_micro: int = 8
    kernel_ns: int = 3 * MS
    slow_every: int = 0
    slow_factor: float = 1.0
    is_closed: bool = False
    send_ns: int = 100 * US

    def __call__(self, machine: Machine) -> Generator[Meeting, None, None]:
        finished: list[int] = []
        for step in range(self.n_steps):
            start = machine.now
            is_slow = self.slow_every and step % self.slow_every == self.slow_every - 1
            kernel_ns = int(self.kernel_ns * (self.slow_factor if is_slow else 1))
            with machine.phase("forward"):
                for _ in range(self.n_micro):
                    yield from self._exchange("forward", -1)
                    machine.launch(f"{BF16}_fwd", kernel_ns)
                    yield from self._exchange("forward", 1)
            with machine.phase("backward"):
                for _ in range(self.n_micro):
                    yield from self._exchange("backward", 1)
                    machine.launch(f"{BF16}_dgrad", 2 * kernel_ns, thread=AUTOGRAD)
                    yield from self._exchange("backward", -1)
            if self.n_replicas > 1:
                ranks = tuple(range(self.stage, self.n_stages * self.n_replicas, self.n_stages))
                yield Meeting("all_reduce", ranks, 2 * MS, 100_000_000, f"dp{self.stage}")
            if self.is_closed:
                every = tuple(range(self.n_stages * self.n_replicas))
                yield Meeting("all_reduce", every, 200 * US, 1_000, "world")
            with machine.phase("optimizer"):
                machine.launch(_ADAM, self.kernel_ns // 2)
            finished.append(max(machine.stream_ns.values()))
            if step:
                machine.wait_until(finished[step - 1])
            machine.builder.step(start, machine.now, step, process=machine.process)

    def _exchange(self, way: str, side: int) -> Generator[Meeting, None, None]:
        """Receive from, or send to, the stage beside this one, where there is one."""
        other = self.stage + side
        if not 0 <= other < self.n_stages:
            return
        first = self.replica * self.n_stages
        ranks = tuple(sorted((first + self.stage, first + other)))
        sends = (side > 0) == (way == "forward")
        op = "send" if sends else "recv"
        group = f"pp{ranks[0]}-{ranks[1]}"
        peer = ranks.index(first + other)
        yield Meeting(op, ranks, self.send_ns, 16_000_000, group, True, True, peer)
