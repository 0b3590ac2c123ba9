"""What each rank did before it came to each shared collective.

A shared collective ends on all ranks at once. What a rank does from the end of one to the start
of its next is its run-up: it holds no waiting for others, so that run-ups of ranks compare.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.attribution.host_phases import find_host_phases
from traceprof.analysis.attribution.launches import find_launches, phase_of_launches
from traceprof.analysis.attribution.phase_names import PHASES, UNCLAIMED
from traceprof.analysis.communication.matches import Matches
from traceprof.model.activity import Activity
from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace

__all__ = ["DEVICE_IDLE", "NOT_RECORDED", "ON_HOST", "find_run_ups"]

NOT_RECORDED: Final = "the time before its recording"
DEVICE_IDLE: Final = "device idle"
ON_HOST: Final = " (device idle)"
"""Stands behind the phase that the host was in while the device had nothing to do."""
_OF_PROCESSES: Final = ("api_calls", "host_ops", "ranges", "kernels", "collectives")


def find_run_ups(trace: Trace, matches: Matches) -> pd.DataFrame:
    """Return one row per rank and shared collective, by the start of the last rank.

    Columns: match, member, start_ns (the end of the collective before, or the start of the
    window), end_ns (the start of this one), late_ns (after the median of the ranks), and one per
    phase with its time in between. Where device work was recorded: on the device, then the phases
    of the host while the device was idle (`ON_HOST`), then what is left as `DEVICE_IDLE`; else
    the phases of the host, with what is left as "outside any phase". `NOT_RECORDED` is the time
    before the first event of the rank: then the rank was late before its recording began.
    """
    rows = matches.rows[matches.rows["match"] >= 0].sort_values(["member", "start_ns"])
    before = rows.groupby("member")["end_ns"].cummax().groupby(rows["member"]).shift()
    begins = before.fillna(trace.span.start_ns).clip(lower=trace.span.start_ns)
    run_ups = pd.DataFrame(
        {
            "match": rows["match"],
            "member": rows["member"],
            "start_ns": np.minimum(begins.astype(np.int64), rows["start_ns"]),
            "end_ns": rows["start_ns"],
            "late_ns": rows["start_ns"] - rows.groupby("match")["start_ns"].transform("median"),
        }
    )
    parts = [
        _with_phases(own, *_phases(trace, matches.members[int(str(place))].process))
        for place, own in run_ups.groupby("member")
    ]
    table = pd.concat(parts).fillna(0) if parts else run_ups
    order = matches.table["last_start_ns"]
    return table.assign(order=table["match"].map(order)).sort_values(
        ["order", "member"], ignore_index=True
    )


def _phases(trace: Trace, process: int) -> tuple[dict[str, Intervals], str]:
    """Return when a process was in which phase, and what to call the rest."""
    found = [phases for phases in find_host_phases(trace.whole) if phases.process == process]
    on_host = dict(found[0].times) if found else {}
    on_host.pop("communication", None)
    unrecorded = {NOT_RECORDED: _before_recording(trace, process)}
    if "kernels" not in trace.recorded:
        return unrecorded | on_host, UNCLAIMED
    times = unrecorded | _on_device(trace, process)
    busy = Intervals.empty()
    for time in times.values():
        busy = busy | time
    times |= {f"{name}{ON_HOST}": time - busy for name, time in on_host.items()}
    return times, DEVICE_IDLE


def _on_device(trace: Trace, process: int) -> dict[str, Intervals]:
    kernels = trace.whole.kernels
    own = kernels["process"] == process
    computing = kernels[own & (kernels["activity"] != Activity.COMMUNICATION.value)]
    phases = phase_of_launches(trace, find_launches(trace, computing))
    names = np.array([*PHASES, UNCLAIMED], object)[phases]
    starts, ends = computing["start_ns"].to_numpy(), computing["end_ns"].to_numpy()
    return {
        str(name): Intervals.union_of(starts[names == name], ends[names == name])
        for name in dict.fromkeys(names)
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


def _before_recording(trace: Trace, process: int) -> Intervals:
    """Return the time before the first event of a process."""
    frames = [trace.whole.table(name) for name in _OF_PROCESSES]
    starts = [frame["start_ns"].to_numpy()[frame["process"] == process] for frame in frames]
    first = min((int(own[0]) for own in starts if len(own)), default=0)
    return Intervals.single(trace.whole.span.start_ns, first)
