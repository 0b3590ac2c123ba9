"""What analyses declare, as documents: the JSON Schema of results, and the reference of tables.

`scripts/schema` writes docs/schema/, docs/tables.md and the end of docs/runs.md; a test says
whether these are fresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from traceprof.comparison import EXPLAIN
from traceprof.comparison.specs import EXPLAIN_SPEC, EXPLAIN_SUMMARY
from traceprof.measures import ANALYSES, load_analysis, shown_by
from traceprof.measures.workload import WORKLOADS
from traceprof.model.results import Column, Combine, ResultSpec, TableSpec, Unit
from traceprof.model.summary import SUMMARY as OF_RUNS
from traceprof.registries import check_distinct
from traceprof.render.json_text import KEY, SCHEMA
from traceprof.session.answer import ONE_OFF
from traceprof.store import sqlite_type

_HEAD: Final = """# Tables

This page lists every table and number that traceprof returns. The command below each name prints
them. `--json` contains all of them ([schema](schema/analysis-2.json)). In Python, each table is a
data frame: `run.NAME().to_frame("TABLE")`. The first table of a result is the main one. A value
that was not recorded is null, and a column without any known value can be missing.
`scripts/schema` generates this page from the declarations of the analyses.
"""
_OF_PAGE: Final = """## Report of `traceprof analyze`

In addition to the results, `traceprof analyze --json` contains the verdict, the workload, and this
table.
"""
_OVER_RANKS: Final[Mapping[Combine, str]] = {
    Combine.KEY: "identifies the row",
    Combine.SUM: "sum",
    Combine.MIN: "minimum",
    Combine.MAX: "maximum",
    Combine.MEAN: "mean weighted by `{weight}`",
    Combine.MEDIAN: "exact median",
    Combine.SAME: "first known value",
    Combine.DERIVED: "computed from other columns",
}


def declared_specs() -> dict[str, ResultSpec]:
    """Return what every analysis declares, by its name, and what `traceprof explain` does."""
    check_distinct("documented result", (*(entry.name for entry in ANALYSES), EXPLAIN))
    return {
        **{entry.name: load_analysis(entry.name).spec for entry in ANALYSES},
        EXPLAIN: EXPLAIN_SPEC,
    }


def reference_of(specs: Mapping[str, ResultSpec]) -> str:
    """Return the tables and scalars of ``specs`` as a page."""
    summaries = {**{entry.name: entry.summary for entry in ANALYSES}, EXPLAIN: EXPLAIN_SUMMARY}
    sections = (
        "\n".join(_section(name, summaries.get(name, ""), spec)) for name, spec in specs.items()
    )
    return "\n".join([_HEAD, *sections, _OF_PAGE, *_table(ONE_OFF)])


_WRITTEN: Final = "<!-- From here on written by scripts/schema. -->"


def runs_page(page: str) -> str:
    """Return docs/runs.md with the declared tables of the database below the line for them.

    Raises:
        ValueError: ``page`` has no such line.
    """
    head, line, _ = page.partition(_WRITTEN)
    if not line:
        raise ValueError(f"docs/runs.md does not contain the line {_WRITTEN!r}")
    tables = (
        f"### Table `{table.name}`\n\n{_sentence(table.about)}\n\n"
        "| column | SQLite | unit | meaning |\n|---|---|---|---|\n"
        + "".join(
            f"| `{column.name}`{' (key)' if column.is_key else ''} | {sqlite_type(column.unit)} "
            f"| {column.unit.value} | {_in_cell(column.meaning)} |\n"
            for column in table
        )
        for table in OF_RUNS.tables
    )
    return f"{head}{line}\n\n" + "\n".join(tables)


def _section(name: str, summary: str, spec: ResultSpec) -> Iterator[str]:
    yield f"## {name}\n"
    if summary:
        yield f"{_sentence(summary)}\n"
    if name != EXPLAIN:
        yield f"`{shown_by(name)} TRACE`\n"
    for table in spec.tables:
        yield from _table(table)
    if spec.scalars:
        yield "### Scalars\n"
        yield from _columns("scalar", spec.scalars)


def _table(table: TableSpec) -> Iterator[str]:
    yield f"### Table `{table.name}`\n"
    if table.about:
        yield f"{_sentence(table.about)}\n"
    yield from _columns("column", table)


def _columns(kind: str, columns: Iterable[Column]) -> Iterator[str]:
    yield f"| {kind} | unit | across ranks | meaning |"
    yield "|---|---|---|---|"
    for column in columns:
        combine = _OVER_RANKS[column.combine].format(weight=column.weight)
        meaning = _in_cell(column.meaning)
        yield f"| `{column.name}` | {column.unit.value} | {combine} | {meaning} |"
    yield ""


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


_NUMBER: Final = {"type": ["number", "null"]}
_INTEGER: Final = {"type": "integer"}
_STRING: Final = {"type": "string"}
_NOTE: Final = {"$ref": "#/$defs/note"}
_NOTES: Final = {"type": "array", "items": _NOTE}
_STRINGS: Final = {"type": "array", "items": _STRING}
_WORDS: Final[Mapping[Unit, str]] = {
    Unit.NS: "a duration in ns",
    Unit.AT_NS: "a time in ns since the start of the run",
    Unit.BYTES: "bytes",
    Unit.BYTES_PER_S: "bytes per second",
    Unit.FLOP: "floating-point operations; a multiply-add counts as two",
    Unit.FLOP_PER_S: "floating-point operations per second",
    Unit.PER_S: "events per second",
    Unit.RATIO: "a fraction; 1 means 100%",
    Unit.FACTOR: "a multiple; 2 means twice as much",
    Unit.COUNT: "a count",
    Unit.NUMBER: "any other number, or a numeric identifier",
    Unit.TEXT: "text; a sentence that contains numbers is a note",
    Unit.FLAG: "true or false",
}


def schema_of(specs: Mapping[str, ResultSpec]) -> dict[str, Any]:
    """Return the schema of a document that holds results of the analyses ``specs``, by name."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "Results of traceprof",
        "description": (
            "Times are in ns and sizes in bytes. Unknown values are null. Timestamps are relative "
            "to the start of the run; `clock` contains the time of that start."
        ),
        **_record(
            {
                "schema": {"const": SCHEMA},
                "verdict": _VERDICT,
                "workload": _WORKLOAD,
                "one_off": _schema_of_table(ONE_OFF),
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
                    "description": "for each requested analysis without a result, the reason",
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
    tables = {table.name: _schema_of_table(table) for table in spec.tables}
    return _record(
        {
            "tables": _record(tables, but=tables),
            "scalars": _record(scalars, but=scalars),
            "notes": _NOTES,
        }
    )


def _schema_of_table(table: TableSpec) -> dict[str, Any]:
    columns = {column.name: _value(column) for column in table}
    if "process" in columns and "rank" not in columns:
        words = "the rank of the process, in a multi-process run"
        columns["rank"] = _value(Column("rank", Unit.NUMBER, words, Combine.SAME))
    key = {**_STRING, "description": "a key that is unique within the table"}
    return {
        "description": table.about,
        **_table_object(_record({KEY: key, **columns}, but=columns), sorted(table.keys)),
    }


def _table_object(row: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
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
        "combine": {**_STRING, "description": "how values are combined across ranks"},
        "meaning": _STRING,
    }
)
_NOTE_OBJECT: Final = _record(
    {
        "text": {**_STRING, "description": "the sentence"},
        "template": {**_STRING, "description": "the sentence with {name:unit} placeholders"},
        "values": {"type": "object"},
    }
)
_TRACE: Final = _record(
    {
        **dict.fromkeys(("path", "format", "profiler", "host"), _STRING),
        **dict.fromkeys(("recorded", "warnings"), _STRINGS),
        "incomplete": _NOTES,
    }
)
_CLOCK: Final = _record(
    {
        "zero": {"const": "start of the run", "description": "time 0 of this document"},
        "utc_epoch_ns": {
            "type": ["integer", "null"],
            "description": "time 0, in ns since 1970-01-01 UTC",
        },
        "trace_clock_ns": {**_INTEGER, "description": "time 0, on the clock of the trace"},
        "duration_ns": {**_INTEGER, "description": "the duration of the run"},
    }
)
_WINDOW: Final = _record(
    {
        "label": _STRING,
        **dict.fromkeys(("start_ns", "end_ns"), _INTEGER),
        "duration_ns": {**_INTEGER, "description": "the duration without the gaps"},
        "gaps": {
            "description": "time ranges of excluded steps, which are not part of the window",
            "type": "array",
            "items": _record({"start_ns": _INTEGER, "end_ns": _INTEGER}),
        },
        "reason": {
            "description": "how traceprof chose the window; null if you requested the window",
            "anyOf": [_NOTE, {"type": "null"}],
        },
        "notes": _NOTES,
    }
)
_VERDICT: Final = _record(
    {
        "bound_by": _STRING,
        "sentences": _NOTES,
        "made_of": {
            **_NOTES,
            "description": "compute time by kernel class, and causes of idle time",
        },
        "fine": _STRINGS,
        "unknown": _NOTES,
        "once": {**_NOTES, "description": "one-time costs"},
        "lost": {**_NOTES, "description": "the GPU activity that is missing, and how to record it"},
        "periodic": {**_NOTES, "description": "periodic costs, such as evaluation"},
        "parts": {
            "description": "the share of each of the five parts of the GPU time in `sentences`",
            "type": "object",
            "additionalProperties": {"type": "number"},
        },
        "next_command": _STRING,
    }
)
_WORKLOAD: Final = {
    "description": "the kind of workload, such as training",
    **_record({"kind": {"enum": [*WORKLOADS]}, "reasons": _NOTES}),
}
_HARDWARE: Final = {
    "description": "the number of active GPUs of each model",
    "type": "array",
    "items": _record({"name": _STRING, "count": _INTEGER}),
}
_ANY_ROW: Final = {"type": "object", "properties": {KEY: _STRING}, "required": [KEY]}
_ANY_RESULT: Final = _record(
    {
        "tables": {"type": "object", "additionalProperties": _table_object(_ANY_ROW, ())},
        "scalars": {"type": "object"},
        "notes": _NOTES,
    }
)
