"""What happened on the devices, from the CUPTI tables of an nsys export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.nsys.schema import KERNEL_SHAPE, named, process_of
from traceprof.formats.shared.collectives import is_exchange
from traceprof.formats.shared.cupti import (
    COPY_DIRECTIONS,
    MANAGED,
    MEMORY_KINDS,
    SYNC_KINDS,
    UNIFIED_MEMORY_COPIES,
    decode,
    with_shared_bytes,
)
from traceprof.formats.sqlite.columns import Column, ColumnType, categorical, known
from traceprof.formats.sqlite.database import Database
from traceprof.model.activity import Activity
from traceprof.model.tables import empty_table, make_table, stack
from traceprof.model.timing import TimeWindow
from traceprof.names.classes import KernelRule, classify

__all__ = [
    "COPIES",
    "GRAPHS",
    "KERNELS",
    "MEMSETS",
    "SYNCS",
    "communication_kernels",
    "has_kernel_shapes",
    "read_copies",
    "read_kernel_shapes",
    "read_kernels",
    "read_kernels_and_shapes",
    "read_syncs",
]

_INTEGER: Final = ColumnType.INTEGER
_WHERE: Final = dict.fromkeys(
    ("start", "end", "deviceId", "streamId", "correlationId", "globalPid"), _INTEGER
)
_OPTIONAL: Final = ("graphNodeId",)
_OF_KERNELS: Final = {"demangledName": _INTEGER, **dict.fromkeys(_OPTIONAL, _INTEGER)}
KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
SYNCS: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"


def read_kernels(
    database: Database,
    rules: Sequence[KernelRule],
    window: TimeWindow | None = None,
    where: str = "",
) -> pd.DataFrame:
    """Return the kernels, and the CUDA graphs that were traced whole as one row each.

    With ``where`` (SQL) only the kernels for which it holds, and no graphs.
    """
    parts = []
    if KERNELS in database.tables:
        raw = database.read_columns(
            KERNELS, {**_WHERE, **_OF_KERNELS}, window, optional=_OPTIONAL, where=where or None
        )
        parts.append(_kernels(database, rules, raw))
    if GRAPHS in database.tables and not where:
        raw = database.read_columns(GRAPHS, {**_WHERE, "graphId": _INTEGER}, window)
        distinct, place = np.unique(raw["graphId"], return_inverse=True)
        names = categorical(place, [f"CUDA graph {graph}" for graph in distinct])
        activity = categorical(np.zeros(len(names), np.int64), [Activity.CUDA_GRAPH.value])
        parts.append(make_table("kernels", {**_common(raw), "name": names, "activity": activity}))
    return stack("kernels", parts)


def read_kernels_and_shapes(
    database: Database, rules: Sequence[KernelRule], window: TimeWindow | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the kernels and how they were launched, as the two readers do, in one pass."""
    if not has_kernel_shapes(database) or GRAPHS in database.tables:
        return read_kernels(database, rules, window), read_kernel_shapes(database, window)
    wanted = dict.fromkeys(KERNEL_SHAPE.values(), _INTEGER)
    raw = database.read_columns(
        KERNELS,
        {**_WHERE, **_OF_KERNELS, **wanted},
        window,
        optional=(*_OPTIONAL, *wanted),
    )
    shapes = {source: raw.pop(source) for source in wanted}
    kernels = _kernels(database, rules, raw)
    return kernels, _shapes({**{name: raw[name] for name in _WHERE}, **shapes})


def _kernels(
    database: Database, rules: Sequence[KernelRule], raw: Mapping[str, Column]
) -> pd.DataFrame:
    names = named(database, raw["demangledName"])
    return make_table(
        "kernels",
        {
            **_common(raw),
            "name": names,
            "activity": classify(names, rules),
            "graph_node": known(raw["graphNodeId"]),
        },
    )


def _shapes(raw: Mapping[str, Column]) -> pd.DataFrame:
    shape = {column: known(raw[source]) for column, source in KERNEL_SHAPE.items()}
    return make_table("kernel_shapes", {**_common(raw), **with_shared_bytes(shape)})


def has_kernel_shapes(database: Database) -> bool:
    """Return whether the export says how its kernels were launched."""
    return {"gridX", "blockX"} <= database.columns(KERNELS)


def read_kernel_shapes(database: Database, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return how the kernels were launched: a row for each of `read_kernels`, graphs among them."""
    parts = []
    if has_kernel_shapes(database):
        wanted = dict.fromkeys(KERNEL_SHAPE.values(), _INTEGER)
        raw = database.read_columns(KERNELS, {**_WHERE, **wanted}, window, optional=tuple(wanted))
        parts.append(_shapes(raw))
        if GRAPHS in database.tables:
            raw = database.read_columns(GRAPHS, _WHERE, window)
            parts.append(make_table("kernel_shapes", _common(raw)))
    return stack("kernel_shapes", parts)


def communication_kernels(database: Database, rules: Sequence[KernelRule]) -> str:
    """Return SQL that holds for the kernels that may carry out a collective; "" if there are none.

    Its cost is one scan: names are classified, not kernels.
    """
    if KERNELS not in database.tables:
        return ""
    (rows,) = database.rows_of_each(
        [f"SELECT DISTINCT demangledName FROM {database.stored_name(KERNELS)}"]
    )
    ids = np.array([key for (key,) in rows if key is not None], np.int64)
    names = named(database, ids)
    communicates = np.asarray(classify(names, rules) == Activity.COMMUNICATION.value, np.bool_)
    chosen = ids[communicates | np.array([is_exchange(str(name)) for name in names], np.bool_)]
    return f"demangledName IN ({', '.join(map(str, chosen.tolist()))})" if len(chosen) else ""


def read_copies(database: Database, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the copies and memsets."""
    parts = []
    if COPIES in database.tables:
        more = ("copyKind", "bytes", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId")
        raw = database.read_columns(
            COPIES,
            {**_WHERE, **dict.fromkeys((*more, "graphNodeId"), _INTEGER)},
            window,
            optional=("srcKind", "dstKind", "srcDeviceId", "dstDeviceId", "graphNodeId"),
        )
        parts.append(
            make_table(
                "copies",
                {
                    **_common(raw),
                    "direction": decode(raw["copyKind"], COPY_DIRECTIONS),
                    "n_bytes": known(raw["bytes"]),
                    "src_kind": decode(_kind_codes(raw, "srcKind"), MEMORY_KINDS),
                    "dst_kind": decode(_kind_codes(raw, "dstKind"), MEMORY_KINDS),
                    "src_device": known(raw["srcDeviceId"]),
                    "dst_device": known(raw["dstDeviceId"]),
                    "graph_node": known(raw["graphNodeId"]),
                },
            )
        )
    if MEMSETS in database.tables:
        raw = database.read_columns(
            MEMSETS,
            {**_WHERE, "bytes": _INTEGER, "memKind": _INTEGER, "graphNodeId": _INTEGER},
            window,
            optional=("memKind", "graphNodeId"),
        )
        parts.append(
            make_table(
                "copies",
                {
                    **_common(raw),
                    "direction": categorical(np.zeros(len(raw["start"]), np.int64), ["memset"]),
                    "n_bytes": known(raw["bytes"]),
                    "dst_kind": decode(raw["memKind"], MEMORY_KINDS),
                    "graph_node": known(raw["graphNodeId"]),
                },
            )
        )
    return stack("copies", parts)


def read_syncs(database: Database, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the synchronisations of host and streams."""
    if SYNCS not in database.tables:
        return empty_table("syncs")
    raw = database.read_columns(SYNCS, {**_WHERE, "syncType": _INTEGER}, window)
    return make_table("syncs", {**_common(raw), "kind": decode(raw["syncType"], SYNC_KINDS)})


def _kind_codes(raw: Mapping[str, Column], column: str) -> npt.NDArray[np.int64]:
    """Return the kinds of memory; a migration of unified memory says itself that it is managed."""
    migrates = np.isin(raw["copyKind"], UNIFIED_MEMORY_COPIES)
    return np.where(migrates, MANAGED, np.asarray(raw[column], np.int64))


def _common(raw: Mapping[str, Column]) -> dict[str, npt.NDArray[np.int64]]:
    return {
        "start_ns": np.asarray(raw["start"], np.int64),
        "end_ns": np.maximum(np.asarray(raw["start"], np.int64), np.asarray(raw["end"], np.int64)),
        "device": np.asarray(raw["deviceId"], np.int64),
        "stream": known(raw["streamId"]),
        "process": process_of(raw["globalPid"]),
        "correlation": known(raw["correlationId"]),
    }
