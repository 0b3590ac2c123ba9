"""The copies of the judged time, with the calls that made them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceprof.facts.launches import launches_of
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace

__all__ = ["copies_in", "copies_with_calls"]


def copies_in(ranks: Ranks, judged: Intervals) -> pd.DataFrame:
    """Return the copies that start in ``judged``, as `copies_with_calls`."""
    found = ranks.each(_copies_in, judged)
    return pd.concat([own for own in found if len(own)] or found[:1], ignore_index=True)


def _copies_in(part: Trace, judged: Intervals) -> pd.DataFrame:
    copies = copies_with_calls(part)
    starts = copies["start_ns"].to_numpy()
    return copies[judged.covered_ns(starts, starts + 1) > 0]


def copies_with_calls(part: Trace) -> pd.DataFrame:
    """Return the copies of a rank with the call that made each: ``api`` and its ``call_ns``."""
    copies, launches = part.copies, launches_of(part, "copies")
    names = part.whole.api_calls["name"].to_numpy(object)
    api = np.full(len(copies), "", object)
    api[launches.is_known] = names[launches.call[launches.is_known]]
    call_ns = np.where(launches.is_known, launches.end_ns - launches.start_ns, 0)
    return copies.assign(api=api, call_ns=call_ns)
