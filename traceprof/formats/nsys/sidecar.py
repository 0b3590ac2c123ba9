"""Read and write the TRACEPROF_ tables of `traceprof record`: data for which nsys has no table."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any, Final

from traceprof.formats.nsys import schema
from traceprof.formats.sqlite.columns import ColumnType, known
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.inserting import StringIds, insert_columns, without_absent
from traceprof.model.table import Names, Table
from traceprof.model.tables import TABLES, ColumnKind, empty_table, make_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.names.messages import collective_op
from traceprof.secrets import storable

_STORED_TABLES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "host_ops": (
        schema.OPERATORS,
        {"name": "nameId", "source": "source", "correlation": "correlationId"},
    ),
    "collectives": (
        schema.COLLECTIVES,
        {name: name for name in ("op", "dtype", "backend", "sequence", "peer", "tag")}
        | {"n_bytes": "bytes", "group": "groupName", "group_size": "groupSize"}
        | {"group_rank": "groupRank", "peer_rank": "peerRank", "correlation": "correlationId"},
    ),
    "functions": (schema.FUNCTIONS, {"name": "nameId"}),
    "samples": (schema.SAMPLES, {name: name for name in ("source", "metric", "value")}),
    "processes": (
        "TRACEPROF_PROCESSES",
        {"process": "pid", "name": "name", "rank": "rank"}
        | {"local_rank": "localRank", "world_size": "worldSize", "host": "host"},
    ),
    "environment": ("TRACEPROF_ENVIRONMENT", {"name": "name", "value": "value"}),
}
"""Table of the Trace → its table in the file, and the column there of each column but the times."""
_OPTIONAL_COLUMNS: Final = ("groupRank", "peer", "peerRank", "tag")
"""Columns that recordings of the first versions lack."""
_READ_AS: Final = {
    ColumnKind.NUMBER: ColumnType.INTEGER,
    ColumnKind.FLOAT: ColumnType.REAL,
    ColumnKind.NAME: ColumnType.TEXT,
}
LOSSES: Final = "losses"
"""Manifest key: what happened but is missing in the trace, as a JSON list of sentences."""
_NAME: Final = "nameId"
_ID: Final = 0xFFFFFF


def read_traceprof_table(database: Database, name: str, window: TimeWindow | None = None) -> Table:
    """Return a table of events for which nsys has none, such as host_ops, functions, or samples."""
    table, stored = _STORED_TABLES[name]
    if table not in database.tables:
        return empty_table(name)
    kinds = TABLES[name].columns
    times = ("start", "end", "globalTid") if "thread" in kinds else ("start",)
    wanted = dict.fromkeys(times, ColumnType.INTEGER)
    wanted |= {stored_name: _READ_AS[kinds[column]] for column, stored_name in stored.items()}
    if _NAME in wanted:
        wanted[_NAME] = ColumnType.INTEGER
    optional = [column for column in _OPTIONAL_COLUMNS if column in wanted]
    raw = database.read_columns(table, wanted, window, optional)
    columns: dict[str, Any] = (
        schema.place_on_host(raw) if "thread" in kinds else {"start_ns": raw["start"]}
    )
    for column, stored_name in stored.items():
        is_number = kinds[column] is ColumnKind.NUMBER
        columns[column] = known(raw[stored_name]) if is_number else raw[stored_name]
    if _NAME in wanted:
        columns["name"] = schema.read_names(database, raw[_NAME])
    if name == "collectives":  # an unknown operation keeps its name
        plain = [collective_op(op) or op for op in columns["op"].texts.tolist()]
        columns["op"] = Names.coded(plain, columns["op"].packed, is_sorted=True)
    return make_table(name, columns)


def read_losses(database: Database) -> list[str]:
    """Return the sentences of the recorder about events that are missing in the trace."""
    sentences = database.settings(schema.MANIFEST).get(LOSSES, "[]")
    try:
        listed = json.loads(sentences)
    except ValueError:
        return []
    return [str(sentence) for sentence in listed] if isinstance(listed, list) else []


def append_traceprof_tables(
    connection: sqlite3.Connection, trace: Trace, strings: StringIds, manifest: Mapping[str, str]
) -> None:
    """Create and fill the ``TRACEPROF_`` tables that ``trace`` has data for."""
    for name in _STORED_TABLES:
        if name in trace.recorded or len(trace.table(name)):
            _append_rows(connection, name, trace.table(name), strings)
    create(connection, schema.MANIFEST, schema.TRACEPROF_TABLES)
    rows = {**manifest, "recorded": json.dumps(sorted(trace.recorded))}
    connection.executemany(
        f"INSERT INTO {schema.MANIFEST} VALUES (?, ?)",
        [(name, storable(value)) for name, value in rows.items()],
    )


def append_traceprof_events(
    connection: sqlite3.Connection, tables: Mapping[str, Table], strings: StringIds
) -> None:
    """Add events to the ``TRACEPROF_`` tables."""
    for name, table in tables.items():
        if name in _STORED_TABLES and len(table):
            _append_rows(connection, name, table, strings)


def _append_rows(
    connection: sqlite3.Connection, name: str, rows: Table, strings: StringIds
) -> None:
    """Add the rows of the Trace table ``name`` to its table in the file."""
    table, stored = _STORED_TABLES[name]
    create(connection, table, schema.TRACEPROF_TABLES)
    kinds = TABLES[name].columns
    columns: dict[str, Any] = {"start": rows["start_ns"]} if "start_ns" in kinds else {}
    if "thread" in kinds:
        columns |= {"end": rows["end_ns"], "globalTid": global_ids(rows)}
    for column, stored_name in stored.items():
        if stored_name == _NAME:
            columns[stored_name] = strings.ids_of(rows[column])
        elif kinds[column] is ColumnKind.NUMBER and column != "process":
            columns[stored_name] = without_absent(rows[column])
        else:
            columns[stored_name] = rows[column]
    insert_columns(connection, table, columns)


def create(connection: sqlite3.Connection, table: str, tables: Mapping[str, str]) -> None:
    """Create ``table`` with the columns in ``tables`` unless it exists."""
    connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({tables[table]})")


def global_ids(rows: Table) -> list[int]:
    """Return the ``globalTid`` of each row."""
    processes, threads = rows["process"] & _ID, rows["thread"] & _ID
    ids: list[int] = (schema.global_id(0) | processes << 24 | threads).tolist()
    return ids
