"""What happened on the devices, from a file of nvprof."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.nvprof.file import NvprofFile, whole
from traceprof.formats.nvprof.format import PREFIX
from traceprof.formats.shared.cupti import (
    COPY_DIRECTIONS,
    MEMORY_KINDS,
    SYNC_KINDS,
    decode,
    with_shared_bytes,
)
from traceprof.formats.sqlite.database import categorical, known
from traceprof.model.activity import Activity
from traceprof.model.tables import ABSENT, empty_table, make_table, stack
from traceprof.model.timing import TimeWindow
from traceprof.names.classes import classify

__all__ = [
    "MIGRATIONS",
    "has_kernel_shapes",
    "read_copies",
    "read_kernel_shapes",
    "read_kernels",
    "read_syncs",
]

_PLACE: Final = ("deviceId", "streamId", "correlationId")
_KINDS: Final = {code + 1: kind for code, kind in MEMORY_KINDS.items() if kind != "unknown"}
"""nvprof's codes of kinds of memory are nsys's plus one; 0 is not known."""
MIGRATIONS: Final = {1: "h2d", 2: "d2h", 8: "p2p"}
_KERNELS: Final = ("CONCURRENT_KERNEL", "KERNEL")
_SHAPE: Final = {
    "context": "contextId",
    **{f"grid_{axis.lower()}": f"grid{axis}" for axis in "XYZ"},
    **{f"block_{axis.lower()}": f"block{axis}" for axis in "XYZ"},
    "registers": "registersPerThread",
    "static_shared_bytes": "staticSharedMemory",
    "dynamic_shared_bytes": "dynamicSharedMemory",
}
_NO_STREAM: Final = 0xFFFFFFFF


def read_kernels(file: NvprofFile, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the kernels, and the CUDA graphs that were traced whole as one row each."""
    parts = []
    for table in _KERNELS:
        if file.has(table):
            raw = file.columns(
                table, (*_PLACE, "name", "graphNodeId"), window, optional=("graphNodeId",)
            )
            names = file.kernel_names(raw["name"])
            parts.append(
                make_table(
                    "kernels",
                    {
                        **_common(file, raw),
                        "name": names,
                        "activity": classify(names, file.rules),
                        "graph_node": _graph_node(raw),
                    },
                )
            )
    if file.has("GRAPH_TRACE"):
        raw = file.columns("GRAPH_TRACE", (*_PLACE, "graphId"), window)
        distinct, place = np.unique(raw["graphId"], return_inverse=True)
        names = categorical(place, [f"CUDA graph {graph}" for graph in distinct])
        activity = categorical(np.zeros(len(names), np.int64), [Activity.CUDA_GRAPH.value])
        parts.append(
            make_table("kernels", {**_common(file, raw), "name": names, "activity": activity})
        )
    return stack("kernels", parts)


def has_kernel_shapes(file: NvprofFile) -> bool:
    """Return whether the file says how its kernels were launched."""
    return any({"gridX", "blockX"} <= file.database.columns(PREFIX + table) for table in _KERNELS)


def read_kernel_shapes(file: NvprofFile, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return how the kernels were launched: a row for each of `read_kernels`, graphs among them."""
    if not has_kernel_shapes(file):
        return empty_table("kernel_shapes")
    wanted, parts = tuple(_SHAPE.values()), []
    for table in _KERNELS:
        if file.has(table):
            raw = file.columns(table, (*_PLACE, *wanted), window, optional=wanted)
            shape = {column: known(raw[source]) for column, source in _SHAPE.items()}
            columns = {**_common(file, raw), **with_shared_bytes(shape)}
            parts.append(make_table("kernel_shapes", columns))
    if file.has("GRAPH_TRACE"):
        raw = file.columns("GRAPH_TRACE", _PLACE, window)
        parts.append(make_table("kernel_shapes", _common(file, raw)))
    return stack("kernel_shapes", parts)


def read_copies(file: NvprofFile, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the copies (those between devices too), the memsets, and migrations of pages."""
    parts = [_copies(file, table, window) for table in ("MEMCPY", "MEMCPY2") if file.has(table)]
    if file.has("MEMSET"):
        raw = file.columns(
            "MEMSET",
            (*_PLACE, "bytes", "memoryKind", "graphNodeId"),
            window,
            optional=("memoryKind", "graphNodeId"),
        )
        parts.append(
            make_table(
                "copies",
                {
                    **_common(file, raw),
                    "direction": categorical(np.zeros(len(raw["bytes"]), np.int64), ["memset"]),
                    "n_bytes": known(raw["bytes"]),
                    "dst_kind": decode(raw["memoryKind"], _KINDS),
                    "graph_node": _graph_node(raw),
                },
            )
        )
    if file.has("UNIFIED_MEMORY_COUNTER"):
        parts.append(_migrations(file, window))
    return stack("copies", parts)


def read_syncs(file: NvprofFile, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the synchronisations; their device is that of their context."""
    if not file.has("SYNCHRONIZATION"):
        return empty_table("syncs")
    numbers = ("type", "contextId", "streamId", "correlationId")
    raw = file.columns("SYNCHRONIZATION", numbers, window)
    devices: dict[int, int] = {}
    if {"contextId", "deviceId"} <= file.database.columns(f"{PREFIX}CONTEXT"):
        sql = f"SELECT {whole('contextId')}, {whole('deviceId')} FROM {PREFIX}CONTEXT"
        devices = dict(file.database.rows(sql))
    distinct, place = np.unique(raw["contextId"], return_inverse=True)
    owner = np.array([devices.get(int(context), ABSENT) for context in distinct], np.int64)
    return make_table(
        "syncs",
        {
            **_common(file, {**raw, "deviceId": owner[place.ravel()]}),
            "kind": decode(raw["type"], SYNC_KINDS),
        },
    )


def _copies(file: NvprofFile, table: str, window: TimeWindow | None) -> pd.DataFrame:
    ends = ("srcDeviceId", "dstDeviceId")
    raw = file.columns(
        table,
        (*_PLACE, "copyKind", "srcKind", "dstKind", "bytes", "graphNodeId", *ends),
        window,
        optional=("graphNodeId", *ends),
    )
    return make_table(
        "copies",
        {
            **_common(file, raw),
            "direction": decode(raw["copyKind"], COPY_DIRECTIONS),
            "n_bytes": known(raw["bytes"]),
            "src_kind": decode(raw["srcKind"], _KINDS),
            "dst_kind": decode(raw["dstKind"], _KINDS),
            "src_device": known(raw["srcDeviceId"]),
            "dst_device": known(raw["dstDeviceId"]),
            "graph_node": _graph_node(raw),
        },
    )


def _migrations(file: NvprofFile, window: TimeWindow | None) -> pd.DataFrame:
    """Return the migrations of pages of unified memory as copies, which they are."""
    numbers = ("counterKind", "value", "srcId", "dstId", "streamId")
    raw = file.columns(
        "UNIFIED_MEMORY_COUNTER", numbers, window, optional=("srcId", "dstId", "streamId")
    )
    kept = np.isin(raw["counterKind"], list(MIGRATIONS))
    raw = {name: values[kept] for name, values in raw.items()}
    from_device = raw["counterKind"] == 2
    place = {
        "deviceId": np.where(from_device, raw["srcId"], raw["dstId"]),
        "correlationId": np.full(len(from_device), ABSENT),
    }
    managed = categorical(np.zeros(len(from_device), np.int64), ["managed"])
    return make_table(
        "copies",
        {
            **_common(file, {**raw, **place}),
            "direction": decode(raw["counterKind"], MIGRATIONS),
            "n_bytes": known(raw["value"]),
            "src_kind": managed,
            "dst_kind": managed,
        },
    )


def _common(
    file: NvprofFile, raw: dict[str, npt.NDArray[np.int64]]
) -> dict[str, npt.NDArray[np.int64]]:
    stream = known(raw["streamId"])
    return {
        "start_ns": raw["start_ns"],
        "end_ns": raw["end_ns"],
        "device": known(raw["deviceId"]),
        "stream": np.where(stream == _NO_STREAM, ABSENT, stream),
        "process": np.full(len(stream), file.process),
        "correlation": known(raw["correlationId"]),
    }


def _graph_node(raw: dict[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    node = known(raw["graphNodeId"])
    return np.where(node == 0, ABSENT, node)
