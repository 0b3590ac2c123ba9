"""Where the time of each device went: five parts that add up to the window exactly.

With unions over all streams of a device, C = compute kernels, N = communication kernels,
X = copies between host and device or between devices, M = copies and memsets inside a device:

=====================  =====================
compute                ``|C|``
exposed communication  ``|N - C|``
exposed transfer       ``|X - C - N|``
device memory          ``|M - C - N - X|``
idle                   ``T - |C ∪ N ∪ X ∪ M|``
=====================  =====================
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.model.activity import Activity, Part
from traceprof.model.intervals import Intervals
from traceprof.model.remembered import remembered
from traceprof.model.trace import Trace

__all__ = [
    "ANALYSIS",
    "Breakdown",
    "DeviceBreakdown",
    "DeviceTime",
    "device_time",
    "measure_breakdown",
]

_DEVICE_MEMORY_DIRECTIONS = ("d2d", "memset")
_HOST_ONLY_DIRECTIONS = ("h2h",)


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """When a device did what: the unions C, N, X and M."""

    compute: Intervals
    communication: Intervals
    transfer: Intervals
    device_memory: Intervals

    @property
    def busy(self) -> Intervals:
        """When anything ran."""
        return self.compute | self.communication | self.transfer | self.device_memory


@dataclass(frozen=True, slots=True)
class DeviceBreakdown:
    """The five parts of one device, or of several added up.

    ``communication_ns`` and ``transfer_ns`` are whole, hidden or not; the overlap ratios say
    which share of them compute hid (None where there was none to hide). ``utilisation_ratio``
    is what nvidia-smi calls GPU-Util: the share of time in which a kernel ran.
    """

    device: str
    name: str
    duration_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_transfer_ns: int
    device_memory_ns: int
    idle_ns: int
    communication_ns: int
    transfer_ns: int
    communication_overlap_ns: int
    transfer_overlap_ns: int
    kernel_ns: int

    @property
    def communication_overlap_ratio(self) -> float | None:
        """The share of communication that runs beside compute."""
        return _share(self.communication_overlap_ns, self.communication_ns)

    @property
    def transfer_overlap_ratio(self) -> float | None:
        """The share of transfers that runs beside compute or communication."""
        return _share(self.transfer_overlap_ns, self.transfer_ns)

    @property
    def utilisation_ratio(self) -> float | None:
        """The share of the window in which at least one kernel ran."""
        return _share(self.kernel_ns, self.duration_ns)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The breakdown per device, and of all devices added up (their parts and their durations)."""

    devices: tuple[DeviceBreakdown, ...]
    total: DeviceBreakdown | None
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per device, the sum of several last."""
        several = self.total is not None and len(self.devices) > 1
        rows = [*self.devices, *([self.total] if several else [])]
        columns = [
            {
                **asdict(row),
                "utilisation_ratio": row.utilisation_ratio,
                "communication_overlap_ratio": row.communication_overlap_ratio,
                "transfer_overlap_ratio": row.transfer_overlap_ratio,
            }
            for row in rows
            if row is not None
        ]
        return pd.DataFrame(columns)


@remembered
def device_time(trace: Trace, device: int) -> DeviceTime:
    """Return what ``device`` did when."""
    kernels, copies = trace.kernels, trace.copies
    part = _part_of_kernels(kernels)
    here = (kernels["device"] == device).to_numpy()
    direction = copies["direction"]
    copied_here = (copies["device"] == device).to_numpy()
    inside = copied_here & direction.isin(_DEVICE_MEMORY_DIRECTIONS).to_numpy()
    outside = copied_here & ~inside & ~direction.isin(_HOST_ONLY_DIRECTIONS).to_numpy()
    kernel_time = {kind: _union(kernels, here & (part == i)) for i, kind in enumerate(Part)}
    return DeviceTime(
        compute=kernel_time[Part.COMPUTE],
        communication=kernel_time[Part.COMMUNICATION],
        transfer=kernel_time[Part.TRANSFER] | _union(copies, outside),
        device_memory=kernel_time[Part.DEVICE_MEMORY] | _union(copies, inside),
    )


def _part_of_kernels(kernels: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return the place in `Part` of each kernel; one look per activity, not per kernel."""
    activities = kernels["activity"].cat
    places = [list(Part).index(Activity(name).part) for name in activities.categories]
    return np.array([*places, -1], np.int64)[activities.codes]


def measure_breakdown(trace: Trace) -> Breakdown:
    """Return the five parts of every device that worked anywhere in the recording."""
    used = trace.devices[trace.devices["used"] == 1]
    devices = tuple(
        _measure(trace, int(device), str(name))
        for device, name in zip(used["device"], used["name"], strict=True)
    )
    if not devices:
        return Breakdown((), None, ("device work was recorded, but there was none",))
    return Breakdown(devices, _added(devices), _notes(trace))


def _measure(trace: Trace, device: int, name: str) -> DeviceBreakdown:
    time = device_time(trace, device)
    duration_ns = trace.span.duration_ns
    compute, communication = time.compute, time.communication
    exposed_communication = communication - compute
    kernel = compute | communication
    exposed_transfer = time.transfer - kernel
    device_memory = time.device_memory - (kernel | time.transfer)
    parts = (compute, exposed_communication, exposed_transfer, device_memory)
    return DeviceBreakdown(
        device=str(device),
        name=name,
        duration_ns=duration_ns,
        compute_ns=compute.total_ns,
        exposed_communication_ns=exposed_communication.total_ns,
        exposed_transfer_ns=exposed_transfer.total_ns,
        device_memory_ns=device_memory.total_ns,
        idle_ns=duration_ns - sum(part.total_ns for part in parts),
        communication_ns=communication.total_ns,
        transfer_ns=time.transfer.total_ns,
        communication_overlap_ns=communication.total_ns - exposed_communication.total_ns,
        transfer_overlap_ns=time.transfer.total_ns - exposed_transfer.total_ns,
        kernel_ns=kernel.total_ns,
    )


def _added(devices: tuple[DeviceBreakdown, ...]) -> DeviceBreakdown:
    rows = pd.DataFrame([asdict(device) for device in devices])
    sums = rows.drop(columns=["device", "name"]).sum()
    return DeviceBreakdown(
        device="all",
        name=f"{len(devices)} devices added up",
        **{str(column): int(value) for column, value in sums.items()},
    )


def _notes(trace: Trace) -> tuple[str, ...]:
    graphs = trace.kernels["activity"] == Activity.CUDA_GRAPH.value
    if not graphs.any():
        return ()
    return (
        f"{int(graphs.sum())} CUDA graph launches were traced whole and count as compute: "
        "gaps and communication inside them are not seen (nsys --cuda-graph-trace=node)",
    )


def _union(frame: pd.DataFrame, rows: npt.NDArray[np.bool_]) -> Intervals:
    return Intervals.union_of(frame["start_ns"].to_numpy()[rows], frame["end_ns"].to_numpy()[rows])


def _share(part_ns: int, whole_ns: int) -> float | None:
    return part_ns / whole_ns if whole_ns else None


ANALYSIS = Analysis(
    name="breakdown",
    needs=("kernels", "copies"),
    run=measure_breakdown,
)
