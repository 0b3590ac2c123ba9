"""Match each send with the receive of the same message.

The peer of a send is known as a rank of the job, or as a number in the group if the group numbers
its ranks. A communicator of two ranks needs neither, unless several calls share a kernel (the
sends of an all-to-all include one to the sender). Between two ranks, in one group and with one tag,
the k-th send matches the k-th receive: NCCL, gloo and MPI keep this order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.collectives.communicators import line_up, overlap_of
from traceprof.measures.collectives.members import Member, find_members, member_of_rows
from traceprof.measures.collectives.operations import (
    SINGLE_OPS,
    collectives_of_ranks,
    find_collectives,
)
from traceprof.measures.facts import fact, of_window
from traceprof.measures.rows import where_known
from traceprof.model.grouping import (
    codes_of,
    find_matching_rows,
    groups_of,
    places_of,
    rows_by_first,
)
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

_TIME_COLUMNS: Final = ("start_ns", "end_ns")
_LANE_COLUMNS: Final = ("group", "group_size", "source", "target", "tag")
_LAUNCH_COLUMNS: Final = ("process", "correlation")
_CALL_COLUMNS: Final = (
    *("op", "group", "group_size", "group_rank", "peer", "peer_rank", "tag", "backend", "carrier"),
    *(
        "process",
        "device",
        "call_ns",
        *_TIME_COLUMNS,
        "n_bytes",
        "correlation",
        "is_sole",
        "is_timed",
    ),
)
_MESSAGE_COLUMNS: Final = (
    *("source", "target", "source_rank", "target_rank", "group", "group_size", "tag", "backend"),
    *("carrier", "device", "n_bytes", "start_ns"),
)


@of_window
def find_messages(ranks: Ranks) -> Table:
    """Return the messages whose send or receive starts in the window.

    One row per matched pair, per unmatched send, and per unmatched receive. Columns: source and
    target (positions in `find_members`; `ABSENT` for an unknown rank or a rank without a trace),
    source_rank and target_rank (ranks of the job; `ABSENT` if unknown), group, group_size, tag,
    backend, carrier (the operation of the whole kernel: send, recv, send_recv, all_to_all …),
    device (of the sender, otherwise of the receiver), n_bytes, send_start_ns, send_end_ns,
    recv_start_ns, recv_end_ns (`ABSENT` if that end is not in the trace or not timed), duration_ns
    (the shorter duration, which excludes waiting; NaN unless both are known), start_ns (of the end
    that started last), is_matched.
    """
    found = _messages_of_whole(ranks)
    return found if ranks.uncut is None else found.take(ranks.span.holds(found["start_ns"]))


@fact
def _messages_of_whole(ranks: Ranks) -> Table:
    members = find_members(ranks)
    calls = Table.stacked(ranks.each(_timed_calls))
    ends = _with_ends(members, calls.assign(member=member_of_rows(members, calls)))
    return _join_pairs(members, ends.assign(pair=_pair_ends(ends))).in_order("start_ns")


def pair_messages(members: Sequence[Member], calls: Table) -> Int64Array:
    """Return a number per send and receive that both ends have in common; `ABSENT` for no match.

    ``calls`` have the columns that `peers_of_rows` needs.
    """
    return _pair_ends(_with_ends(members, calls))


def _pair_ends(ends: Table) -> Int64Array:
    """Return a number per row that a send and its receive have in common; `ABSENT` for no match."""
    found = np.full(len(ends), ABSENT, np.int64)
    usable = np.flatnonzero((ends["source"] >= 0) & (ends["target"] >= 0))
    order, end_ns, sizes = (ends[name] for name in ("order", "end_ns", "n_bytes"))
    is_send = ends["op"] == "send"
    next_number = 0
    for lane in rows_by_first(*(codes_of(ends[name])[usable] for name in _LANE_COLUMNS)):
        rows = usable[lane]
        rows = rows[np.argsort(order[rows], kind="stable")]
        sends, receives = rows[is_send[rows]], rows[~is_send[rows]]
        if not len(sends) or not len(receives):
            continue
        shift = 0
        if len(sends) != len(receives):
            sent, received = ((end_ns[places], sizes[places]) for places in (sends, receives))
            shift = line_up(sent, received).shift
        there, here = overlap_of(len(sends), len(receives), shift)
        found[sends[there]] = found[receives[here]] = next_number + np.arange(len(sends[there]))
        next_number += len(sends[there])
    return found


def peers_of_rows(members: Sequence[Member], rows: Table) -> Int64Array:
    """Return the position in ``members`` of the peer of each row; `ABSENT` if unknown.

    ``rows`` are all rows of the recording. They have the columns of `find_collectives`, member, and
    is_sole (whether the kernel carries out no other send or receive).
    """
    by_rank = {member.rank: i for i, member in enumerate(members) if member.rank != ABSENT}
    found = _map_values(rows["peer_rank"], by_rank)
    is_open = (rows["member"] >= 0) & (rows["peer_rank"] < 0) & rows["is_sole"]
    for group in rows_by_first(codes_of(rows["group"]), rows["group_size"]):
        size = int(rows["group_size"][group[0]])
        member, number = rows["member"][group], rows["group_rank"][group]
        known = (number >= 0) & (member >= 0)
        numbers = dict(zip(number[known].tolist(), member[known].tolist(), strict=True))
        if len(by_rank) and size == _world_size(members, by_rank):
            numbers = {**by_rank, **numbers}
        peers = _map_values(rows["peer"][group], numbers)
        present = np.unique(member[member >= 0])
        if len(present) == 2 and size in (2, ABSENT):
            peers = np.where((peers < 0) & is_open[group], present.sum() - member, peers)
        found[group] = np.where(found[group] >= 0, found[group], peers)
    return found


def _map_values(values: Int64Array, places: Mapping[int, int]) -> Int64Array:
    """Return the place of each value; `ABSENT` for values without a place."""
    place, distinct = places_of(values)
    found = np.array([places.get(value, ABSENT) for value in distinct], np.int64)
    return place.pick(found)


@fact
def peers_of_collectives(ranks: Ranks) -> Int64Array:
    """Return the position in `find_members` of the peer of each collective of the whole recording.

    The order is that of `collectives_of_ranks`. `ABSENT` if there is no peer or it is unknown.
    """
    members, work = find_members(ranks), collectives_of_ranks(ranks)
    rows = work.select(
        "group", "group_size", "group_rank", "peer", "peer_rank", "process", "device"
    )
    return peers_of_rows(members, rows.assign(member=member_of_rows(members, rows), is_sole=True))


def _world_size(members: Sequence[Member], by_rank: dict[int, int]) -> int:
    """Return the number of ranks if the trace has all of them, else 0."""
    return len(members) if sorted(by_rank) == list(range(len(members))) else 0


def _timed_calls(trace: Trace) -> Table:
    """Return the sends and receives of a whole trace, with the columns of `find_collectives`.

    Calls that share a kernel all have its time.
    """
    work = find_collectives(trace)
    single = work.take(work["op"].isin(SINGLE_OPS))
    # A call without a recorded kernel may have shared its kernel.
    single = single.assign(is_sole=single["is_timed"], carrier=single["op"]).select(*_CALL_COLUMNS)
    calls = trace.collectives
    calls = calls.take(calls["op"].isin(SINGLE_OPS) & (calls["correlation"] != ABSENT))
    kernels = groups_of(*(calls[name] for name in _LAUNCH_COLUMNS))
    shared = calls.take((kernels.counts > 1)[kernels.number])
    if shared.empty:
        return single
    ends = groups_of(*(shared[name] for name in _LAUNCH_COLUMNS), shared["op"])
    launched = work.take(work["correlation"] != ABSENT)
    kernel_row = find_matching_rows(shared, launched, *_LAUNCH_COLUMNS)
    has_kernel = kernel_row >= 0
    kernel = launched.take(kernel_row[has_kernel])
    joined = shared.assign(
        call_ns=shared["start_ns"], is_sole=(ends.counts == 1)[ends.number]
    ).take(has_kernel)
    joined = joined.assign(
        **{name: kernel[name] for name in ("start_ns", "end_ns", "is_timed", "device")},
        carrier=kernel["op"],
    )
    is_unshared = find_matching_rows(single, shared, *_LAUNCH_COLUMNS) < 0
    return Table.stacked([single.take(is_unshared), joined.select(*_CALL_COLUMNS)])


def _with_ends(members: Sequence[Member], calls: Table) -> Table:
    """Return the calls with order, source, and target (positions in ``members``)."""
    peers, is_send, caller = peers_of_rows(members, calls), calls["op"] == "send", calls["member"]
    return calls.assign(
        order=np.where(calls["call_ns"] >= 0, calls["call_ns"], calls["start_ns"]),
        source=np.where(is_send, caller, peers),
        target=np.where(is_send, peers, caller),
    )


def _join_pairs(members: Sequence[Member], ends: Table) -> Table:
    """Join sends and receives with equal ``pair`` into messages."""
    ranks = np.array([member.rank for member in members] + [ABSENT], np.int64)
    caller_rank, is_send = ranks[ends["member"]], ends["op"] == "send"
    peer = np.where(is_send, ends["target"], ends["source"])
    peer_rank = np.where(peer >= 0, ranks[peer], ends["peer_rank"])
    ends = ends.assign(
        source_rank=np.where(is_send, caller_rank, peer_rank),
        target_rank=np.where(is_send, peer_rank, caller_rank),
    )
    sends, receives = ends.take(is_send), ends.take(~is_send)
    receive_of_pair = np.full(ends["pair"].max(initial=ABSENT) + 2, -1)
    paired = np.flatnonzero(receives["pair"] >= 0)
    receive_of_pair[receives["pair"][paired]] = (
        paired  # the last element stands for sends without a receive
    )
    receive_of_send = receive_of_pair[sends["pair"]]
    received = {
        name: np.append(receives[name], ABSENT)[receive_of_send]
        for name in (*_TIME_COLUMNS, "n_bytes")
    }
    is_timed = np.append(receives["is_timed"], False)[receive_of_send]
    from_sends = sends.select(*_MESSAGE_COLUMNS).assign(
        **_times("send", sends),
        **{f"recv_{time}": np.where(is_timed, received[time], ABSENT) for time in _TIME_COLUMNS},
        n_bytes=np.where(sends["n_bytes"] >= 0, sends["n_bytes"], received["n_bytes"]),
        start_ns=np.maximum(sends["start_ns"], received["start_ns"]),
        is_matched=receive_of_send >= 0,
    )
    unpaired = receives.take(receives["pair"] < 0)
    from_receives = unpaired.select(*_MESSAGE_COLUMNS).assign(
        send_start_ns=ABSENT, send_end_ns=ABSENT, **_times("recv", unpaired), is_matched=False
    )
    table = Table.stacked([from_sends, from_receives])
    return table.assign(
        duration_ns=np.minimum(_durations(table, "send"), _durations(table, "recv"))
    )


def _durations(table: Table, end: str) -> npt.NDArray[Any]:
    """Return the duration of each send or recv (``end``) in ns; NaN if unknown."""
    ended = table[f"{end}_end_ns"]
    return where_known(ended - table[f"{end}_start_ns"], ended != ABSENT)


def _times(end: str, rows: Table) -> dict[str, Int64Array]:
    """Return the times of sends or receives (``end``) as columns; `ABSENT` if not timed."""
    return {
        f"{end}_{time}": np.where(rows["is_timed"], rows[time], ABSENT) for time in _TIME_COLUMNS
    }
