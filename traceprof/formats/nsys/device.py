"""Read device events from the CUPTI tables of an nsys export: kernels, copies, synchronizations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from traceprof.formats.nsys.schema import (
    COPIES,
    GRAPHS,
    KERNELS,
    MEMSETS,
    SYNCS,
    process_of,
    read_names,
)
from traceprof.formats.shared import cupti
from traceprof.formats.shared.collectives import is_exchange
from traceprof.formats.sqlite.columns import ColumnType, known
from traceprof.formats.sqlite.conditions import Condition
from traceprof.formats.sqlite.database import Database
from traceprof.model.activity import Activity
from traceprof.model.packed import Packed
from traceprof.model.table import Column, Table, opened, spill_to_disk
from traceprof.model.tables import empty_table, make_table, stack
from traceprof.model.timing import TimeWindow
from traceprof.names.classes import UserRule, classify

_PLACE_COLUMNS: Final = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_SHAPE_COLUMNS: Final = tuple(cupti.KERNEL_SHAPE.values())
_GRAPH_NODE: Final = "graphNodeId"


def read_kernels(
    database: Database,
    rules: Sequence[UserRule],
    window: TimeWindow | None = None,
    where: str = "",
    *,
    with_shapes: bool = False,
) -> tuple[Table, Table]:
    """Return the kernels, and with ``with_shapes`` their launch shapes if the export has them.

    A CUDA graph that was traced as a whole is one row. ``where`` is an SQL condition on kernels; if
    it is given, no graphs are returned.
    """
    kernels, shapes = [], []
    with_shapes = with_shapes and has_kernel_shapes(database)
    if KERNELS in database.tables:
        optional = (_GRAPH_NODE, *_SHAPE_COLUMNS) if with_shapes else (_GRAPH_NODE,)
        raw, place = _read(database, KERNELS, ("demangledName",), optional, window, where or None)
        names = read_names(database, raw["demangledName"])
        kernels.append(cupti.make_kernels(place, names, rules, raw[_GRAPH_NODE]))
        if with_shapes:
            shapes.append(cupti.make_kernel_shapes(place, raw))
    if GRAPHS in database.tables and not where:
        raw, place = _read(database, GRAPHS, ("graphId",), (), window)
        kernels.append(cupti.make_traced_graphs(place, raw["graphId"]))
        if with_shapes:
            shapes.append(make_table("kernel_shapes", place))
    return stack("kernels", kernels), stack("kernel_shapes", shapes)


def has_kernel_shapes(database: Database) -> bool:
    """Return whether the export contains the launch shapes (grid and block) of kernels."""
    return {"gridX", "blockX"} <= database.columns(KERNELS)


def communication_kernels(database: Database, rules: Sequence[UserRule]) -> str:
    """Return the SQL condition for kernels that may be collectives; "" if there are none.

    It costs one scan: distinct names are classified, not kernels.
    """
    if KERNELS not in database.tables:
        return ""
    (rows,) = database.rows_of_each(
        [f"SELECT DISTINCT demangledName FROM {database.stored_name(KERNELS)}"]
    )
    ids = np.array([key for (key,) in rows if key is not None], np.int64)
    names = read_names(database, ids)
    communicates = classify(names, rules) == Activity.COMMUNICATION.value
    chosen = ids[communicates | np.array(list(map(is_exchange, names)), np.bool_)]
    return f"demangledName IN ({', '.join(map(str, chosen.tolist()))})" if len(chosen) else ""


def read_copies(database: Database, window: TimeWindow | None = None) -> Table:
    """Return the copies and memsets."""
    parts = []
    if COPIES in database.tables:
        optional = ("srcKind", "dstKind", "srcDeviceId", "dstDeviceId", _GRAPH_NODE)
        raw, place = _read(database, COPIES, ("copyKind", "bytes"), optional, window)
        # Migrations of unified memory have their own copy kinds; their memory is managed.
        migrates = np.isin(raw["copyKind"], cupti.UNIFIED_MEMORY_COPIES)
        src, dst = (np.where(migrates, cupti.MANAGED, raw[kind]) for kind in ("srcKind", "dstKind"))
        parts.append(cupti.make_copies(place, raw, src, dst))
    if MEMSETS in database.tables:
        raw, place = _read(database, MEMSETS, ("bytes",), ("memKind", _GRAPH_NODE), window)
        parts.append(cupti.make_copies(place, raw, None, raw["memKind"]))
    return stack("copies", parts)


def read_syncs(database: Database, window: TimeWindow | None = None) -> Table:
    """Return the synchronizations of the host with streams."""
    if SYNCS not in database.tables:
        return empty_table("syncs")
    raw, place = _read(database, SYNCS, ("syncType",), (), window)
    return cupti.make_syncs(place, raw["syncType"])


def _read(
    database: Database,
    table: str,
    needed: Sequence[str],
    optional: Sequence[str],
    window: TimeWindow | None,
    where: Condition | str | None = None,
) -> tuple[Mapping[str, Column], cupti.Place]:
    """Return raw columns of device events, and their columns of time and place for the Trace."""
    columns = dict.fromkeys((*_PLACE_COLUMNS, *needed, *optional), ColumnType.INTEGER)
    raw = database.read_columns(table, columns, window, optional, where, spare=_SHAPE_COLUMNS)
    starts = np.asarray(raw["start"], np.int64)
    return raw, {
        "start_ns": starts,
        "end_ns": opened(spill_to_disk(np.maximum(starts, np.asarray(raw["end"], np.int64)))),
        "device": np.asarray(raw["deviceId"], np.int64),
        "stream": known(raw["streamId"]),
        "process": Packed(process_of(raw["globalPid"])),
        "correlation": known(raw["correlationId"]),
    }
