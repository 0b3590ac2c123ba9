"""The ranks of a run put together: by host, by rack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.ranks.rank_steps import measure_rank_steps
from traceprof.analysis.ranks.ranks import RankTime, measure_ranks
from traceprof.errors import NotRecordedError
from traceprof.facts.collectives.matches import Matches, find_matches
from traceprof.facts.collectives.members import Member
from traceprof.facts.ranks.ends import describe_clocks
from traceprof.facts.ranks.groups import (
    Grouping,
    GroupLateness,
    describe_lateness,
    find_late_group,
    find_unclear_group,
    measure_lateness,
)
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.units import format_duration, format_rate, format_ratio

__all__ = ["GroupTime", "frame_of_groups", "measure_groups"]

_PARTS = (
    "compute_ns",
    "exposed_communication_ns",
    "exposed_transfer_ns",
    "device_memory_ns",
    "idle_ns",
    "waited_ns",
)
_NOT_KNOWN = "not known"
_NOTABLE_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class GroupTime:
    """The ranks of one host or rack.

    The parts of the devices' time, ``waited_ns`` (in shared collectives, for the last rank),
    ``step_ns`` and ``own_ns`` (a step without exposed waiting) are means over its ranks, None
    where not known. ``skew_ns`` is how much longer a step takes on its slowest rank than on its
    fastest, the mean over steps. Lateness is that of `GroupLateness`, in collectives that several
    groups share; None where there are none. ``inside_count`` and ``inside_ns`` are the
    collectives that only ranks of this group take part in and their time without waiting,
    ``across_count`` and ``across_ns`` those that it shares with others.
    """

    name: str
    ranks: int
    is_straggler: bool
    cost_ns: int | None
    cost_ratio: float | None
    late_ranks: int | None
    phase: str
    own_ns: float | None
    waited_ns: float | None
    step_ns: float | None
    compute_ns: float | None
    exposed_communication_ns: float | None
    idle_ns: float | None
    last_ratio: float | None
    excess_ns: int | None
    since_ns: int | None
    skew_ns: float | None
    exposed_transfer_ns: float | None
    device_memory_ns: float | None
    inside_count: int
    inside_ns: int
    across_count: int
    across_ns: int


def frame_of_groups(groups: Sequence[GroupTime], name: str) -> pd.DataFrame:
    """Return one row per group, those that hold the others up first; ``name`` is their kind."""
    columns = list(GroupTime.__dataclass_fields__)
    ordered = sorted(groups, key=_order)
    frame = pd.DataFrame([asdict(group) for group in ordered], columns=columns)
    return frame.rename(columns={"name": name})


def _order(group: GroupTime) -> float:
    is_notable = group.cost_ratio is not None and group.cost_ratio >= _NOTABLE_RATIO
    return -(group.cost_ratio or 0.0) if is_notable else 0.0


def measure_groups(
    trace: Trace, grouping: Grouping, how_to_know: str, above: Grouping | None = None
) -> tuple[tuple[GroupTime, ...], tuple[str, ...]]:
    """Return the groups in the order of their first ranks, and what must be read with them.

    Of ``above``, larger groups, one that is late as a whole excuses those inside it.

    Raises:
        NotRecordedError: there are several ranks, and the group of none is known;
            ``how_to_know`` says what tells it.
    """
    matches = find_matches(trace)
    members = matches.members
    if len(members) < 2:
        return (), ("there is only one rank: nothing to put together",)
    names = [grouping.of_member(member) for member in members]
    if not any(names):
        raise NotRecordedError(f"no {grouping.name} is known: {how_to_know}")
    shown = np.array([name or _NOT_KNOWN for name in names], object)
    lateness = measure_lateness(trace, grouping)
    larger = _excuse(trace, above, lateness)
    if larger is not None and above is not None:
        lateness = tuple(replace(group, is_straggler=False) for group in lateness)
    scopes = _scopes(matches, shown)
    times = measure_ranks(trace).ranks
    steps = _steps(trace, members, shown)
    groups = tuple(
        _measure(name, np.flatnonzero(shown == name), times, lateness, scopes, steps)
        for name in dict.fromkeys(shown.tolist())
    )
    notes = _notes(grouping, names, members, matches, lateness, scopes)
    unclear = find_unclear_group(trace, grouping)
    if unclear is not None:
        notes = (
            describe_clocks(f"{grouping.name} {unclear.name}", unclear.cost_ns, unclear.ends_ns),
            *notes,
        )
    if larger is not None and above is not None:
        notes = (describe_lateness(above, larger), *notes)
    return groups, notes


def _excuse(
    trace: Trace,
    above: Grouping | None,
    lateness: tuple[GroupLateness, ...],
) -> GroupLateness | None:
    """Return the larger group that is late as a whole, if it holds a late group and others."""
    straggler = find_late_group(lateness)
    if above is None or straggler is None:
        return None
    larger = find_late_group(measure_lateness(trace, above))
    if larger is None or not set(larger.late_members) > set(straggler.late_members):
        return None
    return larger


def _measure(
    name: str,
    places: npt.NDArray[np.int64],
    times: tuple[RankTime, ...],
    lateness: tuple[GroupLateness, ...],
    scopes: pd.DataFrame,
    steps: pd.DataFrame,
) -> GroupTime:
    late = next((group for group in lateness if group.name == name), None)
    ranks = pd.DataFrame([asdict(times[place]) for place in places])
    means = {part: _mean(ranks[part]) for part in _PARTS}
    own = steps[steps["group"] == name]
    per_step = own.groupby("step")["duration_ns"]
    skew = per_step.max() - per_step.min()
    here = scopes[scopes["groups"].map(lambda groups: name in groups)]
    inside = here[here["scope"] == "inside"]
    across = here[here["scope"] == "across"]
    return GroupTime(
        name=name,
        ranks=len(places),
        is_straggler=late is not None and late.is_straggler,
        cost_ns=None if late is None else late.cost_ns,
        cost_ratio=None if late is None else late.cost_ratio,
        late_ranks=None if late is None else late.late_ranks,
        phase="" if late is None else late.phase,
        step_ns=_mean(own["duration_ns"]),
        own_ns=_mean(own["own_ns"]),
        last_ratio=None if late is None else late.last_ratio,
        excess_ns=None if late is None else late.excess_ns,
        since_ns=None if late is None else late.since_ns,
        skew_ns=_mean(skew),
        inside_count=len(inside),
        inside_ns=int(inside["duration_ns"].sum()),
        across_count=len(across),
        across_ns=int(across["duration_ns"].sum()),
        **means,
    )


def _mean(values: pd.Series) -> float | None:
    known = pd.to_numeric(values, errors="coerce").dropna()
    return float(known.mean()) if len(known) else None


def _steps(
    trace: Trace, members: tuple[Member, ...], names: npt.NDArray[np.object_]
) -> pd.DataFrame:
    """Return the steps of all ranks with the group of each; none where no steps are known."""
    group_of = {member.process: name for member, name in zip(members, names, strict=True)}
    try:
        table = measure_rank_steps(trace).table
    except NotRecordedError:
        return pd.DataFrame(columns=["group", "step", "duration_ns", "own_ns"])
    return table.assign(group=table["process"].map(group_of))


def _scopes(matches: Matches, names: npt.NDArray[np.object_]) -> pd.DataFrame:
    """Return each shared collective with its ``groups`` and ``scope``.

    inside (all its ranks are of one group), across, or "" where it has ranks without a trace and
    those that have one are of one group.
    """
    rows = matches.rows[matches.rows["match"] >= 0]
    names_of_rows = names[rows["member"].to_numpy(np.int64)] if len(rows) else []
    groups = pd.Series(names_of_rows, rows["match"].to_numpy(), dtype=object)
    by_match = groups.groupby(level=0).agg(frozenset).reindex(matches.table.index)
    table = matches.table.assign(groups=by_match)
    size = table["group_size"].to_numpy(np.int64)
    is_whole = (size == ABSENT) | (table["members"].to_numpy(np.int64) >= size)
    several = table["groups"].map(len).to_numpy(np.int64) > 1
    scope = np.where(several, "across", np.where(is_whole, "inside", ""))
    return table.assign(scope=scope)


def _notes(
    grouping: Grouping,
    names: list[str],
    members: tuple[Member, ...],
    matches: Matches,
    lateness: tuple[GroupLateness, ...],
    scopes: pd.DataFrame,
) -> tuple[str, ...]:
    kind = grouping.name
    notes = []
    straggler = find_late_group(lateness)
    if straggler is not None:
        notes.append(describe_lateness(grouping, straggler))
    elif lateness:
        notes += _on_single_ranks(grouping, members, lateness)
    elif len(set(names)) == 1:
        notes.append(f"all ranks are on one {kind}: there is no other to compare it with")
    elif not matches.is_shared:
        notes.append("no collective is shared by several ranks: who waited for whom is not known")
    unknown = [member.label for member, name in zip(members, names, strict=True) if not name]
    if unknown:
        notes.append(f"the {kind} of {_some(unknown)} is not known")
    for scope, words in (("inside", f"inside a {kind}"), ("across", f"across {kind}s")):
        notes += _on_scope(words, scopes[scopes["scope"] == scope])
    left = int((scopes["scope"] == "").sum())
    if left:
        notes.append(f"{left} have ranks without a trace: where these ran is not known")
    return tuple(notes)


def _on_single_ranks(
    grouping: Grouping, members: tuple[Member, ...], lateness: tuple[GroupLateness, ...]
) -> list[str]:
    """Return whose lateness it is where a group comes last only because of some of its ranks."""
    whole = sum(group.held_up_ns for group in lateness)
    return [
        f"{grouping.name} {group.name} comes last because of "
        f"{_some([members[place].label for place in group.late_members])}, "
        f"not as a whole ({format_duration(group.held_up_ns)}): see `traceprof stragglers`"
        for group in lateness
        if whole and group.held_up_ns >= whole / 2 and 0 < group.late_ranks < group.ranks
    ]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _on_scope(words: str, table: pd.DataFrame) -> list[str]:
    """Return how many collectives there are in a scope, and their bandwidth where it is known."""
    if table.empty:
        return []
    time_ns = int(table["duration_ns"].sum())
    text = f"{words}: {len(table)} collectives, {format_duration(time_ns)} without waiting"
    sized = table[table["bus_bytes"].notna() & (table["duration_ns"] > 0)]
    if len(sized):
        rate = sized["bus_bytes"].sum() / (sized["duration_ns"].sum() / 1e9)
        share = "" if len(sized) == len(table) else f" ({format_ratio(len(sized) / len(table))})"
        text += f", busbw {format_rate(rate)}{share}"
    return [text]
