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

from traceprof.facts.cache import of_window
from traceprof.facts.device.times import device_time, recorded_window, used_devices
from traceprof.facts.device.work import DeviceWork, work_of_devices
from traceprof.facts.host.states import find_host_states
from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace

__all__ = ["CAUSES", "LATENCY_NS", "LAUNCH_BOUND_NS", "LONGEST_CALL_NS", "find_gaps"]

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

_BEFORE_THAT: Final = ("profiler", "data", "synchronising")
_COLUMNS: Final = ("device", "start_ns", "end_ns", "process", "before", "after")


@of_window
def find_gaps(trace: Trace) -> pd.DataFrame:
    """Return every gap of every used device inside the window, sorted by device and start.

    Columns: device, start_ns, end_ns, process (of the next work, -1 at the end), before and
    after (names of the neighbouring work, "" where there is none), and one column per cause with
    the ns that it accounts for. What a gap at the edge of the window waits for may lie outside.
    """
    work = work_of_devices(trace)
    tables = [_gaps_of(trace, device, work[device]) for device in used_devices(trace)]
    if not tables:
        return pd.DataFrame({name: np.empty(0, np.int64) for name in (*_COLUMNS, *CAUSES)})
    gaps = pd.concat(tables, ignore_index=True)
    return gaps[list(_COLUMNS)].assign(**_causes(trace, gaps))


def _gaps_of(trace: Trace, device: int, work: DeviceWork) -> pd.DataFrame:
    """Return the gaps of a device with the launch of what ends each, and whether it is an edge."""
    span = recorded_window(trace, device)
    idle = device_time(trace, device).busy.gaps(span.start_ns, span.end_ns)
    last, following = work.before(idle.starts), work.after(idle.ends)
    first_ns, last_ns = int(work.starts[0]), int(work.ends_sorted[-1])
    # Before the first and after the last work of the recording, wherever the window is.
    edges = Intervals.single(span.start_ns, min(first_ns, span.end_ns)) | Intervals.single(
        max(last_ns, span.start_ns), span.end_ns
    )
    return pd.DataFrame(
        {
            "device": device,
            "start_ns": idle.starts,
            "end_ns": idle.ends,
            "process": np.where(following >= 0, work.process[following], -1),
            "before": pd.Series(_named(work, last), dtype=object),
            "after": pd.Series(_named(work, following), dtype=object),
            "launch_ns": np.where(following >= 0, work.launch_ns[following], -1),
            "launched_ns": np.where(following >= 0, work.launched_ns[following], -1),
            "is_linked": (following >= 0) & work.is_linked[following],
            "is_shared": ((following >= 0) & work.is_shared[following])
            | ((last >= 0) & work.is_shared[last]),
            "is_edge": edges.covered_ns(idle.starts, idle.ends) == idle.ends - idle.starts,
        }
    )


def _named(work: DeviceWork, rows: _Int64Array) -> npt.NDArray[np.object_]:
    names = np.array([*work.labels, ""], object)
    return names[np.where(rows >= 0, work.name[rows], -1)]


def _causes(trace: Trace, gaps: pd.DataFrame) -> dict[str, _Int64Array]:
    """Return the ns of each cause in each gap."""
    split = _split(trace, gaps)
    peer = gaps["is_shared"].to_numpy() & (split["queued"] > LATENCY_NS)
    split["peer"] = np.where(peer, split["queued"], 0)
    split["queued"] = np.where(peer, 0, split["queued"])
    lengths = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    linked, edge = gaps["is_linked"].to_numpy(), gaps["is_edge"].to_numpy()
    causes = {name: np.where(linked & ~edge, split.get(name, 0), 0) for name in CAUSES}
    causes["unknown"] = np.where(linked | edge, 0, lengths)
    causes["edge"] = np.where(edge, lengths, 0)
    return causes


def _split(trace: Trace, gaps: pd.DataFrame) -> dict[str, _Int64Array]:
    """Return the ns of the causes that a gap has whose launch is known."""
    starts, ends = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    launch, arrival = gaps["launch_ns"].to_numpy(), gaps["launched_ns"].to_numpy() + LATENCY_NS
    launched, arrived = (np.clip(instant, starts, ends) for instant in (launch, arrival))
    arrived = np.maximum(launched, arrived)
    split = {name: np.zeros(len(gaps), np.int64) for name in _BEFORE_THAT}
    states = find_host_states(trace)
    for process, rows in gaps.groupby("process").indices.items():
        state = states.get(int(str(process)))
        if state is not None:
            for name, time in state.alone().items():
                split[name][rows] = time.covered_ns(starts[rows], launched[rows])
    waiting = launched - starts - sum(split.values())
    short = ends - starts <= LAUNCH_BOUND_NS
    # A call that takes this long loads a module or compiles: it is no launching.
    quick = arrival - launch <= LONGEST_CALL_NS + LATENCY_NS
    in_call = arrived - launched
    split["launch"] = np.where(quick, in_call, 0) + np.where(short, waiting, 0)
    split["host"] = np.where(short, 0, waiting) + np.where(quick, 0, in_call)
    split["queued"] = ends - arrived
    return split
