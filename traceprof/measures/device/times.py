"""When each device did what: the unions that the five parts are made of, and their table.

The parts add up to the window exactly; `traceprof.model.parts` says what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.measures.analyses import Analysis
from traceprof.measures.facts import fact, of_window
from traceprof.model.activity import Activity, DeviceTime, Part
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import (
    Column,
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    same,
    total,
)
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace

_DEVICE_MEMORY_DIRECTIONS: Final = ("d2d", "memset")
_HOST_ONLY_DIRECTIONS: Final = ("h2h",)
_OF_DEVICES: Final = (Part.COMPUTE, Part.COMMUNICATION, Part.TRANSFER, Part.DEVICE_MEMORY)
_DEVICE_BITS: Final = 20
_NEITHER, _INSIDE, _OUTSIDE = -1, 0, 1


def used_devices(trace: Trace) -> dict[int, str]:
    """Return the name of each device that worked anywhere in the recording, by its number."""
    used = trace.devices[trace.devices["used"] == 1]
    return {int(n): str(name) for n, name in zip(used["device"], used["name"], strict=True)}


def device_time(trace: Trace, device: int) -> DeviceTime:
    """Return what ``device`` did when, inside the window."""
    return device_times(trace).get(device) or DeviceTime.nothing()


def recorded_window(trace: Trace, device: int) -> TimeWindow:
    """Return the part of the window in which the processes that use ``device`` were recorded.

    The files of a run seldom begin and end together: a device is not idle before and after.
    """
    return _recordings_of_devices(trace).get(device, trace.span) & trace.span


@fact
def _recordings_of_devices(trace: Trace) -> Mapping[int, TimeWindow]:
    """Return when each device was recorded, of those of which this is known apart."""
    found: dict[int, TimeWindow] = {}
    for process, devices in devices_of_processes(trace).items():
        own = trace.recordings.get(process)
        if own is None:
            continue
        for device in devices:
            known = found.get(device, own)
            first, last = min(known.start_ns, own.start_ns), max(known.end_ns, own.end_ns)
            found[device] = TimeWindow(first, last)
    if len({*trace.recordings.values()}) == 1:  # devices that rest in all of a part of a trace
        (only,) = {*trace.recordings.values()}
        found |= {device: only for device in used_devices(trace) if device not in found}
    return found


def part_of_device(ranks: Ranks, device: int) -> Trace:
    """Return the whole Trace that lists ``device``; the first one where none does."""
    return ranks.whole.parts[_parts_of_devices(ranks).get(device, 0)]


@fact
def _parts_of_devices(ranks: Ranks) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for i, part in enumerate(ranks):
        for device in part.devices["device"].tolist():
            found.setdefault(device, i)
    return found


@of_window
def device_times(trace: Trace) -> Mapping[int, DeviceTime]:
    """Return what each device that works anywhere in the recording did when, inside the window."""
    whole = _times_of_devices(trace)
    if trace.uncut is None:
        return whole
    span = trace.span
    return {device: time.clip(span.start_ns, span.end_ns) for device, time in whole.items()}


@fact
def devices_of_processes(trace: Trace) -> Mapping[int, tuple[int, ...]]:
    """Return the devices that each process works on, anywhere in the recording."""
    return _devices_by_process(trace)


@of_window
def devices_at_work(trace: Trace) -> Mapping[int, tuple[int, ...]]:
    """Return the devices that each process works on in the window."""
    return _devices_by_process(trace)


def _devices_by_process(trace: Trace) -> Mapping[int, tuple[int, ...]]:
    # Both in one number, of which there are few: quick for many rows and for many small files.
    packed = [
        (frame["process"].to_numpy(np.int64) << _DEVICE_BITS) + frame["device"].to_numpy(np.int64)
        for frame in map(trace.table, DEVICE_TABLES)
    ]
    found: dict[int, tuple[int, ...]] = {}
    for pair in np.sort(pd.unique(np.concatenate(packed))).tolist():
        process = pair >> _DEVICE_BITS
        found[process] = (*found.get(process, ()), pair - (process << _DEVICE_BITS))
    return found


@fact
def _times_of_devices(trace: Trace) -> Mapping[int, DeviceTime]:
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
        for device in {*used_devices(trace), *(own for own, _ in (*of_kernels, *of_copies))}
    }


def places_in_part(trace: Trace, name: str) -> npt.NDArray[np.int64]:
    """Return the place in `Part` of each row of "kernels" or "copies"; -1: none of a device."""
    if name == "kernels":
        return _part_of_kernels(trace.kernels)
    direction = trace.copies["direction"].cat
    part_of = {
        _NEITHER: -1,
        _INSIDE: list(Part).index(Part.DEVICE_MEMORY),
        _OUTSIDE: list(Part).index(Part.TRANSFER),
    }
    kinds = [part_of[_kind_of_copy(str(own))] for own in direction.categories]
    return np.array([*kinds, -1], np.int64)[direction.codes]


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


@of_window
def device_parts(trace: Trace) -> pd.DataFrame:
    """Return one row per device that worked anywhere in the recording.

    Columns: device, name, duration_ns (of the window, as far as it was recorded), the five parts
    (``compute_ns`` …, see `traceprof.model.activity`), communication_ns and transfer_ns (hidden or
    not), their overlaps (what compute, or any kernel, hides), kernel_ns (when any kernel ran).
    """
    rows = [_measure(trace, device, name) for device, name in used_devices(trace).items()]
    return pd.DataFrame(rows)


def _measure(trace: Trace, device: int, name: str) -> dict[str, int | str]:
    time = device_time(trace, device)
    span = recorded_window(trace, device)
    parts = time.parts_within(np.array([span.start_ns]), np.array([span.end_ns]))
    ns = {f"{part}_ns": int(values[0]) for part, values in parts.items()}
    communication_ns, transfer_ns = time.communication.total_ns, time.transfer.total_ns
    return {
        "device": device,
        "name": name,
        "duration_ns": span.duration_ns,
        **ns,
        "communication_ns": communication_ns,
        "transfer_ns": transfer_ns,
        "communication_overlap_ns": communication_ns - ns["exposed_communication_ns"],
        "transfer_overlap_ns": transfer_ns - ns["exposed_transfer_ns"],
        "kernel_ns": time.kernel.total_ns,
    }


_MEASURES: Final = (
    total("duration_ns", Unit.NS, "the length of the window, as far as it was recorded"),
    total("compute_ns", Unit.NS, "when compute kernels ran"),
    total("exposed_communication_ns", Unit.NS, "when communication ran and no compute hid it"),
    total("exposed_transfer_ns", Unit.NS, "when copies from or to elsewhere ran and no kernel did"),
    total("device_memory_ns", Unit.NS, "when only copies and memsets inside the device ran"),
    total("idle_ns", Unit.NS, "when nothing ran"),
    total("communication_ns", Unit.NS, "when communication ran, hidden or not"),
    total("transfer_ns", Unit.NS, "when copies from or to elsewhere ran, hidden or not"),
    total("communication_overlap_ns", Unit.NS, "communication that compute hides"),
    total("transfer_overlap_ns", Unit.NS, "copies from or to elsewhere that kernels hide"),
    total("kernel_ns", Unit.NS, "when any kernel ran"),
    derived("utilisation_ratio", Unit.RATIO, "kernel_ns of duration_ns: GPU-Util of nvidia-smi"),
    derived("communication_overlap_ratio", Unit.RATIO, "the share of communication that is hidden"),
    derived("transfer_overlap_ratio", Unit.RATIO, "the share of these copies that is hidden"),
)
_RATIOS: Final = (
    ("utilisation_ratio", "kernel_ns", "duration_ns"),
    ("communication_overlap_ratio", "communication_overlap_ns", "communication_ns"),
    ("transfer_overlap_ratio", "transfer_overlap_ns", "transfer_ns"),
)
_DEVICE: Final[tuple[Column, ...]] = (
    key("device", "the number of the device in the run", Unit.NUMBER),
    same("name", Unit.TEXT, "what the device is"),
)
BREAKDOWN_SPEC: Final = ResultSpec(
    tables=(
        TableSpec("devices", "one row per device that worked", (*_DEVICE, *_MEASURES)),
        TableSpec("total", "all devices added up, their parts and their durations", _MEASURES),
    ),
    scalars=(
        total("graphs_count", Unit.COUNT, "CUDA graphs that were traced whole, as one kernel each"),
    ),
)


def measure_breakdown(trace: Trace) -> Result:
    """Return the five parts of every device that worked anywhere in the recording."""
    graphs = (trace.kernels["activity"] == Activity.CUDA_GRAPH.value).sum()
    return Result(
        "breakdown",
        BREAKDOWN_SPEC,
        tables={"devices": BREAKDOWN_SPEC.table("devices").frame(device_parts(trace))},
        scalars={"graphs_count": int(graphs)},
    )


def _finish(result: Result) -> Result:
    devices = result.table
    if devices.empty:
        empty = result.with_table(BREAKDOWN_SPEC.table("total").frame(), "total")
        return empty.with_notes(Note("device work was recorded, but there was none"))
    measures = [c.name for c in BREAKDOWN_SPEC.table("total") if c.name in devices]
    whole = devices[measures].sum().to_frame().T.astype("int64")
    finished = result.with_table(_with_ratios(devices)).with_table(_with_ratios(whole), "total")
    graphs = int(result.scalars["graphs_count"])
    return finished.with_notes(*([_on_graphs(graphs)] if graphs else []))


def _with_ratios(frame: pd.DataFrame) -> pd.DataFrame:
    ratios = {name: frame[part] / frame[of].where(frame[of] > 0) for name, part, of in _RATIOS}
    return frame.assign(**ratios)


def _on_graphs(graphs: int) -> Note:
    return Note.of(
        "{graphs:count} CUDA graph launches were traced whole and count as compute: "
        "gaps and communication inside them are not seen (nsys --cuda-graph-trace=node)",
        graphs=graphs,
    )


BREAKDOWN = Analysis(
    name="breakdown",
    spec=BREAKDOWN_SPEC,
    needs=("kernels", "copies"),
    uses=("devices",),
    of_rank=measure_breakdown,
    finish=_finish,
)
