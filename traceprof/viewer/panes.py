"""The runs that a viewer shows, each with its lanes ready to be cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from traceprof.model.summary import Summary
from traceprof.model.trace import Trace, TraceInfo
from traceprof.model.window import TimeWindow
from traceprof.render.formatting import sentences
from traceprof.session.answer import Document, answer, page
from traceprof.session.run import Run
from traceprof.session.summarising.summarise import summarise
from traceprof.viewer.alike import Alike
from traceprof.viewer.search import Search
from traceprof.viewer.store import TimelineStore

__all__ = ["FINDINGS", "Pane", "open_pane"]

FINDINGS: Final = "findings"
_OF_VERDICT: Final = ("steps", "breakdown", "idle", "phases")


@dataclass(frozen=True, slots=True, eq=False)
class Pane:
    """One run; ``title`` is untrusted text, ``warnings`` are sentences about the run.

    Requests come in threads, and what is computed of a run is kept with it: one asks at a time.
    """

    title: str
    run: Run
    info: TraceInfo
    span: TimeWindow
    warnings: tuple[str, ...]
    store: TimelineStore
    search: Search
    alike: Alike
    _one_asks: Lock = field(default_factory=Lock)

    def answer(self, window: str | None, names: Sequence[str]) -> Document:
        """Return what the analyses ``names`` say about a window, as ``--window`` takes it.

        With the findings comes the verdict, and what else it takes for one.

        Raises:
            UsageError: the window is none of this run.
        """
        run = self.run.within(window)
        with self._one_asks:
            if FINDINGS in names:
                return page(run, tuple(dict.fromkeys((*names, *_OF_VERDICT))))
            return answer(run, names)

    def drawn(self, window: str | None) -> tuple[Trace, TimeWindow | None]:
        """Return all events of the run, and the window that was asked for.

        Raises:
            UsageError: the window is none of this run.
        """
        with self._one_asks:
            whole = self.run.within("all").trace()
            return whole, self.run.within(window).selection.window if window else None

    def summary(self, window: str | None, name: str) -> Summary:
        """Return what a comparison needs to know of a window, of a run that is called ``name``.

        Raises:
            TraceprofError: the window is none of this run, or nothing can be told of it.
        """
        with self._one_asks:
            return summarise(self.run.within(window), name=name)


def open_pane(title: str, run: Run) -> Pane:
    """Return ``run`` with all its levels of detail (seconds for millions of events)."""
    whole = run.within("all")
    trace = whole.trace()
    store = TimelineStore(trace)
    warnings = (*trace.info.warnings, *sentences(whole.selection.notes), *store.notes)
    search, alike = Search(store.lanes), Alike(store.lanes)
    return Pane(title, run, trace.info, trace.span, warnings, store, search, alike)
