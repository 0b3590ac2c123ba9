"""A `Summary` as rows of the database, and back; without the secrets in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import pandas as pd
from sqlite_utils import Database

from traceprof.model.results import Column, Combine, Note, Result, ResultSpec, TableSpec, Unit
from traceprof.model.summary import SUMMARY, SourceFile, Summary
from traceprof.secrets import MASK, masked_command, storable
from traceprof.store.declared import (
    Cell,
    ensure_table,
    from_json,
    insert_frame,
    read_frame,
    table_name,
    to_json,
    to_plain,
)

_OF_RUN = ""
"""The result that the run's own tables and notes belong to."""


def write_parts(database: Database, run_id: int, run: Summary) -> None:
    """Put everything of ``run`` but its row in ``runs`` into the database."""
    add_labels(database, run_id, run.labels)
    _insert(
        database,
        "environment",
        ((run_id, storable(name), storable(text)) for name, text in run.environment.items()),
    )
    _insert(
        database,
        "sources",
        (
            (run_id, i, storable(s.path), s.format, s.n_bytes, json.dumps(s.ranks))
            for i, s in enumerate(run.sources)
        ),
    )
    _write_notes(database, run_id, _OF_RUN, run.notes)
    for spec in SUMMARY.tables:
        if spec.name in run.tables:
            _write_table(database, run_id, _OF_RUN, spec, run.tables[spec.name])
    for place, (name, result) in enumerate(run.results.items()):
        _write_result(database, run_id, place, name, result)


def add_labels(database: Database, run_id: int, labels: Mapping[str, str]) -> None:
    """Give a run labels; one that it has gets the new value."""
    database.conn.executemany(
        "INSERT INTO labels VALUES (?, ?, ?) "
        "ON CONFLICT (run_id, label) DO UPDATE SET value = excluded.value",
        [(run_id, storable(label), storable(value)) for label, value in labels.items()],
    )


def read_summary(database: Database, run_id: int) -> Summary:
    """Return the run of that number."""
    (row,) = database.query("SELECT * FROM runs WHERE id = ?", [run_id])
    return Summary(
        **{
            name: row[name]
            for name in ("name", "origin", "command", "workload", "started_utc_ns", "window")
        },
        **{name: row[name] for name in ("window_ns", "steps_count", "devices_count")},
        environment=_pairs(database, "name", "environment", run_id),
        labels=_pairs(database, "label", "labels", run_id),
        sources=_sources(database, run_id),
        tables={
            name: _read_table(database, run_id, SUMMARY.table(name), table, columns)
            for name, table, columns in _contents(database, run_id, _OF_RUN)
            if name in {spec.name for spec in SUMMARY.tables}
        },
        results=_results(database, run_id),
        notes=_notes(database, run_id, _OF_RUN),
    )


def spec_to_plain(spec: ResultSpec) -> dict[str, Any]:
    """Return a declaration as JSON has it."""
    return {
        "tables": [
            {"name": table.name, "about": table.about, "columns": [*map(asdict, table)]}
            for table in spec.tables
        ],
        "scalars": [*map(asdict, spec.scalars)],
    }


def spec_from_plain(plain: Mapping[str, Any]) -> ResultSpec:
    """Return the declaration that `spec_to_plain` gave.

    Raises:
        KeyError, ValueError, TypeError: it is none.
    """
    return ResultSpec(
        tuple(
            TableSpec(table["name"], table["about"], tuple(map(_column, table["columns"])))
            for table in plain["tables"]
        ),
        tuple(map(_column, plain["scalars"])),
    )


def _column(plain: Mapping[str, Any]) -> Column:
    return Column(
        plain["name"],
        Unit(plain["unit"]),
        plain["meaning"],
        Combine(plain["combine"]),
        plain["weight"],
    )


def _write_result(database: Database, run_id: int, place: int, name: str, result: Result) -> None:
    declaration = to_json(spec_to_plain(result.spec))
    database.execute(
        "INSERT INTO declarations (result, declaration) VALUES (?, ?) "
        "ON CONFLICT (declaration) DO NOTHING",
        [name, declaration],
    )
    database.execute(
        "INSERT INTO results SELECT ?, ?, ?, id FROM declarations WHERE declaration = ?",
        [run_id, name, place, declaration],
    )
    for spec in result.spec.tables:
        if spec.name in result.tables:
            _write_table(database, run_id, name, spec, result.tables[spec.name])
    _insert(
        database,
        "scalars",
        (
            (run_id, name, column.name, _scalar(result.scalars[column.name]))
            for column in result.spec.scalars
            if column.name in result.scalars
        ),
    )
    _write_notes(database, run_id, name, result.notes)


def _write_table(
    database: Database, run_id: int, result: str, spec: TableSpec, frame: pd.DataFrame
) -> None:
    columns = tuple(column for column in spec if column.name in frame)
    table = spec.name if result == _OF_RUN else table_name(result, spec.name)
    ensure_table(database, table, columns)
    insert_frame(database, table, run_id, columns, frame)
    known = json.dumps([column.name for column in columns])
    database.execute(
        "INSERT INTO contents VALUES (?, ?, ?, ?, ?, ?)",
        [run_id, result, spec.name, table, len(frame), known],
    )


def _write_notes(database: Database, run_id: int, result: str, notes: Iterable[Note]) -> None:
    _insert(
        database,
        "notes",
        (
            (run_id, result, i, storable(note.text), to_json(note.values))
            for i, note in enumerate(notes)
        ),
    )


def _insert(database: Database, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    listed = list(rows)
    if listed:
        marks = ", ".join("?" * len(listed[0]))
        database.conn.executemany(f"INSERT INTO {table} VALUES ({marks})", listed)


def _scalar(value: Any) -> Cell:
    """Return a scalar as it is kept: a number as it is, anything else as JSON."""
    plain = to_plain(value)
    is_number = isinstance(plain, int | float) and not isinstance(plain, bool)
    return plain if plain is None or is_number else to_json(value)


def _results(database: Database, run_id: int) -> dict[str, Result]:
    rows = database.execute(
        "SELECT results.result, declaration FROM results "
        "JOIN declarations ON declarations.id = declaration_id "
        'WHERE run_id = ? ORDER BY "row"',
        [run_id],
    ).fetchall()
    return {name: _result(database, run_id, name, declaration) for name, declaration in rows}


def _result(database: Database, run_id: int, name: str, declaration: str) -> Result:
    spec = spec_from_plain(json.loads(declaration))
    scalars = database.execute(
        "SELECT scalar, value FROM scalars WHERE run_id = ? AND result = ?", [run_id, name]
    ).fetchall()
    return Result(
        name,
        spec,
        {
            table: _read_table(database, run_id, spec.table(table), stored, columns)
            for table, stored, columns in _contents(database, run_id, name)
        },
        {name: from_json(cell) if isinstance(cell, str) else cell for name, cell in scalars},
        _notes(database, run_id, name),
    )


def _contents(database: Database, run_id: int, result: str) -> list[tuple[str, str, list[str]]]:
    """Return the tables that are known: name, name in the database, columns."""
    rows = database.execute(
        'SELECT name, "table", columns FROM contents WHERE run_id = ? AND result = ?',
        [run_id, result],
    ).fetchall()
    return [(name, table, json.loads(columns)) for name, table, columns in rows]


def _read_table(
    database: Database, run_id: int, spec: TableSpec, table: str, known: list[str]
) -> pd.DataFrame:
    columns = tuple(column for column in spec if column.name in known)
    return read_frame(database, table, run_id, columns)


def _sources(database: Database, run_id: int) -> tuple[SourceFile, ...]:
    rows = database.execute(
        'SELECT path, format, n_bytes, ranks FROM sources WHERE run_id = ? ORDER BY "row"',
        [run_id],
    ).fetchall()
    return tuple(
        SourceFile(path, kind, n_bytes, tuple(json.loads(ranks)))
        for path, kind, n_bytes, ranks in rows
    )


def _notes(database: Database, run_id: int, result: str) -> tuple[Note, ...]:
    rows = database.execute(
        'SELECT template, "values" FROM notes WHERE run_id = ? AND result = ? ORDER BY "row"',
        [run_id, result],
    ).fetchall()
    return tuple(Note(template, from_json(values)) for template, values in rows)


def _pairs(database: Database, key: str, table: str, run_id: int) -> dict[str, str]:
    rows = database.execute(f"SELECT {key}, value FROM {table} WHERE run_id = ?", [run_id])
    return dict(rows.fetchall())


def masked_run(run: Summary) -> Summary:
    """Return ``run`` without the secrets in its command, its environment and its addresses."""
    return replace(
        run,
        command=_line(run.command),
        environment={name: _variable(name, value) for name, value in run.environment.items()},
        sources=tuple(replace(s, path=_address(s.path)) for s in run.sources),
    )


def _address(path: str) -> str:
    """Return an address without its login; a path of this machine is one whatever it is called."""
    return masked_command([path])[0] if "://" in path else path


def _line(text: str) -> str:
    return " ".join(masked_command(text.split(" ")))


def _variable(name: str, value: str) -> str:
    """Return the value of a variable, whose name may say that it is a secret."""
    option = f"--{name}="
    (shown,) = masked_command([option + value])
    return _line(shown.removeprefix(option)) if shown.startswith(option) else MASK
