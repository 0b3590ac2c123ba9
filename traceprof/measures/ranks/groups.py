"""Whole hosts and racks that the others wait for, told apart from single late ranks.

In a collective that several hosts share, a host is late as a whole by what most of its ranks come
after the median rank of the other hosts. What only its last rank is later is that rank's own. A
host that passes on a delay of another is none: half of what everybody waits must go back to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.collectives.blame import Blame, find_blame
from traceprof.measures.collectives.clocks import (
    is_beyond_clocks,
    spread_of_ends_ns,
    why_no_common_clock,
)
from traceprof.measures.collectives.matches import Matches, find_matches
from traceprof.measures.collectives.members import Member
from traceprof.measures.collectives.waits import matches_in_step
from traceprof.measures.facts import of_window
from traceprof.measures.ranks.arrivals import find_arrivals, phases_of_arrivals
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import groups_of, rows_by_value
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, TableSpec
from traceprof.model.table import Table

_Float64Array = npt.NDArray[np.float64]

LEAST_COST_RATIO: Final = 0.01
"""The share of the window that whoever holds the others up costs them."""
LEAST_SHARE_RATIO: Final = 0.5
"""The share of what all wait that goes back to whoever is to blame."""
FEWEST_RANKS: Final = 2
"""Fewer ranks are no group: what is late is one rank."""

LATE_GROUPS: Final = TableSpec.of("""
    table late_groups: hosts, racks, and stages whose ranks are late as a group, and whether they
        are stragglers
    key kind: host, rack, or stage
    key group: name of the group
    same verdict: straggler; or clocks, if different clocks can explain the lateness
    same ranks [count]: number of ranks in the group
    same late_ranks [count]: number of these ranks that are late
    total cost_ns: time that most ranks of the group delay the median of the other ranks
    same cost_ratio: cost_ns as a share of the window
    total held_up_ns: time that the last rank of the group delays the median of the other ranks
    same last_ratio: share of the collectives in which the group arrives last
    same phase: phase in which the ranks of the group take longer than the other ranks
    total excess_ns: total extra time of each rank in this phase
    same since_ns [at_ns]: when the group was first late
    total waited_ns: time that all ranks waited in collectives in which the group arrived last
    total ends_ns: difference between the ends of these collectives
    """)
"""Those groups of `GroupLateness` that explain the lateness of ranks."""


class Grouping(StrEnum):
    """A way to put ranks together."""

    HOST = "host"
    RACK = "rack"

    def of_member(self, member: Member) -> str:
        """Return the group of a rank, "" where it is not known."""
        return member.host if self is Grouping.HOST else member.rack


@dataclass(frozen=True, slots=True)
class GroupLateness:
    """How late the ranks of a group come to the collectives that they share with others.

    ``kind`` is host, rack or stage. ``held_up_ns`` adds up how long its last rank held up the
    median rank of the others where it came last of all (``last_count`` times), ``cost_ns`` what of
    that most of its ranks are late. ``late_ranks`` is how many of its ``ranks`` come as late as
    half of the former and 1 % of the window, in all, and ``late_members`` their places.
    ``phase`` is where its ranks take longer than the median of the others, by ``excess_ns`` each
    in all; ``since_ns`` when it first held the others up by half of its usual lateness, from the
    start of the trace; ``ends_ns`` how far apart the ends of the same collectives are, which
    shows how much the clocks differ. A straggler holds the others up as a whole, for 1 % of the
    window and half of the time for which anybody does, by more than the clocks differ.
    """

    kind: str
    name: str
    ranks: int
    late_ranks: int
    late_members: tuple[int, ...]
    is_straggler: bool
    held_up_ns: int
    cost_ns: int
    cost_ratio: float
    since_ns: int | None
    waited_ns: int
    ends_ns: int = 0
    last_count: int = 0
    last_ratio: float = 0.0
    phase: str = ""
    excess_ns: int = 0


@of_window
def measure_lateness(ranks: Ranks, grouping: Grouping) -> tuple[GroupLateness, ...]:
    """Return the lateness of each group, in the order of their first ranks.

    Nothing where there is but one group, or no clock of all.
    """
    matches = matches_in_step(ranks)
    names = [grouping.of_member(member) for member in matches.members]
    groups = list(dict.fromkeys(filter(None, names)))
    if len(groups) < 2 or not matches.is_shared or why_no_common_clock(ranks):
        return ()
    arrivals = _GroupArrivals(matches, np.array([groups.index(n) if n else -1 for n in names]))
    found = [_measure_group(ranks, arrivals, i, grouping, name) for i, name in enumerate(groups)]
    costly = [i for i, group in enumerate(found) if group.cost_ratio >= LEAST_COST_RATIO]
    phases = _find_phases(find_arrivals(ranks), arrivals, costly) if costly else {}
    blame = find_blame(ranks)
    total_ns = sum(group.held_up_ns for group in found)
    evaluated = []
    for i, group in enumerate(found):
        phase, excess_ns = phases.get(i, ("", 0))
        is_late = (
            _is_cause(blame, arrivals.group_of == i)
            and _is_costly(group, total_ns)
            and group.last_count > 1
            and is_beyond_clocks(group.cost_ns, group.ends_ns)
        )
        evaluated.append(replace(group, is_straggler=is_late, phase=phase, excess_ns=excess_ns))
    return tuple(evaluated)


def _is_cause(blame: Blame, is_member: npt.NDArray[np.bool_]) -> bool:
    """Return whether waiting goes back to a group, and to most of its ranks alike."""
    excess = np.sort(blame.excess_ns[is_member])
    is_even = excess[(len(excess) - 1) // 2] >= LEAST_SHARE_RATIO * excess[-1]
    charged = blame.charged_ns
    return bool(
        is_even and int(charged[is_member].sum()) >= LEAST_SHARE_RATIO * int(charged.sum()) > 0
    )


def _is_costly(group: GroupLateness, whole_ns: int) -> bool:
    share_ns = LEAST_SHARE_RATIO * whole_ns
    return group.cost_ratio >= LEAST_COST_RATIO and group.cost_ns >= share_ns


def find_late_whole(ranks: Ranks) -> GroupLateness | None:
    """Return the rack, else the host, that is late as a whole with more than one rank.

    A rack only where ranks of several hosts of it are late: else it is the host.
    """
    members = find_matches(ranks).members
    for grouping in (Grouping.RACK, Grouping.HOST):
        late = find_late_group(measure_lateness(ranks, grouping))
        if late is None or late.late_ranks < FEWEST_RANKS:
            continue
        if grouping is Grouping.HOST or len({members[i].host for i in late.late_members}) > 1:
            return late
    return None


def find_late_group(lateness: Iterable[GroupLateness]) -> GroupLateness | None:
    """Return the straggler among the groups."""
    return next((group for group in lateness if group.is_straggler), None)


def find_unclear_group(lateness: Iterable[GroupLateness]) -> GroupLateness | None:
    """Return the group that would be the straggler if the clocks did not differ as much."""
    total_ns = sum(group.held_up_ns for group in lateness)
    costly = (group for group in lateness if _is_costly(group, total_ns))
    return next(
        (group for group in costly if not is_beyond_clocks(group.cost_ns, group.ends_ns)), None
    )


class _GroupArrivals:
    """When each rank came to each collective that several groups share.

    ``come`` has a row per collective (``table``) and a column per member, in ns after the first
    of them; NaN where a member takes no part.
    """

    def __init__(self, matches: Matches, group_of: Int64Array) -> None:
        rows = matches.shared
        place = matches.places(rows)
        after = (rows["start_ns"] - matches.per_row(rows, "first_start_ns")).astype(np.float64)
        arrival_ns = np.full((len(matches.table), len(matches.members)), np.nan)
        # The first row counts where a member has several: it is written last.
        arrival_ns[place[::-1], rows["member"][::-1]] = after[::-1]
        known = np.isfinite(arrival_ns)
        n_groups = int(group_of.max()) + 1
        takes_part = [known[:, group_of == group].any(axis=1) for group in range(n_groups)]
        is_shared = np.sum(takes_part, axis=0) > 1
        self.group_of = group_of
        self.table = matches.table.take(is_shared)
        self.arrival_ns = arrival_ns[is_shared]
        self.takes_part = np.stack(takes_part)[:, is_shared]
        self.last_group = group_of[self.table["last_member"]]


def _measure_group(
    ranks: Ranks, arrivals: _GroupArrivals, place: int, grouping: Grouping, name: str
) -> GroupLateness:
    """Return the lateness of a group, not judged yet."""
    rows = np.flatnonzero(arrivals.last_group == place)
    is_member = arrivals.group_of == place
    arrival_ns = arrivals.arrival_ns[rows]
    of_group, others = arrival_ns[:, is_member], arrival_ns[:, ~is_member]
    low, high = _medians(others)
    usual = (low + high) / 2
    last = np.clip(np.nanmax(of_group, axis=1) - usual, 0, None) if len(rows) else usual
    # The lower median: of two ranks the one that comes first, so that both must be late.
    late_ns = np.clip(_medians(of_group)[0] - usual, 0, None)
    # Side by side each of its ranks may meet those of others apart: their delays are one.
    weight = np.isfinite(of_group).sum(axis=1) / int(is_member.sum())
    held_up_ns = int(np.rint((last * weight).sum()))
    per_rank = np.nansum(np.clip(of_group - usual[:, None], 0, None), axis=0)
    threshold_ns = max(LEAST_SHARE_RATIO * held_up_ns, LEAST_COST_RATIO * ranks.span.duration_ns)
    late = np.flatnonzero(is_member)[(per_rank > 0) & (per_rank >= threshold_ns)]
    cost_ns = int(np.rint((late_ns * weight).sum()))
    n_part = int(arrivals.takes_part[place].sum())
    return GroupLateness(
        kind=grouping.value,
        name=name,
        ranks=int(is_member.sum()),
        late_ranks=len(late),
        late_members=tuple(late.tolist()),
        is_straggler=False,
        held_up_ns=held_up_ns,
        cost_ns=cost_ns,
        cost_ratio=cost_ns / (ranks.span.duration_ns or 1),
        last_count=len(rows),
        last_ratio=len(rows) / n_part if n_part else 0.0,
        since_ns=_since(ranks, arrivals, rows, late_ns),
        ends_ns=spread_of_ends_ns(arrivals.table.take(rows[late_ns > 0])),
        waited_ns=int(arrivals.table["waited_ns"][rows].sum()),
    )


def _since(
    ranks: Ranks, arrivals: _GroupArrivals, rows: Int64Array, late: _Float64Array
) -> int | None:
    """Return when the group first was late as a whole, by half of its usual lateness."""
    if not (late > 0).any():
        return None
    is_late = late >= np.median(late[late > 0]) / 2
    at = arrivals.table["last_start_ns"][rows[is_late]]
    return int(at.min()) - ranks.whole.span.start_ns


def _medians(values: _Float64Array) -> tuple[_Float64Array, _Float64Array]:
    """Return the lower and the upper median of each row; NaN does not count."""
    ordered = np.sort(values, axis=1)  # NaN comes last
    known = np.isfinite(values).sum(axis=1)
    rows = np.arange(len(ordered))
    return ordered[rows, (known - 1) // 2], ordered[rows, np.minimum(known // 2, known - 1)]


def _find_phases(
    arrivals: CompactTable, group_arrivals: _GroupArrivals, wanted: list[int]
) -> dict[int, tuple[str, int]]:
    """Return where the ranks of each group take longer than the others where it came last."""
    match = arrivals["match"]
    place = np.searchsorted(group_arrivals.table["match"], match)
    place[np.append(group_arrivals.table["match"], -1)[place] != match] = -1
    rows_of = rows_by_value(np.append(group_arrivals.last_group, -1)[place])
    of_rows = group_arrivals.group_of[arrivals["member"]]
    return {
        group: _find_phase(arrivals.take(rows_of[group]), of_rows[rows_of[group]] == group)
        for group in wanted
        if group in rows_of
    }


def _find_phase(arrivals: CompactTable, is_member: npt.NDArray[np.bool_]) -> tuple[str, int]:
    """Return where some ranks take longer than the median of the others, by how much each."""
    match = arrivals["match"]
    of_group, others = groups_of(match[is_member]), groups_of(match[~is_member])
    # Where both take part.
    _, group_places, other_places = np.intersect1d(
        of_group.values[0], others.values[0], return_indices=True
    )
    sums = {}
    for name in phases_of_arrivals(arrivals):
        spent = arrivals[name]
        usual = others.quantiles(spent[~is_member])[other_places]
        sums[name] = float((of_group.means(spent[is_member])[group_places] - usual).sum())
    most = max(sums, key=lambda name: sums[name], default="")
    return (most, int(np.rint(sums[most]))) if most and sums[most] > 0 else ("", 0)


def describe_lateness(group: GroupLateness) -> Note:
    """Return a note on a host or rack that is a straggler."""
    where = ". Main phase: {phase}" if group.phase else ""
    since = "" if group.since_ns is None else " since {since:ns}"
    text = (
        "{kind} {group} is a straggler: {late:count} of its {ranks:count} ranks are late. It "
        "arrives last in {last:ratio} of its collectives with other ranks. The other ranks wait "
        f"{{cost:ns}} for it ({{share:ratio}} of the window){since}{where}."
    )
    return Note.of(
        text,
        kind=group.kind,
        group=group.name,
        late=group.late_ranks,
        ranks=group.ranks,
        last=group.last_ratio,
        cost=group.cost_ns,
        share=group.cost_ratio,
        phase=group.phase,
        since=group.since_ns,
    )


def table_of_late(groups: Iterable[GroupLateness]) -> Table:
    """Return the table `LATE_GROUPS` of some groups."""
    verdicts = {True: "straggler", False: "clocks"}
    rows = [
        {**asdict(group), "group": group.name, "verdict": verdicts[group.is_straggler]}
        for group in groups
    ]
    return LATE_GROUPS.of_rows(rows)
