"""Trace → SQLite in the shape of an nsys export, which nsys's own reports can read."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pandas as pd

from traceprof.errors import UsageError
from traceprof.files import new_file
from traceprof.formats.nsys.event_appender import EventAppender, EventTables
from traceprof.formats.nsys.event_rows import EVENT_WRITERS
from traceprof.formats.nsys.schema import NSYS_TABLES, TRACEPROF_TABLES, global_id
from traceprof.formats.nsys.sidecar_rows import append_traceprof_tables, global_ids
from traceprof.formats.sqlite.rows import StringIds, insert_columns
from traceprof.model.tables import shapes_of
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.units import NS_PER_S

__all__ = ["NSYS_TABLES", "TRACEPROF_TABLES", "append_to_nsys", "write_nsys"]

_SCHEMA_VERSION: Final = "3.17.2"
_ALWAYS: Final = (
    "StringIds",
    "META_DATA_EXPORT",
    "TARGET_INFO_SESSION_START_TIME",
    "TARGET_INFO_SYSTEM_ENV",
    "TARGET_INFO_GPU",
    "ANALYSIS_DETAILS",
    "PROCESSES",
    "ThreadNames",
    "ENUM_CUDA_MEMCPY_OPER",
    "ENUM_CUDA_MEM_KIND",
)
_COPY_LABELS: Final = {
    1: "Host-to-Device",
    2: "Device-to-Host",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
}
_MEMORY_LABELS: Final = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}


def write_nsys(
    trace: Trace,
    path: Path,
    manifest: Mapping[str, str] | None = None,
    events: Iterable[EventTables] = (),
) -> None:
    """Write ``trace`` to ``path``, replacing what is there.

    The file appears under its name only when it is whole. ``manifest`` (name → value) goes into
    ``TRACEPROF_MANIFEST``. ``events`` are more rows of events, which need not fit in memory all
    together.

    Raises:
        UsageError: the file cannot be written.
    """
    with _database_beside(path) as connection:
        for table in _ALWAYS:
            connection.execute(f"CREATE TABLE {table} ({NSYS_TABLES[table]})")
        strings = StringIds(connection)
        _write_targets(connection, trace, strings)
        for name, write in EVENT_WRITERS.items():
            if name in trace.recorded or len(trace.table(name)):
                write(connection, _rows_of(trace, name), strings)
        appender = EventAppender(connection, strings)
        appender.append({"ranges": trace.ranges, "marks": trace.marks})
        append_traceprof_tables(connection, trace, strings, manifest or {})
        _write_session(connection, trace, appender.append_all(events, trace.span))


def append_to_nsys(
    trace: Trace,
    path: Path,
    manifest: Mapping[str, str] | None = None,
    events: Iterable[EventTables] = (),
) -> None:
    """Add the ``TRACEPROF_`` tables and the NVTX rows of ``trace`` to an export of nsys.

    ``trace`` must be on the clock of the export. The file is changed in place: it must be one
    that traceprof has just made.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS StringIds ({NSYS_TABLES['StringIds']})")
            strings = StringIds(connection)
            appender = EventAppender(connection, strings)
            appender.append({"ranges": trace.ranges, "marks": trace.marks})
            append_traceprof_tables(connection, trace, strings, manifest or {})
            appender.append_all(events, trace.span)
    except sqlite3.Error as error:
        raise UsageError(f"{path}: cannot be written ({error})") from error


def _rows_of(trace: Trace, name: str) -> pd.DataFrame:
    frame = trace.table(name)
    if name != "kernels":
        return frame
    return pd.concat([frame, shapes_of(frame, trace.kernel_shapes)], axis="columns")


@contextmanager
def _database_beside(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a new database under a temporary name; rename it to ``path`` if all goes well."""
    try:
        with new_file(path, force=True) as temporary, closing(sqlite3.connect(temporary)) as opened:
            opened.execute("PRAGMA journal_mode = OFF")
            opened.execute("PRAGMA synchronous = OFF")
            with opened:
                yield opened
    except sqlite3.Error as error:
        raise UsageError(f"{path}: cannot be written ({error})") from error


def _write_session(connection: sqlite3.Connection, trace: Trace, span: TimeWindow) -> None:
    product = {
        "EXPORT_PRODUCT_NAME": "traceprof",
        "EXPORT_SCHEMA_VERSION": _SCHEMA_VERSION,
        "EXPORT_HOST": trace.info.host,
    }
    connection.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", product.items())
    epoch_ns = trace.info.utc_epoch_ns
    if epoch_ns is not None:
        seconds = epoch_ns // NS_PER_S
        connection.execute(
            "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, ?, ?)",
            (
                epoch_ns,
                time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)),
                time.strftime("%Y-%m-%dT%H:%M:%S %z", time.localtime(seconds)),
            ),
        )
    start_ns, end_ns = min(0, span.start_ns), span.end_ns
    connection.execute(
        "INSERT INTO ANALYSIS_DETAILS VALUES (?, ?, ?, ?)",
        (global_id(0), end_ns - start_ns, start_ns, end_ns),
    )
    environment = [(global_id(0), "Hostname", "Hostname", 0, trace.info.host)]
    connection.executemany("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?, ?, ?, ?, ?)", environment)
    for table, labels in (
        ("ENUM_CUDA_MEMCPY_OPER", _COPY_LABELS),
        ("ENUM_CUDA_MEM_KIND", _MEMORY_LABELS),
    ):
        connection.executemany(
            f"INSERT INTO {table} VALUES (?, ?, ?)", [(i, text, text) for i, text in labels.items()]
        )


def _write_targets(connection: sqlite3.Connection, trace: Trace, strings: StringIds) -> None:
    processes, threads, devices = trace.processes, trace.threads, trace.devices
    insert_columns(
        connection,
        "PROCESSES",
        {
            "globalPid": [global_id(pid) for pid in processes["process"].tolist()],
            "pid": processes["process"],
            "name": processes["name"],
        },
    )
    insert_columns(
        connection,
        "ThreadNames",
        {"nameId": strings.ids_of(threads["name"]), "globalTid": global_ids(threads)},
    )
    capabilities = devices["compute_capability"].tolist()
    insert_columns(
        connection,
        "TARGET_INFO_GPU",
        {
            "vmId": global_id(0),
            "id": devices["device"],
            "cuDevice": devices["device"],
            "name": devices["name"],
            "uuid": devices["uuid"],
            "totalMemory": [max(0, value) or None for value in devices["memory_bytes"].tolist()],
            "memoryBandwidth": [
                max(0, value) or None for value in devices["memory_bytes_per_s"].tolist()
            ],
            "smCount": [max(0, value) or None for value in devices["sm_count"].tolist()],
            "computeMajor": [value // 10 if value > 0 else None for value in capabilities],
            "computeMinor": [value % 10 if value > 0 else None for value in capabilities],
        },
    )
