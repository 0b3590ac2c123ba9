"""Writing the ``TRACEPROF_`` tables: what a recording holds that nsys has no table for."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pandas as pd

from traceprof.formats.nsys.schema import TRACEPROF_TABLES, global_id
from traceprof.formats.sqlite.rows import StringIds, insert_columns, without_absent
from traceprof.model.trace import Trace
from traceprof.secrets import storable

_ID: Final = 0xFFFFFF

__all__ = ["append_traceprof_events", "append_traceprof_tables", "global_ids"]


def append_traceprof_tables(
    connection: sqlite3.Connection,
    trace: Trace,
    strings: StringIds,
    manifest: Mapping[str, str],
) -> None:
    """Create the ``TRACEPROF_`` tables that ``trace`` has something for, and fill them."""
    for name, write in _WRITERS.items():
        if name in trace.recorded or len(trace.table(name)):
            write(connection, trace.table(name), strings)
    _create(connection, "TRACEPROF_MANIFEST")
    rows = {**manifest, "recorded": json.dumps(sorted(trace.recorded))}
    connection.executemany(
        "INSERT INTO TRACEPROF_MANIFEST VALUES (?, ?)",
        [(name, storable(value)) for name, value in rows.items()],
    )


def append_traceprof_events(
    connection: sqlite3.Connection, tables: Mapping[str, pd.DataFrame], strings: StringIds
) -> None:
    """Add rows of events to the ``TRACEPROF_`` tables."""
    for name, table in tables.items():
        if name in _WRITERS and len(table):
            _WRITERS[name](connection, table, strings)


def global_ids(frame: pd.DataFrame) -> list[int]:
    """Return the ``globalTid`` of each row."""
    processes = frame["process"].to_numpy(np.int64) & _ID
    threads = frame["thread"].to_numpy(np.int64) & _ID
    ids: list[int] = (global_id(0) | processes << 24 | threads).tolist()
    return ids


def _create(connection: sqlite3.Connection, table: str) -> None:
    connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({TRACEPROF_TABLES[table]})")


def _write_host_ops(
    connection: sqlite3.Connection, frame: pd.DataFrame, strings: StringIds
) -> None:
    _create(connection, "TRACEPROF_HOST_OPS")
    insert_columns(
        connection,
        "TRACEPROF_HOST_OPS",
        {
            "start": frame["start_ns"],
            "end": frame["end_ns"],
            "globalTid": global_ids(frame),
            "nameId": strings.ids_of(frame["name"]),
            "source": frame["source"].astype(object),
            "correlationId": without_absent(frame["correlation"]),
        },
    )


def _write_collectives(
    connection: sqlite3.Connection, frame: pd.DataFrame, _strings: StringIds
) -> None:
    _create(connection, "TRACEPROF_COLLECTIVES")
    insert_columns(
        connection,
        "TRACEPROF_COLLECTIVES",
        {
            "start": frame["start_ns"],
            "end": frame["end_ns"],
            "globalTid": global_ids(frame),
            "op": frame["op"].astype(object),
            "bytes": without_absent(frame["n_bytes"]),
            "dtype": frame["dtype"].astype(object),
            "groupName": frame["group"].astype(object),
            "groupSize": without_absent(frame["group_size"]),
            "backend": frame["backend"].astype(object),
            "sequence": without_absent(frame["sequence"]),
            "correlationId": without_absent(frame["correlation"]),
            "groupRank": without_absent(frame["group_rank"]),
            "peer": without_absent(frame["peer"]),
            "peerRank": without_absent(frame["peer_rank"]),
            "tag": without_absent(frame["tag"]),
        },
    )


def _write_samples(
    connection: sqlite3.Connection, frame: pd.DataFrame, _strings: StringIds
) -> None:
    _create(connection, "TRACEPROF_SAMPLES")
    insert_columns(
        connection,
        "TRACEPROF_SAMPLES",
        {
            "start": frame["start_ns"],
            "source": frame["source"].astype(object),
            "metric": frame["metric"].astype(object),
            "value": frame["value"],
        },
    )


def _write_processes(
    connection: sqlite3.Connection, frame: pd.DataFrame, _strings: StringIds
) -> None:
    _create(connection, "TRACEPROF_PROCESSES")
    insert_columns(
        connection,
        "TRACEPROF_PROCESSES",
        {
            "pid": frame["process"],
            "name": frame["name"],
            "rank": without_absent(frame["rank"]),
            "localRank": without_absent(frame["local_rank"]),
            "worldSize": without_absent(frame["world_size"]),
            "host": frame["host"],
        },
    )


def _write_environment(
    connection: sqlite3.Connection, frame: pd.DataFrame, _strings: StringIds
) -> None:
    _create(connection, "TRACEPROF_ENVIRONMENT")
    insert_columns(
        connection, "TRACEPROF_ENVIRONMENT", {"name": frame["name"], "value": frame["value"]}
    )


_Writer = Callable[[sqlite3.Connection, pd.DataFrame, StringIds], None]
_WRITERS: Final[Mapping[str, _Writer]] = {
    "host_ops": _write_host_ops,
    "collectives": _write_collectives,
    "samples": _write_samples,
    "processes": _write_processes,
    "environment": _write_environment,
}
