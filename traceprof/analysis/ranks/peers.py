"""Who sends how much to whom: the messages and peer copies between each two ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.communication.transfers import peak_of_route
from traceprof.facts.collectives.members import Member, find_members
from traceprof.facts.collectives.point_to_point import find_messages
from traceprof.facts.collectives.rates import peak_of_group
from traceprof.model.intervals import Intervals
from traceprof.model.links import Link, Peak
from traceprof.model.peaks import peak_between, peak_of
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.units import format_count

__all__ = ["ANALYSIS", "Edge", "Peers", "measure_peers"]

_ON_HOST: Final = ("gloo", "mpi")
_NOBODY: Final = "not known"


@dataclass(frozen=True, slots=True)
class Edge:
    """The messages from one rank to another, over one backend, or the copies between two GPUs.

    ``matched_count`` is how many have both ends in the trace. ``size_bytes`` is None where a size
    was not recorded. ``moving_ns`` is the time in which at least one of those with both ends was
    on its way (of each the shorter of its two ends, which holds no waiting); ``rate_bytes_per_s``
    their bytes over it, and ``peak_ratio`` its share of the link's peak. ``receiver_waited_ns``
    is for how long receives were posted before their send, ``sender_waited_ns`` the other way
    round.
    """

    source: str
    target: str
    via: str
    count: int
    matched_count: int
    size_bytes: int | None
    moving_ns: int | None
    rate_bytes_per_s: float | None
    peak_ratio: float | None
    receiver_waited_ns: int | None
    sender_waited_ns: int | None
    peak_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Peers:
    """The pairs of ranks, those that move the most bytes first."""

    edges: tuple[Edge, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per source, target and backend."""
        columns = list(Edge.__dataclass_fields__)
        return pd.DataFrame([asdict(edge) for edge in self.edges], columns=columns)


def measure_peers(trace: Trace) -> Peers:
    """Return the traffic between each two ranks in the window."""
    members = find_members(trace)
    messages = find_messages(trace)
    messages = messages.assign(
        source_label=_labels(members, messages, "source"),
        target_label=_labels(members, messages, "target"),
    )
    keys = ["source_label", "target_label", "backend"]
    edges = [_of_messages(trace, members, rows) for _, rows in messages.groupby(keys, sort=False)]
    copies = trace.copies[trace.copies["direction"] == "p2p"]
    pairs = copies.groupby(["src_device", "dst_device"], sort=False)
    edges += [_of_copies(trace, rows) for _, rows in pairs]
    edges.sort(key=lambda edge: (-(edge.size_bytes or 0), edge.source, edge.target, edge.via))
    return Peers(tuple(edges), _notes(messages, edges))


def _labels(members: Sequence[Member], messages: pd.DataFrame, end: str) -> list[str]:
    places = messages[end].tolist()
    ranks = messages[f"{end}_rank"].tolist()
    return [
        members[place].label if place >= 0 else f"rank {rank}" if rank >= 0 else _NOBODY
        for place, rank in zip(places, ranks, strict=True)
    ]


def _of_messages(trace: Trace, members: Sequence[Member], rows: pd.DataFrame) -> Edge:
    first = rows.iloc[0]
    timed = rows[rows["duration_ns"].notna()]
    sizes = rows["n_bytes"].to_numpy(np.int64)
    peak = _peak(trace, members, first)
    sending = timed["send_end_ns"] - timed["send_start_ns"]
    by_send = (sending <= timed["recv_end_ns"] - timed["recv_start_ns"]).to_numpy()
    moving = Intervals.union_of(
        np.where(by_send, timed["send_start_ns"], timed["recv_start_ns"]),
        np.where(by_send, timed["send_end_ns"], timed["recv_end_ns"]),
    )
    moved = timed["n_bytes"].to_numpy(np.int64)
    is_known = len(moved) > 0 and bool((moved >= 0).all()) and moving.total_ns > 0
    rate = int(moved.sum()) / moving.total_ns * 1e9 if is_known else None
    late = timed["send_start_ns"] - timed["recv_start_ns"]
    return Edge(
        source=str(first["source_label"]),
        target=str(first["target_label"]),
        via=str(first["backend"]),
        count=len(rows),
        matched_count=int(rows["is_matched"].sum()),
        size_bytes=None if (sizes < 0).any() else int(sizes.sum()),
        moving_ns=moving.total_ns if len(timed) else None,
        rate_bytes_per_s=rate,
        peak_ratio=None if peak is None or rate is None else rate / peak.bytes_per_s,
        receiver_waited_ns=int(late.clip(lower=0).sum()) if len(timed) else None,
        sender_waited_ns=int((-late).clip(lower=0).sum()) if len(timed) else None,
        peak_bytes_per_s=None if peak is None else peak.bytes_per_s,
    )


def _peak(trace: Trace, members: Sequence[Member], first: pd.Series) -> Peak | None:
    """Return the peak of the link between the two ends; none where no GPU is known to take part."""
    source, target = int(first["source"]), int(first["target"])
    device = int(first["device"])
    if device < 0 or str(first["backend"]) in _ON_HOST or source == target:
        return None
    if min(source, target) < 0:
        return peak_of_group(trace, device, int(first["group_size"]))
    hosts = {members[source].host, members[target].host}
    if len(hosts) > 1 and all(hosts):
        return peak_of(trace, ABSENT, Link.NIC)
    ends = [_device_of(trace, members[place]) for place in (source, target)]
    return peak_between(trace, *ends) or peak_of(trace, ends[0], Link.PCIE)


def _device_of(trace: Trace, member: Member) -> int:
    if member.device != ABSENT:
        return member.device
    used = trace.whole.kernels.loc[trace.whole.kernels["process"] == member.process, "device"]
    return ABSENT if used.empty else int(used.iloc[0])


def _of_copies(trace: Trace, rows: pd.DataFrame) -> Edge:
    source, target = int(rows["src_device"].iloc[0]), int(rows["dst_device"].iloc[0])
    busy = Intervals.union_of(rows["start_ns"], rows["end_ns"]).total_ns
    n_bytes = int(rows["n_bytes"].sum())
    route = f"p2p {source}→{target}" if min(source, target) >= 0 else "p2p"
    peak = peak_of_route(trace, int(rows["device"].iloc[0]), route)
    rate = n_bytes / busy * 1e9 if busy else None
    return Edge(
        source=f"GPU {source}" if source >= 0 else _NOBODY,
        target=f"GPU {target}" if target >= 0 else _NOBODY,
        via="peer copy",
        count=len(rows),
        matched_count=len(rows),
        size_bytes=n_bytes,
        moving_ns=busy,
        rate_bytes_per_s=rate,
        peak_ratio=None if peak is None or rate is None else rate / peak.bytes_per_s,
        receiver_waited_ns=None,
        sender_waited_ns=None,
        peak_bytes_per_s=None if peak is None else peak.bytes_per_s,
    )


def _notes(messages: pd.DataFrame, edges: Sequence[Edge]) -> tuple[str, ...]:
    if not edges:
        return ("no sends, receives or peer copies in this window",)
    notes = []
    ends = messages[["source_label", "target_label"]]
    unknown = int((ends == _NOBODY).any(axis=1).sum())
    if unknown:
        notes.append(f"of {format_count(unknown)} messages the trace does not tell the other end")
    alone = int((~messages["is_matched"]).sum()) - unknown
    if alone > 0:
        notes.append(
            f"{format_count(alone)} messages have only one end in the trace: no rate is claimed"
        )
    if any(edge.receiver_waited_ns for edge in edges):
        notes.append("a receiver that waits is idle until its sender is ready: a pipeline's bubble")
    return tuple(notes)


ANALYSIS = Analysis(
    name="peers",
    needs=(),
    run=measure_peers,
)
