"""What `traceprof` returns in Python: results, comparisons and pages that show themselves."""

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
from traceprof.render.html_text import piece_of_html, result_html
from traceprof.render.registry import Options, render
from traceprof.session.answer import Document, answer
from traceprof.session.run import Run as SessionRun

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result(PlainResult):
    """A result that shows itself: its tables by `to_frame`, scalars, notes and `sentences`.

    ``ranks`` gives the rank of each process that has one; ``doubts`` must be read with all of it.
    """

    ranks: Mapping[int, int] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """The notes as people read them."""
        return sentences(self.notes)

    def to_frame(self, name: str | None = None) -> pd.DataFrame:
        """Return the table called ``name`` as a frame of pandas; without it the one that answers.

        Raises:
            UsageError: there is no such table.
        """
        if name is not None and name not in self.tables:
            raise UsageError(_no_table(name, list(self.tables)))
        return PlainResult.to_frame(self, name)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(table)} rows" for name, table in self.tables.items())
        return "\n".join((f"<traceprof {self.name}: {sizes}>", *self.doubts))

    def _repr_html_(self) -> str:
        return html_list(self.doubts) + result_html(self, self.ranks)


class ShownRun(SessionRun):
    """A run whose results show themselves: what the methods of tables are made of."""

    def result(self, name: str) -> Result:
        """Return the result of the analysis called ``name``.

        Raises:
            TraceError: a file cannot be read.
            UsageError: there is no such analysis, or the window is none of this run.
            NotRecordedError: the trace lacks the data.
        """
        return shown(answer(self, [name], strict=True), name)

    def _table(self, noun: str, by: str | None = None) -> Result:
        """Return a table as `traceprof show NOUN --by WAY` shows it."""
        (name,) = names_shown(noun, by)
        return self.result(name)


def shown(document: Document, name: str) -> Result:
    """Return a result of an answer, that shows itself."""
    found = document.results[name]
    own = {field.name: getattr(found, field.name) for field in fields(PlainResult)}
    return Result(**own, ranks=document.ranks, doubts=head_of(document).doubts)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(PlainComparison):
    """Runs against runs: its results by name, and ``sentences``, the verdict."""

    @property
    def sentences(self) -> list[str]:
        """The verdict as people read it."""
        return sentences(self.verdict)

    def to_frame(self, name: str = "causes") -> pd.DataFrame:
        """Return a table of any of the results, such as judged, causes, parts or kernels.

        Raises:
            UsageError: there is none.
        """
        for result in self.results.values():
            if name in result.tables:
                return result.to_frame(name)
        raise UsageError(_no_table(name, [own for r in self.results.values() for own in r.tables]))

    def __repr__(self) -> str:
        return f"<traceprof comparison {self.title}: {', '.join(self.results)}>"

    def _repr_html_(self) -> str:
        head = head_of(self)
        facts = [("", text) for text in (*head.sentences, *head.warnings, *head.remarks)]
        first = next(iter(self.results), "")
        answering = "judged" if "judged" in self.results else first
        table = result_html(self.results[answering], {}) if answering else ""
        return piece_of_html(head.title, facts) + table


def shown_comparison(found: PlainComparison) -> Comparison:
    """Return a comparison that shows itself."""
    return Comparison(**{own.name: getattr(found, own.name) for own in fields(PlainComparison)})


def _no_table(name: str, known: Sequence[str]) -> str:
    return f"no table {name!r}: there are {', '.join(dict.fromkeys(known))}"


class Page:
    """What `traceprof analyze` prints: where the time went, and what would fix it.

    As a text it is that page. ``headline`` is its first lines: what runs, how long a step is,
    where the time goes, what stands out, and what must be read with it.
    """

    def __init__(self, document: Document) -> None:
        self._document = document

    @property
    def headline(self) -> tuple[str, ...]:
        """The page in a few lines."""
        words = briefing_of(self._document)
        found = self._document.results.get("findings")
        advice = findings_for_people(found)[:_MOST_ADVICE] if found is not None else ()
        said = (
            *(as_warning(text) for text in words.warnings),
            *(words.workload_line, *words.lost, words.pace, words.answer, *words.made_of),
            *(_advice(number, row) for number, row in enumerate(advice, 1)),
            words.nothing,
        )
        return tuple(filter(None, said))

    def __str__(self) -> str:
        return render("text", self._document, Options(is_whole=True))

    def __repr__(self) -> str:
        return "\n".join((f"<traceprof page of {self._document.info.path}>", *self.headline))

    def _repr_html_(self) -> str:
        head = head_of(self._document)
        facts = [(head.where, ""), *(("", text) for text in (*head.doubts, *head.sentences))]
        found = self._document.results.get("findings")
        advice = "" if found is None else result_html(found, self._document.ranks)
        return piece_of_html(head.title, facts) + advice


_MOST_ADVICE: Final = 3


def _advice(number: int, finding: Mapping[str, Any]) -> str:
    title = value_text(Unit.TEXT, finding["title"])
    return f"{number}. {title}: {saving_words(finding)}".removesuffix(": ")
