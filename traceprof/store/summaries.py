"""Convert a `Summary` to plain JSON values and database rows, and back; mask its secrets.

Runs can be exported to a file, to share or archive them and add them again. The file contains
``{"schema": "traceprof.runs/1", "runs": […]}``.

A run is ``{"name": …, "tables": {"steps": {"period_ns": […], …}}, "results": …}``: the fields of a
`Summary`, with tables by column, and results with their declarations.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import convert
from msgspec.json import decode, encode

from traceprof.errors import StoreError
from traceprof.files import special_file_kind
from traceprof.model.results import Note, Result, ResultSpec, TableSpec
from traceprof.model.summary import SUMMARY, SourceFile, Summary
from traceprof.model.table import Table
from traceprof.secrets import MASK, masked_command, storable
from traceprof.store import declared as kept_as
from traceprof.store.declared import from_json, to_json
from traceprof.version import __version__

if TYPE_CHECKING:
    from sqlite_utils import Database

_TEXTS: Final = ("name", "origin", "command", "workload", "window")
_NUMBERS: Final = ("started_utc_ns", "window_ns", "steps_count", "devices_count")
_OF_RUN: Final = ""
"""The result name of the run's own tables and notes."""


def plain_run(run: Summary) -> dict[str, Any]:
    """Return a run as plain JSON values."""
    rows = _plain_rows(SUMMARY, run.tables, run.notes)
    return {
        **{name: getattr(run, name) for name in (*_TEXTS, *_NUMBERS)},
        "environment": dict(run.environment),
        "labels": dict(run.labels),
        "sources": [{**asdict(source), "ranks": [*source.ranks]} for source in run.sources],
        "tables": rows["tables"],
        "results": {name: _plain_result(result) for name, result in run.results.items()},
        "notes": rows["notes"],
    }


def _plain_result(result: Result) -> dict[str, Any]:
    rows = _plain_rows(result.spec, result.tables, result.notes)
    return {
        "declaration": decode(encode(result.spec)),
        "tables": rows["tables"],
        "scalars": dict(result.scalars),
        "notes": rows["notes"],
    }


def _plain_rows(
    spec: ResultSpec, tables: Mapping[str, Table], notes: Iterable[Note]
) -> dict[str, Any]:
    return {
        "tables": {
            table.name: {
                column.name: kept_as.as_cells(column.unit, tables[table.name][column.name].tolist())
                for column in table
                if column.name in tables[table.name]
            }
            for table in spec.tables
            if table.name in tables
        },
        "notes": [
            {"template": note.text, "values": kept_as.to_plain(note.values)} for note in notes
        ],
    }


def run_of(plain: Mapping[str, Any]) -> Summary:
    """Return the run that `plain_run` converted; all values except the name may be missing.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: the value is not a run.
    """
    fields: dict[str, Any] = {name: convert(plain.get(name, ""), str) for name in _TEXTS}
    fields |= {name: convert(plain.get(name), int | None) for name in _NUMBERS}
    return Summary(
        **fields,
        environment=convert(plain.get("environment", {}), dict[str, str]),
        labels=convert(plain.get("labels", {}), dict[str, str]),
        sources=convert(plain.get("sources", ()), tuple[SourceFile, ...]),
        tables={
            name: _table(SUMMARY.table(name), found)
            for name, found in plain.get("tables", {}).items()
            if name in {spec.name for spec in SUMMARY.tables}
        },
        results={name: _result(name, found) for name, found in plain.get("results", {}).items()},
        notes=tuple(map(_note, plain.get("notes", ()))),
    )


def _result(name: str, plain: Mapping[str, Any]) -> Result:
    spec = convert(plain["declaration"], ResultSpec)
    tables = {table: _table(spec.table(table), found) for table, found in plain["tables"].items()}
    return Result(name, spec, tables, plain["scalars"], tuple(map(_note, plain["notes"])))


def _table(spec: TableSpec, plain: Mapping[str, Sequence[Any]]) -> Table:
    columns = [column for column in spec if column.name in plain]
    if len({len(plain[column.name]) for column in columns}) > 1:
        raise ValueError(f"columns of {spec.name} differ in length")
    if columns and spec.keys and spec.keys[0] not in plain:
        raise ValueError(f"rows of {spec.name} have no {spec.keys[0]}")
    return Table(
        {column.name: kept_as.as_column(column.unit, plain[column.name]) for column in columns}
    )


def _note(plain: Mapping[str, Any]) -> Note:
    return Note(convert(plain["template"], str), dict(plain["values"]))


def write_parts(database: Database, run_id: int, run: Summary) -> None:
    """Write all parts of ``run`` into the database, except its row in ``runs``."""
    add_labels(database, run_id, run.labels)
    variables = run.environment.items()
    _insert_rows(database, "environment", ((run_id, *map(storable, pair)) for pair in variables))
    _insert_rows(
        database,
        "sources",
        (
            (run_id, i, storable(s.path), s.format, s.n_bytes, json.dumps(s.ranks))
            for i, s in enumerate(run.sources)
        ),
    )
    _write_rows(database, run_id, _OF_RUN, SUMMARY, _plain_rows(SUMMARY, run.tables, run.notes))
    for place, (name, kept) in enumerate(run.results.items()):
        result = _plain_result(kept)
        declaration = kept_as.to_json(result["declaration"])
        database.execute(
            "INSERT INTO declarations (result, declaration) VALUES (?, ?) "
            "ON CONFLICT (declaration) DO NOTHING",
            [name, declaration],
        )
        database.execute(
            "INSERT INTO results SELECT ?, ?, ?, id FROM declarations WHERE declaration = ?",
            [run_id, name, place, declaration],
        )
        _write_rows(database, run_id, name, kept.spec, result)
        _insert_rows(
            database,
            "scalars",
            (
                (run_id, name, column.name, _scalar(result["scalars"][column.name]))
                for column in kept.spec.scalars
                if column.name in result["scalars"]
            ),
        )


def add_labels(database: Database, run_id: int, labels: Mapping[str, str]) -> None:
    """Add labels to a run; an existing label gets the new value."""
    database.conn.executemany(
        "INSERT INTO labels VALUES (?, ?, ?) "
        "ON CONFLICT (run_id, label) DO UPDATE SET value = excluded.value",
        [(run_id, storable(label), storable(value)) for label, value in labels.items()],
    )


def _write_rows(
    database: Database, run_id: int, result: str, spec: ResultSpec, plain: Mapping[str, Any]
) -> None:
    """Write the tables and the notes of a result into the database."""
    for name, cells in plain["tables"].items():
        columns = tuple(column for column in spec.table(name) if column.name in cells)
        table = name if result == _OF_RUN else kept_as.table_name(result, name)
        kept_as.ensure_table(database, table, columns)
        n_rows = kept_as.insert_cells(database, table, run_id, cells)
        column_names = json.dumps([column.name for column in columns])
        database.execute(
            "INSERT INTO contents VALUES (?, ?, ?, ?, ?, ?)",
            [run_id, result, name, table, n_rows, column_names],
        )
    notes = (
        (run_id, result, i, storable(note["template"]), kept_as.to_json(note["values"]))
        for i, note in enumerate(plain["notes"])
    )
    _insert_rows(database, "notes", notes)


def _insert_rows(database: Database, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    listed = list(rows)
    if listed:
        marks = ", ".join("?" * len(listed[0]))
        database.conn.executemany(f"INSERT INTO {table} VALUES ({marks})", listed)


def _scalar(value: Any) -> kept_as.Cell:
    """Return a scalar as a database cell: a number unchanged, any other value as JSON."""
    plain = kept_as.to_plain(value)
    is_number = isinstance(plain, int | float) and not isinstance(plain, bool)
    return plain if plain is None or is_number else kept_as.to_json(value)


def read_summary(database: Database, run_id: int) -> Summary:
    """Return the run with this number."""
    (row,) = database.query("SELECT * FROM runs WHERE id = ?", [run_id])
    sources = database.execute(
        'SELECT path, format, n_bytes, ranks FROM sources WHERE run_id = ? ORDER BY "row"', [run_id]
    )
    results = database.execute(
        "SELECT results.result, declaration FROM results "
        "JOIN declarations ON declarations.id = declaration_id "
        'WHERE run_id = ? ORDER BY "row"',
        [run_id],
    )
    return run_of(
        {
            **{name: row[name] for name in (*_TEXTS, *_NUMBERS)},
            "environment": _read_pairs(database, "name", "environment", run_id),
            "labels": _read_pairs(database, "label", "labels", run_id),
            "sources": [
                {"path": path, "format": kind, "n_bytes": n_bytes, "ranks": json.loads(ranks)}
                for path, kind, n_bytes, ranks in sources.fetchall()
            ],
            "results": {
                name: _read_result(database, run_id, name, json.loads(declaration))
                for name, declaration in results.fetchall()
            },
            **_read_tables(database, run_id, _OF_RUN, asdict(SUMMARY)),
        }
    )


def _read_result(
    database: Database, run_id: int, name: str, declaration: Mapping[str, Any]
) -> dict[str, Any]:
    scalars = database.execute(
        "SELECT scalar, value FROM scalars WHERE run_id = ? AND result = ?", [run_id, name]
    )
    return {
        "declaration": declaration,
        "scalars": {
            scalar: kept_as.from_json(cell) if isinstance(cell, str) else cell
            for scalar, cell in scalars.fetchall()
        },
        **_read_tables(database, run_id, name, declaration),
    }


def _read_tables(
    database: Database, run_id: int, result: str, declaration: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the tables of a result, with columns that are stored and declared, and its notes."""
    declared = {
        table["name"]: [column["name"] for column in table["columns"]]
        for table in declaration["tables"]
    }
    contents = database.execute(
        'SELECT name, "table", columns FROM contents WHERE run_id = ? AND result = ?',
        [run_id, result],
    )
    notes = database.execute(
        'SELECT template, "values" FROM notes WHERE run_id = ? AND result = ? ORDER BY "row"',
        [run_id, result],
    )
    tables = {}
    for name, table, columns in contents.fetchall():
        if name in declared:
            stored = json.loads(columns)
            wanted = [column for column in declared[name] if column in stored]
            tables[name] = kept_as.read_cells(database, table, run_id, wanted)
    plain_notes = [
        {"template": text, "values": kept_as.from_json(values)} for text, values in notes.fetchall()
    ]
    return {"tables": tables, "notes": plain_notes}


def _read_pairs(database: Database, key: str, table: str, run_id: int) -> dict[str, str]:
    rows = database.execute(f"SELECT {key}, value FROM {table} WHERE run_id = ?", [run_id])
    return dict(rows.fetchall())


def masked_run(run: Summary) -> Summary:
    """Return ``run`` without the secrets in its command, environment, and URLs."""
    return replace(
        run,
        command=_masked_line(run.command),
        environment={
            name: _masked_variable(name, value) for name, value in run.environment.items()
        },
        sources=tuple(replace(s, path=_masked_address(s.path)) for s in run.sources),
    )


def _masked_address(path: str) -> str:
    """Return a URL without its login; a local path is returned unchanged."""
    return masked_command([path])[0] if "://" in path else path


def _masked_line(text: str) -> str:
    return " ".join(masked_command(text.split(" ")))


def _masked_variable(name: str, value: str) -> str:
    """Return the value of a variable, masked if its name or value indicates a secret."""
    option = f"--{name}="
    (shown,) = masked_command([option + value])
    return _masked_line(shown.removeprefix(option)) if shown.startswith(option) else MASK


_SCHEMA_PREFIX: Final = "traceprof.runs/"
SCHEMA: Final = f"{_SCHEMA_PREFIX}1"
"""Format version of the file; it increases when a reader of the old format would fail."""

_HEAD_BYTES: Final = 4096


def exported_runs(runs: Sequence[Summary]) -> str:
    """Return the text of an export file with ``runs``, with secrets masked."""
    document = {
        "schema": SCHEMA,
        "traceprof": __version__,
        "runs": [plain_run(masked_run(run)) for run in runs],
    }
    return to_json(document) + "\n"


def is_exported(path: Path) -> bool:
    """Return whether the file ``path`` contains exported runs, of any version."""
    if special_file_kind(path):
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).lstrip()
    except OSError:
        return False
    return head.startswith(b"{") and b'"schema"' in head and _SCHEMA_PREFIX.encode() in head


def read_exported(path: Path) -> list[Summary]:
    """Return the runs in the export file ``path``.

    Raises:
        StoreError: the file cannot be read, has a newer version, or is damaged.
    """
    try:
        document = from_json(path.read_text("utf-8"))
        if document["schema"] != SCHEMA:
            raise StoreError(
                f"{path}: schema {document['schema']}, but this traceprof reads {SCHEMA}; "
                "update traceprof, or export the run again"
            )
        return [run_of(plain) for plain in document["runs"]]
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path}: corrupt export of runs ({error!r})") from error
