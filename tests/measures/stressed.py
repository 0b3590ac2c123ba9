"""Traces in which more names, streams, threads, processes or paths differ than 16 bits can number.

Times are negative, ids are up to 2⁶². Made of arrays: a builder of rows takes minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.names import Names
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.tables import make_table
from traceprof.model.trace import Trace, TraceInfo, make_trace

Ints = npt.NDArray[np.int64]

MANY: Final = 70_001
"""More than 2¹⁶: neither 16 bits nor 15 number them."""
LARGEST_ID: Final = 1 << 62
_EACH_NS: Final = 1_000
_KERNEL_NS: Final = 400
_FIRST_NS: Final = -MANY * _EACH_NS // 2


@dataclass(frozen=True)
class Shape:
    """How many of ``n`` kernels, each with a launch and two nested ranges, differ in what."""

    n: int = MANY
    names: int = 1
    paths: int = 1
    streams: int = 1
    threads: int = 1
    processes: int = 1
    devices: int = 1
    steps: int = 20


SHAPES: Final = {
    "names": Shape(names=MANY),
    "paths": Shape(paths=MANY),
    "streams": Shape(streams=MANY, names=7),
    "threads": Shape(threads=MANY, names=7),
    "processes": Shape(n=300, processes=150, devices=150),
    "pairs": Shape(names=300, streams=300, paths=300),
    "below 16 bits": Shape(n=30_000, names=30_000, paths=30_000),
    "below 8 bits": Shape(n=500, names=100, paths=100, streams=100, devices=100, processes=100),
    "few": Shape(n=40, names=3, paths=3, streams=2, steps=4),
}


def ids(n: int, rows: Ints) -> Ints:
    """Return one of ``n`` ids for each row, the largest ones that there can be, and a small one."""
    one_of = rows % n
    return np.where(one_of == 0, 1, LARGEST_ID - one_of)


def texts(word: str, n: int, rows: Ints) -> Names:
    """Return one of ``n`` names for each row."""
    return Names.coded((f"{word}_{number:05}" for number in range(n)), rows % n)


def stressed(shape: Shape, *, late_ns: int = 0) -> Trace:
    """Return a trace of that shape, ``late_ns`` later."""
    rows = np.arange(shape.n)
    start = _FIRST_NS + rows * _EACH_NS + late_ns
    process, thread = ids(shape.processes, rows), ids(shape.threads, rows)
    of_calls = {"process": process, "correlation": LARGEST_ID - rows}
    end = start + _KERNEL_NS + rows % 3
    activity = Names.coded(["gemm", "elementwise", "communication"], rows % 3)
    tables: dict[str, dict[str, Any]] = {
        "kernels": {
            "start_ns": start,
            "end_ns": end,
            "device": rows % shape.devices,
            "stream": ids(shape.streams, rows),
            "name": texts("kernel", shape.names, rows),
            "activity": activity,
            **of_calls,
        },
        "copies": {
            "start_ns": end + 50,
            "end_ns": end + 150,
            "device": rows % shape.devices,
            "stream": ids(shape.streams, rows),
            "process": process,
            "direction": Names.coded(["h2d", "d2h", "d2d"], rows % 3),
            "n_bytes": 1 << (rows % 40),
        },
        "api_calls": {
            "start_ns": start - 100,
            "end_ns": start - 40,
            "thread": thread,
            "name": texts("cudaLaunchKernel", 1, rows),
            **of_calls,
        },
        "ranges": _ranges(shape, start, process, thread),
        "host_ops": {
            "start_ns": start - 110,
            "end_ns": start - 30,
            "process": process,
            "thread": thread,
            "source": Names.repeated("cpu_op", shape.n),
            "name": texts("aten::op", shape.paths, rows),
        },
        "processes": {"process": np.unique(process)},
        "threads": {"process": process[:1], "thread": thread[:1], "name": ["main"]},
        "devices": {
            "device": np.arange(shape.devices),
            "used": np.ones(shape.devices, np.int64),
            "name": ["GPU"] * shape.devices,
            "uuid": [""] * shape.devices,
        },
    }
    recorded = {*tables} | {"syncs", "collectives", "marks"}
    made = {name: make_table(name, columns) for name, columns in tables.items()}
    return make_trace(TraceInfo(), made, recorded)


def _ranges(shape: Shape, start: Ints, process: Ints, thread: Ints) -> dict[str, Any]:
    """Return two ranges in each other around each launch, and the steps of the main thread."""
    rows = np.arange(shape.n)
    first = start[np.linspace(0, shape.n, shape.steps, endpoint=False).astype(np.int64)] - 300
    end = np.append(first[1:], start[-1] + _EACH_NS)
    n_steps, nested = len(first), ("outer", "inner")
    names = [texts(word, shape.paths, rows) for word in nested]
    steps = Names.coded((f"step {number}" for number in range(n_steps)), np.arange(n_steps))
    return {
        "start_ns": np.concatenate([first, start - 200, start - 150]),
        "end_ns": np.concatenate([end, start - 5, start - 20]),
        "process": np.concatenate([np.full(n_steps, process[0]), process, process]),
        "thread": np.concatenate([np.full(n_steps, thread[0]), thread, thread]),
        "name": Names.joined([steps, *names]),
        "domain": Names.repeated("", n_steps + 2 * shape.n),
        "kind": Names.repeated("push_pop", n_steps + 2 * shape.n),
    }


def many_ranks(n_ranks: int) -> Ranks:
    """Return a run of more ranks than 8 bits number; each a little later than the one before."""
    shape = Shape(n=8, names=4, steps=2)
    members = [RankTrace(stressed(shape, late_ns=10 * rank), rank) for rank in range(n_ranks)]
    return place_run(RunFiles("run", tuple(members), n_ranks), [0] * n_ranks)
