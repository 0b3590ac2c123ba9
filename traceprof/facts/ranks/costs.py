"""What slow ranks cost the others."""

from __future__ import annotations

import numpy as np

from traceprof.facts.cache import of_window
from traceprof.facts.ranks.blame import find_blame
from traceprof.facts.ranks.replay import saving_of
from traceprof.facts.ranks.waits import find_waits
from traceprof.model.ranks import Ranks

__all__ = ["cost_of"]


@of_window
def cost_of(ranks: Ranks, places: tuple[int, ...]) -> int:
    """Return how much longer the run takes because of the ranks at ``places``, in ns.

    What another rank waits because of them on average, and no more than they do more themselves.
    In a pipeline less: had the slow one been faster, it would have waited itself while the pipeline
    fills; there the run is gone through again without what they do more.
    """
    blame = find_blame(ranks)
    own = np.array(places, np.int64)
    others = max(int(np.count_nonzero(blame.busy_ns)) - len(own), 1)
    charged = int(blame.charged_ns[own].sum()) // others
    excess = np.sort(blame.excess_ns[own])
    cost_ns = min(charged, int(excess[(len(excess) - 1) // 2]))
    if not cost_ns or not find_waits(ranks)["is_message"].any():
        return cost_ns
    busy = blame.busy_ns[own]
    shares = (blame.excess_ns[own] / np.maximum(busy, 1)).tolist()
    saving = saving_of(ranks, dict(zip(places, shares, strict=True)))
    return cost_ns if saving is None else saving
