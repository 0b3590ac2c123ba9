"""The same collective as every rank of it saw it.

Collectives are matched within one communicator (its name and size) and operation: by their
sequence number where every rank recorded one, else by their order, lined up where the ranks
began to record at different times. Communicators without a name are told by launches and times
(`unnamed`), sends and receives by their ends (`point_to_point`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact, of_window
from traceprof.facts.collectives.members import Member, find_members, member_of_rows
from traceprof.facts.collectives.point_to_point import SINGLE_OPS, pair_messages
from traceprof.facts.collectives.rates import with_sizes
from traceprof.facts.collectives.sequences import LinedUp, line_up
from traceprof.facts.collectives.unnamed import launch_of_rows, tell_communicators
from traceprof.facts.collectives.work import collectives_of_ranks
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT

__all__ = ["MATCHED_OPS", "MatchedBy", "Matches", "find_matches"]

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
_KEYS: Final = ["group", "group_size"]
_LEAST_NUMBERED: Final = 0.5


class MatchedBy(StrEnum):
    """How it is known that rows are the same collective, the surest first."""

    NUMBER = "number"  # the ranks numbered it
    PEER = "peer"  # a send and the receive that took it
    LAUNCH = "launch"  # one call launched it on all
    ORDER = "order"  # its place in a communicator that has a name
    TIME = "time"  # what else runs at that time: its communicator has no name
    GUESS = "guess"  # another match would fit about as well


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """The collectives that at least two ranks share.

    ``rows`` are the collectives of `find_collectives` with member (place in ``members``) and
    match, -1 where no other rank has the same. ``table`` has one row per match (its index):
    op, group, group_size, n_bytes, members (how many), first_start_ns, last_start_ns, end_ns (the
    earliest), spread_ns (from the earliest to the latest end), duration_ns (the shortest: without
    the waiting), waited_ns (of all ranks together), last_member, operation_bytes, bus_bytes,
    imbalance (of an all-to-all with uneven parts: the most that a rank hands in over the mean,
    which n_bytes is then; else NaN), matched_by (how the match is known, of `MatchedBy`).
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
        rows = self.rows[~self.rows["op"].isin(SINGLE_OPS)].reset_index(drop=True)
        return Matches(self.members, rows, table)


@of_window
def find_matches(ranks: Ranks) -> Matches:
    """Return the collectives of the recording that ranks share, of those in the window.

    A match is in the window if its last rank starts in it.
    """
    found = _matches_of_whole(ranks)
    if ranks.uncut is None:
        return found
    rows, table = found.rows, found.table
    inside = table.index[ranks.span.holds(table["last_start_ns"].to_numpy(np.int64))]
    alone = (rows["match"] < 0) & ranks.span.holds(rows["start_ns"].to_numpy(np.int64))
    kept = rows[rows["match"].isin(inside) | alone].reset_index(drop=True)
    return Matches(found.members, kept, table.loc[inside])


@fact
def _matches_of_whole(ranks: Ranks) -> Matches:
    members = find_members(ranks)
    work = with_sizes(collectives_of_ranks(ranks))
    work = work.assign(member=member_of_rows(members, work))
    rows = work.assign(**_match(members, work))
    return Matches(members, rows, _summary(rows[rows["match"] >= 0]))


def _match(members: tuple[Member, ...], work: pd.DataFrame) -> dict[str, npt.NDArray[Any]]:
    """Return match, a number for each row that equals that of the other ranks, and matched_by."""
    numbers = _Numbers(len(work))
    usable = work[work["is_timed"] & (work["member"] >= 0)]
    is_single = usable["op"].isin(SINGLE_OPS)
    single, together = usable[is_single].assign(is_sole=True), usable[~is_single]
    numbers.take(single.index, pair_messages(members, single), MatchedBy.PEER)
    together = together[together["op"].isin(MATCHED_OPS)]
    is_named = (together["group"] != "") | (together["sequence"] >= 0)
    _match_named(together[is_named], numbers)
    _match_unnamed(together[~is_named], numbers)
    return {"match": numbers.match, "matched_by": numbers.matched_by}


class _Numbers:
    """Numbers given to matches, and how each is known."""

    def __init__(self, n_rows: int) -> None:
        self.match = np.full(n_rows, ABSENT, np.int64)
        self.matched_by = np.full(n_rows, "", object)
        self._next = 0

    def take(self, index: pd.Index, places: npt.NDArray[np.int64], matched_by: MatchedBy) -> None:
        """Number the rows at ``index`` whose places are equal and not negative."""
        rows = index.to_numpy()
        distinct, number = np.unique(places, return_inverse=True)
        known = places >= 0
        self.match[rows[known]] = self._next + number.ravel()[known]
        self.matched_by[rows[known]] = matched_by.value
        self._next += len(distinct)


def _match_named(together: pd.DataFrame, numbers: _Numbers) -> None:
    is_exchange = together["op"] == "send_recv"
    together = together.assign(exchange=together["exchange"].where(is_exchange, ""))
    for _, rows in together.groupby([*_KEYS, "op", "exchange"], sort=False):
        exchange = str(rows["exchange"].iloc[0])
        if rows["member"].nunique() < 2:
            continue
        place, matched_by = _places(rows)
        # More ranks than the communicator has: several communicators bear one name.
        limit = len(exchange.split(",")) if exchange else int(rows["group_size"].iloc[0])
        numbers.take(rows.index, _shared(place, limit), matched_by)


def _match_unnamed(together: pd.DataFrame, numbers: _Numbers) -> None:
    """Match kernels of which only their names and times are known."""
    for _, group in together.groupby("group_size", sort=False):
        communicator, certain = tell_communicators(group)
        launch = launch_of_rows(group)
        numbers.take(group.index, launch, MatchedBy.LAUNCH)
        rest = group.assign(communicator=communicator, certain=certain)[launch < 0]
        for _, rows in rest.groupby(["communicator", "op"], sort=False):
            if rows["member"].nunique() < 2:
                continue
            place, matched_by = _places(rows)
            place = _shared(place, int(rows["group_size"].iloc[0]))
            sure = matched_by is MatchedBy.ORDER and bool(rows["certain"].all())
            place = np.where(_runs_side_by_side(rows, place), place, ABSENT)
            numbers.take(rows.index, place, MatchedBy.TIME if sure else MatchedBy.GUESS)


def _shared(place: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.int64]:
    """Return the places that at least two rows have, and at most ``limit``; else `ABSENT`."""
    sizes = pd.Series(place).map(pd.Series(place).value_counts())
    shared = (sizes > 1) & ((sizes <= limit) | (limit < 1))
    return np.where(shared, place, ABSENT)


def _runs_side_by_side(rows: pd.DataFrame, place: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return whether each row runs at the time of the others at its place.

    Only rows of one process have one clock for certain.
    """
    if rows["process"].nunique() > 1:
        return np.ones(len(rows), np.bool_)
    groups = rows.assign(place=place).groupby("place")
    begun, ended = groups["start_ns"].transform("max"), groups["end_ns"].transform("min")
    return np.asarray(begun < ended, np.bool_)


def _places(rows: pd.DataFrame) -> tuple[npt.NDArray[np.int64], MatchedBy]:
    """Return the place of each row in the sequence that the ranks share, and what tells it."""
    sequence = rows["sequence"].to_numpy(np.int64)
    if _is_numbered(rows):
        return sequence, MatchedBy.NUMBER
    order = np.where(rows["call_ns"] >= 0, rows["call_ns"], rows["start_ns"])
    ordered = rows.assign(order=order, row=np.arange(len(rows))).sort_values(["member", "order"])
    place = np.zeros(len(rows), np.int64)
    by_member = [own for _, own in ordered.groupby("member", sort=False)]
    reference = max(by_member, key=len)
    one_clock = rows["process"].nunique() == 1
    is_clear = True
    for own in by_member:
        if own is reference:
            lined_up = LinedUp(0, is_clear=True)
        else:
            lined_up = line_up(_signature(reference), _signature(own), one_clock)
        is_clear &= lined_up.is_clear
        place[own["row"].to_numpy()] = np.arange(len(own)) + lined_up.shift
    place = np.asarray(place - place.min(initial=0), np.int64)
    return place, MatchedBy.ORDER if is_clear else MatchedBy.GUESS


def _is_numbered(rows: pd.DataFrame) -> bool:
    """Return whether the ranks number the same collectives alike."""
    if (rows["sequence"] < 0).any() or rows.duplicated(["member", "sequence"]).any():
        return False
    own = rows.groupby("member").size()
    everywhere = int((rows.groupby("sequence").size() == len(own)).sum())
    return everywhere >= _LEAST_NUMBERED * int(own.min())


def _signature(
    rows: pd.DataFrame,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return ends and sizes; of uneven parts no size, since ranks differ in it."""
    sizes = rows["n_bytes"].where(rows["op"] != "all_to_all_v", ABSENT)
    return rows["end_ns"].to_numpy(np.int64), sizes.to_numpy(np.int64)


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
        matched_by=("matched_by", "first"),
        least_bytes=("n_bytes", "min"),
        most_bytes=("n_bytes", "max"),
        mean_bytes=("n_bytes", "mean"),
    )
    table = _uneven(table)
    last = rows.loc[rows.groupby("match")["start_ns"].idxmax(), ["match", "member"]]
    return table.assign(
        spread_ns=table["last_end_ns"] - table["end_ns"],
        waited_ns=table["last_start_ns"] * table["members"] - table["sum_start_ns"],
        last_member=last.set_index("match")["member"],
    ).drop(columns=["sum_start_ns", "last_end_ns", "least_bytes", "most_bytes", "mean_bytes"])


def _uneven(table: pd.DataFrame) -> pd.DataFrame:
    """Return ``table`` with the mean for the size of all-to-alls with uneven parts.

    Their S is what a rank hands in on average, as in Mixture-of-Experts, where ranks differ.
    """
    is_uneven = (table["op"] == "all_to_all_v") & (table["least_bytes"] >= 0)
    mean = table["mean_bytes"].where(is_uneven & (table["mean_bytes"] > 0))
    return table.assign(
        n_bytes=table["n_bytes"].where(~is_uneven, table["mean_bytes"].round()).astype(np.int64),
        operation_bytes=table["operation_bytes"].where(~is_uneven, table["mean_bytes"]),
        imbalance=table["most_bytes"] / mean,
    )
