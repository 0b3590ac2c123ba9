"""The copies of the judged time, with the calls that made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.measures.host.launches import launches_of
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace

__all__ = ["Choose", "copies_in", "copies_with_calls", "count_copies_in"]

Choose: TypeAlias = Callable[[pd.DataFrame], pd.DataFrame]
"""Takes those of some copies that a rule is about: a function of a module."""


def copies_in(ranks: Ranks, judged: Intervals, choose: Choose) -> pd.DataFrame:
    """Return what ``choose`` takes of the copies that start in ``judged``.

    As `copies_with_calls`; where they lie, since most copies are inside a device and of no rule.
    """
    found = ranks.each(_copies_in, judged, choose)
    return pd.concat([own for own in found if len(own)] or found[:1], ignore_index=True)


def count_copies_in(ranks: Ranks, judged: Intervals) -> int:
    """Return how many copies start in ``judged``."""
    return sum(ranks.each(_count, judged))


def _copies_in(part: Trace, judged: Intervals, choose: Choose) -> pd.DataFrame:
    copies = copies_with_calls(part)
    return choose(copies[_are_in(copies, judged)])


def _count(part: Trace, judged: Intervals) -> int:
    return int(_are_in(part.copies, judged).sum())


def _are_in(copies: pd.DataFrame, judged: Intervals) -> npt.NDArray[np.bool_]:
    starts = copies["start_ns"].to_numpy()
    return judged.covered_ns(starts, starts + 1) > 0


def copies_with_calls(part: Trace) -> pd.DataFrame:
    """Return the copies of a rank with the call that made each: ``api`` and its ``call_ns``."""
    copies, launches = part.copies, launches_of(part, "copies")
    is_known = launches.is_known
    api = np.full(len(copies), "", object)
    api[is_known] = part.whole.api_calls["name"].iloc[launches.call[is_known]].to_numpy(object)
    call_ns = np.where(is_known, launches.end_ns - launches.start_ns, 0)
    return copies.assign(api=api, call_ns=call_ns)
