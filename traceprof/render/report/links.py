"""Links from the numbers of a report to their place in its timeline."""

from __future__ import annotations

import math

from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow
from traceprof.render.report.tables import Link, Row

__all__ = ["link_to", "links_of_rows"]

_LEAST_MARGIN_NS = 1_000


def link_to(trace: Trace, place: TimeWindow, shown: TimeWindow) -> str | None:
    """Return the address of ``place`` within the page; None where its timeline ends before it."""
    if place.start_ns < shown.start_ns or place.end_ns > shown.end_ns:
        return None
    margin = max(_LEAST_MARGIN_NS, place.duration_ns // 4)
    start = place.start_ns - trace.span.start_ns - margin
    return f"#at={start}..{place.end_ns - trace.span.start_ns + margin}"


def links_of_rows(trace: Trace, shown: TimeWindow) -> Link:
    """Return a function that gives the address of a row with ``at_ns`` and ``duration_ns``."""

    def link(row: Row) -> str | None:
        at, duration = float(row["at_ns"]), float(row.get("duration_ns", 0))
        if math.isnan(at) or math.isnan(duration):
            return None
        start = trace.span.start_ns + int(at)
        return link_to(trace, TimeWindow(start, start + int(duration)), shown)

    return link
