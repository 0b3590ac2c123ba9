"""Who sends how much to whom: the messages and peer copies between each two ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.hardware.catalogue import Link, Peak
from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.blame import why_withheld
from traceprof.measures.collectives.members import Member, find_members
from traceprof.measures.collectives.messages import find_messages
from traceprof.measures.collectives.rates import peak_of_group
from traceprof.measures.collectives.waits import find_waits
from traceprof.measures.device.peaks import peak_between, peak_of
from traceprof.measures.device.times import part_of_device
from traceprof.measures.facts import fact
from traceprof.measures.traffic.copies import peak_of_route
from traceprof.model.ranks import Ranks
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    same,
    total,
)
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
    firsts = trace.kernels[["process", "device"]].drop_duplicates("process")
    return list(zip(firsts["process"].tolist(), firsts["device"].tolist(), strict=True))


_Integers = npt.NDArray[np.integer[Any]]

_ON_HOST: Final = ("gloo", "mpi")
_NOBODY: Final = "not known"
_PEER_COPY: Final = "peer copy"
_WAITED: Final = ("receiver_waited_ns", "sender_waited_ns")
_EARLY: Final = ("receiver_early_ns", "sender_early_ns")

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "edges",
            "one row per source, target and backend, those that move the most bytes first",
            (
                key("source", "the rank, or GPU, that sends"),
                key("target", "the one that receives"),
                key("via", "the backend of the messages, or peer copy"),
                total("count", Unit.COUNT, "messages or copies"),
                total("matched_count", Unit.COUNT, "those with both ends in the trace"),
                total("size_bytes", Unit.BYTES, "their bytes, where all were recorded"),
                total(
                    "moving_ns",
                    Unit.NS,
                    "when any with both ends was on its way: of each the shorter end, no waiting",
                ),
                derived("rate_bytes_per_s", Unit.BYTES_PER_S, "the bytes of those, over that time"),
                derived("peak_ratio", Unit.RATIO, "that, of the link's peak"),
                total(
                    "receiver_waited_ns",
                    Unit.NS,
                    "receivers waited for their sender and did not compute, once they were in "
                    "step: as `stragglers` counts it",
                ),
                total("sender_waited_ns", Unit.NS, "the same of senders, for their receiver"),
                total(
                    "receiver_early_ns",
                    Unit.NS,
                    "receives were posted before their send: also while they computed, and before "
                    "the ranks were in step",
                ),
                total("sender_early_ns", Unit.NS, "sends were posted before their receive"),
                same("peak_bytes_per_s", Unit.BYTES_PER_S, "the peak of the link"),
            ),
        ),
    ),
    scalars=(
        total("unknown_count", Unit.COUNT, "messages of which one end is not known"),
        total("alone_count", Unit.COUNT, "other messages with only one end in the trace"),
    ),
)


def measure_peers(ranks: Ranks) -> Result:
    """Return the traffic between each two ranks in the window."""
    messages = _labelled(find_members(ranks), find_messages(ranks))
    messages = messages.assign(**_waited(ranks, messages))
    edges = [*_of_messages(ranks, messages), *_of_copies(ranks)]
    edges.sort(key=lambda e: (-(e["size_bytes"] or 0), e["source"], e["target"], e["via"]))
    unknown = (messages[["source_label", "target_label"]] == _NOBODY).any(axis=1)
    scalars = {
        "unknown_count": int(unknown.sum()),
        "alone_count": max(0, int((~messages["is_matched"]).sum()) - int(unknown.sum())),
    }
    notes = _notes(edges, **scalars)
    return Result("peers", SPEC, {"edges": SPEC.tables[0].frame(edges)}, scalars, notes)


def _waited(ranks: Ranks, messages: pd.DataFrame) -> dict[str, npt.NDArray[np.int64]]:
    """Return what the receiver and the sender of each message waited for the other in step.

    Messages that share a kernel share its wait, too: the first of them has it.
    """
    keys = ["member", "start_ns", "last_start_ns"]
    known = find_waits(ranks.whole)[[*keys, "exposed_ns"]]
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


def _of_messages(ranks: Ranks, messages: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the edges of messages; each is a group of rows."""
    keys = ["source_label", "target_label", "backend"]
    edge = messages.groupby(keys, sort=False).ngroup().to_numpy(np.int64)
    firsts = messages.drop_duplicates(keys)
    n = len(firsts)
    sizes, timed = messages["n_bytes"].to_numpy(np.int64), messages["duration_ns"].notna()
    own = messages[timed]
    of_timed = edge[timed.to_numpy()]
    count, matched = _sum(edge, 1, n), _sum(edge, messages["is_matched"], n)
    size, unsized = _sum(edge, sizes, n), _sum(edge, sizes < 0, n)
    moved, n_timed = _sum(of_timed, own["n_bytes"], n), _sum(of_timed, 1, n)
    unmoved = _sum(of_timed, own["n_bytes"] < 0, n)
    moving = _moving_ns(of_timed, own, n)
    late = (own["send_start_ns"] - own["recv_start_ns"]).to_numpy(np.int64)
    early = [_sum(of_timed, np.maximum(ns, 0), n) for ns in (late, -late)]
    waits = [_sum(of_timed, own[name], n) for name in _WAITED]
    is_sure = not why_withheld(ranks)
    rows = []
    for i, first in enumerate(firsts.itertuples()):
        is_known = n_timed[i] and not unmoved[i] and moving[i]
        waiting = [int(ns[i]) if n_timed[i] and is_sure else None for ns in waits]
        waiting += [int(ns[i]) if n_timed[i] else None for ns in early]
        row = {
            "source": str(first.source_label),
            "target": str(first.target_label),
            "via": str(first.backend),
            "count": int(count[i]),
            "matched_count": int(matched[i]),
            "size_bytes": None if unsized[i] else int(size[i]),
            "moving_ns": int(moving[i]) if n_timed[i] else None,
            "rate_bytes_per_s": int(moved[i]) / int(moving[i]) * 1e9 if is_known else None,
            **dict(zip((*_WAITED, *_EARLY), waiting, strict=True)),
        }
        rows.append(_with_peak(row, _peak(ranks, first)))
    return rows


def _sum(groups: _Integers, values: Any, n_groups: int) -> _Integers:
    """Return the exact sum of the values of each group."""
    sums = np.zeros(n_groups, np.int64)
    np.add.at(sums, groups, np.asarray(values, np.int64))
    return sums


def _moving_ns(groups: _Integers, timed: pd.DataFrame, n_groups: int) -> _Integers:
    """Return how long any message of each group was on its way, by the shorter of its ends."""
    send, taken = (
        [timed[f"{end}_{time}"].to_numpy(np.int64) for time in ("start_ns", "end_ns")]
        for end in ("send", "recv")
    )
    by_send = send[1] - send[0] <= taken[1] - taken[0]
    return _covered_ns(
        groups,
        np.where(by_send, send[0], taken[0]),
        np.where(by_send, send[1], taken[1]),
        n_groups,
    )


def _covered_ns(groups: _Integers, starts: _Integers, ends: _Integers, n_groups: int) -> _Integers:
    """Return the length of the union of the spans of each group."""
    order = np.lexsort((starts, groups))
    groups, starts, ends = groups[order], starts[order], ends[order]
    reach = pd.Series(ends).groupby(groups).cummax().groupby(groups)
    before = np.maximum(reach.shift(fill_value=np.iinfo(np.int64).min).to_numpy(), starts)
    return _sum(groups, np.maximum(ends - before, 0), n_groups)


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
    return part.copies.loc[part.copies["direction"] == "p2p", columns]


def _of_copies(ranks: Ranks) -> list[dict[str, Any]]:
    """Return the edges of peer copies, between devices."""
    copies = pd.concat(ranks.each(_peer_copies), ignore_index=True)
    copies = copies.sort_values("start_ns", kind="stable", ignore_index=True)
    pairs = ["src_device", "dst_device"]
    edge = copies.groupby(pairs, sort=False).ngroup().to_numpy(np.int64)
    firsts = copies.drop_duplicates(pairs)
    n = len(firsts)
    count, size = _sum(edge, 1, n), _sum(edge, copies["n_bytes"].clip(lower=0), n)
    is_sized = _sum(edge, copies["n_bytes"] < 0, n) == 0
    starts, ends = (copies[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    busy = _covered_ns(edge, starts, ends, n)
    rows = []
    ends_of = firsts[[*pairs, "device"]].to_numpy(np.int64).tolist()
    for i, (source, target, device) in enumerate(ends_of):
        route = f"p2p {source}→{target}" if min(source, target) >= 0 else "p2p"
        row = {
            "source": f"GPU {source}" if source >= 0 else _NOBODY,
            "target": f"GPU {target}" if target >= 0 else _NOBODY,
            "via": _PEER_COPY,
            "count": int(count[i]),
            "matched_count": int(count[i]),
            "size_bytes": int(size[i]) if is_sized[i] else None,
            "moving_ns": int(busy[i]),
            "rate_bytes_per_s": (
                int(size[i]) / int(busy[i]) * 1e9 if busy[i] and is_sized[i] else None
            ),
            **dict.fromkeys((*_WAITED, *_EARLY)),
        }
        peak = peak_of_route(part_of_device(ranks, device), device, route)
        rows.append(_with_peak(row, peak))
    return rows


def _notes(
    edges: Sequence[dict[str, Any]], unknown_count: int, alone_count: int
) -> tuple[Note, ...]:
    if not edges:
        return (Note("no sends, receives or peer copies in this window"),)
    notes = []
    if unknown_count:
        text = "of {n:count} messages the trace does not tell the other end"
        notes.append(Note.of(text, n=unknown_count))
    if alone_count:
        text = "{n:count} messages have only one end in the trace: no rate is claimed"
        notes.append(Note.of(text, n=alone_count))
    if any(edge["receiver_waited_ns"] for edge in edges):
        text = "a receiver that waits is idle until its sender is ready: a pipeline's bubble"
        notes.append(Note(text))
    return tuple(notes)


PEERS = Analysis(
    name="peers",
    spec=SPEC,
    uses=(
        "collectives",
        "copies",
        "kernels",
        "api_calls",
        "ranges",
        "processes",
        "devices",
        "environment",
    ),
    of_steps=True,
    of_ranks=measure_peers,
)
