"""What nsys has no table for: the TRACEPROF_ tables that `traceprof record` adds."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pandas as pd

from traceprof.formats.nsys.schema import TRACEPROF_TABLES, global_id, named, process_of, thread_of
from traceprof.formats.sqlite.columns import Column, ColumnType, categorical, known
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.inserting import StringIds, insert_columns, without_absent
from traceprof.model.tables import empty_table, make_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.names.messages import collective_op
from traceprof.secrets import storable

OPERATORS: Final = "TRACEPROF_HOST_OPS"
COLLECTIVES: Final = "TRACEPROF_COLLECTIVES"
SAMPLES: Final = "TRACEPROF_SAMPLES"
_INTEGER: Final = ColumnType.INTEGER
_TEXT: Final = ColumnType.TEXT
_SPAN: Final = {"start": _INTEGER, "end": _INTEGER, "globalTid": _INTEGER}


def read_operators(database: Database, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the CPU operators of the embedded recorder."""
    if OPERATORS not in database.tables:
        return empty_table("host_ops")
    raw = database.read_columns(
        OPERATORS,
        {**_SPAN, "nameId": _INTEGER, "source": _TEXT, "correlationId": _INTEGER},
        window,
    )
    return make_table(
        "host_ops",
        {
            **_where(raw),
            "source": raw["source"],
            "name": named(database, raw["nameId"]),
            "correlation": known(raw["correlationId"]),
        },
    )


def read_collectives(database: Database) -> pd.DataFrame:
    """Return the collectives with their sizes."""
    if COLLECTIVES not in database.tables:
        return empty_table("collectives")
    numbers = ("bytes", "groupSize", "sequence", "correlationId")
    ends = ("groupRank", "peer", "peerRank", "tag")
    texts = ("op", "dtype", "groupName", "backend")
    raw = database.read_columns(
        COLLECTIVES,
        {**_SPAN, **dict.fromkeys((*numbers, *ends), _INTEGER), **dict.fromkeys(texts, _TEXT)},
        optional=ends,
    )
    return make_table(
        "collectives",
        {
            **_where(raw),
            "op": _plain_ops(raw["op"]),
            "n_bytes": known(raw["bytes"]),
            "dtype": raw["dtype"],
            "group": raw["groupName"],
            "group_size": known(raw["groupSize"]),
            "backend": raw["backend"],
            "sequence": known(raw["sequence"]),
            "correlation": known(raw["correlationId"]),
            "group_rank": known(raw["groupRank"]),
            "peer": known(raw["peer"]),
            "peer_rank": known(raw["peerRank"]),
            "tag": known(raw["tag"]),
        },
    )


def read_samples(database: Database, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the time series that the samplers took."""
    if SAMPLES not in database.tables:
        return empty_table("samples")
    raw = database.read_columns(
        SAMPLES,
        {"start": _INTEGER, "source": _TEXT, "metric": _TEXT, "value": ColumnType.REAL},
        window,
    )
    return make_table(
        "samples",
        {
            "start_ns": raw["start"],
            "source": raw["source"],
            "metric": raw["metric"],
            "value": raw["value"],
        },
    )


def _plain_ops(names: Column) -> pd.Categorical:
    """Return the operations in our words; one that we have no word for keeps its name."""
    assert isinstance(names, pd.Categorical)
    plain = [collective_op(str(name)) or str(name) for name in names.categories]
    return categorical(names.codes, plain)


def _where(raw: Mapping[str, Column]) -> dict[str, np.ndarray]:
    starts = np.asarray(raw["start"], np.int64)
    return {
        "start_ns": starts,
        "end_ns": np.maximum(starts, np.asarray(raw["end"], np.int64)),
        "process": process_of(np.asarray(raw["globalTid"])),
        "thread": thread_of(np.asarray(raw["globalTid"])),
    }


_ID: Final = 0xFFFFFF


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
