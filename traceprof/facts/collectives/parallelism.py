"""How the devices of a job exchange what they have learnt: which pattern it is."""

from __future__ import annotations

from typing import Final

import pandas as pd

from traceprof.facts.collectives.members import find_members, member_of_rows
from traceprof.facts.collectives.work import find_collectives
from traceprof.model.trace import Trace
from traceprof.units import format_bytes

__all__ = ["describe_parallelism"]

_NOTABLE_RATIO: Final = 0.5
_NOTABLE_BYTES: Final = 1 << 20


def describe_parallelism(trace: Trace) -> tuple[str, ...]:
    """Return which pattern the devices exchange data by, and what says so.

    Collectives where there are any; else peer copies (replicas that copy to each other), or
    copies that go up and down by the same devices (through the host, as with a parameter
    server). Nothing where there is one device only.
    """
    work = find_collectives(trace)
    if len(work):
        n_ranks = len(set(member_of_rows(find_members(trace), work).tolist()) - {-1})
        ops = ", ".join(work["op"].value_counts().index[:3])
        backends = ", ".join(sorted({str(name) for name in work["backend"]} - {""})) or "kernels"
        return (f"exchange by collectives ({backends}): {ops} of {n_ranks} ranks",)
    copies = trace.copies
    if copies["device"].nunique() < 2:
        return ()
    peer, down, up = (_bytes(copies, direction) for direction in ("p2p", "h2d", "d2h"))
    if peer >= max(_NOTABLE_BYTES, _NOTABLE_RATIO * min(down, up)):
        return (f"exchange by peer copies between replicas: {format_bytes(peer)}, no collectives",)
    through = min(down, up)
    if through >= max(_NOTABLE_BYTES, _NOTABLE_RATIO * max(down, up)):
        return (
            f"exchange through the host, as with a parameter server: {format_bytes(up)} up, "
            f"{format_bytes(down)} down, no collectives: reduce between devices (NCCL) instead",
        )
    return ()


def _bytes(copies: pd.DataFrame, direction: str) -> int:
    return int(copies.loc[copies["direction"] == direction, "n_bytes"].clip(lower=0).sum())
