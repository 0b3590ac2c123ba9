"""Who sends how much to whom: the messages and peer copies between each two ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.hardware.catalogue import Link, Peak
from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.blame import why_withheld
from traceprof.measures.collectives.members import Member, find_members
from traceprof.measures.collectives.messages import find_messages
from traceprof.measures.collectives.operations import USED_TABLES
from traceprof.measures.collectives.rates import peak_of_group
from traceprof.measures.collectives.waits import find_waits
from traceprof.measures.device.peaks import peak_between, peak_of
from traceprof.measures.device.times import part_of_device
from traceprof.measures.facts import fact
from traceprof.measures.rows import sums_at
from traceprof.measures.traffic.copies import peak_of_route
from traceprof.model.intervals import Int64Array, union_lengths
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace


def peak_between_ranks(ranks: Ranks, source: int, target: int) -> Peak | None:
    """Return the peak of the link from one rank to another; places in `find_members`."""
    members = find_members(ranks)
    ends = members[source], members[target]
    hosts = {member.host for member in ends}
    if len(hosts) > 1 and all(hosts):
        return _network_peak(ranks)
    return _peak_between_devices(ranks, *(_device_of(ranks, member) for member in ends))


@fact
def _network_peak(ranks: Ranks) -> Peak | None:
    return peak_of(ranks.parts[0], ABSENT, Link.NIC)


@fact
def _peak_between_devices(ranks: Ranks, device: int, peer: int) -> Peak | None:
    part = part_of_device(ranks, device)
    return peak_between(part, device, peer) or peak_of(part, device, Link.PCIE)


def _device_of(ranks: Ranks, member: Member) -> int:
    if member.device != ABSENT:
        return member.device
    return _first_devices(ranks).get(member.process, ABSENT)


@fact
def _first_devices(ranks: Ranks) -> Mapping[int, int]:
    """Return the device on which each process first ran a kernel."""
    return {process: device for part in ranks for process, device in _first_of_part(part)}


def _first_of_part(trace: Trace) -> list[tuple[int, int]]:
    firsts = trace.kernels.to_frame()[["process", "device"]].drop_duplicates("process")
    return list(zip(firsts["process"].tolist(), firsts["device"].tolist(), strict=True))


_ON_HOST: Final = ("gloo", "mpi")
_NOBODY: Final = "not known"
_PEER_COPY: Final = "peer copy"
_WAITED: Final = ("receiver_waited_ns", "sender_waited_ns")
_EARLY: Final = ("receiver_early_ns", "sender_early_ns")

SPEC: Final = ResultSpec.of("""
    table edges: one row per source, target and backend, those that move the most bytes first
    key source: the rank, or GPU, that sends
    key target: the one that receives
    key via: the backend of the messages, or peer copy
    total count: messages or copies
    total matched_count: those with both ends in the trace
    total size_bytes: their bytes, where all were recorded
    total moving_ns: when any with both ends was on its way: of each the shorter end, no waiting
    derived rate_bytes_per_s: the bytes of those, over that time
    derived peak_ratio: that, of the link's peak
    total receiver_waited_ns: receivers waited for their sender and did not compute, once they were
        in step: as `stragglers` counts it
    total sender_waited_ns: the same of senders, for their receiver
    total receiver_early_ns: receives were posted before their send: also while they computed, and
        before the ranks were in step
    total sender_early_ns: sends were posted before their receive
    same peak_bytes_per_s: the peak of the link
    scalars:
    total unknown_count: messages of which one end is not known
    total alone_count: other messages with only one end in the trace
    """)
_EDGES: Final = SPEC.tables[0]


def measure_peers(ranks: Ranks) -> Result:
    """Return the traffic between each two ranks in the window."""
    messages = _labelled(
        find_members(ranks), find_messages(ranks).to_frame().astype({"backend": object})
    )
    messages = messages.assign(**_waited(ranks, messages))
    edges = [*_of_messages(ranks, messages), *_of_copies(ranks)]
    edges.sort(key=lambda e: (-(e["size_bytes"] or 0), e["source"], e["target"], e["via"]))
    unknown = (messages[["source_label", "target_label"]] == _NOBODY).any(axis=1)
    scalars = {
        "unknown_count": int(unknown.sum()),
        "alone_count": max(0, int((~messages["is_matched"]).sum()) - int(unknown.sum())),
    }
    notes = tuple(_notes(edges, **scalars))
    return Result("peers", SPEC, {"edges": _EDGES.frame(edges)}, scalars, notes)


def _waited(ranks: Ranks, messages: pd.DataFrame) -> dict[str, Int64Array]:
    """Return what the receiver and the sender of each message waited for the other in step.

    Messages that share a kernel share its wait, too: the first of them has it.
    """
    keys = ["member", "start_ns", "last_start_ns"]
    known = find_waits(ranks.whole).select(*keys, "exposed_ns").to_frame()
    waits = known.drop_duplicates(keys).set_index(keys)["exposed_ns"]
    last = messages["start_ns"]
    columns = [("target", "recv_start_ns"), ("source", "send_start_ns")]
    ends = [
        pd.DataFrame({keys[0]: messages[place], keys[1]: messages[start], keys[2]: last})
        for place, start in columns
    ]
    every = pd.concat(ends, ignore_index=True)
    found = waits.reindex(pd.MultiIndex.from_frame(every)).fillna(0).to_numpy(np.int64)
    found = np.where(every.duplicated(keys), 0, found)
    return dict(zip(_WAITED, np.split(found, 2), strict=True))


def _labelled(members: Sequence[Member], messages: pd.DataFrame) -> pd.DataFrame:
    """Return the messages with what their ends are called."""
    labels = np.array([*(member.label for member in members), _NOBODY], object)
    columns = {}
    for end in ("source", "target"):
        place = messages[end].to_numpy(np.int64)
        rank = messages[f"{end}_rank"].to_numpy(np.int64)
        distinct, number = np.unique(rank, return_inverse=True)
        named = [f"rank {one}" if one >= 0 else _NOBODY for one in distinct.tolist()]
        by_rank = np.array([*named, _NOBODY], object)[number.ravel()]
        columns[f"{end}_label"] = np.where(place >= 0, labels[place], by_rank)
    return messages.assign(**columns)


def _of_messages(ranks: Ranks, messages: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the edges of messages."""
    send, taken = (
        [messages[f"{end}_{time}"] for time in ("start_ns", "end_ns")] for end in ("send", "recv")
    )
    by_send = send[1] - send[0] <= taken[1] - taken[0]
    late = send[0] - taken[0]
    rows = messages.assign(
        is_timed=messages["duration_ns"].notna(),
        moves_ns=send[0].where(by_send, taken[0]),
        moved_ns=send[1].where(by_send, taken[1]),
        **dict(zip(_EARLY, (late.clip(lower=0), (-late).clip(lower=0)), strict=True)),
    )
    is_sure = not why_withheld(ranks)
    for first, row in _edges(rows):
        hidden = () if row["moving_ns"] is not None else (*_WAITED, *_EARLY)
        unknown = dict.fromkeys(hidden or (() if is_sure else _WAITED))
        yield _with_peak(row | unknown, _peak(ranks, first))


def _edges(rows: pd.DataFrame) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the sums of the ``rows`` with the same ends, with the first of them."""
    keys = ["source_label", "target_label", "backend"]
    edge = np.asarray(rows.groupby(keys, sort=False).ngroup(), np.int64)
    firsts = rows.drop_duplicates(keys)
    timed, is_unsized = rows["is_timed"].to_numpy(np.bool_), rows["n_bytes"] < 0
    added: dict[str, npt.ArrayLike] = {
        "count": 1,
        "matched_count": rows["is_matched"],
        "size_bytes": rows["n_bytes"].clip(lower=0),
        "unsized": is_unsized,
        "timed": timed,
        "moved": rows["n_bytes"].where(timed & ~is_unsized, 0),
        "unmoved": is_unsized & timed,
        **{name: rows[name].where(timed, 0) for name in (*_WAITED, *_EARLY)},
    }
    sums = [sums_at(edge, own, len(firsts)).tolist() for own in added.values()]
    starts, ends = (rows[name].to_numpy(np.int64)[timed] for name in ("moves_ns", "moved_ns"))
    moving = union_lengths(edge[timed], starts, ends, len(firsts)).tolist()
    for first, ns, *values in zip(firsts.itertuples(), moving, *sums, strict=True):
        sum_of = dict(zip(added, values, strict=True))
        n_timed = sum_of["timed"]
        is_known = n_timed and not sum_of["unmoved"] and ns
        row = {
            **sum_of,
            "source": str(first.source_label),
            "target": str(first.target_label),
            "via": str(first.backend),
            "size_bytes": None if sum_of["unsized"] else sum_of["size_bytes"],
            "moving_ns": ns if n_timed else None,
            "rate_bytes_per_s": sum_of["moved"] / ns * 1e9 if is_known else None,
        }
        yield first, row


def _with_peak(row: dict[str, Any], peak: Peak | None) -> dict[str, Any]:
    rate = row["rate_bytes_per_s"]
    bytes_per_s = None if peak is None else peak.bytes_per_s
    ratio = None if bytes_per_s is None or rate is None else rate / bytes_per_s
    return {**row, "peak_ratio": ratio, "peak_bytes_per_s": bytes_per_s}


def _peak(ranks: Ranks, first: Any) -> Peak | None:
    """Return the peak of the link of a message; None where no GPU is known to take part."""
    source, target, device = int(first.source), int(first.target), int(first.device)
    if device < 0 or str(first.backend) in _ON_HOST or source == target:
        return None
    if min(source, target) < 0:
        return peak_of_group(ranks, device, int(first.group_size))
    return peak_between_ranks(ranks, source, target)


def _peer_copies(part: Trace) -> pd.DataFrame:
    columns = ["start_ns", "end_ns", "n_bytes", "src_device", "dst_device", "device"]
    return part.copies.to_frame().loc[part.copies.to_frame()["direction"] == "p2p", columns]


def _of_copies(ranks: Ranks) -> Iterator[dict[str, Any]]:
    """Yield the edges of peer copies, between devices."""
    copies = pd.concat(ranks.each(_peer_copies), ignore_index=True)
    copies = copies.sort_values("start_ns", kind="stable", ignore_index=True)
    rows = copies.assign(
        source_label=_gpus(copies["src_device"]),
        target_label=_gpus(copies["dst_device"]),
        backend=_PEER_COPY,
        is_matched=True,
        is_timed=True,
        moves_ns=copies["start_ns"],
        moved_ns=copies["end_ns"],
        **dict.fromkeys((*_WAITED, *_EARLY), 0),
    )
    for first, row in _edges(rows):
        source, target, device = first.src_device, first.dst_device, int(first.device)
        route = f"p2p {source}→{target}" if min(source, target) >= 0 else "p2p"
        peak = peak_of_route(part_of_device(ranks, device), device, route)
        yield _with_peak(row | dict.fromkeys((*_WAITED, *_EARLY)), peak)


def _gpus(devices: pd.Series) -> pd.Series:
    return ("GPU " + devices.astype(str)).where(devices >= 0, _NOBODY)


def _notes(edges: Sequence[dict[str, Any]], unknown_count: int, alone_count: int) -> Iterator[Note]:
    if not edges:
        yield Note("no sends, receives or peer copies in this window")
    if edges and unknown_count:
        text = "of {n:count} messages the trace does not tell the other end"
        yield Note.of(text, n=unknown_count)
    if edges and alone_count:
        text = "{n:count} messages have only one end in the trace: no rate is claimed"
        yield Note.of(text, n=alone_count)
    if any(edge["receiver_waited_ns"] for edge in edges):
        yield Note("a receiver that waits is idle until its sender is ready: a pipeline's bubble")


PEERS: Final = Analysis(
    "peers",
    SPEC,
    uses=(*USED_TABLES, "copies", "processes", "devices", "environment"),
    of_steps=True,
    of_ranks=measure_peers,
)
