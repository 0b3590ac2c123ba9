"""Windows of ranges: ``range:TEXT``, ``range:/regex/``, ``@domain`` and ``#n``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pandas as pd

from traceprof.errors import UsageError
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.window import TimeWindow

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
    found = _all(ranks, lambda ranges: ranges[ranges["name"] == whole])
    first = 1
    if found.empty or match["plain"] is None:
        found = _all(ranks, lambda ranges: _of_domain(_named(ranges, match), match["domain"]))
        first = int(match["nth"] or 1)
    if found.empty:
        known = pd.concat([part.ranges["name"].astype(str) for part in ranks]).value_counts()
        names = ", ".join(map(str, known.head(5).index))
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


def _all(ranks: Ranks, choose: Callable[[pd.DataFrame], pd.DataFrame]) -> pd.DataFrame:
    """Return the chosen ranges of all ranks in the order of their start, the longer first."""
    chosen = [choose(part.ranges)[["start_ns", "end_ns", "name"]] for part in ranks]
    found = pd.concat([own.astype({"name": str}) for own in chosen])
    return found.sort_values(["start_ns", "end_ns"], ascending=[True, False], kind="stable")


def _named(ranges: pd.DataFrame, match: re.Match[str]) -> pd.DataFrame:
    if match["regex"] is None:
        name = match["plain"] if match["quoted"] is None else match["quoted"]
        return ranges[ranges["name"] == name]
    try:
        pattern = re.compile(match["regex"])
    except re.error as error:
        raise UsageError(
            f"{match['regex']!r} is not a regular expression: {error}; expected range:/pattern/"
        ) from error
    names = ranges["name"].cat
    codes = [code for code, name in enumerate(names.categories) if pattern.search(str(name))]
    return ranges[names.codes.isin(codes)]


def _of_domain(ranges: pd.DataFrame, domain: str | None) -> pd.DataFrame:
    return ranges if domain is None else ranges[ranges["domain"] == domain]
