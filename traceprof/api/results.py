"""The results, comparisons, and pages that the Python API returns and notebooks display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from traceprof.comparison import Comparison as PlainComparison
from traceprof.errors import UsageError
from traceprof.measures import names_shown
from traceprof.model.results import Result as PlainResult
from traceprof.model.results import Unit
from traceprof.render.briefing import as_warning, briefing_of, findings_for_people, head_of
from traceprof.render.escape import html_list
from traceprof.render.formatting import saving_words, sentences, value_text
from traceprof.render.html_text import answer_html, result_html
from traceprof.render.registry import Options, render
from traceprof.session.answer import Document, answer
from traceprof.session.run import Run as SessionRun

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result(PlainResult):
    """A result: tables (`to_frame`), scalars, notes, and `sentences`. Notebooks display it.

    ``ranks`` maps each process to its rank, if it has one. ``caveats`` apply to the whole result.
    """

    ranks: Mapping[int, int] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """The notes as sentences."""
        return sentences(self.notes)

    def to_frame(self, name: str | None = None) -> pd.DataFrame:
        """Return the table ``name`` as a pandas DataFrame. Default: the main table.

        Raises:
            UsageError: the table does not exist.
        """
        if name is not None and name not in self.tables:
            raise UsageError(_unknown_table_message(name, list(self.tables)))
        return PlainResult.to_frame(self, name)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(table)} rows" for name, table in self.tables.items())
        return "\n".join((f"<traceprof {self.name}: {sizes}>", *self.caveats))

    def _repr_html_(self) -> str:
        return html_list(self.caveats) + result_html(self, self.ranks)


class ShownRun(SessionRun):
    """A run whose results notebooks can display; the base class of the table methods."""

    def result(self, name: str) -> Result:
        """Return the result of the analysis ``name``.

        Raises:
            TraceError: a file cannot be read.
            UsageError: the analysis does not exist, or the window is not in this run.
            NotRecordedError: the trace does not contain the data.
        """
        return displayable_result(answer(self, [name], strict=True), name)

    def _table(self, noun: str, by: str | None = None) -> Result:
        """Return a table as `traceprof show NOUN --by WAY` shows it."""
        (name,) = names_shown(noun, by)
        return self.result(name)


def displayable_result(document: Document, name: str) -> Result:
    """Return the result ``name`` of an answer in a form that notebooks can display."""
    result = document.results[name]
    values = {field.name: getattr(result, field.name) for field in fields(PlainResult)}
    return Result(**values, ranks=document.ranks, caveats=head_of(document).caveats)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(PlainComparison):
    """A comparison of runs: ``results`` by name, and the verdict in ``sentences``."""

    @property
    def sentences(self) -> list[str]:
        """The verdict as sentences."""
        return sentences(self.verdict)

    def to_frame(self, name: str = "causes") -> pd.DataFrame:
        """Return a table of the results (judged, causes, parts, kernels …) as a DataFrame.

        Raises:
            UsageError: the table does not exist.
        """
        for result in self.results.values():
            if name in result.tables:
                return result.to_frame(name)
        raise UsageError(
            _unknown_table_message(
                name, [table_name for r in self.results.values() for table_name in r.tables]
            )
        )

    def __repr__(self) -> str:
        return f"<traceprof comparison {self.title}: {', '.join(self.results)}>"

    def _repr_html_(self) -> str:
        head = head_of(self)
        first = next(iter(self.results), "")
        answering = "judged" if "judged" in self.results else first
        table = result_html(self.results[answering], {}) if answering else ""
        remarks = (*head.warnings, *head.remarks)
        return answer_html(head.title, "", head.sentences, remarks) + table


def displayable_comparison(comparison: PlainComparison) -> Comparison:
    """Return a comparison in a form that notebooks can display."""
    return Comparison(
        **{field.name: getattr(comparison, field.name) for field in fields(PlainComparison)}
    )


def _unknown_table_message(name: str, known: Sequence[str]) -> str:
    return f"unknown table {name!r}; use {', '.join(dict.fromkeys(known))}"


class Page:
    """The page of `traceprof analyze`: where the time goes and what would fix it.

    ``str(page)`` is the whole page. ``headline`` is a summary: the workload, step time, time
    breakdown, top advice, and warnings.
    """

    def __init__(self, document: Document) -> None:
        self._document = document

    @property
    def headline(self) -> tuple[str, ...]:
        """The summary of the page, line by line."""
        briefing = briefing_of(self._document)
        findings = self._document.results.get("findings")
        advice = findings_for_people(findings)[:_MAX_ADVICE] if findings is not None else ()
        lines = (
            *(as_warning(text) for text in briefing.warnings),
            *(
                briefing.workload_line,
                *briefing.lost,
                briefing.pace,
                briefing.answer,
                *briefing.made_of,
            ),
            *(_advice_line(number, row) for number, row in enumerate(advice, 1)),
            briefing.nothing,
        )
        return tuple(filter(None, lines))

    def __str__(self) -> str:
        return render("text", self._document, Options(is_whole=True))

    def __repr__(self) -> str:
        return "\n".join((f"<traceprof page of {self._document.info.path}>", *self.headline))

    def _repr_html_(self) -> str:
        head = head_of(self._document)
        document, briefing = self._document, briefing_of(self._document)
        parts = {} if document.verdict is None else document.verdict.parts
        lines = (*briefing.lost, briefing.pace, briefing.answer, *briefing.made_of)
        where = f"{briefing.workload_line} · {head.where}"
        findings = self._document.results.get("findings")
        advice = "" if findings is None else result_html(findings, self._document.ranks)
        answer = answer_html(head.title, where, [*filter(None, lines)], head.caveats, parts)
        return answer + advice


_MAX_ADVICE: Final = 3


def _advice_line(number: int, finding: Mapping[str, Any]) -> str:
    title = value_text(Unit.TEXT, finding["title"])
    return f"{number}. {title}: {saving_words(finding)}".removesuffix(": ")
