"""The hosts and racks of a run side by side: time, waiting, and which the others wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.errors import NotRecordedError
from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.clocks import describe_clocks
from traceprof.measures.collectives.matches import Matches, find_matches
from traceprof.measures.collectives.members import Member
from traceprof.measures.facts import of_window
from traceprof.measures.ranks.groups import (
    LATE_GROUPS,
    Grouping,
    GroupLateness,
    describe_lateness,
    find_late_group,
    find_unclear_group,
    frame_of_late,
    measure_lateness,
)
from traceprof.measures.ranks.steps import find_rank_steps
from traceprof.measures.ranks.times import times_of_ranks
from traceprof.model.ranks import Ranks
from traceprof.model.results import (
    Column,
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    mean,
    same,
    total,
)
from traceprof.model.tables import ABSENT

_INSIDE: Final = "inside"
_ACROSS: Final = "across"

SCOPES: Final = TableSpec(
    "scopes",
    "the shared collectives by where their ranks are",
    (
        key("scope", "inside: all ranks are of one group; across; not known: some have no trace"),
        total("count", Unit.COUNT, "how many"),
        total("total_ns", Unit.NS, "their time without waiting, added up"),
        derived("sized_ratio", Unit.RATIO, "the share of them of which the bandwidth is known"),
        derived("busbw_bytes_per_s", Unit.BYTES_PER_S, "the busbw of those together"),
    ),
)


def with_scopes(matches: Matches, names: npt.NDArray[np.object_]) -> pd.DataFrame:
    """Return each shared collective once for each group that has a part in it; ``names`` of ranks.

    Columns: match, group, duration_ns, bus_bytes, scope: inside (all its ranks are of one group),
    across, or not known where it has ranks without a trace and the others are of one group.
    """
    rows = matches.shared
    table = matches.table
    codes, kinds = pd.factorize(names)
    match, code = rows.array("match"), codes[rows.array("member")]
    is_new = ~pd.Series(match * len(kinds) + code).duplicated().to_numpy()
    own = pd.DataFrame({"match": match[is_new], "group": kinds[code[is_new]]})
    several = own.groupby("match").size().reindex(table.index, fill_value=0).to_numpy() > 1
    size = table["group_size"].to_numpy(np.int64)
    is_whole = (size == ABSENT) | (table["members"].to_numpy(np.int64) >= size)
    scope = np.where(several, _ACROSS, np.where(is_whole, _INSIDE, _NOT_KNOWN))
    scoped = table[["duration_ns", "bus_bytes"]].assign(scope=scope)
    return own.merge(scoped, left_on="match", right_index=True)


def scopes_by_group(shared: pd.DataFrame, groups: list[str]) -> dict[str, dict[str, int]]:
    """Return, by group, how many collectives are inside it and across, and their time."""
    nothing = {"inside_count": 0, "inside_ns": 0, "across_count": 0, "across_ns": 0}
    found = {group: dict(nothing) for group in groups}
    sums = shared.groupby(["group", "scope"])["duration_ns"].agg(["size", "sum"])
    for (group, scope), count, time in sums.itertuples():
        if scope != _NOT_KNOWN:
            found[group] |= {f"{scope}_count": int(count), f"{scope}_ns": int(time)}
    return found


def scopes_of_run(shared: pd.DataFrame) -> pd.DataFrame:
    """Return the table `SCOPES` of collectives as `with_scopes` returns them."""
    each = shared.drop_duplicates("match")
    is_sized = each["bus_bytes"].notna() & (each["duration_ns"] > 0)
    rows: list[dict[str, Any]] = []
    for scope in (_INSIDE, _ACROSS, _NOT_KNOWN):
        own, sized = each[each["scope"] == scope], each[is_sized & (each["scope"] == scope)]
        if own.empty:
            continue
        seconds = int(sized["duration_ns"].sum()) / 1e9
        rows.append(
            {
                "scope": scope,
                "count": len(own),
                "total_ns": int(own["duration_ns"].sum()),
                "sized_ratio": len(sized) / len(own),
                "busbw_bytes_per_s": sized["bus_bytes"].sum() / seconds if seconds else None,
            }
        )
    return SCOPES.frame(rows)


def describe_scopes(grouping: Grouping, scopes: pd.DataFrame) -> list[Note]:
    """Return how many collectives there are in each scope, and their bandwidth where known."""
    words = {_INSIDE: f"inside a {grouping.value}", _ACROSS: f"across {grouping.value}s"}
    notes = []
    for row in scopes.to_dict("records"):
        if row["scope"] not in words:
            text = "{n:count} have ranks without a trace: where these ran is not known"
            notes.append(Note.of(text, n=row["count"]))
            continue
        values = {"n": row["count"], "time": row["total_ns"]}
        text = f"{words[row['scope']]}: {{n:count}} collectives, {{time:ns}} without waiting"
        if row["sized_ratio"]:
            text += ", busbw {rate:bytes/s}"
            values["rate"] = row["busbw_bytes_per_s"]
            if row["sized_ratio"] < 1:
                text += " ({share:ratio})"
                values["share"] = row["sized_ratio"]
        notes.append(Note.of(text, **values))
    return notes


_MEANS: Final = (
    "compute_ns",
    "exposed_communication_ns",
    "exposed_transfer_ns",
    "device_memory_ns",
    "idle_ns",
    "waited_ns",
)
_NOT_KNOWN: Final = "not known"
_NOTABLE_RATIO: Final = 0.01
_MOST_NAMED: Final = 4


GROUP_COLUMNS: Final[tuple[Column, ...]] = (
    total("ranks", Unit.COUNT, "its ranks"),
    same("is_straggler", Unit.FLAG, "whether it is late as a whole, and the others wait for it"),
    total("cost_ns", Unit.NS, "how long most of its ranks held up the median rank of the others"),
    derived("cost_ratio", Unit.RATIO, "that, of the window"),
    total("late_ranks", Unit.COUNT, "how many of its ranks come late"),
    same("phase", Unit.TEXT, "where its ranks take longer than the median of the others"),
    mean("own_ns", Unit.NS, "a step without exposed waiting", "ranks"),
    mean("waited_ns", Unit.NS, "what a rank waited in shared collectives for the last", "ranks"),
    mean("step_ns", Unit.NS, "a step", "ranks"),
    mean("compute_ns", Unit.NS, "when compute kernels ran, of a rank", "ranks"),
    mean("exposed_communication_ns", Unit.NS, "communication that no compute hid", "ranks"),
    mean("idle_ns", Unit.NS, "when nothing ran on a rank's device", "ranks"),
    same("last_ratio", Unit.RATIO, "the share of the collectives with others it was last to"),
    total("excess_ns", Unit.NS, "how much longer each of its ranks takes in phase, in all"),
    same("since_ns", Unit.AT_NS, "when it first held the others up by half of what is usual"),
    mean(
        "skew_ns",
        Unit.NS,
        "a step on its slowest rank beyond that on its fastest",
        "ranks",
    ),
    mean("exposed_transfer_ns", Unit.NS, "copies that no kernel hid", "ranks"),
    mean("device_memory_ns", Unit.NS, "when only copies inside the device ran", "ranks"),
    total("inside_count", Unit.COUNT, "collectives that only its ranks take part in"),
    total("inside_ns", Unit.NS, "their time without waiting"),
    total("across_count", Unit.COUNT, "collectives that it shares with other groups"),
    total("across_ns", Unit.NS, "their time without waiting"),
)
"""What is measured of a group, after its name."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupTimes:
    """The hosts or racks of a run.

    ``groups`` has a row per group, those that hold the others up first: name, its ranks, the
    verdict and the measures of `GroupLateness` (None where no collective is shared by several
    groups), and means over its ranks. ``late`` are the groups that seem late as a whole (see
    `LATE_GROUPS`), ``scopes`` the collectives inside groups and
    across them.
    """

    groups: pd.DataFrame
    late: pd.DataFrame
    scopes: pd.DataFrame
    unknown_count: int
    notes: tuple[Note, ...]


@of_window
def measure_groups(
    ranks: Ranks, grouping: Grouping, how_to_know: str, above: Grouping | None = None
) -> GroupTimes:
    """Return the groups, and what must be read with them.

    Of ``above``, larger groups, one that is late as a whole excuses those inside it.

    Raises:
        NotRecordedError: there are several ranks, and the group of none is known;
            ``how_to_know`` says what tells it.
    """
    matches = find_matches(ranks)
    members = matches.members
    if len(members) < 2:
        alone = Note("there is only one rank: nothing to put together")
        return GroupTimes(pd.DataFrame(), frame_of_late(()), SCOPES.frame(), 0, (alone,))
    names = [grouping.of_member(member) for member in members]
    if not any(names):
        raise NotRecordedError(f"no {grouping.value} is known: {how_to_know}")
    shown = np.array([name or _NOT_KNOWN for name in names], object)
    lateness = measure_lateness(ranks, grouping)
    larger = _excuse(ranks, above, lateness)
    if larger is not None:
        lateness = tuple(replace(group, is_straggler=False) for group in lateness)
    shared = with_scopes(matches, shown)
    scopes = scopes_of_run(shared)
    straggler, unclear = find_late_group(lateness), find_unclear_group(ranks, grouping)
    late = [(grouping, group) for group in (straggler, unclear) if group is not None]
    notes = list(_notes(grouping, names, matches, lateness))
    if unclear is not None:
        who = f"{grouping.value} {unclear.name}"
        notes.insert(0, describe_clocks(who, unclear.cost_ns, unclear.ends_ns))
    if larger is not None:
        late.insert(0, larger)
        notes.insert(0, describe_lateness(*larger))
    return GroupTimes(
        groups=_groups(ranks, shown, lateness, shared),
        late=frame_of_late([(kind.value, group) for kind, group in late]),
        scopes=scopes,
        unknown_count=names.count(""),
        notes=(*notes, *describe_scopes(grouping, scopes)),
    )


def _excuse(
    ranks: Ranks, above: Grouping | None, lateness: tuple[GroupLateness, ...]
) -> tuple[Grouping, GroupLateness] | None:
    """Return the larger group that is late as a whole, if it holds a late group and others."""
    straggler = find_late_group(lateness)
    if above is None or straggler is None:
        return None
    larger = find_late_group(measure_lateness(ranks, above))
    if larger is None or not set(larger.late_members) > set(straggler.late_members):
        return None
    return above, larger


def _groups(
    ranks: Ranks,
    names: npt.NDArray[np.object_],
    lateness: tuple[GroupLateness, ...],
    shared: pd.DataFrame,
) -> pd.DataFrame:
    """Return the table of groups, those that hold the others up notably first."""
    late = {group.name: group for group in lateness}
    times = times_of_ranks(ranks)
    numbers = times[list(_MEANS)].apply(pd.to_numeric, errors="coerce")
    means = numbers.groupby(names, sort=False).mean()
    steps = _steps(ranks, names)
    sizes = {str(name): int(n) for name, n in pd.Series(names).value_counts().items()}
    counts = scopes_by_group(shared, list(sizes))
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "ranks": sizes[name],
            **_lateness_columns(late.get(name)),
            **{part: _known(means.at[name, part]) for part in _MEANS},
            **steps.get(name, {}),
            **counts[name],
        }
        for name in dict.fromkeys(names.tolist())
    ]
    rows.sort(key=_order)
    return pd.DataFrame(rows)


def _order(row: Mapping[str, Any]) -> float:
    cost = row["cost_ratio"]
    return -cost if cost is not None and cost >= _NOTABLE_RATIO else 0.0


def _lateness_columns(late: GroupLateness | None) -> dict[str, Any]:
    return {
        "is_straggler": late is not None and late.is_straggler,
        "phase": "" if late is None else late.phase,
        **{name: None if late is None else getattr(late, name) for name in _LATENESS},
    }


_LATENESS: Final = (
    "cost_ns",
    "cost_ratio",
    "late_ranks",
    "last_ratio",
    "excess_ns",
    "since_ns",
)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _steps(ranks: Ranks, names: npt.NDArray[np.object_]) -> dict[str, dict[str, float]]:
    """Return, by group, the mean step of its ranks, and how far these are apart in it."""
    members = find_matches(ranks).members
    group_of = {member.process: name for member, name in zip(members, names, strict=True)}
    table = find_rank_steps(ranks).table
    table = table.assign(group=table["process"].map(group_of))
    mean = table.groupby("group")[["duration_ns", "own_ns"]].mean()
    per_step = table.groupby(["group", "step"])["duration_ns"]
    mean["skew_ns"] = (per_step.max() - per_step.min()).groupby(level="group").mean()
    names_of = {"duration_ns": "step_ns"}
    columns = mean.rename(columns=names_of).astype(float).to_dict("index")
    return {str(group): {str(n): v for n, v in own.items()} for group, own in columns.items()}


def _notes(
    grouping: Grouping,
    names: list[str],
    matches: Matches,
    lateness: tuple[GroupLateness, ...],
) -> list[Note]:
    kind, members = grouping.value, matches.members
    notes = []
    straggler = find_late_group(lateness)
    if straggler is not None:
        notes.append(describe_lateness(grouping, straggler))
    elif lateness:
        notes += _on_single_ranks(grouping, members, lateness)
    elif len(set(names)) == 1:
        text = f"all ranks are on one {kind}: there is no other to compare it with"
        notes.append(Note(text))
    elif not matches.is_shared:
        text = "no collective is shared by several ranks: who waited for whom is not known"
        notes.append(Note(text))
    unknown = [member.label for member, name in zip(members, names, strict=True) if not name]
    if unknown:
        text = f"the {kind} of {{ranks}} is not known"
        notes.append(Note.of(text, ranks=_some(unknown)))
    return notes


def _on_single_ranks(
    grouping: Grouping, members: tuple[Member, ...], lateness: tuple[GroupLateness, ...]
) -> list[Note]:
    """Return whose lateness it is where a group comes last only because of some of its ranks."""
    whole = sum(group.held_up_ns for group in lateness)
    return [
        Note.of(
            f"{grouping.value} {{group}} comes last because of {{ranks}}, not as a whole "
            "({held_up:ns}): see `traceprof stragglers`",
            group=group.name,
            ranks=_some([members[place].label for place in group.late_members]),
            held_up=group.held_up_ns,
        )
        for group in lateness
        if whole and group.held_up_ns >= whole / 2 and 0 < group.late_ranks < group.ranks
    ]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


_HOSTS_TOLD_BY: Final = (
    "say which ranks ran where with --cluster FILE ([hosts]) or in a manifest, or record with "
    "`traceprof record`"
)
_HOSTS_SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "hosts",
            "one row per host, those that hold the others up first; times are means of its ranks",
            (key("host", "the host"), *GROUP_COLUMNS),
        ),
        LATE_GROUPS,
        SCOPES,
    ),
    scalars=(total("unknown_count", Unit.COUNT, "ranks of which the host is not known"),),
)


def measure_hosts(ranks: Ranks) -> Result:
    """Return where the time of the ranks of each host went in the window.

    Raises:
        NotRecordedError: no host of any rank is known.
    """
    found = measure_groups(ranks, Grouping.HOST, _HOSTS_TOLD_BY, Grouping.RACK)
    return Result(
        "hosts",
        _HOSTS_SPEC,
        {
            "hosts": _HOSTS_SPEC.tables[0].frame(found.groups.rename(columns={"name": "host"})),
            "late_groups": found.late,
            "scopes": found.scopes,
        },
        scalars={"unknown_count": found.unknown_count},
        notes=found.notes,
    )


HOSTS = Analysis(
    name="hosts",
    spec=_HOSTS_SPEC,
    uses=(
        "kernels",
        "copies",
        "collectives",
        "api_calls",
        "ranges",
        "host_ops",
        "processes",
        "devices",
    ),
    of_steps=True,
    of_ranks=measure_hosts,
)


_RACKS_TOLD_BY: Final = (
    "say which hosts are in which rack with --rack r1=node[1-4], --cluster FILE ([racks]) or in a "
    "manifest, or record with `traceprof record` under Slurm where it knows the topology"
)
_RACKS_SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "racks",
            "one row per rack, those that hold the others up first; times are means of its ranks",
            (key("rack", "the rack"), *GROUP_COLUMNS),
        ),
        LATE_GROUPS,
        SCOPES,
    ),
    scalars=(total("unknown_count", Unit.COUNT, "ranks of which the rack is not known"),),
)


def measure_racks(ranks: Ranks) -> Result:
    """Return where the time of the ranks of each rack went in the window.

    Raises:
        NotRecordedError: no rack of any rank is known.
    """
    found = measure_groups(ranks, Grouping.RACK, _RACKS_TOLD_BY)
    return Result(
        "racks",
        _RACKS_SPEC,
        {
            "racks": _RACKS_SPEC.tables[0].frame(found.groups.rename(columns={"name": "rack"})),
            "late_groups": found.late,
            "scopes": found.scopes,
        },
        scalars={"unknown_count": found.unknown_count},
        notes=found.notes,
    )


RACKS = Analysis(
    name="racks",
    spec=_RACKS_SPEC,
    uses=(
        "kernels",
        "copies",
        "collectives",
        "api_calls",
        "ranges",
        "host_ops",
        "processes",
        "devices",
    ),
    of_steps=True,
    of_ranks=measure_racks,
)
