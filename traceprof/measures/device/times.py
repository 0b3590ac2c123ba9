"""Activity of each device over time: the unions of intervals behind the five parts of GPU time.

The parts add up to the window exactly; `traceprof.model.activity` defines them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import Launches, launches_of
from traceprof.measures.rows import Bools, Ints, bounds, unions_by
from traceprof.model.activity import Activity, DeviceTime, Part
from traceprof.model.grouping import groups_of, rows_by_values
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result
from traceprof.model.table import Names, Table
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import CYCLE, PROFILER_RANGES, WINDOW

_PLACES: Final = {part: place for place, part in enumerate(Part)} | {None: -1}
_PART_OF_COPY: Final = {"d2d": Part.DEVICE_MEMORY, "memset": Part.DEVICE_MEMORY, "h2h": None}
"""Part of a copy direction; all other directions are `Part.TRANSFER`."""

_MIN_WAIT_NS: Final = 1_000_000
"""Minimum wait of the first work of a stream that unrecorded work can explain."""
_MIN_FREE_RATIO: Final = 0.99
"""Minimum share of this wait in which no recorded work runs on the device."""
_MIN_WAIT_FACTOR: Final = 3
"""Minimum ratio of this wait to the longest later wait in the same stream."""


def used_devices(trace: Trace) -> dict[int, str]:
    """Return the name of each device with work anywhere in the recording, by device number."""
    return {row["device"]: row["name"] for row in trace.devices.rows() if row["used"] == 1}


def device_time(trace: Trace, device: int) -> DeviceTime:
    """Return the activity of ``device`` inside the window."""
    return device_times(trace).get(device) or DeviceTime.nothing()


def recorded_times(trace: Trace, device: int) -> Intervals:
    """Return the times in the window in which the work of ``device`` was recorded.

    Nothing is known about the device at other times. The files of a run rarely begin and end at the
    same time, and the embedded recorder captures windows of a few steps. A device is not idle
    before, between, and after these windows.
    """
    known = _recordings_of_devices(trace).get(device)
    return trace.span.times if known is None else known & trace.span.times


@fact
def recorded_windows(trace: Trace) -> Mapping[int, Intervals]:
    """Return the windows in which each process recorded its devices; {} if it always did."""
    ranges = trace.whole.ranges
    recorder_ranges = ranges.take(ranges["domain"] == TRACEPROF_DOMAIN)
    return unions_by(recorder_ranges.take(recorder_ranges["name"].isin((WINDOW, CYCLE))))


@fact
def _recordings_of_devices(trace: Trace) -> Mapping[int, Intervals]:
    """Return the recorded times of each device whose times differ from the whole trace."""
    found: dict[int, Intervals] = {}
    windows, processes = recorded_windows(trace), [*trace.recordings]
    if len({*trace.recordings.values()}) == 1 or (windows and not processes):
        # Also for devices that are idle throughout a part of a trace.
        shared = _recording_of(trace, (processes or [*windows])[0])
        found = dict.fromkeys(used_devices(trace), shared) if shared is not None else found
    worked: set[int] = set()
    for process, devices in devices_at_work(trace).items():
        if (recording := _recording_of(trace, process)) is None:
            continue
        for device in devices:
            found[device] = found[device] | recording if device in worked else recording
            worked.add(device)
    if windows:  # work that was queued when a window ended was recorded to its end
        times = _times_of_devices(trace)
        found = {device: recording | times[device].busy for device, recording in found.items()}
    whole = Intervals.single(trace.span.start_ns, trace.span.end_ns)
    for (_, device), unknown in work_before_recording(trace).items():
        found[device] = found.get(device, whole) - unknown
    return found


@fact
def work_before_recording(trace: Trace) -> Mapping[tuple[int, int], Intervals]:
    """Return the times in which devices still did work that was launched before recording began.

    The result is by process and device. This work is not in the file. It shows as a gap: the first
    recorded work of a stream was launched, but waits for nothing that was recorded. The gap occurs
    if a profiler is switched on while the program runs, as in servers: it records only work that is
    launched afterwards.
    """
    found: dict[tuple[int, int], Intervals] = {}
    if trace.info.is_part:  # a part contains all work that overlaps it
        return found
    for name in DEVICE_TABLES:
        work, launches = trace.table(name), launches_of(trace, name)
        opened_ns, number = _windows_of_work(trace, work, launches)
        first = groups_of(work["device"], work["stream"], number).first_rows
        call = launches.call[first]
        first, call = first[call >= 0], call[call >= 0]
        called, starts = trace.api_calls["end_ns"][call], work["start_ns"][first]
        wait_ns = starts - called
        is_early = called - opened_ns[first] < wait_ns
        for row in np.flatnonzero(is_early & (wait_ns > _MIN_WAIT_NS)).tolist():
            process, device = (int(work[column][first[row]]) for column in ("process", "device"))
            wait = Intervals.single(int(called[row]), int(starts[row]))
            free = wait - _times_of_devices(trace)[device].busy
            same_recording = number == number[first[row]]
            min_free_ns = max(
                _MIN_FREE_RATIO * wait.total_ns,
                _MIN_WAIT_FACTOR * _longest_wait(work, launches, first[row], same_recording),
            )
            if free.total_ns > min_free_ns:
                known = found.get((process, device), Intervals.empty())
                # Time is unknown only if it is unknown in all streams of the window.
                common = known & free
                found[process, device] = common if len(common) else known | free
    return found


def _windows_of_work(trace: Trace, work: Table, launches: Launches) -> tuple[Ints, Ints]:
    """Return the start and the number of the recording window in which each row was launched.

    Without windows, the start is that of the trace and the number is 0.
    """
    opened_ns = np.full(len(work), trace.span.start_ns)
    number = np.zeros(len(work), np.int64)
    for process, windows in recorded_windows(trace).items():
        rows = np.flatnonzero((work["process"] == process) & launches.is_known)
        place = np.searchsorted(windows.starts, launches.start_ns[rows], side="right") - 1
        rows, place = rows[place >= 0], place[place >= 0]
        opened_ns[rows], number[rows] = windows.starts[place], place + 1
    return opened_ns, number


def _longest_wait(work: Table, launches: Launches, row: int, selected: Bools) -> int:
    """Return the longest wait of launched work in the stream of a row while that stream was free.

    ``selected`` is a mask of the rows of the same recording window.
    """
    selected = selected & (work["device"] == work["device"][row])
    selected &= work["stream"] == work["stream"][row]
    rows = np.flatnonzero(selected & launches.is_known)
    starts, ends = (times[rows] for times in bounds(work))
    ready = np.maximum(np.maximum.accumulate(ends)[:-1], launches.of_rows(rows[1:]).end_ns)
    return int((starts[1:] - ready).max(initial=0))


def _recording_of(trace: Trace, process: int) -> Intervals | None:
    """Return the recorded times of a process's devices; None if they cover the whole trace."""
    recording, windows = trace.recordings.get(process), recorded_windows(trace).get(process)
    if recording is None or windows is None:
        return (
            windows if recording is None else Intervals.single(recording.start_ns, recording.end_ns)
        )
    return windows.clip(recording.start_ns, recording.end_ns)


def trace_of_device(ranks: Ranks, device: int) -> Trace:
    """Return the whole Trace that lists ``device``; the first Trace of the run if none does."""
    return ranks.whole.parts[_parts_of_devices(ranks).get(device, 0)]


@fact
def _parts_of_devices(ranks: Ranks) -> Mapping[int, int]:
    # If several ranks list the same device, the first one counts.
    """Return the index of the Trace that lists each device, by device number."""
    pairs = [
        (device, i) for i, part in enumerate(ranks) for device in part.devices["device"].tolist()
    ]
    return dict(reversed(pairs))


@of_window
def device_times(trace: Trace) -> Mapping[int, DeviceTime]:
    """Return the activity of each used device inside the window, by device number."""
    whole = _times_of_devices(trace)
    if trace.uncut is None:
        return whole
    return {device: time.within(trace.span.times) for device, time in whole.items()}


def devices_of_processes(trace: Trace) -> Mapping[int, tuple[int, ...]]:
    """Return the devices that each process uses anywhere in the recording."""
    return devices_at_work(trace.whole)


@of_window
def devices_at_work(trace: Trace) -> Mapping[int, tuple[int, ...]]:
    """Return the devices that each process uses in the window."""
    tables = [trace.table(name) for name in DEVICE_TABLES]
    columns = (np.concatenate([table[name] for table in tables]) for name in ("process", "device"))
    found: dict[int, tuple[int, ...]] = {}
    for process, device in groups_of(*columns).keys:
        found[process] = (*found.get(process, ()), device)
    return found


@fact
def _times_of_devices(trace: Trace) -> Mapping[int, DeviceTime]:
    """Return the activity of each device, from one pass over the tables for all devices."""
    found: dict[tuple[int, ...], Intervals] = {}
    empty = Intervals.empty()
    for name in DEVICE_TABLES:
        table = trace.table(name)
        starts, ends = bounds(table)
        for key, rows in rows_by_values(table["device"], indices_in_part(trace, name)).items():
            time = Intervals.union_of(starts[rows], ends[rows])
            found[key] = found[key] | time if key in found else time
    return {
        device: DeviceTime(*(found.get((device, place), empty) for place in range(len(Part))))
        for device in {*used_devices(trace), *(number for number, _ in found)}
    }


def indices_in_part(trace: Trace, name: str) -> Ints:
    """Return the index in `Part` of each row of "kernels" or "copies"; -1 for no part."""
    names: Names = trace.kernels["activity"] if name == "kernels" else trace.copies["direction"]
    parts = (
        [Activity(text).part for text in names.texts]
        if name == "kernels"
        else [_PART_OF_COPY.get(text, Part.TRANSFER) for text in names.texts]
    )
    return names.by_text(np.array([_PLACES[part] for part in parts], np.int64))


@of_window
def device_parts(trace: Trace) -> Table:
    """Return one row per device with work anywhere in the recording.

    Columns: device, name, duration_ns (recorded part of the window), the five parts
    (``compute_ns`` …, see `traceprof.model.activity`), communication_ns and transfer_ns (exposed or
    not), their overlaps (hidden by compute, or by any kernel), and kernel_ns (any kernel ran).
    """
    rows: list[dict[str, int | str]] = []
    for device, name in used_devices(trace).items():
        time, recorded = device_time(trace, device), recorded_times(trace, device)
        parts = time.within(recorded).parts_within(recorded.starts, recorded.ends)
        ns = {f"{part}_ns": int(values.sum()) for part, values in parts.items()}
        communication_ns, transfer_ns = time.communication.total_ns, time.transfer.total_ns
        rows.append(
            {
                "device": device,
                "name": name,
                "duration_ns": recorded.total_ns,
                **ns,
                "communication_ns": communication_ns,
                "transfer_ns": transfer_ns,
                "communication_overlap_ns": communication_ns - ns["exposed_communication_ns"],
                "transfer_overlap_ns": transfer_ns - ns["exposed_transfer_ns"],
                "kernel_ns": time.kernel.total_ns,
            }
        )
    return Table.of_rows(rows)


_MIN_RECORDED_RATIO: Final = 0.99


def note_on_unrecorded(result: Result, recorded_ns: Ints) -> tuple[Note, ...]:
    """Return a note on the unrecorded part of the window, if it exceeds 1% on a device."""
    window_ns = int(result.scalars["window_ns"])
    is_partial = recorded_ns < _MIN_RECORDED_RATIO * window_ns
    if not is_partial.any():
        return ()
    text = "The trace covers up to {most:ns} of the {window:ns} window on {n:count} GPU(s)."
    if len(set(recorded_ns[is_partial].tolist())) == 1:
        text = text.replace("up to ", "")
    text += " traceprof does not count the rest as idle time."
    longest_ns = int(recorded_ns[is_partial].max())
    return (Note.of(text, n=int(is_partial.sum()), most=longest_ns, window=window_ns),)


def recorder_times(trace: Trace) -> dict[int, Intervals]:
    """Return when a recorder was busy with itself, or did not record, by process.

    It is busy at the start and end of its windows. It does not record between two recordings.
    """
    ranges = trace.ranges
    traceprof_ranges = ranges.take(ranges["domain"] == TRACEPROF_DOMAIN)
    found = unions_by(traceprof_ranges.take(traceprof_ranges["name"].isin(PROFILER_RANGES)))
    for process, between in between_cycles(trace).items():
        found[process] = found.get(process, Intervals.empty()) | between
    return found


def between_cycles(trace: Trace) -> dict[int, Intervals]:
    """Return the times between several recordings of a process, in which nothing was recorded."""
    ranges = trace.whole.ranges
    cycle_ranges = ranges.take((ranges["name"] == CYCLE) & (ranges["domain"] == TRACEPROF_DOMAIN))
    return {
        process: cycles.gaps(int(cycles.starts[0]), int(cycles.ends[-1]))
        for process, cycles in unions_by(cycle_ranges).items()
    }
