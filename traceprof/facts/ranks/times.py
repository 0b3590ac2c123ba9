"""Where the time of each rank went, and how long it waited for others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.collectives.matches import Matches, find_matches
from traceprof.facts.ranks.blame import why_withheld
from traceprof.facts.ranks.parts import parts_of_members
from traceprof.facts.ranks.waits import find_waits
from traceprof.measures.facts import of_window
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT

__all__ = ["times_of_ranks"]


@of_window
def times_of_ranks(ranks: Ranks) -> pd.DataFrame:
    """Return one row per rank, in the order of `find_members`.

    Columns: rank, device, step_ns (the mean), compute_ns, exposed_communication_ns,
    exposed_transfer_ns, device_memory_ns, idle_ns, waited_ns (in shared collectives and
    for messages, for the last rank to come, without compute meanwhile), last_ratio (the share of
    them to which it came last itself; both only where the ranks were in step),
    collectives_count (how many it shares), host, process. None where not known, or withheld (see
    `why_withheld`).
    """
    matches = find_matches(ranks)
    steps = steps_of_ranks(ranks)
    lengths = pd.Series(steps.durations_ns).groupby(steps.table["process"].to_numpy())
    step_ns = lengths.mean().to_dict()
    parts = parts_of_members(ranks)
    counts, waited, last, known = _waiting(ranks, matches)
    is_sure = not why_withheld(ranks)
    rows: list[dict[str, Any]] = []
    for place, member in enumerate(matches.members):
        n = int(counts[place])
        own = parts.get(place, {})
        rows.append(
            {
                "rank": None if member.rank == ABSENT else member.rank,
                "device": own.get("device", ""),
                "step_ns": step_ns.get(member.process),
                "compute_ns": own.get("compute_ns"),
                "exposed_communication_ns": own.get("exposed_communication_ns"),
                "exposed_transfer_ns": own.get("exposed_transfer_ns"),
                "device_memory_ns": own.get("device_memory_ns"),
                "idle_ns": own.get("idle_ns"),
                "waited_ns": int(waited[place]) if n and is_sure else None,
                "last_ratio": (
                    int(last[place]) / int(known[place]) if known[place] and is_sure else None
                ),
                "collectives_count": n,
                "host": member.host,
                "process": member.process,
            }
        )
    return pd.DataFrame(rows)


def _waiting(ranks: Ranks, matches: Matches) -> tuple[npt.NDArray[np.int64], ...]:
    """Return, by member, how many collectives it shares, how long it waited, how often last.

    Last only of those before which the ranks were in step.
    """
    waits = find_waits(ranks)
    member = waits["member"].to_numpy(np.int64)
    in_step = waits["is_in_step"].to_numpy(np.bool_)
    is_last = in_step & (waits["last_member"].to_numpy(np.int64) == member)
    sums = np.zeros((4, len(matches.members)), np.int64)
    waited = waits["exposed_ns"].to_numpy(np.int64)
    for place, values in enumerate((1, waited, is_last, in_step)):
        np.add.at(sums[place], member, values)
    return sums[0], sums[1], sums[2], sums[3]
