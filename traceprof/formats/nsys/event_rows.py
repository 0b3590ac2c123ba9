"""Writing the events of a Trace as nsys has them: CUPTI activities and NVTX events."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Final

import pandas as pd

from traceprof.formats.nsys.schema import KERNEL_SHAPE, NSYS_TABLES, global_id
from traceprof.formats.nsys.sidecar_rows import global_ids
from traceprof.formats.sqlite.rows import StringIds, insert_columns, without_absent

__all__ = ["EVENT_WRITERS"]

_COPY_KINDS: Final = {"unknown": 0, "h2d": 1, "d2h": 2, "d2d": 8, "h2h": 9, "p2p": 10}
_MEMORY_KINDS: Final = {
    "pageable": 0,
    "pinned": 1,
    "device": 2,
    "array": 3,
    "managed": 4,
    "device_static": 5,
    "managed_static": 6,
}
_SYNC_TYPES: Final = {"unknown": 0, "event": 1, "stream_wait": 2, "stream": 3, "context": 4}


def _create(connection: sqlite3.Connection, table: str) -> None:
    connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({NSYS_TABLES[table]})")


def _device_columns(frame: pd.DataFrame) -> dict[str, Any]:
    return {
        "start": frame["start_ns"],
        "end": frame["end_ns"],
        "deviceId": frame["device"],
        "contextId": 1,
        "streamId": frame["stream"],
        "correlationId": without_absent(frame["correlation"]),
        "globalPid": [global_id(process) for process in frame["process"].tolist()],
    }


def _write_kernels(connection: sqlite3.Connection, frame: pd.DataFrame, strings: StringIds) -> None:
    """Write kernels with the columns of their shapes."""
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    _create(connection, table)
    names = strings.ids_of(frame["name"])
    insert_columns(
        connection,
        table,
        {
            **_device_columns(frame),
            "demangledName": names,
            "shortName": names,
            "graphNodeId": without_absent(frame["graph_node"]),
            **{
                column: without_absent(frame[name])
                for name, column in KERNEL_SHAPE.items()
                if name != "context"
            },
        },
    )


def _write_copies(connection: sqlite3.Connection, frame: pd.DataFrame, _strings: StringIds) -> None:
    for table in ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"):
        _create(connection, table)
    copies = frame[frame["direction"] != "memset"]
    insert_columns(
        connection,
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        {
            **_device_columns(copies),
            "bytes": copies["n_bytes"],
            "copyKind": _codes(copies["direction"], _COPY_KINDS, 0),
            "srcKind": _codes(copies["src_kind"], _MEMORY_KINDS, None),
            "dstKind": _codes(copies["dst_kind"], _MEMORY_KINDS, None),
            "srcDeviceId": without_absent(copies["src_device"]),
            "dstDeviceId": without_absent(copies["dst_device"]),
            "graphNodeId": without_absent(copies["graph_node"]),
        },
    )
    memsets = frame[frame["direction"] == "memset"]
    insert_columns(
        connection,
        "CUPTI_ACTIVITY_KIND_MEMSET",
        {
            **_device_columns(memsets),
            "value": 0,
            "bytes": memsets["n_bytes"],
            "memKind": _codes(memsets["dst_kind"], _MEMORY_KINDS, None),
            "graphNodeId": without_absent(memsets["graph_node"]),
        },
    )


def _write_api_calls(
    connection: sqlite3.Connection, frame: pd.DataFrame, strings: StringIds
) -> None:
    table = "CUPTI_ACTIVITY_KIND_RUNTIME"
    _create(connection, table)
    insert_columns(
        connection,
        table,
        {
            "start": frame["start_ns"],
            "end": frame["end_ns"],
            "eventClass": 0,
            "globalTid": global_ids(frame),
            "correlationId": without_absent(frame["correlation"]),
            "nameId": strings.ids_of(frame["name"]),
            "returnValue": 0,
        },
    )


def _write_syncs(connection: sqlite3.Connection, frame: pd.DataFrame, _strings: StringIds) -> None:
    table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    _create(connection, table)
    kinds = _codes(frame["kind"], _SYNC_TYPES, 0)
    insert_columns(connection, table, {**_device_columns(frame), "syncType": kinds, "eventId": 0})


def _write_overheads(
    connection: sqlite3.Connection, frame: pd.DataFrame, strings: StringIds
) -> None:
    _create(connection, "PROFILER_OVERHEAD")
    insert_columns(
        connection,
        "PROFILER_OVERHEAD",
        {
            "start": frame["start_ns"],
            "end": frame["end_ns"],
            "globalTid": global_ids(frame),
            "nameId": strings.ids_of(frame["name"]),
            "returnValue": 0,
        },
    )


def _codes(names: pd.Series, codes: Mapping[str, int], other: int | None) -> list[int | None]:
    return [codes.get(str(name), other) for name in names]


_Writer = Callable[[sqlite3.Connection, pd.DataFrame, StringIds], None]
EVENT_WRITERS: Final[Mapping[str, _Writer]] = {
    "kernels": _write_kernels,
    "copies": _write_copies,
    "api_calls": _write_api_calls,
    "syncs": _write_syncs,
    "overheads": _write_overheads,
}
