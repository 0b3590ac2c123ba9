"""Windows of ranges: ``range:TEXT``, ``range:/regex/``, ``@domain`` and ``#n``."""

from __future__ import annotations

import re
from typing import Final

import pandas as pd

from traceprof.errors import UsageError
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow

__all__ = ["RANGE", "find_ranges"]

RANGE: Final = re.compile(
    r'range:(?:"(?P<quoted>[^"]*)"|/(?P<regex>(?:[^/\\]|\\.)*)/|(?P<plain>.*?))'
    r"(?:@(?P<domain>[^@#]*))?(?:#(?P<nth>\d+)(?:\.\.(?P<last>\d+))?)?"
)
"""What a range window looks like; a plain name that occurs in the trace is taken as it is."""


def find_ranges(trace: Trace, match: re.Match[str]) -> tuple[TimeWindow, str, str]:
    """Return the window of the ranges that ``match`` names, its label, and a remark or "".

    Raises:
        UsageError: no such range, or not as many.
    """
    trace.require("ranges")
    text = match.group()
    whole = text.removeprefix("range:")
    found = trace.ranges[trace.ranges["name"] == whole]
    if found.empty or match["plain"] is None:
        found = _of_domain(_named(trace.ranges, match), match["domain"])
        first = int(match["nth"] or 1)
    else:
        first = 1
    if found.empty:
        known = trace.ranges["name"].value_counts().head(5).index
        raise UsageError(
            f"no range {whole!r} in the trace; it has {', '.join(map(str, known)) or 'none'}"
        )
    last = int(match["last"] or first)
    if not 1 <= first <= last <= len(found):
        raise UsageError(f"{text!r} occurs {len(found)} times: #{last} is not one of them")
    rows = found.iloc[first - 1 : last]
    window = TimeWindow(int(rows["start_ns"].min()), int(rows["end_ns"].max()))
    note = "" if len(found) == 1 else f"{first} of {len(found)} ranges of this name; #N for others"
    label = str(rows["name"].iloc[0])
    return window, f"range:{label}#{first}" + (f"..{last}" if last > first else ""), note


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
