"""Why devices were idle when: the causes of each gap, laid out in it one after the other.

`find_gaps` tells how many ns of a gap each cause accounts for; they add up to the gap. Here they
are put into it in the order in which they come about, so that time can be claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.advice.findings.claims import Times
from traceprof.facts.gaps import CAUSES, find_gaps
from traceprof.facts.host.states import find_host_states
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace

__all__ = ["DRAINED", "drained_of", "gaps_of_ranks", "idle_times"]

DRAINED: Final = "drained"
"""Idle after a wait for the device, until work is launched again.

Without the wait the host would have been that much earlier: at most the wait's own length of a
gap is its doing, whatever the host does then.
"""

_Int64Array = npt.NDArray[np.int64]
_AFTER_A_WAIT: Final = ("launch", "host")
_FIRST: Final = ("synchronising",)


def gaps_of_ranks(ranks: Ranks) -> pd.DataFrame:
    """Return the gaps of all ranks: `find_gaps`, ``part`` (the place of the rank) and `DRAINED`.

    The causes in which a host is busy are without what is `DRAINED`, so that all add up.
    """
    found = [_of_rank(part).assign(part=i) for i, part in enumerate(ranks)]
    filled = [gaps for gaps in found if len(gaps)] or found[:1]
    return pd.concat(filled, ignore_index=True)


def _of_rank(part: Trace) -> pd.DataFrame:
    gaps = find_gaps(part)
    return gaps.assign(**drained_of(part, gaps))


def drained_of(part: Trace, gaps: pd.DataFrame) -> dict[str, _Int64Array]:
    """Return the columns of ``gaps`` that change where the idle time after a wait is told apart."""
    left = _wait_before(part, gaps)
    drained = np.zeros(len(gaps), np.int64)
    columns = {}
    for cause in _AFTER_A_WAIT:
        own = gaps[cause].to_numpy(np.int64)
        taken = np.minimum(own, left)
        columns[cause], left, drained = own - taken, left - taken, drained + taken
    return columns | {DRAINED: drained}


def _wait_before(part: Trace, gaps: pd.DataFrame) -> _Int64Array:
    """Return how long the host had waited for the device where each gap opens, 0 where not."""
    waited = np.zeros(len(gaps), np.int64)
    states = find_host_states(part)
    for process, rows in gaps.groupby("process").indices.items():
        state = states.get(int(str(process)))
        if state is None or not len(state.synchronising):
            continue
        time, at = state.synchronising, gaps["start_ns"].to_numpy(np.int64)[rows]
        place = np.searchsorted(time.starts, at, side="right") - 1
        inside = (place >= 0) & (time.ends[place] >= at)
        waited[rows] = np.where(inside, at - time.starts[place], 0)
    return waited


def idle_times(gaps: pd.DataFrame) -> Mapping[str, Times]:
    """Return, for each cause (and `DRAINED`), when each device was idle for it."""
    rest = (DRAINED, *(cause for cause in CAUSES if cause not in _FIRST))
    at = gaps["start_ns"].to_numpy(np.int64)
    found: dict[str, Times] = {}
    for cause in (*_FIRST, *rest):
        until = at + gaps[cause].to_numpy(np.int64)
        found[cause] = {
            int(str(device)): Intervals.union_of(at[rows], until[rows])
            for device, rows in gaps.groupby("device").indices.items()
        }
        at = until
    return found
