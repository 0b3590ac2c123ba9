"""Write a Trace as SQLite with the layout of an nsys export, which nsys's own reports can read."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from traceprof.errors import WritingError
from traceprof.files import new_file
from traceprof.formats.nsys import schema, sidecar
from traceprof.formats.shared.cupti import KERNEL_SHAPE, MEMORY_KINDS, SYNC_KINDS
from traceprof.formats.sqlite.inserting import StringIds, insert_columns, without_absent
from traceprof.model.grouping import numbered
from traceprof.model.table import Names, Table
from traceprof.model.tables import empty_table, shapes_of
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.units import NS_PER_S

_SCHEMA_VERSION: Final = "3.17.2"
_REQUIRED_TABLES: Final = (
    *("StringIds", "META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV"),
    *("TARGET_INFO_GPU", "ANALYSIS_DETAILS", "PROCESSES", "ThreadNames"),
    *("ENUM_CUDA_MEMCPY_OPER", "ENUM_CUDA_MEM_KIND"),
)
_COPY_LABELS: Final = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device"} | {
    9: "Host-to-Host",
    10: "Peer-to-Peer",
}
_MEMORY_LABELS: Final = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
_COPY_CODES: Final = {"unknown": 0, "h2d": 1, "d2h": 2, "d2d": 8, "h2h": 9, "p2p": 10}
_MEMORY_CODES: Final = {kind: code for code, kind in MEMORY_KINDS.items() if kind != "unknown"}
_SYNC_CODES: Final = {kind: code for code, kind in SYNC_KINDS.items()}
_GPU_COLUMNS: Final = {
    "totalMemory": "memory_bytes",
    "memoryBandwidth": "memory_bytes_per_s",
    "smCount": "sm_count",
}
_EVENT_TABLES: Final = ("kernels", "copies", "api_calls", "syncs", "overheads")

EventTables: TypeAlias = Mapping[str, Table]
"""Tables of events by name: ranges, marks, collectives, samples, and device events."""


def write_nsys(
    trace: Trace,
    path: Path,
    manifest: Mapping[str, str] | None = None,
    events: Iterable[EventTables] = (),
) -> None:
    """Write ``trace`` to ``path``, replacing an existing file.

    The file appears under its name only when it is complete. ``manifest`` (name → value) is stored
    in ``TRACEPROF_MANIFEST``. ``events`` are more rows of events; all of them together need not fit
    in memory.

    Raises:
        WritingError: the file cannot be written.
    """
    quick = ("journal_mode = OFF", "synchronous = OFF")
    with new_file(path, force=True) as temporary, _connect(temporary, path, quick) as connection:
        for table in _REQUIRED_TABLES:
            sidecar.create(connection, table, schema.NSYS_TABLES)
        strings = StringIds(connection)
        _write_targets(connection, trace, strings)
        for name in _EVENT_TABLES:
            if name in trace.recorded or len(trace.table(name)):
                _insert_events(connection, strings, name, trace.table(name), trace.kernel_shapes)
        span = _append_recorded(connection, strings, trace, manifest or {}, events)
        _write_session(connection, trace, span)


def append_to_nsys(
    trace: Trace,
    path: Path,
    manifest: Mapping[str, str] | None = None,
    events: Iterable[EventTables] = (),
) -> None:
    """Add the ``TRACEPROF_`` tables and the NVTX rows of ``trace`` to an nsys export.

    ``trace`` must be on the clock of the export. The file is changed in place, so it must be one
    that traceprof has just written.

    Raises:
        WritingError: the file cannot be written.
    """
    with _connect(path, path) as connection:
        sidecar.create(connection, "StringIds", schema.NSYS_TABLES)
        _append_recorded(connection, StringIds(connection), trace, manifest or {}, events)


@contextmanager
def _connect(
    database: Path, path: Path, pragmas: Sequence[str] = ()
) -> Iterator[sqlite3.Connection]:
    """Open ``database`` for writing in one transaction; errors name ``path``, its final name."""
    try:
        with closing(sqlite3.connect(database)) as connection:
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}")
            with connection:
                yield connection
    except sqlite3.Error as error:
        raise WritingError(f"{path}: cannot be written ({error})") from error


def _append_recorded(
    connection: sqlite3.Connection,
    strings: StringIds,
    trace: Trace,
    manifest: Mapping[str, str],
    events: Iterable[EventTables],
) -> TimeWindow:
    """Add the events of the program and its hooks; return the span of ``trace`` and ``events``."""
    appender = EventAppender(connection, strings)
    appender.append({"ranges": trace.ranges, "marks": trace.marks})
    sidecar.append_traceprof_tables(connection, trace, strings, manifest)
    return appender.append_all(events, trace.span)


def _insert_events(
    connection: sqlite3.Connection, strings: StringIds, name: str, rows: Table, shapes: Table
) -> None:
    """Add a table of a Trace to the tables of nsys; kernels with their ``shapes``."""
    for table, columns in _nsys_tables(rows, shapes, name, strings).items():
        sidecar.create(connection, table, schema.NSYS_TABLES)
        insert_columns(connection, table, columns)


def _nsys_tables(
    rows: Table, shapes: Table, name: str, strings: StringIds
) -> Mapping[str, Mapping[str, Any]]:
    """Return the tables of nsys that store the Trace table ``name``: table → column → values."""
    match name:
        case "kernels":
            names = strings.ids_of(rows["name"])
            all_shapes = shapes_of(rows, shapes)
            columns = {
                stored: without_absent(all_shapes[column])
                for column, stored in KERNEL_SHAPE.items()
                if column != "context"
            }
            return {
                schema.KERNELS: {
                    **_on_device(rows),
                    **_graph_nodes(rows),
                    "demangledName": names,
                    "shortName": names,
                    **columns,
                }
            }
        case "copies":
            is_memset = rows["direction"] == "memset"
            return {
                schema.COPIES: _copies(rows.take(~is_memset), is_memset=False),
                schema.MEMSETS: _copies(rows.take(is_memset), is_memset=True),
            }
        case "syncs":
            kinds = _codes(rows["kind"], _SYNC_CODES, 0)
            return {schema.SYNCS: {**_on_device(rows), "syncType": kinds, "eventId": 0}}
        case "api_calls":
            correlations = without_absent(rows["correlation"])
            return {
                schema.API_CALLS: {
                    **_on_host(rows, strings),
                    "eventClass": 0,
                    "correlationId": correlations,
                }
            }
        case _:
            return {schema.OVERHEADS[0]: _on_host(rows, strings)}


def _copies(rows: Table, *, is_memset: bool) -> dict[str, Any]:
    """Return the nsys columns of copies or, with ``is_memset``, of memsets."""
    kinds = _codes(rows["dst_kind"], _MEMORY_CODES, None)
    columns = {**_on_device(rows), **_graph_nodes(rows), "bytes": rows["n_bytes"]}
    if is_memset:
        return {**columns, "value": 0, "memKind": kinds}
    return {
        **columns,
        "copyKind": _codes(rows["direction"], _COPY_CODES, 0),
        "srcKind": _codes(rows["src_kind"], _MEMORY_CODES, None),
        "dstKind": kinds,
        "srcDeviceId": without_absent(rows["src_device"]),
        "dstDeviceId": without_absent(rows["dst_device"]),
    }


def _on_device(rows: Table) -> dict[str, Any]:
    """Return the columns that all device events have in common."""
    return {
        "start": rows["start_ns"],
        "end": rows["end_ns"],
        "deviceId": rows["device"],
        "contextId": 1,
        "streamId": rows["stream"],
        "correlationId": without_absent(rows["correlation"]),
        "globalPid": [schema.global_id(process) for process in rows["process"].tolist()],
    }


def _graph_nodes(rows: Table) -> dict[str, Any]:
    return {"graphNodeId": without_absent(rows["graph_node"])}


def _on_host(rows: Table, strings: StringIds) -> dict[str, Any]:
    """Return the columns that all host events have in common."""
    return {
        "start": rows["start_ns"],
        "end": rows["end_ns"],
        "globalTid": sidecar.global_ids(rows),
        "nameId": strings.ids_of(rows["name"]),
        "returnValue": 0,
    }


def _codes(names: Names, codes: Mapping[str, int], other: int | None) -> list[int | None]:
    return [codes.get(name, other) for name in names]


def _write_session(connection: sqlite3.Connection, trace: Trace, span: TimeWindow) -> None:
    """Write the tables about the session: export, clock, host, and codes."""
    machine, epoch_ns = schema.global_id(0), trace.info.utc_epoch_ns
    start_ns, end_ns = min(0, span.start_ns), span.end_ns
    rows: dict[str, list[tuple[Any, ...]]] = {
        "META_DATA_EXPORT": [
            ("EXPORT_PRODUCT_NAME", "traceprof"),
            ("EXPORT_SCHEMA_VERSION", _SCHEMA_VERSION),
            ("EXPORT_HOST", trace.info.host),
        ],
        "ANALYSIS_DETAILS": [(machine, end_ns - start_ns, start_ns, end_ns)],
        "TARGET_INFO_SYSTEM_ENV": [(machine, "Hostname", "Hostname", 0, trace.info.host)],
        "ENUM_CUDA_MEMCPY_OPER": [(i, text, text) for i, text in _COPY_LABELS.items()],
        "ENUM_CUDA_MEM_KIND": [(i, text, text) for i, text in _MEMORY_LABELS.items()],
    }
    if epoch_ns is not None:
        seconds = epoch_ns // NS_PER_S
        utc = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        local = time.strftime("%Y-%m-%dT%H:%M:%S %z", time.localtime(seconds))
        rows["TARGET_INFO_SESSION_START_TIME"] = [(epoch_ns, utc, local)]
    for table, table_rows in rows.items():
        placeholders = ", ".join("?" * len(table_rows[0]))
        connection.executemany(f"INSERT INTO {table} VALUES ({placeholders})", table_rows)


def _write_targets(connection: sqlite3.Connection, trace: Trace, strings: StringIds) -> None:
    """Write the tables of processes, threads, and GPUs."""
    processes, threads, devices = trace.processes, trace.threads, trace.devices
    insert_columns(
        connection,
        "PROCESSES",
        {
            "globalPid": [schema.global_id(pid) for pid in processes["process"].tolist()],
            "pid": processes["process"],
            "name": processes["name"],
        },
    )
    insert_columns(
        connection,
        "ThreadNames",
        {
            "nameId": strings.ids_of(Names.of(threads["name"])),
            "globalTid": sidecar.global_ids(threads),
        },
    )
    capabilities = devices["compute_capability"].tolist()
    insert_columns(
        connection,
        "TARGET_INFO_GPU",
        {
            "vmId": schema.global_id(0),
            "id": devices["device"],
            "cuDevice": devices["device"],
            "name": devices["name"],
            "uuid": devices["uuid"],
            **{
                stored: [max(0, value) or None for value in devices[column].tolist()]
                for stored, column in _GPU_COLUMNS.items()
            },
            "computeMajor": [value // 10 if value > 0 else None for value in capabilities],
            "computeMinor": [value % 10 if value > 0 else None for value in capabilities],
        },
    )


class EventAppender:
    """Adds events to a database, with the NVTX domains and strings that they need."""

    def __init__(self, connection: sqlite3.Connection, strings: StringIds) -> None:
        self._connection = connection
        self._strings = strings
        self._domains: dict[tuple[int, str], int] = {}
        self._last: dict[int, int] | None = None

    def append_all(self, events: Iterable[EventTables], span: TimeWindow) -> TimeWindow:
        """Add all ``events``; return ``span`` extended to cover them."""
        found = [span] if span.duration_ns else []
        for tables in events:
            self.append(tables)
            for name in _EVENT_TABLES:
                if name in tables:
                    shapes = tables.get("kernel_shapes", empty_table("kernel_shapes"))
                    _insert_events(self._connection, self._strings, name, tables[name], shapes)
            sidecar.append_traceprof_events(self._connection, tables, self._strings)
            for table in filter(len, tables.values()):
                last = table["end_ns" if "end_ns" in table else "start_ns"]
                found.append(TimeWindow(int(table["start_ns"].min()), int(last.max())))
        return reduce(or_, found or [span])

    def append(self, tables: EventTables) -> None:
        """Add ranges and marks to ``NVTX_EVENTS``."""
        ranges, marks = tables.get("ranges"), tables.get("marks")
        if ranges is not None and len(ranges):
            is_pair = ranges["kind"] == "start_end"
            self._append(ranges, np.where(is_pair, schema.NVTX_START_END, schema.NVTX_PUSH_POP))
        if marks is not None and len(marks):
            self._append(marks, schema.NVTX_MARK)

    def _append(self, rows: Table, event_type: np.ndarray | int) -> None:
        """Add ranges or marks to ``NVTX_EVENTS``, which is created if it does not exist."""
        if self._last is None:
            sidecar.create(self._connection, schema.NVTX, schema.NSYS_TABLES)
            process = schema.process_sql("globalTid")
            last = f"SELECT {process}, max(domainId) FROM {schema.NVTX} GROUP BY 1"
            self._last = dict(self._connection.execute(last))  # process → its highest domain id
        is_span = "end_ns" in rows
        insert_columns(
            self._connection,
            schema.NVTX,
            {
                "start": rows["start_ns"],
                "end": rows["end_ns"] if is_span else None,
                "eventType": event_type,
                "category": without_absent(rows["category"]) if is_span else None,
                "globalTid": sidecar.global_ids(rows),
                "textId": self._strings.ids_of(rows["name"]),
                "domainId": self._domains_of(rows),
                **_payloads(rows["payload"]),
            },
        )

    def _domains_of(self, rows: Table) -> list[int]:
        """Return the domain id of each row; ids count per process."""
        number, first = numbered(rows["process"], rows["domain"])
        pairs = zip(rows["process"][first].tolist(), rows["domain"][first], strict=True)
        ids = np.array([self._domain(*pair) for pair in pairs], np.int64)
        listed: list[int] = ids[number].tolist()
        return listed

    def _domain(self, process: int, domain: str) -> int:
        """Return the id of a domain of a process; a new domain is added to ``NVTX_EVENTS``."""
        key = (process, domain)
        if not domain:
            return 0
        if key not in self._domains and self._last is not None:
            number = (self._last.get(process) or 0) + 1
            self._domains[key] = self._last[process] = number
            self._connection.execute(
                f"INSERT INTO {schema.NVTX} (start, eventType, text, globalTid, domainId)"
                " VALUES (0, ?, ?, ?, ?)",
                (schema.NVTX_DOMAIN, domain, schema.global_id(process, process), number),
            )
        return self._domains[key]


def _payloads(values: Any) -> dict[str, Any]:
    """Return the payload columns of NVTX, which separates whole numbers from others."""
    is_known = ~np.isnan(values)
    is_whole = is_known & (np.abs(values) < 2.0**63) & (np.floor(values) == values)
    if is_whole.all():
        return {"int64Value": values.astype(np.int64)}
    whole = np.full(len(values), None, object)
    whole[is_whole] = values[is_whole].astype(np.int64)
    return {"int64Value": whole, "doubleValue": np.where(is_known & ~is_whole, values, np.nan)}
