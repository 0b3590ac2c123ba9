"""Why devices were idle when: the parts of each gap, with what follows a wait told apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.gaps import CAUSES, find_gap_parts, find_gaps
from traceprof.facts.host.states import find_host_states
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace

__all__ = ["DRAINED", "gaps_of_ranks", "idle_times", "times_of_causes"]

DRAINED: Final = "drained"
"""Idle after a wait for the device, until work is launched again.

Without the wait the host would have been that much earlier: at most the wait's own length of a
gap is its doing, whatever the host does then.
"""

_Int64Array = npt.NDArray[np.int64]
_Times: TypeAlias = Mapping[int, Intervals]
"""When, by device."""
_AFTER_A_WAIT: Final = ("launch", "host")
_NAMES: Final = (*CAUSES, DRAINED)


def gaps_of_ranks(ranks: Ranks) -> pd.DataFrame:
    """Return the gaps of all ranks: `find_gaps`, ``part`` (the place of the rank) and `DRAINED`.

    The causes in which a host is busy are without what is `DRAINED`, so that all add up.
    """
    found = [own.assign(part=i) for i, own in enumerate(ranks.each(_of_rank))]
    filled = [gaps for gaps in found if len(gaps)] or found[:1]
    return pd.concat(filled, ignore_index=True)


@of_window
def idle_times(ranks: Ranks) -> Mapping[str, _Times]:
    """Return, for each cause (and `DRAINED`), when each device was idle for it."""
    return times_of_causes(ranks, _parts, _NAMES)


def times_of_causes(
    ranks: Ranks, parts_of: Callable[[Trace], pd.DataFrame], names: Sequence[str]
) -> dict[str, dict[int, Intervals]]:
    """Return when each device was idle for each of ``names``, the causes of ``parts_of`` a rank.

    Parts are those of gaps, with gap, start_ns, end_ns and cause (a place in ``names``).
    """
    found: dict[str, dict[int, Intervals]] = {name: {} for name in names}
    for own in ranks.each(_times_of_one, parts_of, names):
        for name, times in own.items():
            found[name] |= times
    return found


def _times_of_one(
    part: Trace, parts_of: Callable[[Trace], pd.DataFrame], names: Sequence[str]
) -> dict[str, dict[int, Intervals]]:
    found: dict[str, dict[int, Intervals]] = {name: {} for name in names}
    parts, device = parts_of(part), find_gaps(part)["device"].to_numpy(np.int64)
    starts, ends = (parts[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    owner = device[parts["gap"].to_numpy(np.int64)]
    for number in np.unique(device).tolist():
        for cause, name in enumerate(names):
            rows = (owner == number) & (parts["cause"] == cause).to_numpy()
            found[name][number] = Intervals.union_of(starts[rows], ends[rows])
    return found


def _of_rank(part: Trace) -> pd.DataFrame:
    gaps, parts = find_gaps(part), _parts(part)
    sums = np.zeros((len(_NAMES), len(gaps)), np.int64)
    lengths = (parts["end_ns"] - parts["start_ns"]).to_numpy(np.int64)
    np.add.at(sums, (parts["cause"].to_numpy(), parts["gap"].to_numpy()), lengths)
    return gaps.assign(**dict(zip(_NAMES, sums, strict=True)))


@of_window
def _parts(part: Trace) -> pd.DataFrame:
    """Return `find_gap_parts`, with what is drained by a wait as a cause of its own."""
    parts = find_gap_parts(part)
    busy = np.isin(parts["cause"], [CAUSES.index(name) for name in _AFTER_A_WAIT])
    gap = parts["gap"].to_numpy(np.int64)
    starts, ends = (parts[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    lengths = np.where(busy, ends - starts, 0)
    so_far = np.cumsum(lengths) - lengths
    first = np.flatnonzero(np.r_[True, gap[1:] != gap[:-1]]) if len(gap) else np.empty(0, np.int64)
    so_far -= np.repeat(so_far[first], np.diff(np.append(first, len(gap))))
    waited = _wait_before(part)
    drained = np.clip(waited[gap] - so_far, 0, lengths)
    rows = np.flatnonzero(drained)
    rest = parts.assign(start_ns=starts + drained)
    more = parts.iloc[rows].assign(end_ns=(starts + drained)[rows], cause=len(CAUSES))
    both = pd.concat([rest[rest["end_ns"] > rest["start_ns"]], more], ignore_index=True)
    return both.sort_values(["gap", "start_ns"], ignore_index=True)


def _wait_before(part: Trace) -> _Int64Array:
    """Return how long the host had waited for the device where each gap opens, 0 where not."""
    gaps = find_gaps(part)
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
