"""Links from the numbers of a report to their place in its timeline."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.render.formatting import is_known
from traceprof.render.page.tables import Link
from traceprof.render.shown import Row

__all__ = ["address_of", "link_to", "links_of_rows", "places_of_row", "ranks_named"]

_LEAST_MARGIN_NS: Final = 1_000
_RANK: Final = re.compile(r"\brank (\d{1,6})\b")


def address_of(
    start_ns: int,
    end_ns: int,
    places: Mapping[str, Collection[int]] | None = None,
) -> str:
    """Return the address of a span of a timeline, ns from the start of the run.

    The timeline shows it with a quarter of it on each side, marks it, and opens the lanes of
    ``places``: numbers by "rank" and "device".
    """
    margin = max(_LEAST_MARGIN_NS, (end_ns - start_ns) // 4)
    words = [f"#at={start_ns - margin}..{end_ns + margin}"]
    if end_ns > start_ns:
        words.append(f"mark={start_ns}..{end_ns}")
    for kind, numbers in (places or {}).items():
        known = sorted(number for number in numbers if number != ABSENT)
        if known:
            words.append(f"{kind}={'.'.join(map(str, known))}")
    return "&".join(words)


def link_to(
    run: TimeWindow,
    place: TimeWindow,
    shown: TimeWindow,
    places: Mapping[str, Collection[int]] | None = None,
) -> str | None:
    """Return the address of ``place`` within the page; None where its timeline ends before it.

    ``run`` is the whole run, whose start the address counts from.
    """
    if place.start_ns < shown.start_ns or place.end_ns > shown.end_ns:
        return None
    return address_of(place.start_ns - run.start_ns, place.end_ns - run.start_ns, places)


def links_of_rows(run: TimeWindow, shown: TimeWindow) -> Link:
    """Return a function that gives the address of a row with ``at_ns`` and ``duration_ns``."""

    def link(row: Row) -> str | None:
        at, duration = row["at_ns"], row.get("duration_ns", 0)
        if not (is_known(at) and is_known(duration)):
            return None
        start = run.start_ns + int(at)
        return link_to(run, TimeWindow(start, start + int(duration)), shown, places_of_row(row))

    return link


def places_of_row(row: Row) -> Mapping[str, Collection[int]]:
    """Return the rank and the device that a row of a table is about, as far as it says so."""
    found: dict[str, tuple[int, ...]] = {}
    for kind in ("rank", "device"):
        value: Any = row.get(kind)
        if is_known(value) and str(value).isdigit():
            found[kind] = (int(value),)
    return found


def ranks_named(*texts: str) -> Mapping[str, Collection[int]]:
    """Return the ranks that sentences name: "the others wait for rank 2"."""
    return {"rank": {int(number) for text in texts for number in _RANK.findall(text)}}
