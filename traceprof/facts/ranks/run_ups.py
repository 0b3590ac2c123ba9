"""What each rank did before it came to each shared collective.

A shared collective ends on all ranks at once. What a rank does from the end of one to the start
of its next is its run-up: it holds no waiting for others, so that run-ups of ranks compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.collectives.matches import Matches, find_matches
from traceprof.facts.host.phase_names import PHASES, UNCLAIMED
from traceprof.facts.host.phases import find_host_phases
from traceprof.facts.launches import find_launches, phase_of_launches
from traceprof.facts.ranks.others import beyond_others
from traceprof.model.activity import Activity
from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace

__all__ = [
    "DEVICE_IDLE",
    "NOT_RECORDED",
    "ON_HOST",
    "excess_of_phases",
    "find_run_ups",
    "phases_of_run_ups",
]

NOT_RECORDED: Final = "the time before its recording"
DEVICE_IDLE: Final = "device idle"
ON_HOST: Final = " (device idle)"
"""Stands behind the phase that the host was in while the device had nothing to do."""
_KNOWN_COLUMNS: Final = ("match", "member", "start_ns", "end_ns", "late_ns", "order")
_OF_PROCESSES: Final = ("api_calls", "host_ops", "ranges", "kernels", "collectives")


@of_window
def find_run_ups(trace: Trace) -> pd.DataFrame:
    """Return one row per rank and collective that it shares, by the start of the last rank.

    Sends and receives are left out: in those, ranks wait by design (a pipeline).

    Columns: match, member, start_ns (the end of the collective before, or the start of the
    window), end_ns (the start of this one), late_ns (after the median of the other ranks), and
    one per phase with its time in between. Where device work was recorded: on the device, then
    the phases of the host while the device was idle (`ON_HOST`), then what is left as
    `DEVICE_IDLE`; else the phases of the host, with what is left as "outside any phase".
    `NOT_RECORDED` is the time before the first event of the rank: then the rank was late before
    its recording began.
    """
    matches = find_matches(trace).collectives
    rows = matches.rows[matches.rows["match"] >= 0].sort_values(["member", "start_ns"])
    before = rows.groupby("member")["end_ns"].cummax().groupby(rows["member"]).shift()
    begins = before.fillna(trace.span.start_ns).clip(lower=trace.span.start_ns)
    run_ups = pd.DataFrame(
        {
            "match": rows["match"],
            "member": rows["member"],
            "start_ns": np.minimum(begins.astype(np.int64), rows["start_ns"]),
            "end_ns": rows["start_ns"],
            "late_ns": beyond_others(rows["start_ns"], rows["match"]),
        }
    )
    parts = [
        _with_phases(own, *phases)
        for (_, own), phases in zip(
            run_ups.groupby("member"), _phases_of_members(trace, matches, run_ups), strict=True
        )
    ]
    table = pd.concat(parts).fillna(0) if parts else run_ups
    order = matches.table["last_start_ns"]
    return table.assign(order=table["match"].map(order)).sort_values(
        ["order", "member"], ignore_index=True
    )


def phases_of_run_ups(run_ups: pd.DataFrame) -> list[str]:
    """Return the phases among the columns of `find_run_ups`."""
    return [str(name) for name in run_ups if name not in _KNOWN_COLUMNS]


def excess_of_phases(trace: Trace) -> pd.DataFrame:
    """Return each phase's time in each run-up beyond the median of the other ranks.

    Columns: match, member, and one per phase in ns.
    """
    found = find_run_ups(trace)
    phases = phases_of_run_ups(found)
    beyond = {name: beyond_others(found[name], found["match"]) for name in phases}
    return found[["match", "member"]].assign(**beyond)


def _phases_of_members(
    trace: Trace, matches: Matches, run_ups: pd.DataFrame
) -> Iterator[tuple[dict[str, Intervals], str]]:
    """Yield when each member with a run-up was in which phase, and what to call the rest."""
    on_host = {phases.process: phases.times for phases in find_host_phases(trace.whole)}
    first = _first_event(trace)
    has_device = "kernels" in trace.recorded
    on_device = _on_devices(trace) if has_device else {}
    for place in sorted(run_ups["member"].unique().tolist()):
        process = matches.members[place].process
        own = dict(on_host.get(process, {}))
        own.pop("communication", None)
        before = Intervals.single(trace.whole.span.start_ns, first.get(process, 0))
        times = {NOT_RECORDED: before}
        if not has_device:
            yield times | own, UNCLAIMED
            continue
        times |= on_device.get(process, {})
        busy = Intervals.empty()
        for time in times.values():
            busy = busy | time
        times |= {f"{name}{ON_HOST}": time - busy for name, time in own.items()}
        yield times, DEVICE_IDLE


def _on_devices(trace: Trace) -> dict[int, dict[str, Intervals]]:
    """Return, by process, when its devices computed for which phase."""
    kernels = trace.whole.kernels
    computing = kernels[kernels["activity"] != Activity.COMMUNICATION.value]
    phases = phase_of_launches(trace, find_launches(trace, computing))
    starts, ends = computing["start_ns"].to_numpy(), computing["end_ns"].to_numpy()
    keys = pd.DataFrame({"process": computing["process"].to_numpy(), "phase": phases})
    found: dict[int, dict[str, Intervals]] = {}
    for rows in keys.groupby(["process", "phase"]).indices.values():
        process, phase = keys.iloc[rows[0]].tolist()
        name = PHASES[phase] if phase >= 0 else UNCLAIMED
        found.setdefault(process, {})[name] = Intervals.union_of(starts[rows], ends[rows])
    return found


def _first_event(trace: Trace) -> dict[int, int]:
    """Return the time of the first event of each process."""
    frames = [trace.whole.table(name) for name in _OF_PROCESSES]
    firsts = pd.concat([frame.groupby("process")["start_ns"].min() for frame in frames])
    return {
        int(str(process)): int(first) for process, first in firsts.groupby(level=0).min().items()
    }


def _with_phases(own: pd.DataFrame, times: dict[str, Intervals], rest: str) -> pd.DataFrame:
    starts, ends = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
    covered = {name: time.covered_ns(starts, ends) for name, time in times.items()}
    claimed = Intervals.empty()
    for time in times.values():
        claimed = claimed | time
    left = ends - starts - claimed.covered_ns(starts, ends)
    covered[rest] = covered.get(rest, 0) + left
    return own.assign(**covered)
