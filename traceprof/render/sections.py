"""The results of a document one after the other: what each is called, and which tables to show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from traceprof import analysis
from traceprof.model.results import Result
from traceprof.render.base import Options
from traceprof.render.shown import ShownTable, further_tables, table_for_people
from traceprof.session.answer import Document
from traceprof.session.explaining.spec import NAME as EXPLAIN
from traceprof.units import format_duration

__all__ = ["Section", "sections_of", "title_of", "window_words"]

_SAYS_WHY: Final = "breakdown"
"""Where nothing worked on a device, a page says so."""


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """One result for people: ``table`` answers, ``more`` tables stand below it."""

    name: str
    title: str
    result: Result
    table: ShownTable
    more: tuple[ShownTable, ...]


def title_of(name: str) -> str:
    """Return the heading of the result of the analysis ``name``."""
    titles = {entry.name: entry.summary for entry in analysis.ANALYSES}
    titles |= {EXPLAIN: "where the difference is"}
    title = titles.get(name, name)
    return title[:1].upper() + title[1:]


def sections_of(document: Document, options: Options) -> Iterator[Section]:
    """Yield the results; of several, those that are empty are left out."""
    for name, result in document.results.items():
        if len(document.results) > 1 and result.table.empty and name != _SAYS_WHY:
            continue
        yield Section(
            name,
            title_of(name),
            result,
            table_for_people(result, document.ranks),
            tuple(
                table_for_people(result, document.ranks, more)
                for more in further_tables(result, options.tables)
            ),
        )


def window_words(document: Document) -> str:
    """Return which part of the run the document is about."""
    window = document.selection.window
    start, end = (
        format_duration(document.ns_after_start(at)) for at in (window.start_ns, window.end_ns)
    )
    whole = format_duration(document.span.duration_ns)
    return f"window {document.selection.label}: {start} to {end} of {whole}"
