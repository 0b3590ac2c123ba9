"""The results of a document one after the other: what each is called, and which tables to show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from traceprof import measures
from traceprof.comparison import Comparison
from traceprof.comparison.specs import EXPLAIN
from traceprof.model.results import Result
from traceprof.render.base import Answered, Options
from traceprof.render.briefing import briefing_of
from traceprof.render.formatting import sentences
from traceprof.render.shown import ShownTable, further_tables, table_for_people
from traceprof.session.answer import Document
from traceprof.units import format_duration
from traceprof.values import dataclass

__all__ = ["Head", "Section", "head_of", "ranks_of", "sections_of", "window_words"]

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


@dataclass(frozen=True, slots=True)
class Head:
    """What stands above the results: what was looked at, what to know of it, and the answer."""

    title: str
    where: str
    remarks: tuple[str, ...]
    warnings: tuple[str, ...]
    sentences: tuple[str, ...]


def head_of(document: Answered) -> Head:
    """Return what stands above the results of a document."""
    if isinstance(document, Comparison):
        return Head(
            document.title,
            "",
            tuple(sentences(document.notes)),
            tuple(sentences(document.warnings)),
            tuple(sentences(document.verdict)),
        )
    words = briefing_of(document)
    said = (words.workload_line, words.answer, *(": ".join(remark) for remark in words.remarks))
    return Head(
        document.info.path,
        window_words(document),
        tuple(sentences(document.selection.notes)),
        tuple(document.info.warnings),
        tuple(filter(None, said)) if document.verdict else (),
    )


def ranks_of(document: Answered) -> Mapping[int, int]:
    """Return the rank of each process of the one run that the results are about."""
    return {} if isinstance(document, Comparison) else document.ranks


def _title_of(document: Answered, name: str) -> str:
    """Return the heading of the result called ``name``."""
    if isinstance(document, Comparison):
        titles = dict(document.about)
    else:
        titles = {entry.name: entry.summary for entry in measures.ANALYSES}
        titles |= {EXPLAIN: "where the difference is"}
    title = titles.get(name, name)
    return title[:1].upper() + title[1:]


def sections_of(document: Answered, options: Options) -> Iterator[Section]:
    """Yield the results; of several, those that are empty are left out."""
    ranks = ranks_of(document)
    for name, result in document.results.items():
        if len(document.results) > 1 and result.table.empty and name != _SAYS_WHY:
            continue
        yield Section(
            name,
            _title_of(document, name),
            result,
            table_for_people(result, ranks),
            tuple(
                table_for_people(result, ranks, more)
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
