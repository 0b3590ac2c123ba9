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

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

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
    "add_up",
    "device_time",
    "measure_breakdown",
]

_DEVICE_MEMORY_DIRECTIONS = ("d2d", "memset")
_HOST_ONLY_DIRECTIONS = ("h2h",)
_OF_DEVICES = (Part.COMPUTE, Part.COMMUNICATION, Part.TRANSFER, Part.DEVICE_MEMORY)
_NEITHER, _INSIDE, _OUTSIDE = -1, 0, 1


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


def device_time(trace: Trace, device: int) -> DeviceTime:
    """Return what ``device`` did when."""
    nothing = Intervals.empty()
    none = DeviceTime(nothing, nothing, nothing, nothing)
    return _times_of_devices(trace).get(device, none)


@remembered
def _times_of_devices(trace: Trace) -> dict[int, DeviceTime]:
    """Return what each device did when, in one pass over the tables for all of them."""
    kernels, copies = trace.kernels, trace.copies
    direction = copies["direction"].cat
    kind_of = [_kind_of_copy(str(name)) for name in direction.categories]
    of_kernels = _unions(kernels, _part_of_kernels(kernels))
    of_copies = _unions(copies, np.array([*kind_of, _NEITHER], np.int64)[direction.codes])
    compute, communication, transfer, device_memory = map(list(Part).index, _OF_DEVICES)
    nothing = Intervals.empty()
    return {
        device: DeviceTime(
            compute=of_kernels.get((device, compute), nothing),
            communication=of_kernels.get((device, communication), nothing),
            transfer=of_kernels.get((device, transfer), nothing)
            | of_copies.get((device, _OUTSIDE), nothing),
            device_memory=of_kernels.get((device, device_memory), nothing)
            | of_copies.get((device, _INSIDE), nothing),
        )
        for device in {device for device, _ in (*of_kernels, *of_copies)}
    }


def _kind_of_copy(direction: str) -> int:
    if direction in _HOST_ONLY_DIRECTIONS:
        return _NEITHER
    return _INSIDE if direction in _DEVICE_MEMORY_DIRECTIONS else _OUTSIDE


def _unions(frame: pd.DataFrame, kind: npt.NDArray[np.int64]) -> dict[tuple[int, int], Intervals]:
    """Return the union of the rows of each device and kind."""
    device = frame["device"].to_numpy()
    order = np.lexsort((kind, device))
    starts, ends = frame["start_ns"].to_numpy()[order], frame["end_ns"].to_numpy()[order]
    device, kind = device[order], kind[order]
    changes = np.flatnonzero((np.diff(device) != 0) | (np.diff(kind) != 0)) + 1
    edges = [0, *changes.tolist(), len(order)] if len(order) else []
    return {
        (int(device[first]), int(kind[first])): Intervals.union_of(
            starts[first:last], ends[first:last]
        )
        for first, last in pairwise(edges)
    }


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
    return Breakdown(devices, add_up(devices), _notes(trace))


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


def add_up(devices: Sequence[DeviceBreakdown]) -> DeviceBreakdown:
    """Return the parts and the durations of several devices (at least one) added up."""
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


def _share(part_ns: int, whole_ns: int) -> float | None:
    return part_ns / whole_ns if whole_ns else None


ANALYSIS = Analysis(
    name="breakdown",
    needs=("kernels", "copies"),
    run=measure_breakdown,
)
