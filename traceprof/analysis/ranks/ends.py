"""How well the clocks of ranks agree, by the ends of the collectives that they share."""

from __future__ import annotations

from typing import Final

from traceprof.analysis.communication.matches import Matches
from traceprof.units import format_duration

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


def spread_of_ends_ns(matches: Matches) -> float:
    """Return the median difference between the earliest and the latest end; 0 where not known.

    On one clock it is a few microseconds; beyond that the clocks differ.
    """
    table = matches.table[matches.table["op"].isin(ENDS_TOGETHER)]
    return float(table["spread_ns"].median()) if len(table) else 0.0


def is_beyond_clocks(late_ns: float, matches: Matches) -> bool:
    """Return whether a usual lateness cannot come from clocks that differ."""
    return late_ns > _CLEARLY * spread_of_ends_ns(matches)


def describe_clocks(late_ns: float, matches: Matches) -> str:
    """Return a sentence about lateness that the clocks may account for."""
    return (
        f"the ends of shared collectives differ by {format_duration(spread_of_ends_ns(matches))} "
        f"(median): a lateness of {format_duration(late_ns)} may be that of the clocks "
        "(--align collectives)"
    )
