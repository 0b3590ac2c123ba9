"""How well the clocks of ranks agree, by the ends of the collectives that they share."""

from __future__ import annotations

from typing import Final

import pandas as pd

from traceprof.model.results import Note

__all__ = ["ENDS_TOGETHER", "describe_clocks", "is_beyond_clocks", "spread_of_ends_ns"]

ENDS_TOGETHER: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "barrier",
    "send_recv",
)
"""The operations that end on all their ranks at once."""

_CLEARLY: Final = 2.0


def spread_of_ends_ns(table: pd.DataFrame) -> int:
    """Return how far the ends of collectives are apart, the earliest to the latest, added up.

    ``table`` is that of `Matches`, or part of it. On one clock that is a few microseconds each;
    beyond that the clocks differ.
    """
    return int(table.loc[table["op"].isin(ENDS_TOGETHER), "spread_ns"].sum())


def is_beyond_clocks(late_ns: float, ends_ns: float) -> bool:
    """Return whether lateness cannot come from clocks that differ as much as the ends."""
    return late_ns > _CLEARLY * ends_ns


def describe_clocks(who: str, late_ns: float, ends_ns: float) -> Note:
    """Return a note on lateness that the clocks may account for."""
    return Note.of(
        "{who} seems {late:ns} late in all, but the ends of the same collectives differ by "
        "{ends:ns}: align the clocks (--align collectives)",
        who=who,
        late=late_ns,
        ends=ends_ns,
    )
