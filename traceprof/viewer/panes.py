"""The traces that a viewer shows, each with its lanes ready to be cut."""

from __future__ import annotations

from dataclasses import dataclass

from traceprof.model.trace import Trace
from traceprof.viewer.search import Search
from traceprof.viewer.store import TimelineStore

__all__ = ["Pane", "open_pane"]


@dataclass(frozen=True, slots=True, eq=False)
class Pane:
    """One trace; ``title`` is untrusted text."""

    title: str
    trace: Trace
    store: TimelineStore
    search: Search


def open_pane(title: str, trace: Trace) -> Pane:
    """Return ``trace`` with all its levels of detail (seconds for millions of events)."""
    store = TimelineStore(trace)
    return Pane(title, trace, store, Search(store.lanes))
