"""How the devices of a job exchange what they have learnt: which pattern it is."""

from __future__ import annotations

from typing import Final

from traceprof.facts.collectives.members import find_members, member_of_rows
from traceprof.facts.collectives.work import collectives_of_ranks
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note

__all__ = ["describe_parallelism"]

_NOTABLE_RATIO: Final = 0.5
_NOTABLE_BYTES: Final = 1 << 20


def describe_parallelism(ranks: Ranks) -> tuple[Note, ...]:
    """Return which pattern the devices exchange data by, and what says so.

    Collectives where there are any; else peer copies (replicas that copy to each other), or
    copies that go up and down by the same devices (through the host, as with a parameter
    server). Nothing where there is one device only.
    """
    work = collectives_of_ranks(ranks)
    if len(work):
        rows = work[["process", "device"]].drop_duplicates()
        n_ranks = len(set(member_of_rows(find_members(ranks), rows).tolist()) - {-1})
        ops = ", ".join(work["op"].value_counts().index[:3])
        backends = ", ".join(sorted({str(name) for name in work["backend"].unique()} - {""}))
        text = "exchange by collectives ({backends}): {ops} of {n:count} ranks"
        return (Note.of(text, backends=backends or "kernels", ops=ops, n=n_ranks),)
    if sum(part.copies["device"].nunique() for part in ranks) < 2:
        return ()
    peer, down, up = (_bytes(ranks, direction) for direction in ("p2p", "h2d", "d2h"))
    if peer >= max(_NOTABLE_BYTES, _NOTABLE_RATIO * min(down, up)):
        text = "exchange by peer copies between replicas: {peer:bytes}, no collectives"
        return (Note.of(text, peer=peer),)
    if min(down, up) >= max(_NOTABLE_BYTES, _NOTABLE_RATIO * max(down, up)):
        text = (
            "exchange through the host, as with a parameter server: {up:bytes} up, "
            "{down:bytes} down, no collectives: reduce between devices (NCCL) instead"
        )
        return (Note.of(text, up=up, down=down),)
    return ()


def _bytes(ranks: Ranks, direction: str) -> int:
    sizes = (p.copies.loc[p.copies["direction"] == direction, "n_bytes"] for p in ranks)
    return sum(int(own.clip(lower=0).sum()) for own in sizes)
