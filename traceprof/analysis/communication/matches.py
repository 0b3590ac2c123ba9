"""The same collective as every rank of it saw it.

Collectives are matched within one communicator (its name and size) and operation: by their
sequence number where every rank recorded one, else by their order, lined up where the ranks
began to record at different times. In a communicator of two, sends are matched with receives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.communication.members import Member, find_members, member_of_rows
from traceprof.analysis.communication.rates import with_sizes
from traceprof.analysis.communication.sequences import find_shift
from traceprof.analysis.communication.work import find_collectives
from traceprof.model.remembered import remembered
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["MATCHED_OPS", "Matches", "find_matches"]

MATCHED_OPS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send_recv",
)
_POINT_TO_POINT: Final = ("send", "recv")
_FROM: Final = "sent by "
_KEYS: Final = ["group", "group_size"]


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """The collectives that at least two ranks share.

    ``rows`` are the collectives of `find_collectives` with member (place in ``members``) and
    match, -1 where no other rank has the same. ``table`` has one row per match (its index):
    op, group, group_size, n_bytes, members (how many), first_start_ns, last_start_ns, end_ns (the
    earliest), spread_ns (from the earliest to the latest end), duration_ns (the shortest: without
    the waiting), waited_ns (of all ranks together), last_member, operation_bytes, bus_bytes.
    """

    members: tuple[Member, ...]
    rows: pd.DataFrame
    table: pd.DataFrame

    @property
    def is_shared(self) -> bool:
        """Whether there is any match at all."""
        return not self.table.empty

    @property
    def collectives(self) -> Matches:
        """The same without sends and receives: in those, ranks wait by design (a pipeline)."""
        table = self.table[self.table["op"] != "send"]
        rows = self.rows[~self.rows["op"].isin(_POINT_TO_POINT)].reset_index(drop=True)
        return Matches(self.members, rows, table)


@remembered
def find_matches(trace: Trace) -> Matches:
    """Return the collectives of the recording that ranks share, of those in the window.

    A match is in the window if its last rank starts in it.
    """
    whole = trace.whole
    members = find_members(whole)
    work = with_sizes(find_collectives(whole))
    work = work.assign(member=member_of_rows(members, work))
    rows = work.assign(match=_match(work))
    table = _summary(rows[rows["match"] >= 0])
    inside = table.index[trace.span.holds(table["last_start_ns"].to_numpy(np.int64))]
    alone = (rows["match"] < 0) & trace.span.holds(rows["start_ns"].to_numpy(np.int64))
    kept = rows[rows["match"].isin(inside) | alone].reset_index(drop=True)
    return Matches(members, kept, table.loc[inside])


def _match(work: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return a number for each row that equals that of the same collective on other ranks."""
    found = np.full(len(work), ABSENT, np.int64)
    usable = work[work["is_timed"] & (work["member"] >= 0)]
    usable = usable.assign(channel=_channels(usable))
    next_number = 0
    for _, rows in usable[usable["channel"] != ""].groupby([*_KEYS, "channel"], sort=False):
        if rows["member"].nunique() < 2:
            continue
        place = _places(rows)
        sizes = pd.Series(place).value_counts()
        limit = int(rows["group_size"].iloc[0])
        # More ranks than the communicator has: several communicators bear one name.
        shared = sizes.index[(sizes > 1) & ((sizes <= limit) | (limit < 1))]
        numbers = {int(old): next_number + new for new, old in enumerate(sorted(shared))}
        next_number += len(numbers)
        found[rows.index] = [numbers.get(int(old), ABSENT) for old in place]
    return found


def _channels(rows: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return what is matched with what: equal operations, or sends of one rank with receives.

    Which rank a send goes to is told only by a communicator of two. "" is never matched.
    """
    ops = rows["op"].to_numpy(object)
    channels = np.where(np.isin(ops, MATCHED_OPS), ops, "").astype(object)
    single = rows[np.isin(ops, _POINT_TO_POINT)]
    place = pd.Series(np.arange(len(rows)), rows.index)
    for _, own in single.groupby(_KEYS, sort=False):
        ends = sorted(own["member"].unique().tolist())
        if len(ends) != 2 or int(own["group_size"].iloc[0]) not in (2, ABSENT):
            continue
        sender = np.where(own["op"] == "send", own["member"], sum(ends) - own["member"])
        channels[place[own.index].to_numpy()] = [f"{_FROM}{number}" for number in sender]
    return channels


def _places(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return the place of each row in the sequence that the ranks share."""
    sequence = rows["sequence"].to_numpy(np.int64)
    is_numbered = (sequence >= 0).all() and not rows["channel"].iloc[0].startswith(_FROM)
    if is_numbered and not rows.duplicated(["member", "sequence"]).any():
        return sequence
    order = np.where(rows["call_ns"] >= 0, rows["call_ns"], rows["start_ns"])
    ordered = rows.assign(order=order, row=np.arange(len(rows))).sort_values(["member", "order"])
    place = np.zeros(len(rows), np.int64)
    by_member = [own for _, own in ordered.groupby("member", sort=False)]
    reference = max(by_member, key=len)
    for own in by_member:
        shift = 0 if own is reference else find_shift(_signature(reference), _signature(own))
        place[own["row"].to_numpy()] = np.arange(len(own)) + shift
    return np.asarray(place - place.min(initial=0), np.int64)


def _signature(
    rows: pd.DataFrame,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return rows["end_ns"].to_numpy(np.int64), rows["n_bytes"].to_numpy(np.int64)


def _summary(rows: pd.DataFrame) -> pd.DataFrame:
    # A receive is the other end of a send: the match is called after the latter.
    rows = rows.assign(op=rows["op"].replace("recv", "send"))
    rows = rows.assign(duration_ns=rows["end_ns"] - rows["start_ns"])
    table = rows.groupby("match").agg(
        op=("op", "first"),
        group=("group", "first"),
        group_size=("group_size", "first"),
        n_bytes=("n_bytes", "first"),
        members=("member", "size"),
        first_start_ns=("start_ns", "min"),
        last_start_ns=("start_ns", "max"),
        sum_start_ns=("start_ns", "sum"),
        end_ns=("end_ns", "min"),
        last_end_ns=("end_ns", "max"),
        duration_ns=("duration_ns", "min"),
        operation_bytes=("operation_bytes", "first"),
        bus_bytes=("bus_bytes", "first"),
    )
    last = rows.loc[rows.groupby("match")["start_ns"].idxmax(), ["match", "member"]]
    return table.assign(
        spread_ns=table["last_end_ns"] - table["end_ns"],
        waited_ns=table["last_start_ns"] * table["members"] - table["sum_start_ns"],
        last_member=last.set_index("match")["member"],
    ).drop(columns=["sum_start_ns", "last_end_ns"])
