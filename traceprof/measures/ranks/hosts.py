"""Compare the hosts and racks of a run: time, waiting, and which one delays the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import NotRecordedError
from traceprof.measures import shown_by
from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.blame import why_withheld
from traceprof.measures.collectives.clocks import describe_clocks
from traceprof.measures.collectives.matches import Matches, find_matches
from traceprof.measures.collectives.members import Member, list_members
from traceprof.measures.ranks.arrivals import USED_TABLES
from traceprof.measures.ranks.groups import (
    LATE_GROUPS,
    Grouping,
    GroupLateness,
    describe_lateness,
    find_late_group,
    find_unclear_group,
    measure_lateness,
    table_of_late,
)
from traceprof.measures.ranks.steps import find_rank_steps
from traceprof.measures.ranks.times import times_of_ranks
from traceprof.measures.rows import Array, are_first
from traceprof.measures.steps.base import base_of
from traceprof.model.grouping import grouped_by, groups_of
from traceprof.model.ranks import Ranks
from traceprof.model.results import (
    Column,
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    columns,
    key,
    total,
)
from traceprof.model.table import Names, Table, is_known
from traceprof.model.tables import ABSENT

_INSIDE, _ACROSS, _NOT_KNOWN = "inside", "across", "not known"
_MIN_NOTABLE_RATIO: Final = 0.01
_HOW_TO_SPECIFY: Final = {
    Grouping.HOST: "specify the host of each rank with --cluster FILE ([hosts]) or in a manifest, "
    "or record with `traceprof record`",
    Grouping.RACK: "specify the rack of each host with --rack r1=node[1-4], with --cluster FILE "
    "([racks]), or in a manifest; or record with `traceprof record` under Slurm with a configured "
    "topology",
}

_MEANS: Final = (
    "The step times and the skew are means per step. The times inside and across are totals of the "
    "window. The other times are totals of the window ({n:count} usual step(s)), averaged over the "
    "ranks."
)
_LATENESS_COLUMNS: Final = (
    "cost_ns",
    "cost_ratio",
    "late_ranks",
    "last_ratio",
    "excess_ns",
    "late_from_ns",
)
_MEAN_COLUMNS: Final = (
    "step_ns",
    "compute_ns",
    "exposed_communication_ns",
    "exposed_transfer_ns",
    "device_memory_ns",
    "idle_ns",
    "waited_ns",
)
_COLUMNS: Final[tuple[Column, ...]] = columns("""
    total ranks [count]: number of ranks
    same is_straggler: whether the group is late as a whole and the other ranks wait for it
    total cost_ns: time that most ranks of the group delayed the median of the other ranks
    derived cost_ratio: cost_ns as a share of the window
    total late_ranks [count]: number of ranks of the group that are late
    same phase: phase in which the ranks take longer than the median of the other ranks
    mean(ranks) step_without_waits_ns: step time without exposed waiting
    mean(ranks) waited_ns: time that a rank waited for the last rank in shared collectives
    mean(ranks) step_ns: step time
    mean(ranks) compute_ns: time with compute kernels, per rank
    mean(ranks) exposed_communication_ns: communication time not overlapped with compute
    mean(ranks) idle_ns: time without GPU activity, per rank
    same last_ratio: share of the collectives with other groups in which this group arrived last
    total excess_ns: total extra time of each rank in phase
    same late_from_ns [at_ns]: when the group first delayed the other ranks by half of its usual
        delay
    mean(ranks) skew_ns: step time on the slowest rank minus step time on the fastest rank
    mean(ranks) exposed_transfer_ns: copy time not overlapped with kernels
    mean(ranks) device_memory_ns: time with only copies inside the GPU
    total inside_count: number of collectives among ranks of this group only
    total inside_ns: duration of these collectives without waiting
    total across_count: number of collectives shared with other groups
    total across_ns: duration of these collectives without waiting
    """)
_SCOPES: Final = TableSpec.of("""
    table scopes: shared collectives, by the location of their ranks
    key scope: inside: all ranks are in one group; across: several groups; not known: some ranks
        have no trace
    total count: number of collectives
    total total_ns: total duration without waiting
    derived known_bandwidth_ratio: share of these collectives with known bandwidth
    derived busbw_bytes_per_s: bus bandwidth of these collectives
    """)


def _make_analysis(grouping: Grouping, outer: Grouping | None = None) -> Analysis:
    """Return the analysis of hosts or racks.

    ``outer`` is a grouping into larger groups. A group is not a straggler if its whole outer group
    is late.
    """
    kind = grouping.value
    table = TableSpec(
        f"{kind}s",
        f"one row per {kind}, sorted by the delay that it causes; times are means over its ranks",
        (key(kind, f"the {kind}"), *_COLUMNS),
    )
    unknown = total("unknown_count", Unit.COUNT, f"number of ranks with unknown {kind}")
    spec = ResultSpec((table, LATE_GROUPS, _SCOPES), (unknown,))
    return Analysis(
        f"{kind}s",
        spec,
        uses=USED_TABLES,
        of_steps=True,
        of_ranks=partial(_measure_groups, spec, grouping, outer),
    )


def _measure_groups(
    spec: ResultSpec, grouping: Grouping, outer: Grouping | None, ranks: Ranks
) -> Result:
    """Return where the time of the ranks of each group went in the window."""
    kind = grouping.value
    matches = find_matches(ranks)
    names = [grouping.of_member(member) for member in matches.members]
    if len(names) < 2:
        tables = {
            f"{kind}s": Table({}),
            "late_groups": table_of_late(()),
            "scopes": _SCOPES.of_rows(),
        }
        alone = Note("The trace contains only one rank, so there are no groups to compare.")
        return Result(f"{kind}s", spec, tables, {"unknown_count": 0}, (alone,))
    if not any(names):
        raise NotRecordedError(f"the {kind} of the ranks is unknown: {_HOW_TO_SPECIFY[grouping]}")
    lateness = measure_lateness(ranks, grouping)
    straggler, unclear = find_late_group(lateness), find_unclear_group(lateness)
    larger = _find_outer_straggler(ranks, outer, straggler)
    if larger is not None:
        straggler = None
        lateness = tuple(replace(group, is_straggler=False) for group in lateness)
    shown = np.array([name or _NOT_KNOWN for name in names], object)
    shared = _with_scopes(matches, shown)
    scopes = _summarize_scopes(shared)
    notes = [] if larger is None else [describe_lateness(larger)]
    if unclear is not None:
        notes.append(
            describe_clocks(f"{kind} {unclear.name}", unclear.cost_ns, unclear.end_skew_ns)
        )
    notes += [
        *_notes(kind, names, matches, lateness, why_withheld(ranks)),
        *_notes_on_scopes(kind, scopes),
    ]
    base = base_of(ranks)
    if len(base.lengths_ns):
        notes.append(Note.of(_MEANS, n=round(base.steps_count)))
    tables = {
        f"{kind}s": spec.tables[0].of_rows(_group_rows(ranks, kind, shown, lateness, shared)),
        "late_groups": table_of_late(group for group in (larger, straggler, unclear) if group),
        "scopes": scopes,
    }
    return Result(f"{kind}s", spec, tables, {"unknown_count": names.count("")}, tuple(notes))


def _find_outer_straggler(
    ranks: Ranks, outer: Grouping | None, straggler: GroupLateness | None
) -> GroupLateness | None:
    """Return the outer group that is late as a whole; None without one.

    It must contain all late ranks of the straggler and other late ranks.
    """
    if outer is None or straggler is None:
        return None
    larger = find_late_group(measure_lateness(ranks, outer))
    if larger is None or not set(larger.late_members) > set(straggler.late_members):
        return None
    return larger


def _group_rows(
    ranks: Ranks,
    kind: str,
    names: npt.NDArray[np.object_],
    lateness: tuple[GroupLateness, ...],
    shared: Table,
) -> list[dict[str, Any]]:
    """Return one row per group; groups that delay the others notably come first."""
    times, late = times_of_ranks(ranks), {group.name: group for group in lateness}
    steps, counts = _measure_steps(ranks, names), _counts_by_group(shared, names)
    rows: list[dict[str, Any]] = [
        {
            kind: name,
            "ranks": int((names == name).sum()),
            "is_straggler": name in late and late[name].is_straggler,
            "phase": late[name].phase if name in late else "",
            **{column: getattr(late.get(name), column, None) for column in _LATENESS_COLUMNS},
            **{part: _mean(times[part][names == name]) for part in _MEAN_COLUMNS},
            **steps.get(name, {}),
            **counts[name],
        }
        for name in dict.fromkeys(names.tolist())
    ]

    def order(row: Mapping[str, Any]) -> float:
        cost = row["cost_ratio"]
        return -cost if cost is not None and cost >= _MIN_NOTABLE_RATIO else 0.0

    return sorted(rows, key=order)


def _mean(values: Array) -> float | None:
    """Return the mean of the known values; None without any."""
    known = values[is_known(values)]
    return float(known.mean()) if len(known) else None


def _measure_steps(ranks: Ranks, names: npt.NDArray[np.object_]) -> dict[str, dict[str, float]]:
    """Return, by group, the mean step without waits, and the mean difference between its ranks."""
    members = zip(find_matches(ranks).members, names, strict=True)
    group_of = {member.process: name for member, name in members}
    table = find_rank_steps(ranks).table
    table = table.take(np.isin(table["process"], list(group_of)))
    group = Names.of(group_of[process] for process in table["process"].tolist())
    found, of_group = grouped_by(table.assign(group=group), "group")
    name = "step_without_waits_ns"
    means = {name: of_group.means(table[name]).tolist()}
    per_step = groups_of(of_group.packed, table["step"])
    longest, shortest = (
        per_step.reduced(how, table["duration_ns"]) for how in (np.maximum, np.minimum)
    )
    owner = groups_of(of_group.packed[per_step.first_rows])
    means["skew_ns"] = owner.means(longest - shortest).tolist()
    rows = Table(means, len(found)).rows()
    return dict(zip(found["group"].tolist(), rows, strict=True))


def _notes(
    kind: str, names: list[str], matches: Matches, lateness: tuple[GroupLateness, ...], why_not: str
) -> Iterator[Note]:
    straggler = find_late_group(lateness)
    if straggler is not None:
        yield describe_lateness(straggler)
    elif lateness:
        yield from _notes_on_single_ranks(matches.members, lateness)
    elif why_not:
        yield Note.of("Rank wait times are not reported: {why}", why=why_not)
    elif len(set(names)) == 1:
        yield Note(f"All ranks share one {kind}, so there is no other {kind} to compare with.")
    elif not matches.is_shared:
        yield Note("Rank wait times are unknown: no collective was recorded on several ranks.")
    unknown = [member for member, name in zip(matches.members, names, strict=True) if not name]
    if unknown:
        yield Note.of(f"The {kind} of {{ranks}} is unknown.", ranks=list_members(unknown))


def _notes_on_single_ranks(
    members: tuple[Member, ...], lateness: tuple[GroupLateness, ...]
) -> Iterator[Note]:
    """Yield a note for each group that arrives last only because of some of its ranks."""
    whole = sum(group.last_rank_delay_ns for group in lateness)
    for group in lateness:
        if whole and group.last_rank_delay_ns >= whole / 2 and 0 < group.late_ranks < group.ranks:
            yield Note.of(
                f"{group.kind} {{group}} arrives last because of {{ranks}} ({{held_up:ns}}), not "
                f"because the whole {group.kind} is late. Run `{shown_by('stragglers')} TRACE`.",
                group=group.name,
                ranks=list_members([members[place] for place in group.late_members]),
                held_up=group.last_rank_delay_ns,
            )


def _with_scopes(matches: Matches, names: npt.NDArray[np.object_]) -> Table:
    """Return one row per shared collective and participating group.

    ``names`` are the groups of the ranks. Columns: match, group, duration_ns, bus_bytes, and scope.
    The scope is inside (all ranks are in one group), across (several groups), or not known (one
    known group, and ranks without a trace).
    """
    rows, table, groups = matches.shared, matches.table, Names.of(names)
    pairs = groups_of(rows["match"], groups.packed[rows["member"]])
    distinct = rows.take(pairs.first_rows)
    place = matches.places(distinct)
    is_across = np.bincount(place, minlength=len(table)) > 1
    size = table["group_size"]
    is_whole = (size == ABSENT) | (table["members"] >= size)
    scope = np.where(is_across, 0, np.where(is_whole, 1, 2))
    return (
        table.select("duration_ns", "bus_bytes")
        .take(place)
        .assign(
            match=distinct["match"],
            group=groups[distinct["member"]],
            scope=Names(scope[place], (_ACROSS, _INSIDE, _NOT_KNOWN)),
        )
    )


def _counts_by_group(shared: Table, names: npt.NDArray[np.object_]) -> dict[str, dict[str, int]]:
    """Return, by group, the number and time of collectives inside the group and across groups."""
    columns = ("inside_count", "inside_ns", "across_count", "across_ns")
    found = {str(name): dict.fromkeys(columns, 0) for name in names}
    table, groups = grouped_by(shared, "group", "scope")
    sums = table.assign(n=groups.counts, ns=groups.reduced(np.add, shared["duration_ns"]))
    for row in sums.rows():
        if (scope := row["scope"]) != _NOT_KNOWN:
            found[row["group"]] |= {f"{scope}_count": row["n"], f"{scope}_ns": int(row["ns"])}
    return found


def _summarize_scopes(shared: Table) -> Table:
    """Return the table `_SCOPES` for the result of `_with_scopes`."""
    collectives = shared.take(are_first(shared["match"]))
    is_sized = is_known(collectives["bus_bytes"]) & (collectives["duration_ns"] > 0)
    rows: list[dict[str, Any]] = []
    for scope in (_INSIDE, _ACROSS, _NOT_KNOWN):
        is_in_scope = collectives["scope"] == scope
        chosen, sized = collectives.take(is_in_scope), collectives.take(is_in_scope & is_sized)
        if chosen.empty:
            continue
        seconds = int(sized["duration_ns"].sum()) / 1e9
        rows.append(
            {
                "scope": scope,
                "count": len(chosen),
                "total_ns": int(chosen["duration_ns"].sum()),
                "known_bandwidth_ratio": len(sized) / len(chosen),
                "busbw_bytes_per_s": sized["bus_bytes"].sum() / seconds if seconds else None,
            }
        )
    return _SCOPES.of_rows(rows)


def _notes_on_scopes(kind: str, scopes: Table) -> Iterator[Note]:
    """Yield notes on the number of collectives in each scope, and their bandwidth if known."""
    words = {_INSIDE: f"Within a {kind}", _ACROSS: f"Across {kind}s"}
    for row in scopes.rows():
        if row["scope"] not in words:
            text = f"{{n:count}} collectives have ranks without a trace, whose {kind} is unknown."
            yield Note.of(text, n=row["count"])
            continue
        values = {"n": row["count"], "time": row["total_ns"]}
        text = f"{words[row['scope']]}: {{n:count}} collectives, {{time:ns}} without waiting"
        if row["known_bandwidth_ratio"]:
            text += ", bus bandwidth {rate:bytes/s}"
            values["rate"] = row["busbw_bytes_per_s"]
            if row["known_bandwidth_ratio"] < 1:
                text += " (known for {share:ratio} of them)"
                values["share"] = row["known_bandwidth_ratio"]
        yield Note.of(text, **values)


HOSTS: Final = _make_analysis(Grouping.HOST, outer=Grouping.RACK)
RACKS: Final = _make_analysis(Grouping.RACK)
