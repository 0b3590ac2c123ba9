#!/usr/bin/env python3
"""Make the traces of the example notebook: one job on two GPUs, before and after a change.

    scripts/example_traces.py [FOLDER]      default: fixtures/traces

Before, the main thread makes each batch while the GPUs wait, and copies it from pageable memory.
After, workers make it meanwhile, and it is copied from pinned memory. The same bytes every time.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from tests.builders import TraceBuilder
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.trace import Trace, TraceInfo

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "traces"
STEPS = 24
RANKS = 2
US = 1_000
BATCH_BYTES = 38_535_168  # 64 pictures of 224 × 224 × 3 in float32
GRADIENT_BYTES = 25_000_000
KERNELS = (
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", 900),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluFunctor>", 120),
    ("sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", 1_100),
    ("void at::native::batch_norm_collect_statistics_channels_last_kernel", 240),
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor>"


class Job(NamedTuple):
    """What differs: how long the main thread fetches, and how a batch is copied."""

    fetch_us: int
    copy_us: int
    memory: str


BEFORE = Job(fetch_us=7_000, copy_us=6_400, memory="pageable")
AFTER = Job(fetch_us=150, copy_us=1_620, memory="pinned")


def make(job: Job) -> Trace:
    """Return the trace of all ranks, which wait for one another in the all-reduce of a step."""
    random = np.random.default_rng(2026)
    builder = TraceBuilder()
    for rank in range(RANKS):
        builder.process(4_200 + rank, rank=rank, world_size=RANKS, name="python3")
        builder.device(rank, "NVIDIA A100-SXM4-80GB")
    at = 50_000 * US
    for number in range(STEPS):
        at = _step(builder, job, number, at, random)
    return builder.build(info=TraceInfo(path="example", profiler="generated", utc_epoch_ns=0))


def _step(
    builder: TraceBuilder, job: Job, number: int, at: int, random: np.random.Generator
) -> int:
    """Add a step of both ranks that begins at ``at``; return when the next one does."""
    fetched = [at + int(job.fetch_us * US * random.uniform(0.95, 1.1)) for _ in range(RANKS)]
    ready = [_passes(builder, job, rank, (at, fetched[rank]), random) for rank in range(RANKS)]
    reduced = max(ready) + 1_300 * US
    done = reduced + 700 * US
    for rank, own in enumerate(ready):
        me = {"process": 4_200 + rank, "thread": 4_200 + rank}
        called = _called(own - 90 * US)
        builder.kernel(ALL_REDUCE, own, reduced, stream=20, device=rank, launched_ns=called, **me)
        builder.kernel(ADAM, reduced, done, device=rank, launched_ns=_called(own - 60 * US), **me)
        builder.collective(
            "all_reduce",
            own - 95 * US,
            own - 80 * US,
            n_bytes=GRADIENT_BYTES,
            group_size=RANKS,
            dtype="bfloat16",
            **me,
        )
        builder.phase("optimizer", own - 70 * US, own - 40 * US, **me)
        builder.api_call("cudaDeviceSynchronize", own - 30 * US, done, **me)
        builder.step(at, done, number, **me)
    return done + 20 * US


def _passes(
    builder: TraceBuilder,
    job: Job,
    rank: int,
    fetch: tuple[int, int],
    random: np.random.Generator,
) -> int:
    """Add a rank's batch, its copy, forward and backward; return when backward ends."""
    me = {"process": 4_200 + rank, "thread": 4_200 + rank}
    begin, at = fetch
    builder.phase("data", begin, at, **me)
    copied = at + job.copy_us * US
    kind = {"src_kind": job.memory, "dst_kind": "device", "n_bytes": BATCH_BYTES}
    builder.copy("h2d", at + 20 * US, copied, launched_ns=_called(at), device=rank, **kind, **me)
    host = at + 30 * US if job.memory == "pinned" else copied
    device = copied
    for phase, factor in (("forward", 1.0), ("backward", 1.9)):
        begun = host
        for name, length_us in KERNELS * 2:
            end = device + int(length_us * factor * US * random.uniform(0.98, 1.03))
            launched = _called(host)
            builder.kernel(name, device, end, launched_ns=launched, device=rank, **me)
            host, device = launched[1] + 12 * US, end + 2 * US
        builder.phase(phase, begun, host, **me)
    return device


def _called(at: int) -> tuple[int, int]:
    return at, at + 8 * US


def main() -> None:
    folder = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, job in (("before", BEFORE), ("after", AFTER)):
        with tempfile.TemporaryDirectory() as scratch:
            plain = Path(scratch) / "trace.sqlite"
            write_nsys(make(job), plain)
            target = folder / f"{name}.sqlite.gz"
            target.write_bytes(gzip.compress(plain.read_bytes(), 9, mtime=0))
            print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
