"""The runs that a viewer shows, each with its lanes ready to be cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from traceprof.comparison.summary.summarise import summarise
from traceprof.model.summary import Summary
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.processes import give_back
from traceprof.render.formatting import sentences
from traceprof.session.answer import Document, answer, page
from traceprof.session.run import Run, open_run
from traceprof.viewer.search import Alike, Search
from traceprof.viewer.timeline import About, Timeline, TimelineStore, read_timeline, write_timeline

__all__ = ["FINDINGS", "Pane", "open_pane"]

FINDINGS: Final = "findings"
_KEPT: Final = ("timeline of the viewer",)
_OVERVIEW: Final = ("overview of the viewer",)
_MOST_HELD: Final = 5_000_000
"""Of runs with more events nothing is held between two questions: each reads what it needs."""
_OF_VERDICT: Final = ("steps", "breakdown", "idle", "phases")


@dataclass(frozen=True, slots=True, eq=False)
class Pane:
    """One run; ``title`` is untrusted text.

    Requests come in threads, and what is computed of a run is kept with it: one asks at a time.
    """

    title: str
    run: Run
    about: About
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
        with self._asked() as whole:
            run = whole.within(window)
            if FINDINGS in names:
                return page(run, tuple(dict.fromkeys((*names, *_OF_VERDICT))))
            return answer(run, names)

    def drawn(self, window: str | None) -> tuple[Trace, TimeWindow | None]:
        """Return all events of the run, and the window that was asked for.

        Raises:
            UsageError: the window is none of this run.
        """
        with self._asked() as run:
            whole = run.within("all").trace()
            return whole, run.within(window).selection.window if window else None

    def summary(self, window: str | None, name: str) -> Summary:
        """Return what a comparison needs to know of a window, of a run that is called ``name``.

        Raises:
            TraceprofError: the window is none of this run, or nothing can be told of it.
        """
        with self._asked() as run:
            return summarise(run.within(window), name=name)

    @contextmanager
    def _asked(self) -> Iterator[Run]:
        """Give the run as far as it was read; of a large one that can be read again, anew."""
        with self._one_asks:
            if not _is_read_anew(self.run, self.about):
                yield self.run
                return
            try:
                yield open_run(self.run.paths, self.run.opening)
            finally:
                give_back()


def open_pane(title: str, run: Run) -> Pane:
    """Return ``run`` with all its levels of detail: as they were kept, else seconds per million."""
    timeline = _kept(run) or _made(run)
    store = TimelineStore(timeline, run.cache.get(*_OVERVIEW))
    run.cache.put({_OVERVIEW: store.overview})
    if _is_read_anew(run, timeline.about):
        run = open_run(run.paths, run.opening)
        give_back()
    search, alike = Search(timeline.lanes, timeline.totals), Alike(timeline.lanes)
    return Pane(title, run, timeline.about, store, search, alike)


def _is_read_anew(run: Run, about: About) -> bool:
    return about.n_events > _MOST_HELD and run.cache.keeps


def _kept(run: Run) -> Timeline | None:
    with run.cache.file(_KEPT) as path:
        return None if path is None else read_timeline(path)


def _made(run: Run) -> Timeline:
    """Return the timeline, mapped from the file in which it is kept where it can be."""
    whole = run.within("all")
    timeline = Timeline.of(whole.trace(), sentences(whole.selection.notes))
    run.cache.put_file(_KEPT, lambda path: write_timeline(timeline, path))
    return _kept(run) or timeline
