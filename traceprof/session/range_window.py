"""Windows of ranges: ``range:TEXT``, ``range:/regex/``, ``@domain`` and ``#n``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import pandas as pd

from traceprof.errors import UsageError
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

__all__ = ["RANGE", "find_ranges"]

RANGE: Final = re.compile(
    r'range:(?:"(?P<quoted>[^"]*)"|/(?P<regex>(?:[^/\\]|\\.)*)/|(?P<plain>.*?))'
    r"(?:@(?P<domain>[^@#]*))?(?:#(?P<nth>\d+)(?:\.\.(?P<last>\d+))?)?"
)
"""What a range window looks like; a plain name that occurs in the trace is taken as it is."""


def find_ranges(ranks: Ranks, match: re.Match[str]) -> tuple[TimeWindow, str, tuple[Note, ...]]:
    """Return the window of the ranges that ``match`` names, its label, and remarks.

    Raises:
        UsageError: no such range, or not as many.
    """
    ranks.require("ranges")
    text = match.group()
    whole = text.removeprefix("range:")
    found = _all(ranks, _called, whole)
    first = 1
    if found.empty or match["plain"] is None:
        if match["regex"] is not None:
            _compiled(match["regex"])
        found = _all(ranks, _matching, match.groupdict())
        first = int(match["nth"] or 1)
    if found.empty:
        known = pd.concat(ranks.each(_names_of)).groupby(level=0, sort=False).sum()
        usual = known.sort_values(ascending=False, kind="stable")
        names = ", ".join(map(str, usual.head(5).index))
        raise UsageError(f"no range {whole!r} in the trace; it has {names or 'none'}")
    last = int(match["last"] or first)
    if not 1 <= first <= last <= len(found):
        raise UsageError(f"{text!r} occurs {len(found)} times: #{last} is not one of them")
    rows = found.iloc[first - 1 : last]
    window = TimeWindow(int(rows["start_ns"].min()), int(rows["end_ns"].max()))
    notes = [
        Note.of(
            "{first} of {n:count} ranges of this name; #N for others", first=first, n=len(found)
        )
    ]
    label = str(rows["name"].iloc[0])
    label = f"range:{label}#{first}" + (f"..{last}" if last > first else "")
    return window, label, tuple(notes if len(found) > 1 else ())


def _names_of(trace: Trace) -> pd.Series:
    """Return how often each name occurs, the most frequent first."""
    return trace.ranges["name"].astype(str).value_counts()


def _all(ranks: Ranks, choose: Callable[..., pd.DataFrame], *args: Any) -> pd.DataFrame:
    """Return the chosen ranges of all ranks in the order of their start, the longer first."""
    found = pd.concat(ranks.each(choose, *args))
    return found.sort_values(["start_ns", "end_ns"], ascending=[True, False], kind="stable")


def _told(ranges: pd.DataFrame) -> pd.DataFrame:
    return ranges[["start_ns", "end_ns", "name"]].astype({"name": str})


def _called(trace: Trace, name: str) -> pd.DataFrame:
    return _told(trace.ranges[trace.ranges["name"] == name])


def _matching(trace: Trace, match: Mapping[str, str | None]) -> pd.DataFrame:
    ranges = trace.ranges
    if match["domain"] is not None:
        ranges = ranges[ranges["domain"] == match["domain"]]
    if match["regex"] is None:
        name = match["plain"] if match["quoted"] is None else match["quoted"]
        return _told(ranges[ranges["name"] == name])
    pattern = _compiled(match["regex"])
    names = ranges["name"].cat
    codes = [code for code, name in enumerate(names.categories) if pattern.search(str(name))]
    return _told(ranges[names.codes.isin(codes)])


def _compiled(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex)
    except re.error as error:
        raise UsageError(
            f"{regex!r} is not a regular expression: {error}; expected range:/pattern/"
        ) from error
