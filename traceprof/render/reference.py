"""The reference of all tables, as Markdown, from the columns that analyses declare.

`scripts/schema` writes it to docs/tables.md, and the tables of the database of runs to the end of
docs/runs.md; a test says whether these are fresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from traceprof.comparison.specs import EXPLAIN, EXPLAIN_SPEC, EXPLAIN_SUMMARY
from traceprof.measures import ANALYSES, load_analysis
from traceprof.model.results import Column, Combine, ResultSpec, TableSpec
from traceprof.model.summary import SUMMARY as OF_RUNS
from traceprof.session.answer import ONE_OFF
from traceprof.store import sqlite_type

__all__ = ["declared_specs", "reference_of", "runs_page"]

_HEAD: Final = """# Tables

Every table and number that traceprof returns: `traceprof show NAME trace` prints them, `--json`
holds all of them ([schema](schema/analysis-2.json)), and in Python each is a frame
(`run.NAME().to_frame("TABLE")`). The first table of a result is the one that answers. What was not
recorded is null; columns of which nothing can be known may be missing. Written by `scripts/schema`
from what the analyses declare.
"""
_OF_PAGE: Final = """## On the page of `traceprof analyze`

Beside results its `--json` has the verdict, the workload and this table.
"""
_OVER_RANKS: Final[Mapping[Combine, str]] = {
    Combine.KEY: "tells rows apart",
    Combine.SUM: "added up",
    Combine.MIN: "the smallest",
    Combine.MAX: "the largest",
    Combine.MEAN: "mean weighted by `{weight}`",
    Combine.MEDIAN: "exact median",
    Combine.SAME: "the first known",
    Combine.DERIVED: "computed from the others",
}


def declared_specs() -> dict[str, ResultSpec]:
    """Return what every analysis declares, by its name, and what `traceprof explain` does."""
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
        raise ValueError(f"docs/runs.md without its line {_WRITTEN}")
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
    yield f"| {kind} | unit | over ranks | meaning |"
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
