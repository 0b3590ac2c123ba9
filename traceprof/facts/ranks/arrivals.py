"""When each rank arrives at each shared collective, and what it did before.

A shared collective ends on all ranks at once. What a rank does from the end of one until it
arrives at its next holds no waiting for others, so that ranks compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact, of_window
from traceprof.facts.collectives.matches import Matches, find_matches
from traceprof.facts.host.phases import find_host_phases
from traceprof.facts.launches import phases_of_work
from traceprof.facts.names.phases import PHASES, UNCLAIMED
from traceprof.facts.ranks.others import beyond_others
from traceprof.facts.ranks.waits import matches_in_step
from traceprof.model.activity import Activity
from traceprof.model.grouping import rows_by_values
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace

__all__ = [
    "DEVICE_IDLE",
    "NOT_RECORDED",
    "ON_HOST",
    "excess_of_phases",
    "find_arrivals",
    "phases_of_arrivals",
]

NOT_RECORDED: Final = "the time before its recording"
DEVICE_IDLE: Final = "device idle"
ON_HOST: Final = " (device idle)"
"""Stands behind the phase that the host was in while the device had nothing to do."""
_KNOWN_COLUMNS: Final = ("match", "member", "start_ns", "end_ns", "late_ns", "order")
_OF_PROCESSES: Final = ("api_calls", "host_ops", "ranges", "kernels", "collectives")


@dataclass(frozen=True, slots=True, eq=False)
class _Doings:
    """When a process was in which phase, in any of them, and what the rest is called."""

    phases: Mapping[str, Intervals]
    claimed: Intervals
    rest: str


@of_window
def find_arrivals(ranks: Ranks) -> pd.DataFrame:
    """Return one row per rank and collective that it shares, by the start of the last rank.

    Sends and receives are left out: in those, ranks wait by design (a pipeline); and those before
    which the ranks were not in step (`matches_in_step`).

    Columns: match, member, start_ns (the end of the collective before, or the start of the
    window), end_ns (the start of this one), late_ns (after the median of the other ranks), and
    one per phase with its time in between. Where device work was recorded: on the device, then
    the phases of the host while the device was idle (`ON_HOST`), then what is left as
    `DEVICE_IDLE`; else the phases of the host, with what is left as "outside any phase".
    `NOT_RECORDED` is the time before the first event of the rank: then the rank was late before
    its recording began.
    """
    matches = find_matches(ranks).collectives
    rows = matches.rows[matches.rows["match"] >= 0].sort_values(["member", "start_ns"])
    ended = rows.groupby("member")["end_ns"].cummax().groupby(rows["member"])
    before = ended.shift(fill_value=ranks.span.start_ns).clip(lower=ranks.span.start_ns)
    arrivals = pd.DataFrame(
        {
            "match": rows["match"],
            "member": rows["member"],
            "start_ns": np.minimum(before, rows["start_ns"]),
            "end_ns": rows["start_ns"],
            "late_ns": beyond_others(rows["start_ns"], rows["match"]),
        }
    )
    arrivals = arrivals.assign(
        **_time_in_phases(ranks, matches, arrivals),
        order=rows["match"].map(matches.table["last_start_ns"]),
    )
    known = arrivals["match"].isin(matches_in_step(ranks).table.index)
    return arrivals[known].sort_values(["order", "member"], ignore_index=True)


def phases_of_arrivals(arrivals: pd.DataFrame) -> list[str]:
    """Return the phases among the columns of `find_arrivals`."""
    return [str(name) for name in arrivals if name not in _KNOWN_COLUMNS]


@of_window
def excess_of_phases(ranks: Ranks) -> pd.DataFrame:
    """Return each phase's time before each arrival beyond the median of the other ranks.

    Columns: match, member, and one per phase in ns.
    """
    found = find_arrivals(ranks)
    phases = phases_of_arrivals(found)
    beyond = {name: beyond_others(found[name], found["match"]) for name in phases}
    return found[["match", "member"]].assign(**beyond)


def _time_in_phases(
    ranks: Ranks, matches: Matches, arrivals: pd.DataFrame
) -> dict[str, npt.NDArray[np.int64]]:
    """Return the ns of every phase before each arrival; the rows of a member stand together."""
    doings = {process: own for part in ranks for process, own in _doings(part).items()}
    starts, ends = (arrivals[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    columns: dict[str, npt.NDArray[np.int64]] = {}

    def add(name: str, rows: Any, spent: npt.NDArray[np.int64]) -> None:
        columns.setdefault(name, np.zeros(len(arrivals), np.int64))[rows] += spent

    for place, rows in sorted(arrivals.groupby("member").indices.items()):
        own = doings[matches.members[int(str(place))].process]
        first, last = starts[rows], ends[rows]
        for name, time in own.phases.items():
            add(name, rows, time.covered_ns(first, last))
        add(own.rest, rows, last - first - own.claimed.covered_ns(first, last))
    return columns


@fact
def _doings(trace: Trace) -> Mapping[int, _Doings]:
    """Return what each process did when."""
    on_host = {phases.process: phases.times for phases in find_host_phases(trace)}
    has_device = "kernels" in trace.recorded
    on_device = _on_devices(trace) if has_device else {}
    return {
        process: _doings_of_one(
            Intervals.single(trace.span.start_ns, first),
            {n: t for n, t in on_host.get(process, {}).items() if n != "communication"},
            on_device.get(process, {}) if has_device else None,
        )
        for process, first in _first_events(trace).items()
    }


def _doings_of_one(
    before: Intervals,
    on_host: Mapping[str, Intervals],
    on_device: Mapping[str, Intervals] | None,
) -> _Doings:
    if on_device is None:
        phases = {NOT_RECORDED: before} | dict(on_host)
        return _Doings(phases, _union(phases), UNCLAIMED)
    phases = {NOT_RECORDED: before} | dict(on_device)
    busy = _union(phases)
    phases |= {f"{name}{ON_HOST}": time - busy for name, time in on_host.items()}
    return _Doings(phases, _union(phases), DEVICE_IDLE)


def _union(phases: Mapping[str, Intervals]) -> Intervals:
    return Intervals.union_of(
        np.concatenate([time.starts for time in phases.values()]),
        np.concatenate([time.ends for time in phases.values()]),
    )


def _on_devices(trace: Trace) -> dict[int, dict[str, Intervals]]:
    """Return, by process, when its devices computed for which phase."""
    kernels = trace.kernels
    computing = np.flatnonzero(kernels["activity"] != Activity.COMMUNICATION.value)
    columns = ("start_ns", "end_ns", "process")
    starts, ends, process = (kernels[name].to_numpy(np.int64)[computing] for name in columns)
    phases = phases_of_work(trace, "kernels")[computing]
    found: dict[int, dict[str, Intervals]] = {}
    for (owner, phase), rows in rows_by_values(process, phases).items():
        name = PHASES[phase] if phase >= 0 else UNCLAIMED
        found.setdefault(owner, {})[name] = Intervals.union_of(starts[rows], ends[rows])
    return found


def _first_events(trace: Trace) -> dict[int, int]:
    """Return the time of the first event of each process."""
    # Tables are sorted by start: the first row of a process is its first event.
    tables = [trace.table(name)[["process", "start_ns"]] for name in _OF_PROCESSES]
    firsts = pd.concat([table.drop_duplicates("process") for table in tables])
    first = firsts.groupby("process")["start_ns"].min()
    return {int(str(process)): int(ns) for process, ns in first.items()}
