"""Find hosts and racks that are late as a whole, as opposed to single late ranks.

In a collective that several hosts share, the lateness of a host as a whole is how much later most
of its ranks arrive than the median rank of the other hosts. Additional lateness of its last rank
belongs to that rank only. A host that passes on the delay of another host is not a straggler: a
straggler must cause half of all waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

MIN_COST_RATIO: Final = 0.01
"""Minimum cost of a straggler, as a share of the window."""
MIN_SHARE_RATIO: Final = 0.5
"""Minimum share of all waiting that a straggler causes."""
MIN_LATE_RANKS: Final = 2
"""Minimum number of late ranks of a group; fewer late ranks are reported as single ranks."""

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
    total last_rank_delay_ns: time that the last rank of the group delays the median of the other
        ranks
    same last_ratio: share of the collectives in which the group arrives last
    same phase: phase in which the ranks of the group take longer than the other ranks
    total excess_ns: total extra time of each rank in this phase
    same late_from_ns [at_ns]: when the group was first late
    total waited_ns: time that all ranks waited in collectives in which the group arrived last
    total end_skew_ns: difference between the ends of these collectives
    """)
"""Groups (`GroupLateness`) that explain the lateness of ranks."""


class Grouping(StrEnum):
    """A way to group ranks."""

    HOST = "host"
    RACK = "rack"

    def of_member(self, member: Member) -> str:
        """Return the group of a rank; "" if unknown."""
        return member.host if self is Grouping.HOST else member.rack


@dataclass(frozen=True, slots=True)
class GroupLateness:
    """How late the ranks of a group arrive at the collectives that they share with other groups.

    ``kind``: host, rack, or stage.
    ``last_rank_delay_ns``: total time that the last rank of the group delayed the median rank of
        the others, in the ``last_count`` collectives in which it was the last of all ranks.
    ``cost_ns``: the part of it by which most ranks of the group are late.
    ``late_ranks``: number of its ``ranks`` that are late by at least half of last_rank_delay_ns
        and 1% of the window in total; ``late_members`` are their positions in `find_members`.
    ``phase``: phase in which its ranks take longer than the median of the others, by ``excess_ns``
        each in total.
    ``late_from_ns``: when it first delayed the others by half of its usual lateness, from the
        start of the trace.
    ``end_skew_ns``: total spread of the ends of these collectives, which shows how much the clocks
        differ.

    ``is_straggler``: the group delays the others as a whole, for at least 1% of the window and half
    of all such delays, by more than the clocks differ.
    """

    kind: str
    name: str
    ranks: int
    late_ranks: int
    late_members: tuple[int, ...]
    is_straggler: bool
    last_rank_delay_ns: int
    cost_ns: int
    cost_ratio: float
    late_from_ns: int | None
    waited_ns: int
    end_skew_ns: int = 0
    last_count: int = 0
    last_ratio: float = 0.0
    phase: str = ""
    excess_ns: int = 0


@of_window
def measure_lateness(ranks: Ranks, grouping: Grouping) -> tuple[GroupLateness, ...]:
    """Return the lateness of each group, in the order of its first rank.

    Empty with fewer than two groups, without shared collectives, or without a common clock.
    """
    matches = matches_in_step(ranks)
    names = [grouping.of_member(member) for member in matches.members]
    groups = list(dict.fromkeys(filter(None, names)))
    if len(groups) < 2 or not matches.is_shared or why_no_common_clock(ranks):
        return ()
    arrivals = _GroupArrivals(matches, np.array([groups.index(n) if n else -1 for n in names]))
    found = [_measure_group(ranks, arrivals, i, grouping, name) for i, name in enumerate(groups)]
    costly = [i for i, group in enumerate(found) if group.cost_ratio >= MIN_COST_RATIO]
    phases = _find_phases(find_arrivals(ranks), arrivals, costly) if costly else {}
    blame = find_blame(ranks)
    total_ns = sum(group.last_rank_delay_ns for group in found)
    evaluated = []
    for i, group in enumerate(found):
        phase, excess_ns = phases.get(i, ("", 0))
        is_late = (
            _is_cause(blame, arrivals.group_of == i)
            and _is_costly(group, total_ns)
            and group.last_count > 1
            and is_beyond_clocks(group.cost_ns, group.end_skew_ns)
        )
        evaluated.append(replace(group, is_straggler=is_late, phase=phase, excess_ns=excess_ns))
    return tuple(evaluated)


def _is_cause(blame: Blame, is_member: npt.NDArray[np.bool_]) -> bool:
    """Return whether a group causes half of all waiting, and its ranks have similar excess work."""
    excess = np.sort(blame.excess_ns[is_member])
    is_even = excess[(len(excess) - 1) // 2] >= MIN_SHARE_RATIO * excess[-1]
    charged = blame.attributed_ns
    return bool(
        is_even and int(charged[is_member].sum()) >= MIN_SHARE_RATIO * int(charged.sum()) > 0
    )


def _is_costly(group: GroupLateness, whole_ns: int) -> bool:
    """Return whether a group costs 1% of the window and half of ``whole_ns``.

    ``whole_ns`` is the time for which all groups hold up others.
    """
    is_costly = group.cost_ratio >= MIN_COST_RATIO
    return is_costly and group.cost_ns >= MIN_SHARE_RATIO * whole_ns


def find_late_host_or_rack(ranks: Ranks) -> GroupLateness | None:
    """Return the rack, otherwise the host, that is late as a whole with more than one late rank.

    A rack counts only if ranks of several of its hosts are late; otherwise the host is late.
    """
    members = find_matches(ranks).members
    for grouping in (Grouping.RACK, Grouping.HOST):
        late = find_late_group(measure_lateness(ranks, grouping))
        if late is None or late.late_ranks < MIN_LATE_RANKS:
            continue
        if grouping is Grouping.HOST or len({members[i].host for i in late.late_members}) > 1:
            return late
    return None


def find_late_group(lateness: Iterable[GroupLateness]) -> GroupLateness | None:
    """Return the straggler among the groups; None without one."""
    return next((group for group in lateness if group.is_straggler), None)


def find_unclear_group(lateness: Sequence[GroupLateness]) -> GroupLateness | None:
    """Return the group that would be the straggler if the clocks differed less."""
    total_ns = sum(group.last_rank_delay_ns for group in lateness)
    costly = (group for group in lateness if _is_costly(group, total_ns))
    return next(
        (group for group in costly if not is_beyond_clocks(group.cost_ns, group.end_skew_ns)), None
    )


class _GroupArrivals:
    """The arrival of each member at each collective that several groups share.

    ``table`` has one row per collective. ``arrival_ns`` has the shape (collectives, members), in ns
    after the first arrival; NaN if a member does not take part. ``takes_part`` has the shape
    (groups, collectives). ``last_group`` is the group of the last member of each collective.
    """

    def __init__(self, matches: Matches, group_of: Int64Array) -> None:
        rows = matches.shared
        place = matches.places(rows)
        after = (rows["start_ns"] - matches.per_row(rows, "first_start_ns")).astype(np.float64)
        arrival_ns = np.full((len(matches.table), len(matches.members)), np.nan)
        # If a member has several rows in a match, the first row counts: it is written last.
        arrival_ns[place[::-1], rows["member"][::-1]] = after[::-1]
        known = np.isfinite(arrival_ns)
        groups = range(int(group_of.max()) + 1)
        takes_part = [known[:, group_of == group].any(axis=1) for group in groups]
        is_shared = np.sum(takes_part, axis=0) > 1
        self.group_of = group_of
        self.table = matches.table.take(is_shared)
        self.arrival_ns = arrival_ns[is_shared]
        self.takes_part = np.stack(takes_part)[:, is_shared]
        self.last_group = group_of[self.table["last_member"]]


def _measure_group(
    ranks: Ranks, arrivals: _GroupArrivals, place: int, grouping: Grouping, name: str
) -> GroupLateness:
    """Return the lateness of a group, without a verdict yet."""
    rows = np.flatnonzero(arrivals.last_group == place)
    is_member = arrivals.group_of == place
    arrival_ns = arrivals.arrival_ns[rows]
    of_group, others = arrival_ns[:, is_member], arrival_ns[:, ~is_member]
    low, high = _medians(others)
    usual_ns = (low + high) / 2
    last_ns = np.clip(np.nanmax(of_group, axis=1) - usual_ns, 0, None) if len(rows) else usual_ns
    # The lower median: of two ranks the earlier one, so that both must be late.
    late_ns = np.clip(_medians(of_group)[0] - usual_ns, 0, None)
    # Each rank may share a separate collective with other groups. Concurrent delays count once.
    weight = np.isfinite(of_group).sum(axis=1) / int(is_member.sum())
    last_rank_delay_ns = int(np.rint((last_ns * weight).sum()))
    per_rank = np.nansum(np.clip(of_group - usual_ns[:, None], 0, None), axis=0)
    threshold_ns = max(
        MIN_SHARE_RATIO * last_rank_delay_ns, MIN_COST_RATIO * ranks.span.duration_ns
    )
    late = np.flatnonzero(is_member)[(per_rank > 0) & (per_rank >= threshold_ns)]
    cost_ns = int(np.rint((late_ns * weight).sum()))
    shared_count = int(arrivals.takes_part[place].sum())
    return GroupLateness(
        kind=grouping.value,
        name=name,
        ranks=int(is_member.sum()),
        late_ranks=len(late),
        late_members=tuple(late.tolist()),
        is_straggler=False,
        last_rank_delay_ns=last_rank_delay_ns,
        cost_ns=cost_ns,
        cost_ratio=cost_ns / (ranks.span.duration_ns or 1),
        last_count=len(rows),
        last_ratio=len(rows) / shared_count if shared_count else 0.0,
        late_from_ns=_since(ranks, arrivals, rows, late_ns),
        end_skew_ns=spread_of_ends_ns(arrivals.table.take(rows[late_ns > 0])),
        waited_ns=int(arrivals.table["waited_ns"][rows].sum()),
    )


def _since(
    ranks: Ranks, arrivals: _GroupArrivals, rows: Int64Array, late: _Float64Array
) -> int | None:
    """Return when the group was first late as a whole by half of its usual lateness, in ns."""
    if not (late > 0).any():
        return None
    is_late = late >= np.median(late[late > 0]) / 2
    first_ns = int(arrivals.table["last_start_ns"][rows[is_late]].min())
    return first_ns - ranks.whole.span.start_ns


def _medians(values: _Float64Array) -> tuple[_Float64Array, _Float64Array]:
    """Return the lower and the upper median of each row; NaN values do not count."""
    ordered = np.sort(values, axis=1)  # NaN comes last
    known = np.isfinite(values).sum(axis=1)
    rows = np.arange(len(ordered))
    return ordered[rows, (known - 1) // 2], ordered[rows, np.minimum(known // 2, known - 1)]


def _find_phases(
    arrivals: CompactTable, group_arrivals: _GroupArrivals, wanted: list[int]
) -> dict[int, tuple[str, int]]:
    """Return, by group, the phase in which it takes longer when it arrives last, and the ns."""
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
    """Return the phase with the largest excess of some ranks over the others, and the excess in ns.

    The excess is the mean of these ranks minus the median of the others, summed over matches.
    """
    match = arrivals["match"]
    of_group, others = groups_of(match[is_member]), groups_of(match[~is_member])
    # Matches in which both take part.
    _, group_places, other_places = np.intersect1d(
        of_group.values[0], others.values[0], return_indices=True
    )
    sums = {}
    for name in phases_of_arrivals(arrivals):
        spent = arrivals[name]
        usual = others.quantiles(spent[~is_member])[other_places]
        sums[name] = float((of_group.means(spent[is_member])[group_places] - usual).sum())
    longest = max(sums, key=lambda name: sums[name], default="")
    return (longest, int(np.rint(sums[longest]))) if longest and sums[longest] > 0 else ("", 0)


def describe_lateness(group: GroupLateness) -> Note:
    """Return a note on a host or rack that is a straggler."""
    where = ". Main phase: {phase}" if group.phase else ""
    since = "" if group.late_from_ns is None else " since {since:ns}"
    text = (
        "{kind} {group} is a straggler: {late:count} of its {ranks:count} ranks are late. It "
        "arrives last in {last:ratio} of its collectives with other ranks. It delays the median of "
        f"the other ranks by {{cost:ns}} ({{share:ratio}} of the window){since}{where}."
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
        since=group.late_from_ns,
    )


def table_of_late(groups: Iterable[GroupLateness]) -> Table:
    """Return the table `LATE_GROUPS` for some groups."""
    return LATE_GROUPS.of_rows(
        [
            {
                **asdict(group),
                "group": group.name,
                "verdict": "straggler" if group.is_straggler else "clocks",
            }
            for group in groups
        ]
    )
