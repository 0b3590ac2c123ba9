"""Messages and peer copies between each two ranks or GPUs: bytes, rates, and waits."""

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
from traceprof.measures.device.times import trace_of_device
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
    """Return the peak of the link between two ranks; ranks are indices in `find_members`."""
    members = find_members(ranks)
    ends = members[source], members[target]
    hosts = {member.host for member in ends}
    if len(hosts) > 1 and all(hosts):
        return _network_peak(ranks)
    return _peak_between_devices(ranks, *(_device_of(ranks, member) for member in ends))


@fact
def _network_peak(ranks: Ranks) -> Peak | None:
    """Return the network peak of one GPU."""
    return peak_of(ranks.parts[0], ABSENT, Link.NIC)


@fact
def _peak_between_devices(ranks: Ranks, device: int, peer: int) -> Peak | None:
    """Return the peak between two devices: NVLink if known, otherwise PCI Express."""
    part = trace_of_device(ranks, device)
    return peak_between(part, device, peer) or peak_of(part, device, Link.PCIE)


def _device_of(ranks: Ranks, member: Member) -> int:
    """Return the device of a rank; `ABSENT` if unknown."""
    if member.device != ABSENT:
        return member.device
    return _first_devices(ranks).get(member.process, ABSENT)


@fact
def _first_devices(ranks: Ranks) -> Mapping[int, int]:
    """Return the device on which each process first ran a kernel."""
    return {process: device for part in ranks for process, device in _first_of_part(part)}


def _first_of_part(trace: Trace) -> list[tuple[int, int]]:
    """Return the process and device of the first kernel of each process."""
    firsts = trace.kernels.take(numbered(trace.kernels["process"])[1])
    return list(zip(firsts["process"].tolist(), firsts["device"].tolist(), strict=True))


_ON_HOST: Final = ("gloo", "mpi")
_UNKNOWN_LABEL: Final = "not known"
_PEER_COPY: Final = "peer copy"
_WAITED_COLUMNS: Final = ("receiver_waited_ns", "sender_waited_ns")
_EARLY_COLUMNS: Final = ("receiver_early_ns", "sender_early_ns")

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
    messages = messages.assign(**_measure_waits(ranks, messages))
    edges = [*_of_messages(ranks, messages), *_of_copies(ranks)]
    edges.sort(key=lambda e: (-(e["size_bytes"] or 0), e["source"], e["target"], e["via"]))
    is_unknown = (messages["source_label"] == _UNKNOWN_LABEL) | (
        messages["target_label"] == _UNKNOWN_LABEL
    )
    unknown_count, unmatched_count = (
        int(flags.sum()) for flags in (is_unknown, ~messages["is_matched"])
    )
    scalars = {
        "unknown_count": unknown_count,
        "unmatched_count": max(0, unmatched_count - unknown_count),
    }
    result = Result("peers", SPEC, {"edges": _EDGES.of_rows(edges)}, scalars)
    return result.with_notes(*_notes(edges, **scalars))


def _measure_waits(ranks: Ranks, messages: Table) -> dict[str, Int64Array]:
    """Return how long the receiver and the sender of each message waited for each other.

    Messages that share a kernel share its wait; the first of these messages has it.
    """
    keys = ("member", "start_ns", "last_start_ns")
    waits = find_waits(ranks.whole).select(*keys, "exposed_ns")
    ends = (("target", "recv_start_ns", "start_ns"), ("source", "send_start_ns", "start_ns"))
    all_ends = Table.stacked(
        [Table(dict(zip(keys, ints(messages, *columns), strict=True))) for columns in ends]
    )
    found = np.append(waits["exposed_ns"], 0)[find_matching_rows(all_ends, waits, *keys)]
    found[groups_of(*ints(all_ends, *keys)).earlier > 0] = 0
    return dict(zip(_WAITED_COLUMNS, np.split(found, 2), strict=True))


def _labelled(members: Sequence[Member], messages: Table) -> Table:
    """Return the messages with the labels of their source and target."""
    labels = np.array([*(member.label for member in members), _UNKNOWN_LABEL], object)
    columns = {}
    for end in ("source", "target"):
        place, by_rank = messages[end], _number_labels(messages[f"{end}_rank"], "rank")
        columns[f"{end}_label"] = np.where(place >= 0, labels[place], by_rank)
    return messages.assign(**columns)


def _number_labels(numbers: Int64Array, prefix: str) -> Texts:
    """Return a label such as "rank 3" for each number; negative numbers are unknown."""
    place, distinct = places_of(numbers)
    labels = [f"{prefix} {number}" if number >= 0 else _UNKNOWN_LABEL for number in distinct]
    return Names(place, labels).plain()


def _of_messages(ranks: Ranks, messages: Table) -> Iterator[dict[str, Any]]:
    """Yield the edges of messages between ranks."""
    send, recv = (ints(messages, f"{end}_start_ns", f"{end}_end_ns") for end in ("send", "recv"))
    by_send = send[1] - send[0] <= recv[1] - recv[0]
    send_delay = send[0] - recv[0]
    rows = messages.assign(
        is_timed=is_known(messages["duration_ns"]),
        moves_ns=np.where(by_send, send[0], recv[0]),
        moved_ns=np.where(by_send, send[1], recv[1]),
        receiver_early_ns=np.maximum(send_delay, 0),
        sender_early_ns=np.maximum(-send_delay, 0),
    )
    withheld = _WAITED_COLUMNS if why_withheld(ranks) else ()
    for first, row in _edges(rows):
        is_timed = row["in_transit_ns"] is not None
        unknown = withheld if is_timed else (*_WAITED_COLUMNS, *_EARLY_COLUMNS)
        yield _with_peak(row | dict.fromkeys(unknown), _peak(ranks, first))


def _edges(rows: Table) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the first row and the sums of each group of ``rows`` with the same ends."""
    keys = ("source_label", "target_label", "backend")
    edge, first_rows = numbered(*(codes_of(rows[key]) for key in keys))
    firsts = rows.take(first_rows).rows()
    n_bytes, timed, is_unknown_size = rows["n_bytes"], rows["is_timed"], rows["n_bytes"] < 0
    added: dict[str, npt.ArrayLike] = {
        "count": 1,
        "matched_count": rows["is_matched"],
        "size_bytes": np.maximum(n_bytes, 0),
        "unsized": is_unknown_size,
        "timed": timed,
        "moved": np.where(timed & ~is_unknown_size, n_bytes, 0),
        "unmoved": is_unknown_size & timed,
        **{name: np.where(timed, rows[name], 0) for name in (*_WAITED_COLUMNS, *_EARLY_COLUMNS)},
    }
    sums = [sums_at(edge, column, len(firsts)).tolist() for column in added.values()]
    starts, ends = ints(rows, "moves_ns", "moved_ns", rows=timed)
    moving = union_lengths(edge[timed], starts, ends, len(firsts)).tolist()
    for first, ns, *values in zip(firsts, moving, *sums, strict=True):
        sum_of = dict(zip(added, values, strict=True))
        n_timed = sum_of["timed"]
        has_rate = n_timed and not sum_of["unmoved"] and ns
        edge_row = {
            **sum_of,
            "source": first["source_label"],
            "target": first["target_label"],
            "via": first["backend"],
            "size_bytes": None if sum_of["unsized"] else sum_of["size_bytes"],
            "in_transit_ns": ns if n_timed else None,
            "rate_bytes_per_s": sum_of["moved"] / ns * 1e9 if has_rate else None,
        }
        yield first, edge_row


def _with_peak(row: dict[str, Any], peak: Peak | None) -> dict[str, Any]:
    """Return the row with the peak of its link and the rate as a share of the peak."""
    rate = row["rate_bytes_per_s"]
    bytes_per_s = None if peak is None else peak.bytes_per_s
    ratio = None if bytes_per_s is None or rate is None else rate / bytes_per_s
    return {**row, "peak_ratio": ratio, "peak_bytes_per_s": bytes_per_s}


def _peak(ranks: Ranks, first: Mapping[str, Any]) -> Peak | None:
    """Return the peak of a message's link; None if no GPU is known to take part."""
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
    """Yield the edges of peer copies between devices."""
    copies = Table.stacked(ranks.each(_peer_copies)).in_order("start_ns")
    rows = copies.assign(
        source_label=_number_labels(copies["src_device"], "GPU"),
        target_label=_number_labels(copies["dst_device"], "GPU"),
        backend=_PEER_COPY,
        is_matched=True,
        is_timed=True,
        moves_ns=copies["start_ns"],
        moved_ns=copies["end_ns"],
        **dict.fromkeys((*_WAITED_COLUMNS, *_EARLY_COLUMNS), 0),
    )
    for first, row in _edges(rows):
        source, target, device = (first[name] for name in ("src_device", "dst_device", "device"))
        route = f"p2p {source}→{target}" if min(source, target) >= 0 else "p2p"
        peak = peak_of_route(trace_of_device(ranks, device), device, route)
        yield _with_peak(row | dict.fromkeys((*_WAITED_COLUMNS, *_EARLY_COLUMNS)), peak)


def _notes(
    edges: Sequence[dict[str, Any]], unknown_count: int, unmatched_count: int
) -> Iterator[Note]:
    """Yield notes on messages with an unknown end, and on waiting receivers."""
    if not edges:
        yield Note("No sends, receives, or peer copies in this window.")
    if edges and unknown_count:
        yield Note.of(
            "The trace does not contain the other end of {n:count} message(s).", n=unknown_count
        )
    if edges and unmatched_count:
        yield Note.of(
            "{n:count} messages have only one end in the trace, so they have no rate.",
            n=unmatched_count,
        )
    if any(edge["receiver_waited_ns"] for edge in edges):
        yield Note("A waiting receiver is idle until its sender is ready (a pipeline bubble).")


PEERS: Final = Analysis(
    "peers",
    SPEC,
    uses=(*USED_TABLES, "copies", "processes", "devices", "environment"),
    of_steps=True,
    of_ranks=measure_peers,
)
