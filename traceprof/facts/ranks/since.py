"""Since when somebody holds the others up."""

from __future__ import annotations

import numpy as np

from traceprof.facts.ranks.blame import Blame
from traceprof.model.ranks import Ranks

__all__ = ["since_of"]


def since_of(ranks: Ranks, blame: Blame, places: tuple[int, ...]) -> int | None:
    """Return when ``places`` first cost the others half of what is usual, from the start.

    Usual is what half of all that they cost comes from: many small delays make it no smaller.
    None where they cost nothing.
    """
    own = blame.origins[blame.origins["member"].isin(places)]
    if own.empty:
        return None
    charged = own["charged_ns"].to_numpy(np.int64)
    largest = np.sort(charged)[::-1]
    usual = int(largest[np.searchsorted(np.cumsum(largest), largest.sum() / 2)])
    at_ns = own["at_ns"].to_numpy(np.int64)[charged >= usual / 2]
    return int(at_ns.min()) - ranks.whole.span.start_ns
