"""A synthetic training trace of any size, in the shape of a real one (data parallel, NCCL)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceprof.model.activity import classify
from traceprof.model.tables import make_table
from traceprof.model.trace import Trace, TraceInfo, make_trace

KERNELS = (
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
    "flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>",
    "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel",
    "void layer_norm_fwd_kernel<bf16>",
    "softmax_warp_forward",
    "multi_tensor_apply_kernel<AdamFunctor>",
    "reduce_kernel<512, 1>",
)
KERNELS_PER_STEP = 384
LAYERS = 24


def synthetic_trace(n_events: int, *, gpus: int = 8, seed: int = 0) -> Trace:
    """Return about ``n_events`` events on ``gpus`` processes of one device each."""
    random = np.random.default_rng(seed)
    per_step = 2 * KERNELS_PER_STEP + 6 * LAYERS + LAYERS + 12
    steps = max(1, round(n_events / (per_step * gpus)))
    parts: dict[str, list[pd.DataFrame]] = {}
    for rank in range(gpus):
        for table, columns in _rank(random, rank, steps).items():
            parts.setdefault(table, []).append(pd.DataFrame(columns))
    tables = {}
    for table, frames in parts.items():
        joined = pd.concat(frames, ignore_index=True)
        columns = {name: joined[name].to_numpy() for name in joined}
        if table == "kernels":
            columns["name"] = pd.Categorical(joined["name"])
            columns["activity"] = classify(columns["name"])
        tables[table] = make_table(table, columns)
    ranks = np.arange(gpus)
    tables["processes"] = make_table("processes", {"process": 1000 + ranks, "rank": ranks})
    info = TraceInfo(path="synthetic", format="synthetic", profiler="synthetic")
    return make_trace(info, tables, tables)


def _rank(random: np.random.Generator, rank: int, steps: int) -> dict[str, dict[str, object]]:
    n = steps * KERNELS_PER_STEP
    length = np.maximum(random.lognormal(10.4, 0.9, n).astype(np.int64), 200)
    gap = random.exponential(2_500, n).astype(np.int64)
    gap[::KERNELS_PER_STEP] += 400_000
    ends = 1_000_000 + np.cumsum(length + gap)
    starts = ends - length
    process = np.full(n, 1000 + rank)
    launches = np.maximum.accumulate(starts - random.integers(5_000, 90_000, n))
    launches += np.arange(n)
    calls = np.minimum(random.lognormal(8.3, 0.4, n).astype(np.int64), _room(launches))
    where = {"device": rank, "process": 1000 + rank}
    return {
        "kernels": {
            "start_ns": starts,
            "end_ns": ends,
            "stream": np.full(n, 7),
            "correlation": np.arange(n),
            "name": np.array(KERNELS, object)[random.integers(0, len(KERNELS), n)],
            **where,
        }
        | {},
        "api_calls": {
            "start_ns": launches,
            "end_ns": launches + calls,
            "process": process,
            "thread": process,
            "correlation": np.arange(n),
            "name": np.full(n, "cudaLaunchKernel", object),
        },
        "copies": _copies(random, starts, where),
        "ranges": _ranges(starts, ends, 1000 + rank),
    }


def _room(starts: np.ndarray) -> np.ndarray:
    return np.maximum(np.diff(starts, append=starts[-1] + 10_000) - 1, 0)


def _copies(
    random: np.random.Generator, starts: np.ndarray, where: dict[str, int]
) -> dict[str, object]:
    at = starts[:: KERNELS_PER_STEP // 12]
    n_bytes = random.integers(1, 48, len(at)) << 20
    return {
        "start_ns": at,
        "end_ns": at + n_bytes // 25,
        "stream": np.full(len(at), 14),
        "direction": np.array(("h2d", "d2h", "d2d"), object)[random.integers(0, 3, len(at))],
        "n_bytes": n_bytes,
        **where,
    }


def _ranges(starts: np.ndarray, ends: np.ndarray, process: int) -> dict[str, object]:
    names, first, last = [], [], []
    block = KERNELS_PER_STEP // (2 * LAYERS)
    for begin in range(0, len(starts), KERNELS_PER_STEP):
        middle, end = begin + KERNELS_PER_STEP // 2, begin + KERNELS_PER_STEP
        spans = [("step", begin, end), ("forward", begin, middle), ("backward", middle, end)]
        for at in range(begin, end, block):
            spans.append((f"layer {(at - begin) // block}", at, at + block))
            spans.append(("attention", at, at + block // 2))
            spans.append(("mlp", at + block // 2, at + block))
        for name, a, b in spans:
            names.append(name)
            first.append(starts[a] - 50_000)
            last.append(ends[b - 1] - 50_000 - (name != "step"))
    whose = np.full(len(names), process)
    return {
        "start_ns": np.array(first),
        "end_ns": np.array(last),
        "process": whose,
        "thread": whose,
        "name": np.array(names, object),
        "kind": np.full(len(names), "push_pop", object),
    }
