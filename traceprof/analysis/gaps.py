"""The times in which a device had nothing to do, and what it waited for.

A gap ends with the next work of the device. Until that was launched the device waited for the
host; then, until `LATENCY_NS` after the launching call returned, for the launch to arrive; and
afterwards in the queue, for another stream, device or event. The causes of a gap add up to it
exactly.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.attribution import find_launches
from traceprof.analysis.breakdown import device_time
from traceprof.analysis.host_state import HostState, find_host_states
from traceprof.model.intervals import Intervals
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["CAUSES", "LATENCY_NS", "LAUNCH_BOUND_NS", "LONGEST_CALL_NS", "device_work", "find_gaps"]

_Int64Array = npt.NDArray[np.int64]

CAUSES: Final = (
    "data",
    "synchronising",
    "launch",
    "host",
    "queued",
    "profiler",
    "edge",
    "unknown",
)
"""What a device waits for.

data: the host fetches data; synchronising: the host waits in a synchronising call; launch: the
host launches as fast as it can, but too slowly; host: the host runs other code (or a launching
call takes more than a millisecond, as when a module is loaded); queued: the work
had been launched: the pause between two kernels, or a wait for another stream, device or event;
profiler: the profiler itself; edge: before the first and after the last work of the recording;
unknown: no launch was recorded.
"""

LAUNCH_BOUND_NS: Final = 200_000
"""In a gap up to this long the host is taken to be busy launching, in a longer one to run other
code: eager PyTorch needs some 5 to 50 µs from one launch to the next."""


LONGEST_CALL_NS: Final = 1_000_000
"""A launching call that takes longer does something else, such as loading a module."""

LATENCY_NS: Final = 20_000
"""How long after its launch work may take to arrive at an idle device; usual are 3 to 10 µs."""


def device_work(trace: Trace, device: int) -> pd.DataFrame:
    """Return the kernels and copies of ``device``, sorted by start, with their launches.

    Columns: start_ns, end_ns, process, name, launch_ns and launched_ns (start and end of the
    launching call), and is_linked (whether it was recorded).
    """
    parts = []
    for name in DEVICE_TABLES:
        frame = trace.table(name)
        frame = frame[frame["device"] == device]
        launches = find_launches(trace, frame)
        labels = frame["name"] if name == "kernels" else frame["direction"]
        parts.append(
            pd.DataFrame(
                {
                    "start_ns": frame["start_ns"].to_numpy(),
                    "end_ns": frame["end_ns"].to_numpy(),
                    "process": frame["process"].to_numpy(),
                    "name": labels.to_numpy(object),
                    "launch_ns": launches.start_ns,
                    "launched_ns": launches.end_ns,
                    "is_linked": launches.is_known,
                }
            )
        )
    work = pd.concat(parts, ignore_index=True)
    return work.sort_values("start_ns", kind="stable", ignore_index=True)


def find_gaps(trace: Trace) -> pd.DataFrame:
    """Return every gap of every used device inside the window, sorted by device and start.

    Columns: device, start_ns, end_ns, process (of the next work, -1 at the end), before and
    after (names of the neighbouring work, "" where there is none), and one column per cause with
    the ns that it accounts for.
    """
    states = find_host_states(trace)
    used = trace.devices.loc[trace.devices["used"] == 1, "device"]
    tables = [_gaps_of(trace, int(device), states) for device in used]
    if not tables:
        columns = ("device", "start_ns", "end_ns", "process", "before", "after", *CAUSES)
        return pd.DataFrame({name: np.empty(0, np.int64) for name in columns})
    return pd.concat(tables, ignore_index=True)


def _gaps_of(trace: Trace, device: int, states: dict[int, HostState]) -> pd.DataFrame:
    span = trace.span
    idle = device_time(trace, device).busy.gaps(span.start_ns, span.end_ns)
    work = device_work(trace, device)
    follows = np.searchsorted(work["start_ns"], idle.ends, side="left")
    has_next = follows < len(work)
    next_row = np.minimum(follows, max(len(work) - 1, 0))
    gaps = pd.DataFrame({"device": device, "start_ns": idle.starts, "end_ns": idle.ends})
    gaps["process"] = _taken(work, "process", next_row, has_next, -1)
    gaps["before"] = _names_before(work, idle)
    gaps["after"] = _taken(work, "name", next_row, has_next, "")
    linked = np.asarray(_taken(work, "is_linked", next_row, has_next, False), np.bool_)
    launch, launched = (
        np.asarray(_taken(work, name, next_row, has_next, -1), np.int64)
        for name in ("launch_ns", "launched_ns")
    )
    split = _split(gaps, (launch, launched + LATENCY_NS), states)
    causes = {name: np.where(linked, split[name], 0) for name in CAUSES if name in split}
    causes["unknown"] = np.where(linked, 0, idle.ends - idle.starts)
    edges = _edges(trace, device).covered_ns(idle.starts, idle.ends)
    at_edge = edges == idle.ends - idle.starts
    causes = {name: np.where(at_edge, 0, values) for name, values in causes.items()}
    causes["edge"] = np.where(at_edge, edges, 0)
    return gaps.assign(**{name: causes[name] for name in CAUSES})


def _taken(
    work: pd.DataFrame,
    column: str,
    rows: _Int64Array,
    present: npt.NDArray[np.bool_],
    default: int | str | bool,
) -> npt.NDArray[np.generic]:
    if work.empty:
        return np.full(len(rows), default)
    values: npt.NDArray[np.generic] = work[column].to_numpy()[rows].copy()
    values[~present] = default
    return values


def _names_before(work: pd.DataFrame, idle: Intervals) -> npt.NDArray[np.generic]:
    """Return the name of the work whose end opens each gap."""
    order = np.argsort(work["end_ns"].to_numpy(), kind="stable")
    place = np.searchsorted(work["end_ns"].to_numpy()[order], idle.starts, side="right") - 1
    names = work["name"].to_numpy()[order]
    if not len(names):
        return np.full(len(idle), "", object)
    return np.where(place >= 0, names[np.maximum(place, 0)], "")


def _edges(trace: Trace, device: int) -> Intervals:
    """Return the time outside the first and last work of the device in the whole recording."""
    whole = trace.whole
    frames = [whole.table(name) for name in DEVICE_TABLES]
    mine = [frame[frame["device"] == device] for frame in frames]
    first = min(int(frame["start_ns"].min()) for frame in mine if len(frame))
    last = max(int(frame["end_ns"].max()) for frame in mine if len(frame))
    span = trace.span
    return Intervals.single(span.start_ns, min(first, span.end_ns)) | Intervals.single(
        max(last, span.start_ns), span.end_ns
    )


def _split(
    gaps: pd.DataFrame, launch: tuple[_Int64Array, _Int64Array], states: dict[int, HostState]
) -> dict[str, _Int64Array]:
    """Return the ns of each cause; ``launch`` is when the next work was launched, and arrived."""
    starts, ends = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    launched, arrived = (np.clip(instant, starts, ends) for instant in launch)
    arrived = np.maximum(launched, arrived)
    split = {name: np.zeros(len(gaps), np.int64) for name in CAUSES}
    for name in ("profiler", "data", "synchronising"):
        for process, rows in gaps.groupby("process").indices.items():
            state = states.get(int(str(process)))
            if state is not None:
                # A cause counts where no cause before it does.
                own = getattr(state, name) - _before(state, name)
                split[name][rows] = own.covered_ns(starts[rows], launched[rows])
    waiting = launched - starts - split["profiler"] - split["data"] - split["synchronising"]
    short = ends - starts <= LAUNCH_BOUND_NS
    # A call that takes this long loads a module or compiles: it is no launching.
    quick = launch[1] - launch[0] <= LONGEST_CALL_NS + LATENCY_NS
    in_call = arrived - launched
    split["launch"] = np.where(quick, in_call, 0) + np.where(short, waiting, 0)
    split["host"] = np.where(short, 0, waiting) + np.where(quick, 0, in_call)
    split["queued"] = ends - arrived
    return split


def _before(state: HostState, name: str) -> Intervals:
    if name == "profiler":
        return Intervals.empty()
    return state.profiler if name == "data" else state.profiler | state.data
