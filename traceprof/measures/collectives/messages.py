"""Messages from one rank to another: each send with the receive that took it.

Whom a send goes to is told by its peer: as a rank of the job, or as a number in the group, where
the group tells its numbers; a communicator of two needs neither, unless several calls share a
kernel: an all-to-all sends to itself, too. Between the same two ranks, in
one group and with one tag, the k-th send is the k-th receive: NCCL, gloo and MPI keep that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.collectives.communicators import line_up, overlap_of
from traceprof.measures.collectives.members import Member, find_members, member_of_rows
from traceprof.measures.collectives.operations import (
    SINGLE_OPS,
    collectives_of_ranks,
    find_collectives,
)
from traceprof.measures.facts import fact, of_window
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

_TIMES: Final = ("start_ns", "end_ns")
_LANE: Final = ["group", "group_size", "source", "target", "tag"]


@of_window
def find_messages(ranks: Ranks) -> pd.DataFrame:
    """Return the messages of the recording whose send or receive starts in the window.

    One row per send with its receive, per send alone and per receive alone. Columns: source and
    target (places in `find_members`, `ABSENT` for a rank that is not in the trace or not known),
    source_rank and target_rank (ranks of the job, `ABSENT` where not known), group, group_size,
    tag, backend, carrier (what its kernel carries out as a whole: send, recv, send_recv,
    all_to_all …), device (of the sender, else of the receiver), n_bytes, send_start_ns,
    send_end_ns, recv_start_ns, recv_end_ns (`ABSENT` where that end is not in the trace or not
    timed), duration_ns (the shorter of the two, without the waiting; NaN where not both are
    known), start_ns (of the end that started last), is_matched.
    """
    found = _messages_of_whole(ranks)
    if ranks.uncut is None:
        return found
    inside = ranks.span.holds(found["start_ns"].to_numpy(np.int64))
    return found[inside].reset_index(drop=True)


@fact
def _messages_of_whole(ranks: Ranks) -> pd.DataFrame:
    members = find_members(ranks)
    parts = ranks.each(_timed_calls)
    filled = [part for part in parts if len(part)] or parts[:1]
    calls = pd.concat(filled, ignore_index=True) if len(filled) > 1 else filled[0]
    ends = _ends(members, calls.assign(member=member_of_rows(members, calls)))
    messages = _side_by_side(members, ends.assign(pair=_paired(ends)))
    return messages.sort_values("start_ns", kind="stable", ignore_index=True)


def pair_messages(members: Sequence[Member], calls: pd.DataFrame) -> Int64Array:
    """Return a number for each send and receive that its other end has, too; `ABSENT`: alone.

    ``calls`` are as `peers_of_rows` takes them.
    """
    return _paired(_ends(members, calls))


def _paired(ends: pd.DataFrame) -> Int64Array:
    found = np.full(len(ends), ABSENT, np.int64)
    usable = ends[(ends["source"] >= 0) & (ends["target"] >= 0)]
    next_number = 0
    for _, lane in usable.groupby(_LANE, sort=False):
        sends, receives = (lane[lane["op"] == op] for op in SINGLE_OPS)
        if sends.empty or receives.empty:
            continue
        sends, receives = (own.sort_values(["order", "place"]) for own in (sends, receives))
        shift = 0
        if len(sends) != len(receives):
            shift = line_up(_signature(sends), _signature(receives)).shift
        there, here = overlap_of(len(sends), len(receives), shift)
        sent, taken = sends["place"].to_numpy()[there], receives["place"].to_numpy()[here]
        found[sent] = found[taken] = next_number + np.arange(len(sent))
        next_number += len(sent)
    return found


def peers_of_rows(members: Sequence[Member], rows: pd.DataFrame) -> Int64Array:
    """Return the place in ``members`` of the peer of each row; `ABSENT` where it is not known.

    ``rows`` are all of the recording, with the columns of `find_collectives`, member, and is_sole
    (no other send or receive shares its kernel).
    """
    by_rank = {member.rank: i for i, member in enumerate(members) if member.rank != ABSENT}
    found = rows["peer_rank"].map(by_rank).fillna(ABSENT).to_numpy(np.int64, copy=True)
    placed = rows.assign(place=np.arange(len(rows)))
    for _, own in placed.groupby(["group", "group_size"]):
        size = int(own["group_size"].iloc[0])
        present = own.loc[own["member"] >= 0, "member"].unique().tolist()
        known = own.loc[(own["group_rank"] >= 0) & (own["member"] >= 0), ["group_rank", "member"]]
        pairs = known.drop_duplicates("group_rank", keep="last").itertuples(index=False, name=None)
        numbers = dict(pairs)
        if len(by_rank) and size == _world_size(members, by_rank):
            numbers = {**by_rank, **numbers}
        place = own["place"].to_numpy()
        told = own["peer"].map(numbers).fillna(ABSENT).to_numpy(np.int64)
        if len(present) == 2 and size in (2, ABSENT):
            other = sum(present) - own["member"]
            is_open = (own["member"] >= 0) & (own["peer_rank"] < 0) & own["is_sole"]
            told = np.where((told < 0) & is_open, other, told)
        found[place] = np.where(found[place] >= 0, found[place], told)
    return np.asarray(found, np.int64)


@fact
def peers_of_collectives(ranks: Ranks) -> Int64Array:
    """Return the place in `find_members` of the peer of each collective of the whole recording.

    In the order of `collectives_of_ranks`; `ABSENT` where there is none or it is not known.
    """
    members, work = find_members(ranks), collectives_of_ranks(ranks)
    rows = work[["group", "group_size", "group_rank", "peer", "peer_rank", "process", "device"]]
    return peers_of_rows(members, rows.assign(member=member_of_rows(members, rows), is_sole=True))


def _world_size(members: Sequence[Member], by_rank: dict[int, int]) -> int:
    """Return the number of ranks if all are there, else 0."""
    return len(members) if sorted(by_rank) == list(range(len(members))) else 0


def _timed_calls(trace: Trace) -> pd.DataFrame:
    """Return the single sends and receives of a whole trace, in the columns of `find_collectives`.

    Those that share a kernel have its time, each.
    """
    work = find_collectives(trace)
    alone = work[work["op"].isin(SINGLE_OPS)]
    # A call whose kernel is missing may have shared it.
    alone = alone.assign(is_sole=alone["is_timed"], carrier=alone["op"])
    calls = trace.collectives.to_frame()
    calls = calls[calls["op"].isin(SINGLE_OPS) & (calls["correlation"] != ABSENT)]
    shared = calls[calls.duplicated(["process", "correlation"], keep=False)]
    if shared.empty:
        return alone.reset_index(drop=True)
    kernels = work.loc[
        work["correlation"] != ABSENT,
        ["process", "correlation", "start_ns", "end_ns", "is_timed", "device", "stream", "op"],
    ].drop_duplicates(["process", "correlation"])
    kernels = kernels.rename(columns={"op": "carrier"})
    of_kernel = shared.groupby(["process", "correlation", "op"], observed=True)["start_ns"]
    shared = shared.assign(is_sole=of_kernel.transform("size") == 1)
    plain = shared.astype(dict.fromkeys(("op", "dtype", "group", "backend"), object))
    plain = plain.rename(columns={"start_ns": "call_ns", "end_ns": "call_end_ns"})
    joined = plain.merge(kernels, on=["process", "correlation"])
    keys = shared["process"].astype(str) + ":" + shared["correlation"].astype(str)
    merged = alone["process"].astype(str) + ":" + alone["correlation"].astype(str)
    return pd.concat([alone[~merged.isin(set(keys))], joined], ignore_index=True)


def _ends(members: Sequence[Member], calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls with place, order, and source and target as places in ``members``."""
    peers = peers_of_rows(members, calls)
    is_send = (calls["op"] == "send").to_numpy()
    own = calls["member"].to_numpy(np.int64)
    return calls.assign(
        place=np.arange(len(calls)),
        order=np.where(calls["call_ns"] >= 0, calls["call_ns"], calls["start_ns"]),
        source=np.where(is_send, own, peers),
        target=np.where(is_send, peers, own),
    )


def _signature(rows: pd.DataFrame) -> tuple[Int64Array, Int64Array]:
    return rows["end_ns"].to_numpy(np.int64), rows["n_bytes"].to_numpy(np.int64)


def _side_by_side(members: Sequence[Member], ends: pd.DataFrame) -> pd.DataFrame:
    """Return the messages of which ``ends`` are the sends and receives, with pair."""
    ranks = np.array([member.rank for member in members] + [ABSENT], np.int64)
    own_rank = ranks[ends["member"].to_numpy(np.int64)]
    is_send = (ends["op"] == "send").to_numpy()
    peer = np.where(is_send, ends["target"], ends["source"])
    peer_rank = np.where(peer >= 0, ranks[peer], ends["peer_rank"])
    ends = ends.assign(
        source_rank=np.where(is_send, own_rank, peer_rank),
        target_rank=np.where(is_send, peer_rank, own_rank),
    )
    sends, receives = ends[is_send], ends[~is_send]
    taken = receives.loc[receives["pair"] >= 0].set_index("pair")
    taken = taken.reindex(sends["pair"]).set_axis(sends.index)
    is_matched = taken["start_ns"].notna()
    timed = taken["is_timed"].fillna(value=False).astype(np.bool_)
    received = {
        f"recv_{time}": taken[time].where(timed).fillna(ABSENT).astype(np.int64) for time in _TIMES
    }
    kept = ["source", "target", "source_rank", "target_rank", "group", "group_size", "tag"]
    kept = [*kept, "backend", "carrier", "device", "n_bytes", "start_ns"]
    size = sends["n_bytes"].where(sends["n_bytes"] >= 0, taken["n_bytes"].fillna(ABSENT))
    from_sends = sends[kept].assign(
        **_times("send", sends),
        **received,
        n_bytes=size.astype(np.int64),
        start_ns=np.maximum(sends["start_ns"], taken["start_ns"].fillna(ABSENT)).astype(np.int64),
        is_matched=is_matched,
    )
    alone = receives[receives["pair"] < 0]
    from_receives = alone[kept].assign(
        send_start_ns=ABSENT, send_end_ns=ABSENT, **_times("recv", alone), is_matched=False
    )
    table = pd.concat([from_sends, from_receives], ignore_index=True)
    durations = pd.DataFrame({end: _durations(table, end) for end in ("send", "recv")})
    return table.assign(
        is_matched=table["is_matched"].astype(np.bool_),
        duration_ns=durations.min(axis=1, skipna=False),
    )


def _durations(table: pd.DataFrame, end: str) -> pd.Series:
    ended = table[f"{end}_end_ns"]
    return (ended - table[f"{end}_start_ns"]).where(ended != ABSENT)


def _times(end: str, rows: pd.DataFrame) -> dict[str, pd.Series]:
    return {f"{end}_{time}": rows[time].where(rows["is_timed"], ABSENT) for time in _TIMES}
