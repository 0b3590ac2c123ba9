"""What differs between the runs of a viewer, above their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, Final

from dash import html

from traceprof.comparison import Comparison
from traceprof.comparison.compare import compare
from traceprof.comparison.comparing import brief
from traceprof.errors import TraceprofError
from traceprof.model.summary import Summary
from traceprof.render.base import Options
from traceprof.render.escape import plain_text
from traceprof.render.sections import Section, head_of, sections_of
from traceprof.viewer.panes import Pane
from traceprof.viewer.tables import plain_table, window_text

__all__ = ["Differences"]

_MOST_KEPT: Final = 8


class Differences:
    """Holds every run against the first one; what was found of the last windows is kept."""

    def __init__(self, panes: Sequence[Pane]) -> None:
        self._panes = panes
        self._kept: dict[tuple[int, str | None], Summary] = {}
        self._one_asks = Lock()

    def show(self, window: str | None) -> list[html.Section]:
        """Return what differs within ``window``, one section for each run but the first."""
        text = window_text(window)
        return [self._against_first(place, text) for place in range(1, len(self._panes))]

    def _against_first(self, place: int, window: str | None) -> html.Section:
        try:
            base, new = self._summary(0, window), self._summary(place, window)
            found = compare([base], [new])
        except TraceprofError as error:
            title = plain_text(self._panes[place].title, 200)
            return _section(title, [html.P(plain_text(error, 400), className="missing")])
        return _section(plain_text(found.title, 200), list(_told(brief(found))))

    def _summary(self, place: int, window: str | None) -> Summary:
        with self._one_asks:
            found = self._kept.get((place, window))
            if found is None:
                found = self._panes[place].summary(window, self._name(place))
                while len(self._kept) >= _MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[place, window] = found
        return found

    def _name(self, place: int) -> str:
        """Return what the run is called; one that shares its title bears its place, too."""
        title = self._panes[place].title
        titles = [pane.title for pane in self._panes]
        return f"{title} ({place + 1})" if titles.count(title) > 1 else title


def _section(title: str, body: list[Any]) -> html.Section:
    return html.Section([html.H2(title), *body])


def _told(found: Comparison) -> Iterator[Any]:
    head = head_of(found)
    for number, sentence in enumerate(head.sentences):
        text = plain_text(sentence, 400)
        yield html.P(text if number else html.Strong(text))
    for remark in (*head.remarks, *head.warnings):
        yield html.P(plain_text(remark, 400), className="note")
    for section in sections_of(found, Options()):
        yield from _result(section)


def _result(section: Section) -> Iterator[Any]:
    yield html.H3(plain_text(section.title, 200))
    for table in (section.table, *section.more):
        if len(table):
            yield plain_table(table)
