"""Whole hosts and racks that the others wait for, told apart from single late ranks.

In a collective that several hosts share, a host is late as a whole by what most of its ranks come
after the median rank of the other hosts. What only its last rank is later is that rank's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.collectives.matches import Matches, find_matches
from traceprof.facts.collectives.members import Member
from traceprof.facts.ranks.ends import is_beyond_clocks, spread_of_ends_ns
from traceprof.facts.ranks.run_ups import find_run_ups, phases_of_run_ups
from traceprof.model.trace import Trace
from traceprof.units import format_duration, format_ratio

__all__ = [
    "GROUPINGS",
    "GroupLateness",
    "Grouping",
    "describe_lateness",
    "find_late_group",
    "find_late_whole",
    "find_unclear_group",
    "measure_lateness",
]

_Float64Array = npt.NDArray[np.float64]

_LEAST_COST_RATIO: Final = 0.01
_LEAST_SHARE_RATIO: Final = 0.5
_FEWEST_RANKS: Final = 2


@dataclass(frozen=True, slots=True)
class Grouping:
    """A way to put ranks together: what a group is called, and the group of a rank ("" unknown)."""

    name: str
    of_member: Callable[[Member], str]


GROUPINGS: Final = {
    "host": Grouping("host", lambda member: member.host),
    "rack": Grouping("rack", lambda member: member.rack),
}


@dataclass(frozen=True, slots=True)
class GroupLateness:
    """How late the ranks of a group come to the collectives that they share with others.

    ``held_up_ns`` adds up how long its last rank held up the median rank of the others where it
    came last of all, ``cost_ns`` what of that most of its ranks are late. ``late_ranks`` is how
    many of its ``ranks`` come as late as half of the former and 1 % of the window, in all, and
    ``late_members`` their places.
    ``phase`` is where its ranks take longer than the median of the others, by ``excess_ns`` each
    in all; ``since_ns`` when it first held the others up by half of its usual lateness, from the
    start of the trace; ``ends_ns`` how far apart the ends of the same collectives are, which
    shows how much the clocks differ. A straggler holds the others up as a whole, for 1 % of the
    window and half of the time for which anybody does, by more than the clocks differ.
    """

    name: str
    ranks: int
    late_ranks: int
    late_members: tuple[int, ...]
    is_straggler: bool
    held_up_ns: int
    cost_ns: int
    cost_ratio: float
    last_ratio: float
    phase: str
    excess_ns: int
    since_ns: int | None
    waited_ns: int
    ends_ns: int


@of_window
def measure_lateness(trace: Trace, grouping: Grouping) -> tuple[GroupLateness, ...]:
    """Return the lateness of each group, in the order of their first ranks.

    Nothing where there is but one group.
    """
    matches = find_matches(trace).collectives
    names = [grouping.of_member(member) for member in matches.members]
    groups = list(dict.fromkeys(filter(None, names)))
    if len(groups) < 2 or not matches.is_shared:
        return ()
    arrivals = _Arrivals(matches, np.array([groups.index(n) if n else -1 for n in names]))
    found = [_measure(trace, arrivals, i, name) for i, name in enumerate(groups)]
    whole = sum(one.held_up_ns for one, _ in found)
    return tuple(
        _judged(trace, arrivals, (i, one, held), whole) for i, (one, held) in enumerate(found)
    )


def find_late_whole(trace: Trace) -> tuple[Grouping, GroupLateness] | None:
    """Return the rack, else the host, that is late as a whole with more than one rank.

    A rack only where ranks of several hosts of it are late: else it is the host.
    """
    members = find_matches(trace).members
    for grouping in (GROUPINGS["rack"], GROUPINGS["host"]):
        late = find_late_group(measure_lateness(trace, grouping))
        if late is None or late.late_ranks < _FEWEST_RANKS:
            continue
        hosts = {members[place].host for place in late.late_members}
        if grouping.name == "host" or len(hosts) > 1:
            return grouping, late
    return None


def find_unclear_group(trace: Trace, grouping: Grouping) -> GroupLateness | None:
    """Return the group that would be the straggler if the clocks did not differ as much."""
    lateness = measure_lateness(trace, grouping)
    whole = sum(group.held_up_ns for group in lateness)
    return next(
        (
            group
            for group in lateness
            if _is_costly(group, whole) and not is_beyond_clocks(group.cost_ns, group.ends_ns)
        ),
        None,
    )


def find_late_group(lateness: tuple[GroupLateness, ...]) -> GroupLateness | None:
    """Return the straggler among the groups."""
    return next((group for group in lateness if group.is_straggler), None)


def describe_lateness(grouping: Grouping, group: GroupLateness) -> str:
    """Return a sentence about a straggler."""
    where = f", mostly in {group.phase}" if group.phase else ""
    since = "" if group.since_ns is None else f", since {format_duration(group.since_ns)}"
    return (
        f"{grouping.name} {group.name} is a straggler: {group.late_ranks} of its {group.ranks} "
        f"ranks come late, last to {format_ratio(group.last_ratio)} of the collectives that it "
        f"shares with others; that costs the others {format_duration(group.cost_ns)} "
        f"({format_ratio(group.cost_ratio)} of the window){where}{since}"
    )


class _Arrivals:
    """When each rank came to each collective that several groups share.

    ``come`` has a row per collective (``table``) and a column per member, in ns after the first
    of them; NaN where a member takes no part.
    """

    def __init__(self, matches: Matches, group_of: npt.NDArray[np.int64]) -> None:
        rows = matches.rows[matches.rows["match"] >= 0]
        rows = rows.drop_duplicates(["match", "member"])
        first = matches.table["first_start_ns"].reindex(rows["match"]).to_numpy(np.int64)
        after = pd.DataFrame(
            {
                "match": rows["match"].to_numpy(),
                "member": rows["member"].to_numpy(),
                "come": (rows["start_ns"].to_numpy(np.int64) - first).astype(np.float64),
            }
        )
        come = after.pivot(index="match", columns="member", values="come")
        come = come.reindex(index=matches.table.index, columns=range(len(matches.members)))
        known = come.notna().to_numpy()
        n_groups = int(group_of.max()) + 1
        here = [known[:, group_of == group].any(axis=1) for group in range(n_groups)]
        spans = np.sum(here, axis=0) > 1
        self.group_of = group_of
        self.table = matches.table[spans]
        self.come = come.to_numpy(np.float64)[spans]
        self.takes_part = np.stack(here)[:, spans]
        self.last_group = group_of[self.table["last_member"].to_numpy(np.int64)]


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """Where a group came last: the rows of the arrivals, and by how much it did."""

    rows: npt.NDArray[np.int64]
    as_a_whole: _Float64Array


def _measure(
    trace: Trace, arrivals: _Arrivals, place: int, name: str
) -> tuple[GroupLateness, _Held]:
    rows = np.flatnonzero(arrivals.last_group == place)
    own = arrivals.group_of == place
    come = arrivals.come[rows]
    mine, others = come[:, own], come[:, ~own]
    usual = np.nanmedian(others, axis=1) if len(rows) else np.zeros(0)
    last = np.clip(np.nanmax(mine, axis=1) - usual, 0, None) if len(rows) else usual
    # The lower median: of two ranks the one that comes first, so that both must be late.
    middle = np.nanquantile(mine, 0.5, axis=1, method="lower") if len(rows) else usual
    as_a_whole = np.clip(middle - usual, 0, None)
    held_up_ns = int(np.rint(last.sum()))
    per_rank = np.nansum(np.clip(mine - usual[:, None], 0, None), axis=0)
    least = max(_LEAST_SHARE_RATIO * held_up_ns, _LEAST_COST_RATIO * trace.span.duration_ns)
    late = np.flatnonzero(own)[(per_rank > 0) & (per_rank >= least)]
    cost_ns = int(np.rint(as_a_whole.sum()))
    n_part = int(arrivals.takes_part[place].sum())
    group = GroupLateness(
        name=name,
        ranks=int(own.sum()),
        late_ranks=len(late),
        late_members=tuple(late.tolist()),
        is_straggler=False,
        held_up_ns=held_up_ns,
        cost_ns=cost_ns,
        cost_ratio=cost_ns / (trace.span.duration_ns or 1),
        last_ratio=len(rows) / n_part if n_part else 0.0,
        phase="",
        excess_ns=0,
        since_ns=_since(trace, arrivals, rows, as_a_whole),
        ends_ns=spread_of_ends_ns(arrivals.table.iloc[rows[as_a_whole > 0]]),
        waited_ns=int(arrivals.table["waited_ns"].to_numpy(np.int64)[rows].sum()),
    )
    return group, _Held(rows, as_a_whole)


def _since(
    trace: Trace, arrivals: _Arrivals, rows: npt.NDArray[np.int64], late: _Float64Array
) -> int | None:
    """Return when the group first was late as a whole, by half of its usual lateness."""
    if not (late > 0).any():
        return None
    is_late = late >= np.median(late[late > 0]) / 2
    at = arrivals.table["last_start_ns"].to_numpy(np.int64)[rows[is_late]]
    return int(at.min()) - trace.whole.span.start_ns


def _judged(
    trace: Trace, arrivals: _Arrivals, found: tuple[int, GroupLateness, _Held], whole_ns: int
) -> GroupLateness:
    place, group, held = found
    is_straggler = (
        _is_costly(group, whole_ns)
        and len(held.rows) > 1
        and is_beyond_clocks(group.cost_ns, group.ends_ns)
    )
    if group.cost_ratio < _LEAST_COST_RATIO:
        return group
    known = find_run_ups(trace)
    in_question = known[known["match"].isin(arrivals.table.index[held.rows])]
    phase, excess_ns = _phase(in_question, arrivals.group_of == place)
    return replace(group, is_straggler=is_straggler, phase=phase, excess_ns=excess_ns)


def _is_costly(group: GroupLateness, whole_ns: int) -> bool:
    share_ns = _LEAST_SHARE_RATIO * whole_ns
    return group.cost_ratio >= _LEAST_COST_RATIO and group.cost_ns >= share_ns


def _phase(run_ups: pd.DataFrame, own: npt.NDArray[np.bool_]) -> tuple[str, int]:
    """Return where the ranks of a group take longer than the median of the others, by how much."""
    is_own = own[run_ups["member"].to_numpy(np.int64)]
    phases = phases_of_run_ups(run_ups)
    mine = run_ups[is_own].groupby("match")[phases].mean()
    usual = run_ups[~is_own].groupby("match")[phases].median()
    excess = (mine - usual).sum()
    if excess.empty or excess.max() <= 0:
        return "", 0
    return str(excess.idxmax()), int(np.rint(excess.max()))
