"""Every step of every rank: work, waiting, and lateness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import NotRecordedError
from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.blame import beyond_others, why_withheld
from traceprof.measures.collectives.matches import Matches, find_matches
from traceprof.measures.collectives.members import Member, find_members
from traceprof.measures.collectives.waits import (
    find_rows_in,
    find_values_in,
    find_waits,
    waiting_of_members,
)
from traceprof.measures.facts import fact, of_window, without_keeping
from traceprof.measures.ranks.arrivals import USED_TABLES, excess_by, find_arrivals
from traceprof.measures.rows import ints, looked_up, rows_by, sums_at
from traceprof.measures.steps.find import steps_of_calls, steps_of_ranks
from traceprof.measures.steps.from_ranges import how_to_record_steps
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import groups_of, rows_by_value
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.timing import Steps

_MIN_NOTABLE_RATIO: Final = 0.01
_MIN_CONSISTENT_RATIO: Final = 0.9
_MAX_LISTED_RANKS: Final = 4
_NO_ROWS: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RankSteps:
    """The steps of all ranks.

    ``table`` has one row per step and process. Columns: rank (None if unknown), step (number, the
    same on all ranks), step_without_waits_ns (duration without exposed waiting for other ranks),
        slower_ratio
    (step_without_waits_ns beyond the median of the ranks in this step, as a share of the median),
    duration_ns, waited_ns (exposed waiting for the last rank in collectives called in this step,
    after the ranks were in step), late_ns (how long the rank delayed the median of the others when
    it arrived last, in step), phase (phase in which the rank takes longer than the median of the
    others, by at least 1% of the step; "" if none or unknown), skew_ns (duration minus the
    shortest duration of the ranks in this step), collectives_count (collectives shared with other
    ranks), host, rack, process.

    ``shifts`` maps a process to the offset that was added to its step numbers.
    """

    table: Table
    shifts: Mapping[int, int]


@of_window
def find_rank_steps(ranks: Ranks) -> RankSteps:
    """Return the steps of every rank that are inside the window, sorted by step."""
    whole = _rank_steps_of_whole(ranks)
    table, span = whole.table, ranks.span
    if ranks.uncut is not None:
        inside = (table["start_ns"] >= span.start_ns) & (table["end_ns"] <= span.end_ns)
        table = table.take(inside)
    by_step = groups_of(table["step"])
    usual = by_step.quantiles(table["step_without_waits_ns"])[by_step.number]
    shortest = by_step.reduced(np.minimum, table["duration_ns"])[by_step.number]
    compared = table.assign(
        slower_ratio=table["step_without_waits_ns"] / np.where(usual > 0, usual, np.nan) - 1,
        skew_ns=table["duration_ns"] - shortest,
    )
    return RankSteps(compared, whole.shifts)


@fact
def _rank_steps_of_whole(ranks: Ranks) -> RankSteps:
    matches = find_matches(ranks)
    steps, shifts, work_ns = aligned_steps(ranks)
    table = steps.table
    rows = matches.shared
    place = steps_of_calls(steps, rows)
    members = {member.process: member for member in matches.members}
    known = [members.get(process) for process in table["process"].tolist()]
    starts, ends = table["device_start_ns"], table["device_end_ns"]
    result = Table(
        {
            "rank": [m and m.known_rank for m in known],
            "step": table["step"],
            "step_without_waits_ns": work_ns,
            "duration_ns": ends - starts,
            **_sum_by_step(ranks, matches, rows, place, len(steps)),
            "phase": _find_phases(ranks, rows, place, steps),
            "host": np.array([m.host if m else "" for m in known], object),
            "rack": np.array([m.rack if m else "" for m in known], object),
            "process": table["process"],
            "start_ns": starts,
            "end_ns": ends,
        }
    )
    return RankSteps(result.in_order("step", "rank", "process"), shifts)


@fact
def aligned_steps(ranks: Ranks) -> tuple[Steps, dict[int, int], Int64Array]:
    """Return the steps with the same numbers on all ranks, the offsets, and the time without waits.

    The offset is that of each process with changed numbers. The time is the duration on the device
    without exposed waiting for other ranks, in ns per row.
    """
    matches = find_matches(ranks)
    steps, shifts = _align_numbers(steps_of_ranks(ranks), matches)
    waited_ns = _measure_waiting(ranks, matches, steps)
    starts, ends = ints(steps.table, "device_start_ns", "device_end_ns")
    return steps, shifts, ends - starts - waited_ns


def _align_numbers(steps: Steps, matches: Matches) -> tuple[Steps, dict[int, int]]:
    """Return the steps with the same numbers on all ranks, and the offset of each changed process.

    Without recorded step numbers, each rank counts from the first step that it recorded. Shared
    collectives show how many steps later a rank started recording.
    """
    table = steps.table
    if table.empty:
        return steps, {}
    rows = matches.shared
    place = steps_of_calls(steps, rows)
    known = np.flatnonzero(place >= 0)
    step = table["step"][place[known]]
    match = rows["match"][known]
    called = rows_by_value(rows["process"][known])
    del rows, place, known
    processes = groups_of(table["process"])
    reference = int(processes.values[0][processes.counts.argmax()])
    numbered, first = np.unique(match[called.get(reference, _NO_ROWS)], return_index=True)
    reference_step = step[called.get(reference, _NO_ROWS)][first]
    shifts = {}
    for process, called_rows in called.items():
        shared = np.isin(match[called_rows], numbered)
        place = np.searchsorted(numbered, match[called_rows][shared])
        shift, counts = np.unique(
            reference_step[place] - step[called_rows][shared], return_counts=True
        )
        if counts.sum() <= 1:
            continue
        best_shift = int(shift[counts.argmax()])
        if best_shift and counts.max() >= _MIN_CONSISTENT_RATIO * counts.sum():
            shifts[process] = best_shift
    numbers = table["step"] + looked_up(table["process"], shifts, 0)
    if shifts:
        numbers -= min(0, int(numbers.min()))
    return replace(steps, table=table.assign(step=numbers)), shifts


def _measure_waiting(ranks: Ranks, matches: Matches, steps: Steps) -> Int64Array:
    """Return the exposed waiting during each step, in ns."""
    waiting: dict[int, Intervals] = {}
    for member, time in zip(matches.members, waiting_of_members(ranks), strict=True):
        waiting[member.process] = waiting.get(member.process, Intervals.empty()) | time
    table = steps.table
    starts, ends = ints(table, "device_start_ns", "device_end_ns")
    waited = np.zeros(len(table), np.int64)
    for process, rows in rows_by(table, "process").items():
        time = waiting.get(process, Intervals.empty())
        waited[rows] = time.covered_ns(starts[rows], ends[rows])
    return waited


def _sum_by_step(
    ranks: Ranks, matches: Matches, rows: CompactTable, place: Int64Array, n_steps: int
) -> dict[str, Int64Array]:
    """Return the sums of the shared collectives of each step; ``place`` is the step of each row."""
    waits = find_waits(ranks.whole)
    known = np.flatnonzero(place >= 0)
    waited = find_values_in(waits, rows, "exposed_ns", 0)[known]
    is_last = find_values_in(waits, rows, "is_in_step", 0).astype(np.bool_)
    is_last &= matches.per_row(rows, "last_member") == rows["member"]
    late = np.where(is_last, np.rint(beyond_others(rows["start_ns"], rows["match"])), 0)
    sums: dict[str, npt.ArrayLike] = {
        "collectives_count": 1,
        "waited_ns": waited,
        "late_ns": late[known].astype(np.int64),
    }
    return {name: sums_at(place[known], values, n_steps) for name, values in sums.items()}


def _find_phases(
    ranks: Ranks, rows: CompactTable, place: Int64Array, steps: Steps
) -> npt.NDArray[np.object_]:
    """Return the phase in which the rank of each step takes longer than the others; "" for none."""
    found = np.full(len(steps), "", object)
    arrivals = without_keeping(find_arrivals, ranks.whole)
    placed = np.append(place, ABSENT)[find_rows_in(rows, arrivals)]
    known = np.unique(placed[placed >= 0])
    if not len(known):
        return found
    sums = excess_by(arrivals, placed, len(steps)).take(known)
    excess = np.stack([sums[name] for name in sums], axis=1)
    threshold_ns = _MIN_NOTABLE_RATIO * steps.durations_ns[known]
    names = np.array(list(sums), object)[excess.argmax(axis=1)]
    found[known] = np.where(excess.max(axis=1) >= threshold_ns, names, "")
    return found


SPEC: Final = ResultSpec.of("""
    table rank_steps: one row per step and rank, sorted by step
    key rank: rank
    key step: step number, the same on all ranks
    total step_without_waits_ns: step time without exposed waiting
    derived slower_ratio: step_without_waits_ns above the median rank, as a share of the median
    total duration_ns: step time
    total waited_ns: time spent in collectives waiting for the last rank
    total late_ns: time that the rank delayed the median of the other ranks
    same phase: phase in which the rank takes longer by at least 1% of the step
    derived skew_ns: step time minus the shortest step time of all ranks
    total collectives_count: number of collectives shared with other ranks
    same host: host of the rank
    same rack: rack of the rank
    key process: process of the rank
    table shifts: ranks that count their steps from a different start
    key process: process of the rank
    same rank: rank
    same added [number]: offset added to the step numbers
    scalars:
    total steps_count: number of steps
    total partial_count: number of these that are missing on some ranks
    """)
_RANK_STEPS, _SHIFTS = SPEC.tables


def measure_rank_steps(ranks: Ranks) -> Result:
    """Return every step of every rank that is inside the window.

    Raises:
        NotRecordedError: no steps are known.
    """
    found = find_rank_steps(ranks)
    table = found.table
    if table.empty:
        raise NotRecordedError(
            f"this window contains no complete step: {how_to_record_steps(ranks)}, or choose a "
            "larger window"
        )
    members = {member.process: member for member in find_members(ranks)}
    n_ranks, sizes = len(np.unique(table["process"])), groups_of(table["step"]).counts
    scalars = {"steps_count": len(sizes), "partial_count": int((sizes < n_ranks).sum())}
    shifts = [
        {"process": process, "rank": members[process].rank, "added": added}
        for process, added in found.shifts.items()
    ]
    notes = [*_notes_on_shifts(found, members)]
    if n_ranks > 1 and not find_matches(ranks.whole).is_shared:
        notes.append(
            Note(
                "No collective was recorded on several ranks, so step_without_waits_ns includes "
                "waiting for ranks."
            )
        )
    if n_ranks > 1 and (why_not := why_withheld(ranks)):
        notes.append(
            Note.of(
                "The waiting times and step_without_waits_ns are unreliable: {why}", why=why_not
            )
        )
    if n_ranks > 1 and scalars["partial_count"]:
        text = "{fewer:count} of {n:count} steps are missing on some of the {ranks:count} ranks."
        notes.append(Note.of(text, fewer=scalars["partial_count"], n=len(sizes), ranks=n_ranks))
    tables = {"rank_steps": _RANK_STEPS.of_rows(table), "shifts": _SHIFTS.of_rows(shifts)}
    return Result("rank-steps", SPEC, tables, scalars, tuple(notes))


def _notes_on_shifts(found: RankSteps, members: dict[int, Member]) -> Iterator[Note]:
    if found.shifts:
        named = [members[process].label for process in list(found.shifts)[:_MAX_LISTED_RANKS]]
        more = " …" if len(found.shifts) > _MAX_LISTED_RANKS else ""
        text = (
            "{ranks} count their steps from a different start. traceprof lined up the steps by "
            "shared collectives."
        )
        yield Note.of(text, ranks=", ".join(named) + more)


RANK_STEPS: Final = Analysis(
    "rank-steps",
    SPEC,
    uses=USED_TABLES,
    whole=("ranges", "kernels", "collectives"),
    of_steps=True,
    of_ranks=measure_rank_steps,
)
