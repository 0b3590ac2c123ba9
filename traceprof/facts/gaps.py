"""The times in which a device had nothing to do, and what it waited for.

A gap ends with the next work of the device. Until that was launched the device waited for the
host; then, until `LATENCY_NS` after the launching call returned, for the launch to arrive; and
afterwards in the queue, for another stream, device or event. The causes of a gap add up to it
exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.device.times import device_time, recorded_window, used_devices
from traceprof.facts.device.work import DeviceWork, work_of_devices
from traceprof.facts.host.states import find_host_states
from traceprof.model.intervals import Intervals, overlapping_pairs
from traceprof.model.trace import Trace

__all__ = [
    "CAUSES",
    "LATENCY_NS",
    "LAUNCH_BOUND_NS",
    "LONGEST_CALL_NS",
    "find_gap_parts",
    "find_gaps",
]

_Int64Array = npt.NDArray[np.int64]
_Columns: TypeAlias = "dict[str, npt.NDArray[Any]]"
_Parts: TypeAlias = tuple[_Int64Array, _Int64Array, _Int64Array, _Int64Array]
"""Rows of gaps, and the start, end and cause of a part of each."""

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

_BEFORE_THAT: Final = ("profiler", "data", "synchronising")
_COLUMNS: Final = (
    "device",
    "start_ns",
    "end_ns",
    "process",
    "holder",
    "thread",
    "before",
    "after",
)
_PARTS: Final = ("gap", "start_ns", "end_ns", "cause")


def find_gaps(trace: Trace) -> pd.DataFrame:
    """Return every gap of every used device inside the window, sorted by device and start.

    Columns: device, start_ns, end_ns, process (of the next work, -1 at the end), holder
    (the process that the device waits for: at the end the one whose work ended last), thread (that
    launched the next work, -1 where that is not known), before and after (names of the neighbouring
    work, "" where there is none), and one column per cause with the ns that it accounts for. What a
    gap at the edge of the window waits for may lie outside.
    """
    return _gaps_and_parts(trace)[0]


def find_gap_parts(trace: Trace) -> pd.DataFrame:
    """Return when, in each of the gaps of `find_gaps`, each cause holds: the parts fill the gap.

    Columns: gap (its row), start_ns, end_ns, cause (place in `CAUSES`); sorted by gap and start.
    """
    return _gaps_and_parts(trace)[1]


@of_window
def _gaps_and_parts(trace: Trace) -> tuple[pd.DataFrame, pd.DataFrame]:
    bounded = _bounded_gaps(trace)
    found = [*_parts_of_known(trace, bounded), *_parts_of_others(bounded)]
    gap, starts, ends, cause = (np.concatenate(column) for column in zip(*found, strict=True))
    kept = np.flatnonzero(ends > starts)
    kept = kept[np.lexsort((starts[kept], gap[kept]))]
    columns = [column[kept] for column in (gap, starts, ends, cause)]
    causes = np.zeros((len(CAUSES), len(bounded["start_ns"])), np.int64)
    np.add.at(causes, (columns[3], columns[0]), columns[2] - columns[1])
    gaps: dict[str, Any] = {name: bounded[name] for name in _COLUMNS}
    gaps |= {name: pd.Series(bounded[name], dtype=object) for name in ("before", "after")}
    gaps |= dict(zip(CAUSES, causes, strict=True))
    parts = dict(zip(_PARTS, columns, strict=True))
    return pd.DataFrame(gaps, copy=False), pd.DataFrame(parts, copy=False)


def _bounded_gaps(trace: Trace) -> _Columns:
    """Return the gaps with the launch of what ends each, but not what they wait for."""
    work = work_of_devices(trace)
    tables = [_gaps_of(trace, device, work[device]) for device in used_devices(trace)]
    if not tables:
        names = (*_COLUMNS, "launch_ns", "launched_ns")
        flags = ("is_linked", "is_shared", "is_edge")
        nothing = dict.fromkeys(names, np.empty(0, np.int64))
        return {**nothing, **dict.fromkeys(flags, np.empty(0, np.bool_))}
    return {name: np.concatenate([own[name] for own in tables]) for name in tables[0]}


def _gaps_of(trace: Trace, device: int, work: DeviceWork) -> _Columns:
    """Return the gaps of a device with the launch of what ends each, and whether it is an edge."""
    span = recorded_window(trace, device)
    idle = device_time(trace, device).busy.gaps(span.start_ns, span.end_ns)
    last, following = work.before(idle.starts), work.after(idle.ends)
    first_ns, last_ns = int(work.starts[0]), int(work.ends_sorted[-1])
    # Before the first and after the last work of the recording, wherever the window is.
    edges = Intervals.single(span.start_ns, min(first_ns, span.end_ns)) | Intervals.single(
        max(last_ns, span.start_ns), span.end_ns
    )
    linked = (following >= 0) & work.is_linked[following]
    return {
        "device": np.full(len(idle), device),
        "start_ns": idle.starts,
        "end_ns": idle.ends,
        "process": np.where(following >= 0, work.process[following], -1),
        "holder": work.process[np.where(following >= 0, following, last)],
        "thread": np.where(linked, work.thread[following], -1),
        "before": _named(work, last),
        "after": _named(work, following),
        "launch_ns": np.where(following >= 0, work.launch_ns[following], -1),
        "launched_ns": np.where(following >= 0, work.launched_ns[following], -1),
        "is_linked": linked,
        "is_shared": ((following >= 0) & work.is_shared[following])
        | ((last >= 0) & work.is_shared[last]),
        "is_edge": edges.covered_ns(idle.starts, idle.ends) == idle.ends - idle.starts,
    }


def _named(work: DeviceWork, rows: _Int64Array) -> npt.NDArray[np.object_]:
    names = np.array([*work.labels, ""], object)
    return names[np.where(rows >= 0, work.name[rows], -1)]


def _parts_of_others(gaps: _Columns) -> Iterator[_Parts]:
    """Yield the gaps that have one cause alone: edges, and those before work without a launch."""
    edge, linked = gaps["is_edge"], gaps["is_linked"]
    starts, ends = gaps["start_ns"], gaps["end_ns"]
    for rows, cause in ((edge, "edge"), (~edge & ~linked, "unknown")):
        own = np.flatnonzero(rows)
        yield own, starts[own], ends[own], np.full(len(own), CAUSES.index(cause))


def _parts_of_known(trace: Trace, gaps: _Columns) -> Iterator[_Parts]:
    """Yield the parts of the gaps whose launch is known."""
    rows = np.flatnonzero(gaps["is_linked"] & ~gaps["is_edge"])
    starts, ends, launch, returned = (
        gaps[name][rows] for name in ("start_ns", "end_ns", "launch_ns", "launched_ns")
    )
    arrival = returned + LATENCY_NS
    launched = np.clip(launch, starts, ends)
    arrived = np.maximum(launched, np.clip(arrival, starts, ends))
    of_launch, of_host = CAUSES.index("launch"), CAUSES.index("host")
    otherwise = np.where(ends - starts <= LAUNCH_BOUND_NS, of_launch, of_host)
    process = gaps["process"][rows]
    for own, first, last, cause in _split_by_state(trace, process, starts, launched):
        yield rows[own], first, last, np.where(cause >= 0, cause, otherwise[own])
    # A call that takes this long loads a module or compiles: it is no launching.
    quick = arrival - launch <= LONGEST_CALL_NS + LATENCY_NS
    yield rows, launched, arrived, np.where(quick, of_launch, of_host)
    peer = gaps["is_shared"][rows] & (ends - arrived > LATENCY_NS)
    yield rows, arrived, ends, np.where(peer, CAUSES.index("peer"), CAUSES.index("queued"))


def _split_by_state(
    trace: Trace, process: _Int64Array, starts: _Int64Array, ends: _Int64Array
) -> Iterator[_Parts]:
    """Yield when the host of each time was in which state, -1 where in none."""
    states = find_host_states(trace)
    waited = np.flatnonzero(ends > starts)
    for owner in np.unique(process[waited]).tolist():
        own = waited[process[waited] == owner]
        first, last = starts[own], ends[own]
        times = states[owner].alone() if owner in states else {}
        in_any = Intervals.empty()
        for name in _BEFORE_THAT if times else ():
            in_any = in_any | times[name]
            yield _cut(own, first, last, times[name], CAUSES.index(name))
        yield _cut(own, first, last, in_any.gaps(int(first.min()), int(last.max())), -1)


def _cut(
    rows: _Int64Array, starts: _Int64Array, ends: _Int64Array, time: Intervals, cause: int
) -> _Parts:
    """Return what of each span lies in ``time``."""
    span, other = overlapping_pairs(starts, ends, time.starts, time.ends)
    first = np.maximum(starts[span], time.starts[other])
    last = np.minimum(ends[span], time.ends[other])
    return rows[span], first, last, np.full(len(span), cause)
