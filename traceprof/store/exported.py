"""Runs as a JSON file, to be given away or kept beside a paper, and added again.

``{"schema": "traceprof.runs/1", "runs": [{"name": …, "tables": {"steps": {"period_ns": […], …}}, …
}]}``: what a `Summary` has, tables column by column, results with what was declared of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pandas as pd

from traceprof.errors import StoreError
from traceprof.files import kind_of_no_file
from traceprof.model.results import Note, Result, TableSpec
from traceprof.model.summary import SUMMARY, SourceFile, Summary
from traceprof.store.declared import as_cells, as_series, from_json, to_json, to_plain
from traceprof.store.summaries import masked_run, spec_from_plain, spec_to_plain
from traceprof.version import __version__

__all__ = ["SCHEMA", "exported_runs", "is_exported", "read_exported"]

_KIND: Final = "traceprof.runs/"
SCHEMA: Final = f"{_KIND}1"
"""The shape of the file; the number grows when a reader of the old one would break."""

_HEAD_BYTES: Final = 4096
_TEXTS: Final = ("name", "origin", "command", "workload", "window")
_NUMBERS: Final = ("started_utc_ns", "window_ns", "steps_count", "devices_count")


def exported_runs(runs: Sequence[Summary]) -> str:
    """Return ``runs`` as the text of such a file, secrets masked."""
    document = {
        "schema": SCHEMA,
        "traceprof": __version__,
        "runs": [_plain_run(masked_run(run)) for run in runs],
    }
    return to_json(document) + "\n"


def is_exported(path: Path) -> bool:
    """Return whether the file ``path`` holds exported runs, of whichever version."""
    if kind_of_no_file(path):
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).lstrip()
    except OSError:
        return False
    return head.startswith(b"{") and b'"schema"' in head and _KIND.encode() in head


def read_exported(path: Path) -> list[Summary]:
    """Return the runs in the file ``path``.

    Raises:
        StoreError: it cannot be read, is of a version that only newer programs know, or damaged.
    """
    try:
        document = from_json(path.read_text("utf-8"))
        if document["schema"] != SCHEMA:
            raise StoreError(
                f"{path}: {document['schema']}, and this traceprof reads {SCHEMA}: "
                "update traceprof, or export the run again"
            )
        return [_run(plain) for plain in document["runs"]]
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path}: exported runs that are damaged ({error!r})") from error


def _plain_run(run: Summary) -> dict[str, Any]:
    return {
        **{name: getattr(run, name) for name in (*_TEXTS, *_NUMBERS)},
        "environment": dict(run.environment),
        "labels": dict(run.labels),
        "sources": [{**asdict(source), "ranks": [*source.ranks]} for source in run.sources],
        "tables": {
            spec.name: _plain_table(spec, run.tables[spec.name])
            for spec in SUMMARY.tables
            if spec.name in run.tables
        },
        "results": {name: _plain_result(result) for name, result in run.results.items()},
        "notes": [*map(_plain_note, run.notes)],
    }


def _plain_table(spec: TableSpec, frame: pd.DataFrame) -> dict[str, list[Any]]:
    return {
        column.name: as_cells(column.unit, frame[column.name].tolist())
        for column in spec
        if column.name in frame
    }


def _plain_result(result: Result) -> dict[str, Any]:
    return {
        "declaration": spec_to_plain(result.spec),
        "tables": {
            table.name: _plain_table(table, result.tables[table.name])
            for table in result.spec.tables
            if table.name in result.tables
        },
        "scalars": dict(result.scalars),
        "notes": [*map(_plain_note, result.notes)],
    }


def _plain_note(note: Note) -> dict[str, Any]:
    return {"template": note.text, "values": to_plain(note.values)}


def _run(plain: Mapping[str, Any]) -> Summary:
    return Summary(
        **{name: _of_type(plain.get(name, ""), str) for name in _TEXTS},
        **{name: _of_type(plain.get(name), int, type(None)) for name in _NUMBERS},
        environment=_texts(plain.get("environment", {})),
        labels=_texts(plain.get("labels", {})),
        sources=tuple(map(_source, plain.get("sources", ()))),
        tables={
            spec.name: _table(spec, plain["tables"][spec.name])
            for spec in SUMMARY.tables
            if spec.name in plain.get("tables", {})
        },
        results={name: _result(name, found) for name, found in plain.get("results", {}).items()},
        notes=tuple(map(_note, plain.get("notes", ()))),
    )


def _result(name: str, plain: Mapping[str, Any]) -> Result:
    spec = spec_from_plain(plain["declaration"])
    return Result(
        name,
        spec,
        {table: _table(spec.table(table), found) for table, found in plain["tables"].items()},
        plain["scalars"],
        tuple(map(_note, plain["notes"])),
    )


def _table(spec: TableSpec, plain: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    columns = [column for column in spec if column.name in plain]
    if len({len(plain[column.name]) for column in columns}) > 1:
        raise ValueError(f"columns of {spec.name} of different lengths")
    found = {column.name: as_series(column.unit, plain[column.name]) for column in columns}
    return pd.DataFrame(found, columns=[column.name for column in columns])


def _note(plain: Mapping[str, Any]) -> Note:
    return Note(_of_type(plain["template"], str), dict(plain["values"]))


def _source(plain: Mapping[str, Any]) -> SourceFile:
    return SourceFile(
        _of_type(plain["path"], str),
        _of_type(plain.get("format", ""), str),
        _of_type(plain.get("n_bytes"), int, type(None)),
        tuple(_of_type(rank, int) for rank in plain.get("ranks", ())),
    )


def _texts(plain: Mapping[str, Any]) -> dict[str, str]:
    return {_of_type(name, str): _of_type(text, str) for name, text in plain.items()}


def _of_type(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise TypeError(f"{value!r} where {kinds[0].__name__} is expected")
    return value
