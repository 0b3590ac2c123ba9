"""What a rank does more of than the others: the same kernels longer, more kernels, copies, waits.

Of the time between its collectives, without waiting for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.facts.collectives.members import find_members, member_of_rows
from traceprof.facts.ranks.arrivals import ON_HOST, excess_of_members
from traceprof.facts.ranks.blame import find_blame
from traceprof.facts.ranks.parts import parts_of_members
from traceprof.measures.facts import of_window
from traceprof.model.activity import Activity
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.values import dataclass

__all__ = ["Cause", "cause_of"]

SLOWER: Final = "the same kernels take longer"
MORE: Final = "more kernels"
COPIES: Final = "copies that nothing hides"
DATA: Final = "the device waits for data"
HOST: Final = "the device waits for the host"

_LEAST_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Cause:
    """What a rank does more of: in words, by how much in all, and of kernels how many times."""

    text: str
    excess_ns: int
    factor: float | None = None


@of_window
def cause_of(ranks: Ranks, place: int) -> Cause | None:
    """Return what the rank at ``place`` does more of than the median of the others.

    None where no device work was recorded, or where nothing stands out by a quarter of what the
    rank does more.
    """
    own = parts_of_members(ranks)
    others = [parts for i, parts in own.items() if i != place]
    if place not in own or not others:
        return None
    slower_ns, more_ns, factor = _of_kernels(ranks, place)
    copies_ns = _beyond(own[place], others, "exposed_transfer_ns")
    excess_ns = int(find_blame(ranks).excess_ns[place])
    rest_ns = excess_ns - max(slower_ns, 0) - max(more_ns, 0) - max(copies_ns, 0)
    found = [
        Cause(SLOWER, slower_ns, factor),
        Cause(MORE, more_ns),
        Cause(COPIES, copies_ns),
        Cause(_on_host(ranks, place), rest_ns),
    ]
    most = max(found, key=lambda cause: cause.excess_ns)
    return most if most.excess_ns > _LEAST_SHARE * excess_ns > 0 else None


def _beyond(own: Mapping[str, Any], others: Sequence[Mapping[str, Any]], name: str) -> int:
    return int(own[name] - np.median([parts[name] for parts in others]))


def _of_kernels(ranks: Ranks, place: int) -> tuple[int, int, float]:
    """Return how much longer the same kernels take, how much more the rest takes, and the factor.

    Each name is held against the median of the ranks that have it.
    """
    table = _kernels_of_members(ranks)
    mine = table[table["member"] == place].set_index("name")
    others = table[table["member"] != place]
    usual = others.assign(mean_ns=others["ns"] / others["n"]).groupby("name")
    mean_ns = usual["mean_ns"].median().reindex(mine.index)
    ranks_count = others["member"].nunique()
    has_most = usual.size().reindex(mine.index).fillna(0) * 2 > ranks_count
    count = usual["n"].median().where(has_most, 0).reindex(mine.index).fillna(0)
    is_known = mean_ns.notna()
    expected = (mine["n"] * mean_ns)[is_known]
    slower = float((mine["ns"][is_known] - expected).sum())
    more = float(((mine["n"] - count) * mean_ns)[is_known].sum() + mine["ns"][~is_known].sum())
    factor = float(mine["ns"][is_known].sum() / expected.sum()) if expected.sum() > 0 else 1.0
    return round(slower), round(more), factor


@of_window
def _kernels_of_members(ranks: Ranks) -> pd.DataFrame:
    """Return the kernels of each rank by name: member, name, n, ns; communication left out."""
    members = find_members(ranks)
    found = ranks.each(_kernels_of_one)
    lanes = pd.concat([own[["process", "device"]] for own in found], ignore_index=True)
    place = member_of_rows(members, lanes) if len(lanes) else np.empty(0, np.int64)
    both = pd.concat(found, ignore_index=True).assign(member=place)
    return both.groupby(["member", "name"], sort=False)[["n", "ns"]].sum().reset_index()


def _kernels_of_one(part: Trace) -> pd.DataFrame:
    kernels = part.kernels
    kernels = kernels[kernels["activity"] != Activity.COMMUNICATION.value]
    found = pd.DataFrame(
        {
            "process": kernels["process"].to_numpy(np.int64),
            "device": kernels["device"].to_numpy(np.int64),
            "code": kernels["name"].cat.codes.to_numpy(),
            "ns": kernels["end_ns"].to_numpy(np.int64) - kernels["start_ns"].to_numpy(np.int64),
        }
    )
    by_name = found.groupby(["process", "device", "code"])["ns"]
    sums = by_name.agg(n="size", ns="sum").reset_index()
    names = kernels["name"].cat.categories.to_numpy(object)
    return sums.assign(name=names[sums.pop("code").to_numpy(np.int64)])


def _on_host(ranks: Ranks, place: int) -> str:
    """Return whether it is data that a rank's idle device waits for, by the phase of its host."""
    excess = excess_of_members(ranks)
    on_host = [str(name) for name in excess.columns if str(name).endswith(ON_HOST)]
    own = excess.loc[place, on_host]
    if own.empty or own.max() <= 0:
        return HOST
    return DATA if str(own.idxmax()).startswith("data") else HOST
