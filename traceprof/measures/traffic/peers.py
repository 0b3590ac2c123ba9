"""Who sends how much to whom: the messages and peer copies between each two ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

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
from traceprof.measures.rows import Texts, ints, sums_at
from traceprof.measures.traffic.copies import peak_of_route
from traceprof.model.grouping import codes_of, find_matching_rows, groups_of, numbered, places_of
from traceprof.model.intervals import Int64Array, union_lengths
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Names, Table, is_known
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
    firsts = trace.kernels.take(numbered(trace.kernels["process"])[1])
    return list(zip(firsts["process"].tolist(), firsts["device"].tolist(), strict=True))


_ON_HOST: Final = ("gloo", "mpi")
_NOBODY: Final = "not known"
_PEER_COPY: Final = "peer copy"
_WAITED: Final = ("receiver_waited_ns", "sender_waited_ns")
_EARLY: Final = ("receiver_early_ns", "sender_early_ns")

SPEC: Final = ResultSpec.of("""
    table edges: one row per source, target, and backend, sorted by bytes
    key source: rank or GPU that sends
    key target: rank or GPU that receives
    key via: backend of the messages, or peer copy
    total count: number of messages or copies
    total matched_count: number of these with both ends in the trace
    total size_bytes: bytes sent; empty if any size is unknown
    total in_transit_ns: time with at least one matched message in transit. The shorter end of each
        message counts, so waiting is excluded
    derived rate_bytes_per_s: bytes of the matched messages divided by in_transit_ns
    derived peak_ratio: rate as a share of the link's peak
    total receiver_waited_ns: time that receivers waited for the sender without computing, after the
        ranks first synchronized, as in `stragglers`
    total sender_waited_ns: time that senders waited for the receiver without computing, counted in
        the same way
    total receiver_early_ns: time from posting the receive to posting the send; includes time with
        compute and time before the ranks first synchronized
    total sender_early_ns: time from posting the send to posting the receive, counted in the same
        way
    same peak_bytes_per_s: peak of the link
    scalars:
    total unknown_count: number of messages with one unknown end
    total unmatched_count: number of other messages with only one end in the trace
    """)
_EDGES: Final = SPEC.tables[0]


def measure_peers(ranks: Ranks) -> Result:
    """Return the traffic between each two ranks in the window."""
    messages = _labelled(find_members(ranks), find_messages(ranks))
    messages = messages.assign(**_waited(ranks, messages))
    edges = [*_of_messages(ranks, messages), *_of_copies(ranks)]
    edges.sort(key=lambda e: (-(e["size_bytes"] or 0), e["source"], e["target"], e["via"]))
    is_unknown = (messages["source_label"] == _NOBODY) | (messages["target_label"] == _NOBODY)
    unknown_count, unmatched_count = (
        int(own.sum()) for own in (is_unknown, ~messages["is_matched"])
    )
    scalars = {
        "unknown_count": unknown_count,
        "unmatched_count": max(0, unmatched_count - unknown_count),
    }
    notes = tuple(_notes(edges, **scalars))
    return Result("peers", SPEC, {"edges": _EDGES.of_rows(edges)}, scalars, notes)


def _waited(ranks: Ranks, messages: Table) -> dict[str, Int64Array]:
    """Return what the receiver and the sender of each message waited for the other in step.

    Messages that share a kernel share its wait, too: the first of them has it.
    """
    keys = ("member", "start_ns", "last_start_ns")
    waits = find_waits(ranks.whole).select(*keys, "exposed_ns")
    ends = (("target", "recv_start_ns", "start_ns"), ("source", "send_start_ns", "start_ns"))
    every = Table.stacked(
        [Table(dict(zip(keys, ints(messages, *columns), strict=True))) for columns in ends]
    )
    found = np.append(waits["exposed_ns"], 0)[find_matching_rows(every, waits, *keys)]
    found[groups_of(*ints(every, *keys)).earlier > 0] = 0
    return dict(zip(_WAITED, np.split(found, 2), strict=True))


def _labelled(members: Sequence[Member], messages: Table) -> Table:
    """Return the messages with what their ends are called."""
    labels = np.array([*(member.label for member in members), _NOBODY], object)
    columns = {}
    for end in ("source", "target"):
        place, by_rank = messages[end], _numbered(messages[f"{end}_rank"], "rank")
        columns[f"{end}_label"] = np.where(place >= 0, labels[place], by_rank)
    return messages.assign(**columns)


def _numbered(numbers: Int64Array, what: str) -> Texts:
    """Return what the ends of messages or copies are called by their numbers."""
    place, distinct = places_of(numbers)
    names = Names(place, [f"{what} {one}" if one >= 0 else _NOBODY for one in distinct])
    return names.plain()


def _of_messages(ranks: Ranks, messages: Table) -> Iterator[dict[str, Any]]:
    """Yield the edges of messages."""
    send, taken = (ints(messages, f"{end}_start_ns", f"{end}_end_ns") for end in ("send", "recv"))
    by_send = send[1] - send[0] <= taken[1] - taken[0]
    late = send[0] - taken[0]
    rows = messages.assign(
        is_timed=is_known(messages["duration_ns"]),
        moves_ns=np.where(by_send, send[0], taken[0]),
        moved_ns=np.where(by_send, send[1], taken[1]),
        **dict(zip(_EARLY, (np.maximum(late, 0), np.maximum(-late, 0)), strict=True)),
    )
    is_sure = not why_withheld(ranks)
    for first, row in _edges(rows):
        hidden = () if row["in_transit_ns"] is not None else (*_WAITED, *_EARLY)
        unknown = dict.fromkeys(hidden or (() if is_sure else _WAITED))
        yield _with_peak(row | unknown, _peak(ranks, first))


def _edges(rows: Table) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the sums of the ``rows`` with the same ends, with the first of them."""
    keys = ("source_label", "target_label", "backend")
    edge, first_rows = numbered(*(codes_of(rows[key]) for key in keys))
    firsts = rows.take(first_rows).rows()
    n_bytes, timed, is_unsized = rows["n_bytes"], rows["is_timed"], rows["n_bytes"] < 0
    added: dict[str, npt.ArrayLike] = {
        "count": 1,
        "matched_count": rows["is_matched"],
        "size_bytes": np.maximum(n_bytes, 0),
        "unsized": is_unsized,
        "timed": timed,
        "moved": np.where(timed & ~is_unsized, n_bytes, 0),
        "unmoved": is_unsized & timed,
        **{name: np.where(timed, rows[name], 0) for name in (*_WAITED, *_EARLY)},
    }
    sums = [sums_at(edge, own, len(firsts)).tolist() for own in added.values()]
    starts, ends = ints(rows, "moves_ns", "moved_ns", rows=timed)
    moving = union_lengths(edge[timed], starts, ends, len(firsts)).tolist()
    for first, ns, *values in zip(firsts, moving, *sums, strict=True):
        sum_of = dict(zip(added, values, strict=True))
        n_timed = sum_of["timed"]
        is_known = n_timed and not sum_of["unmoved"] and ns
        row = {
            **sum_of,
            "source": first["source_label"],
            "target": first["target_label"],
            "via": first["backend"],
            "size_bytes": None if sum_of["unsized"] else sum_of["size_bytes"],
            "in_transit_ns": ns if n_timed else None,
            "rate_bytes_per_s": sum_of["moved"] / ns * 1e9 if is_known else None,
        }
        yield first, row


def _with_peak(row: dict[str, Any], peak: Peak | None) -> dict[str, Any]:
    rate = row["rate_bytes_per_s"]
    bytes_per_s = None if peak is None else peak.bytes_per_s
    ratio = None if bytes_per_s is None or rate is None else rate / bytes_per_s
    return {**row, "peak_ratio": ratio, "peak_bytes_per_s": bytes_per_s}


def _peak(ranks: Ranks, first: Mapping[str, Any]) -> Peak | None:
    """Return the peak of the link of a message; None where no GPU is known to take part."""
    source, target, device = (first[name] for name in ("source", "target", "device"))
    if device < 0 or first["backend"] in _ON_HOST or source == target:
        return None
    if min(source, target) < 0:
        return peak_of_group(ranks, device, first["group_size"])
    return peak_between_ranks(ranks, source, target)


def _peer_copies(part: Trace) -> Table:
    columns = ("start_ns", "end_ns", "n_bytes", "src_device", "dst_device", "device")
    return part.copies.select(*columns).take(part.copies["direction"] == "p2p")


def _of_copies(ranks: Ranks) -> Iterator[dict[str, Any]]:
    """Yield the edges of peer copies, between devices."""
    copies = Table.stacked(ranks.each(_peer_copies)).in_order("start_ns")
    rows = copies.assign(
        source_label=_numbered(copies["src_device"], "GPU"),
        target_label=_numbered(copies["dst_device"], "GPU"),
        backend=_PEER_COPY,
        is_matched=True,
        is_timed=True,
        moves_ns=copies["start_ns"],
        moved_ns=copies["end_ns"],
        **dict.fromkeys((*_WAITED, *_EARLY), 0),
    )
    for first, row in _edges(rows):
        source, target, device = (first[name] for name in ("src_device", "dst_device", "device"))
        route = f"p2p {source}→{target}" if min(source, target) >= 0 else "p2p"
        peak = peak_of_route(part_of_device(ranks, device), device, route)
        yield _with_peak(row | dict.fromkeys((*_WAITED, *_EARLY)), peak)


def _notes(
    edges: Sequence[dict[str, Any]], unknown_count: int, unmatched_count: int
) -> Iterator[Note]:
    if not edges:
        yield Note("No sends, receives, or peer copies in this window.")
    if edges and unknown_count:
        text = "The trace does not contain the other end of {n:count} message(s)."
        yield Note.of(text, n=unknown_count)
    if edges and unmatched_count:
        text = "{n:count} messages have only one end in the trace, so they have no rate."
        yield Note.of(text, n=unmatched_count)
    if any(edge["receiver_waited_ns"] for edge in edges):
        yield Note("A waiting receiver is idle until its sender is ready (a pipeline bubble).")


PEERS: Final = Analysis(
    "peers",
    SPEC,
    uses=(*USED_TABLES, "copies", "processes", "devices", "environment"),
    of_steps=True,
    of_ranks=measure_peers,
)
