"""The JSON Schema of what `json_text` writes, from the columns that analyses declare.

`scripts/schema` writes it to docs/schema/; a test says whether that is fresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from traceprof.measures.workload import WORKLOADS
from traceprof.model.results import Column, Combine, ResultSpec, TableSpec, Unit
from traceprof.render.json_text import KEY, SCHEMA
from traceprof.session.answer import ONE_OFF

__all__ = ["schema_of"]

_NUMBER: Final = {"type": ["number", "null"]}
_INTEGER: Final = {"type": "integer"}
_STRING: Final = {"type": "string"}
_NOTE: Final = {"$ref": "#/$defs/note"}
_NOTES: Final = {"type": "array", "items": _NOTE}
_WORDS: Final[Mapping[Unit, str]] = {
    Unit.NS: "a length of time in ns",
    Unit.AT_NS: "an instant in ns after the start of the run",
    Unit.BYTES: "bytes",
    Unit.BYTES_PER_S: "bytes per second",
    Unit.PER_S: "events per second",
    Unit.RATIO: "a share: 1 is all",
    Unit.FACTOR: "how many times",
    Unit.COUNT: "how many",
    Unit.NUMBER: "any other number, or one that names something",
    Unit.TEXT: "text; a sentence with numbers is a note",
    Unit.FLAG: "true or false",
}


def schema_of(specs: Mapping[str, ResultSpec]) -> dict[str, Any]:
    """Return the schema of a document that holds results of the analyses ``specs``, by name."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "Results of traceprof",
        "description": (
            "Times are in ns, sizes in bytes, unknown is null. Every instant counts from the start "
            "of the run; `clock` says when that was."
        ),
        **_record(
            {
                "schema": {"const": SCHEMA},
                "verdict": _VERDICT,
                "workload": _WORKLOAD,
                "one_off": _table(ONE_OFF),
                "hardware": _HARDWARE,
                "trace": _TRACE,
                "clock": _CLOCK,
                "window": _WINDOW,
                "results": {
                    "type": "object",
                    "properties": {name: _result(spec) for name, spec in specs.items()},
                    "additionalProperties": {"$ref": "#/$defs/result"},
                },
                "not_recorded": {
                    "description": "why an analysis that was asked for has no result",
                    "type": "object",
                    "additionalProperties": _STRING,
                },
            },
            but=("verdict", "workload", "one_off"),
        ),
        "$defs": {
            **{unit.name.lower(): _values_of(unit) for unit in Unit},
            "note": _NOTE_OBJECT,
            "column": _COLUMN,
            "result": _ANY_RESULT,
        },
    }


def _record(properties: Mapping[str, Any], but: Iterable[str] = ()) -> dict[str, Any]:
    """Return the schema of an object with all of ``properties`` ``but`` those, and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in but],
        "additionalProperties": False,
    }


def _values_of(unit: Unit) -> dict[str, Any]:
    if unit is Unit.TEXT:
        one = [{"type": ["string", "null"]}, _NOTE]
        kind: dict[str, Any] = {"anyOf": [*one, {"type": "array", "items": {"anyOf": one}}]}
    else:
        kind = {"type": ["boolean", "null"]} if unit is Unit.FLAG else dict(_NUMBER)
    return {"description": _WORDS[unit], **kind}


def _result(spec: ResultSpec) -> dict[str, Any]:
    scalars = {
        column.name: _record({"value": _value(column), "unit": {"const": column.unit.value}})
        for column in spec.scalars
    }
    tables = {table.name: _table(table) for table in spec.tables}
    return _record(
        {
            "tables": _record(tables, but=tables),
            "scalars": _record(scalars, but=scalars),
            "notes": _NOTES,
        }
    )


def _table(table: TableSpec) -> dict[str, Any]:
    columns = {column.name: _value(column) for column in table}
    if "process" in columns and "rank" not in columns:
        words = "the rank of the process, in a run of several"
        columns["rank"] = _value(Column("rank", Unit.NUMBER, words, Combine.SAME))
    key = {**_STRING, "description": "what no other row of the table has"}
    return {
        "description": table.about,
        **_table_of(_record({KEY: key, **columns}, but=columns), sorted(table.keys)),
    }


def _table_of(row: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return _record(
        {
            "keys": {"type": "array", "items": {"enum": [*keys]} if keys else _STRING},
            "columns": {"type": "array", "items": {"$ref": "#/$defs/column"}},
            "rows": {"type": "array", "items": row},
        }
    )


def _value(column: Column) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{column.unit.name.lower()}", "description": column.meaning}


_COLUMN: Final = _record(
    {
        "name": _STRING,
        "unit": {"enum": [unit.value for unit in Unit]},
        "combine": {**_STRING, "description": "how the values of several ranks combine"},
        "meaning": _STRING,
    }
)
_NOTE_OBJECT: Final = _record(
    {
        "text": {**_STRING, "description": "the sentence"},
        "template": {**_STRING, "description": "the sentence with {name:unit} for its values"},
        "values": {"type": "object"},
    }
)
_TRACE: Final = _record(
    {
        "path": _STRING,
        "format": _STRING,
        "profiler": _STRING,
        "host": _STRING,
        "recorded": {"type": "array", "items": _STRING},
        "warnings": {"type": "array", "items": _STRING},
    }
)
_CLOCK: Final = _record(
    {
        "zero": {"const": "start of the run", "description": "the instant 0 of this document"},
        "utc_epoch_ns": {
            "type": ["integer", "null"],
            "description": "when that was, in ns since 1970 UTC",
        },
        "trace_clock_ns": {**_INTEGER, "description": "the same on the clock of the trace"},
        "duration_ns": {**_INTEGER, "description": "the length of the run"},
    }
)
_WINDOW: Final = _record(
    {
        "label": _STRING,
        "start_ns": _INTEGER,
        "end_ns": _INTEGER,
        "duration_ns": _INTEGER,
        "reason": {
            "description": "what it is made of and why; null where it is what was asked for",
            "anyOf": [_NOTE, {"type": "null"}],
        },
        "notes": _NOTES,
    }
)
_VERDICT: Final = _record(
    {
        "bound_by": _STRING,
        "sentences": _NOTES,
        "fine": {"type": "array", "items": _STRING},
        "unknown": _NOTES,
        "once": {**_NOTES, "description": "what costs time once"},
        "periodic": {**_NOTES, "description": "what does now and then, as evaluation"},
        "parts": {
            "description": "the share of each of the five parts that the sentences are about",
            "type": "object",
            "additionalProperties": {"type": "number"},
        },
        "next_command": _STRING,
    }
)
_WORKLOAD: Final = {
    "description": "what the run does",
    **_record({"kind": {"enum": [*WORKLOADS]}, "reasons": _NOTES}),
}
_HARDWARE: Final = {
    "description": "how many devices of each model worked",
    "type": "array",
    "items": _record({"name": _STRING, "count": _INTEGER}),
}
_ANY_ROW: Final = {"type": "object", "properties": {KEY: _STRING}, "required": [KEY]}
_ANY_RESULT: Final = _record(
    {
        "tables": {"type": "object", "additionalProperties": _table_of(_ANY_ROW, ())},
        "scalars": {"type": "object"},
        "notes": _NOTES,
    }
)
