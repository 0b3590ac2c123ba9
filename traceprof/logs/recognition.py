"""Which program a log is of: the one most of whose lines stand in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from traceprof.logs.base import Source
from traceprof.logs.cleaning import Line
from traceprof.logs.sources import SOURCES
from traceprof.values import dataclass

__all__ = ["Recognised", "recognise"]

_ENOUGH: Final = 50
"""Lines of a program after which it is plain."""
_LOOKED_AT: Final = 4_000
"""Lines that are looked at even so: another program may say more."""
_ALSO: Final = 4
"""A program with at least one in so many of the lines of the first could have been meant."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """The source of a log, how many lines say so, and which others could be meant."""

    source: Source
    count: int
    others: tuple[tuple[Source, int], ...] = ()


def recognise(lines: Iterable[Line]) -> Recognised | None:
    """Return of which program ``lines`` are; None where no line is of any that is known.

    Launchers count where there is nothing else; all are read beside any program.
    """
    counts: Counter[str] = Counter()
    for i, line in enumerate(lines):
        for source in SOURCES:
            if any(mark.search(line.text) for mark in source.marks):
                counts[source.name] += 1
        if i >= _LOOKED_AT and max(counts.values(), default=0) >= _ENOUGH:
            break
    programs = [source for source in SOURCES if not source.is_launcher]
    for candidates in (programs, SOURCES):
        found = [(source, counts[source.name]) for source in candidates if counts[source.name]]
        if found:
            # What people's scripts print stands in logs of programs, too.
            found.sort(key=lambda pair: (pair[0].name == "notes", -pair[1]))
            first, count = found[0]
            others = (pair for pair in found[1:] if pair[1] * _ALSO >= count)
            return Recognised(first, count, tuple(p for p in others if p[0].name != "notes"))
    return None
