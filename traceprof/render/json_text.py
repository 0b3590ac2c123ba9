"""Render results as JSON: one versioned document with the same structure for every analysis.

Its JSON Schema is `docs/schema/analysis-2.json`. Times are in ns and sizes in bytes. Instants are
in ns after the start of the run. Unknown values are null. Every row has a ``key`` that is unique
in its table and identifies the same thing in another recording of the same program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from traceprof.comparison import Comparison
from traceprof.model.results import Result
from traceprof.model.trace import FIRST_EPOCH_NS
from traceprof.render.formatting import note_of, plain, to_json
from traceprof.render.registry import Answered, Options
from traceprof.render.shown import Row, ShownTable, columns_of, declared_table, tables_of
from traceprof.session.answer import ONE_OFF, Document
from traceprof.session.verdict import Verdict

SCHEMA: Final = "traceprof.analysis/2"
"""Name and version of the document. The version increases with every incompatible change."""

COMPARISON_SCHEMA: Final = "traceprof.comparison/1"
"""Name and version of the document for results about several runs."""

KEY: Final = "key"
_ONLY_ROW: Final = "all"


def document_of(document: Answered) -> dict[str, Any]:
    """Return the document as JSON types."""
    if isinstance(document, Comparison):
        return _comparison_of(document)
    info, window = document.info, document.selection.window
    verdict, reason = document.verdict, document.selection.reason
    span, epoch_ns = document.span, info.utc_epoch_ns or 0
    is_known = epoch_ns >= FIRST_EPOCH_NS
    return {
        "schema": SCHEMA,
        **({} if verdict is None else {"verdict": _verdict_of(verdict)}),
        **_workload_of(document),
        "hardware": [{"name": name, "count": n} for name, n in document.hardware.items()],
        "trace": {
            "path": info.path,
            "format": info.format,
            "profiler": info.profiler,
            "host": info.host,
            "recorded": sorted(document.recorded),
            "warnings": list(info.warnings),
            "incomplete": [note_of(note) for note in document.lost],
        },
        "clock": {  # time 0 of all instants, on the wall clock and on the clock of the trace
            "zero": "start of the run",
            "utc_epoch_ns": epoch_ns + span.start_ns if is_known else None,
            "trace_clock_ns": span.start_ns,
            "duration_ns": span.duration_ns,
        },
        "window": {
            "label": document.selection.label,
            "start_ns": document.ns_after_start(window.start_ns),
            "end_ns": document.ns_after_start(window.end_ns),
            "duration_ns": window.duration_ns,
            "gaps": [
                {"start_ns": document.ns_after_start(start), "end_ns": document.ns_after_start(end)}
                for start, end in window.gaps
            ],
            "reason": None if reason is None else note_of(reason),
            "notes": [note_of(note) for note in document.selection.notes],
        },
        "results": {
            name: _result_of(result, document.ranks) for name, result in document.results.items()
        },
        "not_recorded": dict(document.missing),
    }


def _comparison_of(document: Comparison) -> dict[str, Any]:
    return {
        "schema": COMPARISON_SCHEMA,
        "title": document.title,
        "verdict": plain(document.verdict),
        "notes": plain(document.notes),
        "warnings": plain(document.warnings),
        "results": {name: _result_of(result, {}) for name, result in document.results.items()},
        "not_known": dict(document.missing),
    }


def records_of(table: ShownTable) -> list[dict[str, Any]]:
    """Return the rows of a table as JSON types, each with its key."""
    rows = table.rows()
    return [
        {KEY: key, **{name: plain(value) for name, value in row.items()}}
        for key, row in zip(_keys_of(table, rows), rows, strict=True)
    ]


def _verdict_of(verdict: Verdict) -> dict[str, Any]:
    notes = ("sentences", "made_of", "fine", "unknown", "once", "periodic", "lost")
    return {
        "bound_by": verdict.bound_by,
        **{name: [plain(note) for note in getattr(verdict, name)] for name in notes},
        "parts": dict(verdict.parts),
        "next_command": verdict.next_command,
    }


def _workload_of(document: Document) -> dict[str, Any]:
    """Return the workload and the one-time costs of the run, if they were analyzed."""
    found: dict[str, Any] = {}
    if document.workload is not None:
        reasons = [note_of(note) for note in document.workload.reasons]
        found["workload"] = {"kind": document.workload.kind, "reasons": reasons}
    if document.one_off is not None:
        found["one_off"] = _table_of(declared_table(ONE_OFF, document.one_off, document.ranks))
    return found


def _result_of(result: Result, ranks: Mapping[int, int]) -> dict[str, Any]:
    return {
        "tables": {table.name: _table_of(table) for table in tables_of(result, ranks)},
        "scalars": {
            column.name: {"value": plain(result.scalars[column.name]), "unit": column.unit.value}
            for column in result.spec.scalars
            if column.name in result.scalars
        },
        "notes": [note_of(note) for note in result.notes],
    }


def _table_of(table: ShownTable) -> dict[str, Any]:
    return {
        "keys": [column.name for column in table if column.is_key],
        "columns": [
            {
                "name": column.name,
                "unit": column.unit.value,
                "combine": column.combine.value,
                "meaning": column.meaning,
            }
            for column in table
        ],
        "rows": records_of(table),
    }


def _keys_of(table: ShownTable, rows: Sequence[Row]) -> list[str]:
    """Return a key for each row that is the same in another recording of the program.

    A key contains the rank of a process, or its position in the order of process numbers if the
    rank is unknown. With a single process, keys do not contain it. Equal keys are numbered.
    """
    names = [column.name for column in table if column.is_key]
    places: dict[Any, int] = {}
    if "process" in names:
        processes = sorted({row["process"] for row in rows})
        places = {process: place for place, process in enumerate(processes, 1)}
        if len(places) < 2 and len(names) > 1:
            names.remove("process")
    counts: dict[str, int] = {}
    keys = []
    for row in rows:
        key = " ".join(_part_of_key(name, row, places) for name in names) or _ONLY_ROW
        counts[key] = counts.get(key, 0) + 1
        keys.append(key if counts[key] == 1 else f"{key} #{counts[key]}")
    return keys


def _part_of_key(name: str, row: Mapping[str, Any], places: Mapping[Any, int]) -> str:
    """Return "name=value" of a key column; ``places`` are the positions of processes."""
    if name == "process" and plain(row.get("rank")) is None:
        return f"process={places[row[name]]}"
    name = "rank" if name == "process" else name
    value = plain(row[name])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{name}={'' if value is None else value}"


def render_json(document: Answered, options: Options) -> str:
    """Return the document as JSON with all tables and rows, and the chosen or all columns.

    Raises:
        UsageError: a column that was chosen is in no table.
    """
    found = document_of(document)
    if chosen := columns_of(document.results.values(), document.ranks, options.columns):
        for result in found["results"].values():
            tables = {name: _chosen(table, chosen) for name, table in result["tables"].items()}
            result["tables"] = {name: table for name, table in tables.items() if table["columns"]}
    return to_json(found)


def _chosen(table: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a table with only the columns ``names`` and the key of each row."""
    declared = {column["name"]: column for column in table["columns"]}
    names = [name for name in names if name in declared]
    return {
        "keys": [name for name in table["keys"] if name in names],
        "columns": [declared[name] for name in names],
        "rows": [{name: row[name] for name in (KEY, *names)} for row in table["rows"]],
    }
