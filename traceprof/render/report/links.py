"""Links from the numbers of a report to their place in its timeline."""

from __future__ import annotations

from typing import Final

from traceprof.model.window import TimeWindow
from traceprof.render.formatting import is_known
from traceprof.render.page.tables import Link
from traceprof.render.shown import Row

__all__ = ["link_to", "links_of_rows"]

_LEAST_MARGIN_NS: Final = 1_000


def link_to(run: TimeWindow, place: TimeWindow, shown: TimeWindow) -> str | None:
    """Return the address of ``place`` within the page; None where its timeline ends before it.

    ``run`` is the whole run, whose start the address counts from.
    """
    if place.start_ns < shown.start_ns or place.end_ns > shown.end_ns:
        return None
    margin = max(_LEAST_MARGIN_NS, place.duration_ns // 4)
    return f"#at={place.start_ns - run.start_ns - margin}..{place.end_ns - run.start_ns + margin}"


def links_of_rows(run: TimeWindow, shown: TimeWindow) -> Link:
    """Return a function that gives the address of a row with ``at_ns`` and ``duration_ns``."""

    def link(row: Row) -> str | None:
        at, duration = row["at_ns"], row.get("duration_ns", 0)
        if not (is_known(at) and is_known(duration)):
            return None
        start = run.start_ns + int(at)
        return link_to(run, TimeWindow(start, start + int(duration)), shown)

    return link
