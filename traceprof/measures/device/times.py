"""When each device did what: the unions that the five parts are made of, and their table.

The parts add up to the window exactly; `traceprof.model.activity` says what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.analyses import Analysis
from traceprof.measures.facts import fact, of_window
from traceprof.measures.rows import Ints, bounds, by_category
from traceprof.model.activity import Activity, DeviceTime, Part
from traceprof.model.grouping import rows_by_values
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec, TableSpec, columns
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace

_PLACES: Final = {part: place for place, part in enumerate(Part)} | {None: -1}
_PART_OF_COPY: Final = {"d2d": Part.DEVICE_MEMORY, "memset": Part.DEVICE_MEMORY, "h2h": None}
"""Of other directions it is `Part.TRANSFER`."""
_DEVICE_BITS: Final = 20


def used_devices(trace: Trace) -> dict[int, str]:
    """Return the name of each device that worked anywhere in the recording, by its number."""
    used = trace.devices.to_frame()[trace.devices.to_frame()["used"] == 1]
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
    windows = {*trace.recordings.values()}
    if len(windows) == 1:  # devices that rest in all of a part of a trace
        found = dict.fromkeys(used_devices(trace), *windows)
    for process, devices in devices_at_work(trace).items():
        if (own := trace.recordings.get(process)) is None:
            continue
        for device in devices:
            known = found.get(device, own)
            first, last = min(known.start_ns, own.start_ns), max(known.end_ns, own.end_ns)
            found[device] = TimeWindow(first, last)
    return found


def part_of_device(ranks: Ranks, device: int) -> Trace:
    """Return the whole Trace that lists ``device``; the first one where none does."""
    return ranks.whole.parts[_parts_of_devices(ranks).get(device, 0)]


@fact
def _parts_of_devices(ranks: Ranks) -> Mapping[int, int]:
    # Of a device that several list the first counts.
    pairs = [
        (own, i)
        for i, part in enumerate(ranks)
        for own in part.devices.to_frame()["device"].tolist()
    ]
    return dict(reversed(pairs))


@of_window
def device_times(trace: Trace) -> Mapping[int, DeviceTime]:
    """Return what each device that works anywhere in the recording did when, inside the window."""
    whole = _times_of_devices(trace)
    if trace.uncut is None:
        return whole
    span = trace.span
    return {device: time.clip(span.start_ns, span.end_ns) for device, time in whole.items()}


def devices_of_processes(trace: Trace) -> Mapping[int, tuple[int, ...]]:
    """Return the devices that each process works on, anywhere in the recording."""
    return devices_at_work(trace.whole)


@of_window
def devices_at_work(trace: Trace) -> Mapping[int, tuple[int, ...]]:
    """Return the devices that each process works on in the window."""
    # Both in one number, of which there are few: quick for many rows and for many small files.
    packed = [
        (frame["process"] << _DEVICE_BITS) + frame["device"]
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
    found: dict[tuple[int, ...], Intervals] = {}
    nothing = Intervals.empty()
    for name in DEVICE_TABLES:
        frame = trace.table(name).to_frame()
        starts, ends = bounds(frame)
        for key, rows in rows_by_values(frame["device"], places_in_part(trace, name)).items():
            time = Intervals.union_of(starts[rows], ends[rows])
            found[key] = found[key] | time if key in found else time
    return {
        device: DeviceTime(*(found.get((device, place), nothing) for place in range(len(Part))))
        for device in {*used_devices(trace), *(own for own, _ in found)}
    }


def places_in_part(trace: Trace, name: str) -> Ints:
    """Return the place in `Part` of each row of "kernels" or "copies"; -1: none of a device."""
    column = (
        trace.kernels.to_frame()["activity"]
        if name == "kernels"
        else trace.copies.to_frame()["direction"]
    )
    labels = map(str, column.cat.categories)
    parts = (
        [Activity(own).part for own in labels]
        if name == "kernels"
        else [_PART_OF_COPY.get(own, Part.TRANSFER) for own in labels]
    )
    return by_category(column, [_PLACES[part] for part in parts], -1)


@of_window
def device_parts(trace: Trace) -> pd.DataFrame:
    """Return one row per device that worked anywhere in the recording.

    Columns: device, name, duration_ns (of the window, as far as it was recorded), the five parts
    (``compute_ns`` …, see `traceprof.model.activity`), communication_ns and transfer_ns (hidden or
    not), their overlaps (what compute, or any kernel, hides), kernel_ns (when any kernel ran).
    """
    rows: list[dict[str, int | str]] = []
    for device, name in used_devices(trace).items():
        time, span = device_time(trace, device), recorded_window(trace, device)
        parts = time.parts_within(np.array([span.start_ns]), np.array([span.end_ns]))
        ns = {f"{part}_ns": int(values[0]) for part, values in parts.items()}
        communication_ns, transfer_ns = time.communication.total_ns, time.transfer.total_ns
        measures = {
            "communication_ns": communication_ns,
            "transfer_ns": transfer_ns,
            "communication_overlap_ns": communication_ns - ns["exposed_communication_ns"],
            "transfer_overlap_ns": transfer_ns - ns["exposed_transfer_ns"],
            "kernel_ns": time.kernel.total_ns,
        }
        rows.append(
            {"device": device, "name": name, "duration_ns": span.duration_ns, **ns, **measures}
        )
    return pd.DataFrame(rows)


_MEASURES: Final = columns("""
    total duration_ns: the length of the window, as far as it was recorded
    total compute_ns: when compute kernels ran
    total exposed_communication_ns: when communication ran and no compute hid it
    total exposed_transfer_ns: when copies from or to elsewhere ran and no kernel did
    total device_memory_ns: when only copies and memsets inside the device ran
    total idle_ns: when nothing ran
    total communication_ns: when communication ran, hidden or not
    total transfer_ns: when copies from or to elsewhere ran, hidden or not
    total communication_overlap_ns: communication that compute hides
    total transfer_overlap_ns: copies from or to elsewhere that kernels hide
    total kernel_ns: when any kernel ran
    derived utilisation_ratio: kernel_ns of duration_ns: GPU-Util of nvidia-smi
    derived communication_overlap_ratio: the share of communication that is hidden
    derived transfer_overlap_ratio: the share of these copies that is hidden
    """)
_ON_GRAPHS: Final = (
    "{graphs:count} CUDA graph launches were traced whole and count as compute: "
    "gaps and communication inside them are not seen (nsys --cuda-graph-trace=node)"
)
_RATIOS: Final = (
    ("utilisation_ratio", "kernel_ns", "duration_ns"),
    ("communication_overlap_ratio", "communication_overlap_ns", "communication_ns"),
    ("transfer_overlap_ratio", "transfer_overlap_ns", "transfer_ns"),
)
BREAKDOWN_SPEC: Final = ResultSpec.of(
    """
    table devices: one row per device that worked
    key device: the number of the device in the run
    same name: what the device is
    """,
    *_MEASURES,
    TableSpec("total", "all devices added up, their parts and their durations", _MEASURES),
    """
    scalars:
    total graphs_count: CUDA graphs that were traced whole, as one kernel each
    """,
)


def measure_breakdown(trace: Trace) -> Result:
    """Return the five parts of every device that worked anywhere in the recording."""
    graphs = (trace.kernels.to_frame()["activity"] == Activity.CUDA_GRAPH.value).sum()
    return Result(
        "breakdown",
        BREAKDOWN_SPEC,
        tables={"devices": BREAKDOWN_SPEC.table("devices").frame(device_parts(trace))},
        scalars={"graphs_count": int(graphs)},
    )


def _finish(result: Result) -> Result:
    devices = result.to_frame()
    if devices.empty:
        empty = result.with_table(BREAKDOWN_SPEC.table("total").frame(), "total")
        return empty.with_notes(Note("device work was recorded, but there was none"))
    measures = [c.name for c in BREAKDOWN_SPEC.table("total") if c.name in devices]
    whole = devices[measures].sum().to_frame().T.astype("int64")
    for table, frame in (("devices", devices), ("total", whole)):
        ratios = {name: frame[part] / frame[of].where(frame[of] > 0) for name, part, of in _RATIOS}
        result = result.with_table(frame.assign(**ratios), table)
    graphs = int(result.scalars["graphs_count"])
    return result.with_notes(Note.of(_ON_GRAPHS, graphs=graphs)) if graphs else result


BREAKDOWN = Analysis(
    "breakdown",
    BREAKDOWN_SPEC,
    needs=("kernels", "copies"),
    uses=("devices",),
    of_rank=measure_breakdown,
    finish=_finish,
)
