"""Writing the events of a Trace as nsys has them: CUPTI activities and NVTX events."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.formats.nsys.schema import KERNEL_SHAPE, NSYS_TABLES, global_id
from traceprof.formats.nsys.sidecar_rows import global_ids
from traceprof.formats.sqlite.rows import StringIds, insert_columns, without_absent

__all__ = ["EVENT_WRITERS", "append_annotations"]

_PUSH_POP: Final = 59
_START_END: Final = 60
_MARK: Final = 34
_DOMAIN: Final = 75

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


def append_annotations(
    connection: sqlite3.Connection,
    ranges: pd.DataFrame,
    marks: pd.DataFrame,
    strings: StringIds,
) -> None:
    """Add ranges and marks to ``NVTX_EVENTS``, with the domains that they need."""
    if not len(ranges) and not len(marks):
        return
    _create(connection, "NVTX_EVENTS")
    domains = _create_domains(connection, ranges, marks)
    for frame, event_type in (
        (ranges[ranges["kind"] != "start_end"], _PUSH_POP),
        (ranges[ranges["kind"] == "start_end"], _START_END),
        (marks, _MARK),
    ):
        if len(frame):
            is_span = event_type != _MARK
            insert_columns(
                connection,
                "NVTX_EVENTS",
                {
                    "start": frame["start_ns"],
                    "end": frame["end_ns"] if is_span else None,
                    "eventType": event_type,
                    "category": without_absent(frame["category"]) if is_span else None,
                    "globalTid": global_ids(frame),
                    "textId": strings.ids_of(frame["name"]),
                    "domainId": [
                        domains[key]
                        for key in zip(frame["process"], frame["domain"].astype(str), strict=True)
                    ],
                    **_payloads(frame["payload"].to_numpy()),
                },
            )


def _create_domains(
    connection: sqlite3.Connection, ranges: pd.DataFrame, marks: pd.DataFrame
) -> dict[tuple[int, str], int]:
    """Return (process, domain) → id; ids count per process, above those that are there."""
    last = dict(
        connection.execute(
            "SELECT globalTid >> 24 & 0xFFFFFF, max(domainId) FROM NVTX_EVENTS GROUP BY 1"
        )
    )
    keys = pd.concat([ranges[["process", "domain"]], marks[["process", "domain"]]])
    ids: dict[tuple[int, str], int] = {}
    pairs = keys.astype({"domain": str}).drop_duplicates()
    for process, domain in sorted(zip(pairs["process"], pairs["domain"], strict=True)):
        if not domain:
            ids[process, domain] = 0
            continue
        ids[process, domain] = last[process] = (last.get(process) or 0) + 1
        connection.execute(
            "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId)"
            " VALUES (0, ?, ?, ?, ?)",
            (_DOMAIN, domain, global_id(process, process), ids[process, domain]),
        )
    return ids


def _payloads(values: Any) -> dict[str, list[Any]]:
    """Return the payload columns: whole numbers apart from the others, as NVTX has them."""
    is_known = ~np.isnan(values)
    is_whole = is_known & (np.abs(values) < 2.0**63) & (np.floor(values) == values)
    return {
        "int64Value": [
            int(value) if whole else None for value, whole in zip(values, is_whole, strict=True)
        ],
        "doubleValue": [
            float(value) if real else None
            for value, real in zip(values, is_known & ~is_whole, strict=True)
        ],
    }


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
