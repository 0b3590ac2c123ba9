"""One training step as the host issues it: operations in their order, and the ranges around them.

A decoder model in bf16 with sharded data parallelism: the forward on the main thread, the backward
on autograd's, a reduce-scatter per layer beside the backward, then the optimizer and the loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from scripts.nsys_export.kernels import VARIANTS, Kernel

__all__ = ["COMM_STREAM", "COPY_STREAM", "MAIN_STREAM", "Kind", "Label", "Step", "build_step"]

Places = npt.NDArray[np.int64]

MAIN_STREAM: Final = 7
COPY_STREAM: Final = 14
COMM_STREAM: Final = 20


class Kind(IntEnum):
    """What an operation of the host leads to."""

    KERNEL = 0
    COLLECTIVE = 1
    H2D = 2
    D2D = 3
    D2H = 4
    MEMSET = 5
    WAIT = 6  # a stream waits for an event
    SYNC = 7  # the host waits for the stream
    CALL = 8  # nothing on the device


class Label(IntEnum):
    """How the name of a range stands in the export."""

    TEXT = 0
    REGISTERED = 1  # as an id of a string
    NUMBERED = 2  # with the number of the operator, as emit_nvtx does
    STEP = 3  # with the number of the step


class Operation(NamedTuple):
    """One call of the CUDA API and what it leads to."""

    kind: Kind
    api: str
    kernel: Kernel | None = None
    mean_ns: int = 0
    n_bytes: int = 0
    pause_ns: int = 1500
    thread: int = 0
    phase: str = ""


class Range(NamedTuple):
    """A range around operations ``first`` to ``last``."""

    name: str
    label: Label
    depth: int
    thread: int
    domain: int
    first: int
    last: int


@dataclass(frozen=True, eq=False)
class Step:
    """A step: its operations as the host issues them, and its ranges, outermost first."""

    operations: tuple[Operation, ...]
    ranges: tuple[Range, ...]

    @cached_property
    def kinds(self) -> Places:
        """The kind of every operation."""
        return np.array([operation.kind for operation in self.operations])

    def places(self, *kinds: Kind) -> Places:
        """Return where the operations of these kinds stand."""
        return np.flatnonzero(np.isin(self.kinds, kinds))

    @property
    def n_kernels(self) -> int:
        """The kernels of a step, collectives included."""
        return len(self.places(Kind.KERNEL, Kind.COLLECTIVE))

    @cached_property
    def uploads(self) -> Places:
        """The copies of the batch."""
        return self.places(Kind.H2D)

    @cached_property
    def compute(self) -> Places:
        """What forward and backward do on the main stream."""
        return self._of(False, Kind.KERNEL, Kind.D2D, Kind.MEMSET)

    @cached_property
    def reductions(self) -> Places:
        """The collectives of the backward."""
        return self._of(False, Kind.COLLECTIVE)

    @cached_property
    def optimizer(self) -> Places:
        """What the optimizer does on the device, collectives included, and the loss behind it."""
        return self._of(True, Kind.KERNEL, Kind.COLLECTIVE, Kind.D2D, Kind.D2H, Kind.MEMSET)

    def _of(self, is_optimizer: bool, *kinds: Kind) -> Places:
        phases = np.array([one.phase == "optimizer" for one in self.operations])
        return np.flatnonzero((phases == is_optimizer) & np.isin(self.kinds, kinds))


@dataclass
class _Builder:
    operations: list[Operation] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    thread: int = 0
    phase: str = ""
    depth: int = 0
    n_used: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def range(self, name: str, label: Label = Label.TEXT, domain: int = 0) -> Iterator[None]:
        """Put what is issued inside into a range."""
        place, first, depth = len(self.ranges), len(self.operations), self.depth
        self.depth += 1
        yield
        self.depth -= 1
        last = len(self.operations) - 1
        self.ranges.insert(place, Range(name, label, depth, self.thread, domain, first, last))

    @contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        self.phase = name
        with self.range(name, Label.REGISTERED):
            yield
        self.phase = ""

    @contextmanager
    def by_autograd(self) -> Iterator[None]:
        self.thread = 1
        yield
        self.thread = 0

    def issue(self, kind: Kind, api: str, **more: Any) -> None:
        operation = Operation(kind, api, thread=self.thread, phase=self.phase)
        self.operations.append(operation._replace(**more))

    def kernel(self, use: str) -> None:
        variants = VARIANTS[use]
        used = self.n_used[use] = self.n_used.get(use, 0) + 1
        kernel = variants[used * 7 // 5 % len(variants)]
        api = "cuLaunchKernelEx" if use.startswith("gemm") else "cudaLaunchKernel_v7000"
        self.issue(Kind.KERNEL, api, kernel=kernel, mean_ns=kernel.mean_ns)

    def copy(self, kind: Kind, n_bytes: int) -> None:
        bytes_per_ns = 1500 if kind is Kind.D2D else 25
        length = 1200 + n_bytes // bytes_per_ns
        self.issue(kind, "cudaMemcpyAsync_v3020", mean_ns=length, n_bytes=n_bytes)

    def memset(self, n_bytes: int) -> None:
        self.issue(Kind.MEMSET, "cudaMemsetAsync_v3020", mean_ns=1000, n_bytes=n_bytes)

    def operator(self, name: str, *uses: str) -> None:
        """Issue the kernels, copies and memsets of one operator, in a range of its own."""
        with self.range(name, Label.NUMBERED):
            for use in uses:
                if use == "copy":
                    self.copy(Kind.D2D, 8 << 20)
                elif use == "memset":
                    self.memset(16384)
                else:
                    self.kernel(use)

    def collective(self, use: str, call: str) -> None:
        """Issue a collective on NCCL's stream, behind what was issued before."""
        self.issue(Kind.CALL, "cudaEventRecord_v3020")
        self.issue(Kind.WAIT, "cudaStreamWaitEvent_v3020")
        with self.range(call, Label.REGISTERED, domain=1):
            kernel = VARIANTS[use][0]
            api = "cuLaunchKernelEx"
            self.issue(Kind.COLLECTIVE, api, kernel=kernel, mean_ns=kernel.mean_ns)


def build_step(n_layers: int) -> Step:
    """Return the step of a model of ``n_layers`` layers."""
    builder = _Builder()
    with builder.range("step", Label.STEP):
        with builder.in_phase("data"):
            builder.issue(Kind.CALL, "cudaEventQuery_v3020", pause_ns=400_000)
            builder.copy(Kind.H2D, 8 << 20)
            builder.copy(Kind.H2D, 64 << 10)
        with builder.in_phase("forward"):
            _add_forward(builder, n_layers)
        with builder.in_phase("backward"), builder.by_autograd():
            _add_backward(builder, n_layers)
        with builder.in_phase("optimizer"):
            _add_optimizer(builder)
    return Step(tuple(builder.operations), tuple(builder.ranges))


def _add_forward(builder: _Builder, n_layers: int) -> None:
    builder.operator("aten::embedding", "embedding", "dropout")
    for layer in range(n_layers):
        with builder.range(f"transformer.layers.{layer}"):
            with builder.range("attention", Label.REGISTERED):
                builder.operator("aten::layer_norm", "cast_f32", "layer_norm", "cast_bf16")
                builder.operator("aten::linear", "memset", "gemm_qkv", "copy")
                builder.operator("aten::scaled_dot_product_attention", "attention")
                builder.operator("aten::linear", "gemm_projection", "dropout", "add")
            with builder.range("mlp", Label.REGISTERED):
                builder.operator("aten::layer_norm", "cast_f32", "layer_norm", "cast_bf16")
                builder.operator("aten::linear", "gemm_up", "gelu", "gemm_down")
                builder.operator("aten::add", "dropout", "add")
    builder.operator("aten::cross_entropy_loss", "gemm_qkv", "softmax", "loss")


def _add_backward(builder: _Builder, n_layers: int) -> None:
    engine = "autograd::engine::evaluate_function: {}Backward0"
    builder.operator(engine.format("NllLoss"), "fill", "loss_backward", "softmax_backward")
    for _ in range(n_layers):
        builder.operator(engine.format("NativeDropout"), "mul", "mul")
        builder.operator(engine.format("Addmm"), "gemm_data", "gemm_weight", "sum", "memset")
        builder.operator(engine.format("Gelu"), "gelu_backward", "cast_bf16")
        builder.operator(engine.format("Addmm"), "gemm_data", "gemm_weight", "sum", "copy")
        norm = ("layer_norm_backward", "gamma_beta", "cast_f32", "add")
        builder.operator(engine.format("NativeLayerNorm"), *norm)
        attention = ("memset", "attention_backward", "cast_bf16", "copy")
        builder.operator(engine.format("ScaledDotProductFlashAttention"), *attention)
        builder.operator(engine.format("Addmm"), "gemm_data", "gemm_weight", "sum", "add")
        with builder.range("c10d::_reduce_scatter_base_", Label.NUMBERED):
            builder.collective("reduce_scatter", "ncclReduceScatter")


def _add_optimizer(builder: _Builder) -> None:
    builder.operator("aten::_foreach_norm", "norm", "sum")
    builder.collective("all_reduce", "ncclAllReduce")
    builder.operator("aten::_foreach_mul_", "clip", "clip")
    builder.operator("aten::_fused_adamw_", *["adam"] * 6)
    builder.collective("all_gather", "ncclAllGather")
    with builder.range("aten::item", Label.NUMBERED):
        builder.copy(Kind.D2H, 4)
        builder.issue(Kind.SYNC, "cudaStreamSynchronize_v3020", pause_ns=60_000)
