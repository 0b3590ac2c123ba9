"""Every step of every rank: its own time, how much it waited, how late it came (a heat map)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.errors import NotRecordedError
from traceprof.facts.collectives.callers import steps_of_collectives
from traceprof.facts.collectives.matches import Matches, find_matches
from traceprof.facts.collectives.members import Member
from traceprof.facts.ranks.others import beyond_others
from traceprof.facts.ranks.run_ups import excess_of_phases
from traceprof.facts.ranks.waiting import waiting_of_processes
from traceprof.facts.steps.find import find_steps
from traceprof.model.steps import Steps
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "RankSteps", "measure_rank_steps"]

_COLUMNS: Final = [
    "rank",
    "step",
    "own_ns",
    "slower_ratio",
    "duration_ns",
    "waited_ns",
    "late_ns",
    "phase",
    "skew_ns",
    "collectives_count",
    "host",
    "rack",
    "process",
]
_NOTABLE_RATIO: Final = 0.01
_CONSISTENT_RATIO: Final = 0.9
_MOST_NAMED: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class RankSteps:
    """One row per step and rank.

    ``table``: rank, step, own_ns (its duration without the time in which the rank waited for
    others and no compute hid it), slower_ratio (own_ns beyond the median of the ranks in this
    step, as a share of that), duration_ns, waited_ns (in the collectives that it called in this
    step, for the last rank), late_ns (how much it held up the median of the others where it came
    last), phase (where it takes longer than the median of the others, by at least 1 % of the
    step; "" where nowhere or not known), skew_ns (its duration beyond the shortest of the ranks
    in this step), collectives_count (those shared with other ranks), host, rack, process.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table, step by step."""
        return self.table


def measure_rank_steps(trace: Trace) -> RankSteps:
    """Return every step that lies in the window, of every rank.

    Raises:
        NotRecordedError: no steps are known.
    """
    steps = find_steps(trace)
    if not len(steps):
        raise NotRecordedError(
            "no whole step is known in this window: record with `traceprof record`, "
            "call traceprof.step(), or choose a larger window"
        )
    matches = find_matches(trace.whole)
    steps, shifts = _lined_up(steps, matches)
    table = steps.table
    duration = table["end_ns"] - table["start_ns"]
    own = duration - _waited_in(trace, matches, steps)
    usual = own.groupby(table["step"]).transform("median")
    members = {member.process: member for member in matches.members}
    known = [members.get(process) for process in table["process"]]
    result = pd.DataFrame(
        {
            "rank": [None if m is None or m.rank == ABSENT else m.rank for m in known],
            "step": table["step"],
            "own_ns": own,
            "slower_ratio": (own / usual.where(usual > 0)) - 1,
            "duration_ns": duration,
            **_sums(matches, steps),
            "phase": _phases(trace, matches, steps),
            "skew_ns": duration - duration.groupby(table["step"]).transform("min"),
            "host": ["" if m is None else m.host for m in known],
            "rack": ["" if m is None else m.rack for m in known],
            "process": table["process"],
        }
    )[_COLUMNS]
    ordered = result.sort_values(["step", "rank", "process"], ignore_index=True)
    return RankSteps(ordered, (*_on_shifts(shifts, members), *_notes(ordered, matches)))


def _lined_up(steps: Steps, matches: Matches) -> tuple[Steps, dict[int, int]]:
    """Return the steps with numbers that mean the same step on all ranks, and what was added.

    Where nobody numbers the steps they are counted from the first that a rank recorded: the
    collectives that ranks share tell how many steps later one of them began.
    """
    table = steps.table
    rows = matches.rows[matches.rows["match"] >= 0]
    place = steps_of_collectives(steps, rows)
    called = rows[["match", "process"]][place >= 0].assign(
        step=table["step"].to_numpy(np.int64)[place[place >= 0]]
    )
    reference = table["process"].value_counts(sort=True).index[0]
    there = called[called["process"] == reference].drop_duplicates("match")
    ahead = called["match"].map(there.set_index("match")["step"]) - called["step"]
    shifts = {}
    for process, own in ahead.dropna().groupby(called["process"]):
        most = own.value_counts()
        if len(own) > 1 and most.index[0] and most.iloc[0] >= _CONSISTENT_RATIO * len(own):
            shifts[int(str(process))] = int(most.index[0])
    numbers = table["step"] + table["process"].map(shifts).fillna(0).astype(np.int64)
    if shifts:
        numbers -= min(0, int(numbers.min()))
    return replace(steps, table=table.assign(step=numbers)), shifts


def _on_shifts(shifts: Mapping[int, int], members: Mapping[int, Member]) -> list[str]:
    if not shifts:
        return []
    named = [members[process].label for process in list(shifts)[:_MOST_NAMED]]
    more = " …" if len(shifts) > _MOST_NAMED else ""
    return [
        f"the steps of {', '.join(named)}{more} are counted from another beginning: they were "
        "lined up by the collectives that they share"
    ]


def _waited_in(trace: Trace, matches: Matches, steps: Steps) -> npt.NDArray[np.int64]:
    """Return how long the rank of each step waited while the step lasted."""
    waiting = waiting_of_processes(trace, matches)
    table = steps.table
    waited = np.zeros(len(table), np.int64)
    for process, rows in table.groupby("process").indices.items():
        time = waiting.get(int(str(process)))
        if time is not None:
            mine = table.iloc[rows]
            waited[rows] = time.covered_ns(mine["start_ns"], mine["end_ns"])
    return waited


def _sums(matches: Matches, steps: Steps) -> dict[str, npt.NDArray[np.int64]]:
    """Return what the shared collectives of each step add up to."""
    rows = matches.rows[matches.rows["match"] >= 0]
    shared = matches.table.loc[rows["match"]]
    started = rows["start_ns"].to_numpy(np.int64)
    late = beyond_others(rows["start_ns"], rows["match"])
    is_last = shared["last_member"].to_numpy() == rows["member"].to_numpy()
    sums = pd.DataFrame(
        {
            "place": steps_of_collectives(steps, rows),
            "collectives_count": 1,
            "waited_ns": shared["last_start_ns"].to_numpy(np.int64) - started,
            "late_ns": np.where(is_last, np.rint(late), 0).astype(np.int64),
        }
    )
    added = sums.groupby("place").sum().reindex(range(len(steps)), fill_value=0)
    return {str(name): added[name].to_numpy() for name in added}


def _phases(trace: Trace, matches: Matches, steps: Steps) -> npt.NDArray[np.object_]:
    """Return the phase in which the rank of each step takes longer than the others."""
    found = np.full(len(steps), "", object)
    excess = excess_of_phases(trace.whole)
    if excess.empty:
        return found
    rows = matches.rows[matches.rows["match"] >= 0]
    place_of = rows[["match", "member"]].assign(place=steps_of_collectives(steps, rows))
    placed = excess.merge(place_of, on=["match", "member"])
    placed = placed[placed["place"] >= 0].drop(columns=["match", "member"])
    if placed.empty:
        return found
    sums = placed.groupby("place").sum()
    least = _NOTABLE_RATIO * steps.durations_ns[sums.index.to_numpy()]
    names = sums.columns.to_numpy(object)[sums.to_numpy().argmax(axis=1)]
    found[sums.index.to_numpy()] = np.where(sums.max(axis=1) >= least, names, "")
    return found


def _notes(table: pd.DataFrame, matches: Matches) -> tuple[str, ...]:
    n_ranks = table["process"].nunique()
    if n_ranks < 2:
        return ()
    notes = []
    if not matches.is_shared:
        notes.append("no collective is shared: what ranks wait for each other is in their own time")
    sizes = table.groupby("step").size()
    fewer = int((sizes < n_ranks).sum())
    if fewer:
        notes.append(f"{fewer} of {len(sizes)} steps are not known of every one of {n_ranks} ranks")
    return tuple(notes)


ANALYSIS = Analysis(
    name="rank-steps",
    needs=(),
    run=measure_rank_steps,
)
