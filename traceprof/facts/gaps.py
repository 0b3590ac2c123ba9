"""The times in which a device had nothing to do, and what it waited for.

A gap ends with the next work of the device. Until that was launched the device waited for the
host; then, until `LATENCY_NS` after the launching call returned, for the launch to arrive; and
afterwards in the queue, for another stream, device or event. The causes of a gap add up to it
exactly.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.devices import device_time
from traceprof.facts.host.states import HostState, find_host_states
from traceprof.facts.launches import find_launches
from traceprof.model.activity import Activity
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
    "peer",
    "profiler",
    "edge",
    "unknown",
)
"""What a device waits for.

data: the host fetches data; synchronising: the host waits in a synchronising call; launch: the
host launches as fast as it can, but too slowly; host: the host runs other code (or a launching
call takes more than a millisecond, as when a module is loaded); queued: the work had been
launched: the pause between two kernels, or a wait for another stream or event; peer: the same
before or after work that another device takes part in; profiler: the profiler itself; edge:
before the first and after the last work of the recording; unknown: no launch was recorded.
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
    launching call), is_linked (whether it was recorded), and is_shared (whether another device
    takes part: communication, copies between devices).
    """
    parts = []
    for name in DEVICE_TABLES:
        frame = trace.table(name)
        frame = frame[frame["device"] == device]
        launches = find_launches(trace, frame)
        if name == "kernels":
            labels, shared = frame["name"], frame["activity"] == Activity.COMMUNICATION.value
        else:
            labels, shared = frame["direction"], frame["direction"] == "p2p"
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
                    "is_shared": shared.to_numpy(np.bool_),
                }
            )
        )
    work = pd.concat(parts, ignore_index=True)
    return work.sort_values("start_ns", kind="stable", ignore_index=True)


@of_window
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
    # What a gap at the end of the window waits for may lie behind it.
    work = device_work(trace.whole, device)
    next_row = np.searchsorted(work["start_ns"], idle.ends, side="left")
    next_row = np.where(next_row < len(work), next_row, -1)
    last_row = _rows_before(work, idle)
    gaps = pd.DataFrame({"device": device, "start_ns": idle.starts, "end_ns": idle.ends})
    gaps["process"] = _taken(work, "process", next_row, -1)
    gaps["before"] = _taken(work, "name", last_row, "")
    gaps["after"] = _taken(work, "name", next_row, "")
    linked = np.asarray(_taken(work, "is_linked", next_row, False), np.bool_)
    launch, launched = (
        np.asarray(_taken(work, name, next_row, -1), np.int64)
        for name in ("launch_ns", "launched_ns")
    )
    split = _split(gaps, (launch, launched + LATENCY_NS), states)
    involves_peer = _taken(work, "is_shared", next_row, False) | _taken(
        work, "is_shared", last_row, False
    )
    waits_for_peer = np.asarray(involves_peer, np.bool_) & (split["queued"] > LATENCY_NS)
    split["peer"] = np.where(waits_for_peer, split["queued"], 0)
    split["queued"] = np.where(waits_for_peer, 0, split["queued"])
    lengths = idle.ends - idle.starts
    edge = _edges(trace, device).covered_ns(idle.starts, idle.ends) == lengths
    causes = {name: np.where(linked & ~edge, split[name], 0) for name in CAUSES}
    causes["unknown"] = np.where(linked | edge, 0, lengths)
    causes["edge"] = np.where(edge, lengths, 0)
    return gaps.assign(**causes)


def _taken(
    work: pd.DataFrame, column: str, rows: _Int64Array, default: int | str | bool
) -> npt.NDArray[Any]:
    """Return the values of ``column`` in ``rows``, ``default`` where a row is -1."""
    if work.empty:
        return np.full(len(rows), default)
    values = work[column].to_numpy()[rows].copy()
    values[rows < 0] = default
    return values


def _rows_before(work: pd.DataFrame, idle: Intervals) -> _Int64Array:
    """Return the row of the work whose end opens each gap, -1 where there is none."""
    ends = work["end_ns"].to_numpy()
    order = np.argsort(ends, kind="stable")
    place = np.searchsorted(ends[order], idle.starts, side="right") - 1
    if not len(order):
        return np.full(len(idle), -1, np.int64)
    return np.where(place >= 0, order[np.maximum(place, 0)], -1)


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
