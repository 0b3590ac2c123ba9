"""What slow ranks cost the others."""

from __future__ import annotations

import numpy as np

from traceprof.facts.collectives.matches import find_matches
from traceprof.facts.ranks.blame import find_blame
from traceprof.facts.ranks.replay import saving_of
from traceprof.facts.ranks.waits import find_waits, waiting_of_members
from traceprof.measures.device.times import device_times
from traceprof.measures.facts import of_window
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks

__all__ = ["cost_of", "tails_after"]


@of_window
def cost_of(ranks: Ranks, places: tuple[int, ...]) -> int:
    """Return how much longer the run takes because of the ranks at ``places``, in ns.

    What another rank waits because of them on average and, as far as compute hides it from them
    alone, until the collectives that they come last to are done; no more than they do more
    themselves. In a pipeline less: had the slow one been faster, it would have waited itself while
    the pipeline fills; there the run is gone through again without what they do more.
    """
    blame = find_blame(ranks)
    own = np.array(places, np.int64)
    others = max(int(np.count_nonzero(blame.busy_ns)) - len(own), 1)
    charged = int(blame.charged_ns[own].sum()) // others
    excess = np.sort(blame.excess_ns[own])
    most_ns = int(excess[(len(excess) - 1) // 2])
    cost_ns = min(charged, most_ns)
    if not cost_ns:
        return 0
    if not find_waits(ranks)["is_message"].any():
        # For the others this is no waiting: it is not in what the slow ones do more, either.
        return cost_ns + _hidden_ns(ranks, places, others)
    busy = blame.busy_ns[own]
    shares = (blame.excess_ns[own] / np.maximum(busy, 1)).tolist()
    saving = saving_of(ranks, dict(zip(places, shares, strict=True)))
    return cost_ns if saving is None else saving


@of_window
def tails_after(ranks: Ranks, places: tuple[int, ...]) -> tuple[Intervals, ...]:
    """Return when each rank neither waits nor computes, in collectives that slow ones come last to.

    From the start of the last rank, one at ``places``, to the end; by place in `find_members`.
    """
    matches = find_matches(ranks).collectives
    last = matches.table["last_member"]
    chosen = last.index[last.isin(places)]
    is_chosen = matches.among(chosen.to_numpy(np.int64)) & (matches.rows.array("member") >= 0)
    rows = matches.rows.where(is_chosen)[["match", "member", "device", "end_ns"]]
    begin = matches.table["last_start_ns"].reindex(rows["match"]).to_numpy(np.int64)
    end = rows["end_ns"].to_numpy(np.int64)
    device = rows["device"].to_numpy(np.int64)
    computing = {d: time.compute for part in ranks for d, time in device_times(part).items()}
    waiting = waiting_of_members(ranks.whole)
    tails = [Intervals.empty() for _ in matches.members]
    for member, own in rows.groupby("member").indices.items():
        place, number = int(str(member)), int(device[own[0]])
        time = Intervals.union_of(begin[own], np.maximum(end[own], begin[own]))
        tails[place] = time - computing.get(number, Intervals.empty()) - waiting[place]
    return tuple(tails)


def _hidden_ns(ranks: Ranks, places: tuple[int, ...], n_others: int) -> int:
    """Return how much longer the others are in these collectives than the slow ones, in the end."""
    totals = [time.total_ns for time in tails_after(ranks, places)]
    slow = sum(totals[place] for place in places)
    return max((sum(totals) - slow) // n_others - slow // len(places), 0)
