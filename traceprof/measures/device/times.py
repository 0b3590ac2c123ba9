"""When each device did what: the unions that the five parts are made of.

The parts add up to the window exactly; `traceprof.model.activity` says what they are.
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
from traceprof.names.ranges import CYCLE, WINDOW

_PLACES: Final = {part: place for place, part in enumerate(Part)} | {None: -1}
_PART_OF_COPY: Final = {"d2d": Part.DEVICE_MEMORY, "memset": Part.DEVICE_MEMORY, "h2h": None}
"""Of other directions it is `Part.TRANSFER`."""


_LONG_NS: Final = 1_000_000
_FREE: Final = 0.99
_ALONE: Final = 3


def used_devices(trace: Trace) -> dict[int, str]:
    """Return the name of each device that worked anywhere in the recording, by its number."""
    return {row["device"]: row["name"] for row in trace.devices.rows() if row["used"] == 1}


def device_time(trace: Trace, device: int) -> DeviceTime:
    """Return what ``device`` did when, inside the window."""
    return device_times(trace).get(device) or DeviceTime.nothing()


def recorded_times(trace: Trace, device: int) -> Intervals:
    """Return when in the window the work of ``device`` was recorded: else nothing is known of it.

    The files of a run seldom begin and end together, and the embedded recorder sees devices in
    windows of a few steps: a device is not idle before, between and after.
    """
    known = _recordings_of_devices(trace).get(device)
    return trace.span.times if known is None else known & trace.span.times


@fact
def recorded_windows(trace: Trace) -> Mapping[int, Intervals]:
    """Return in which windows the devices of each process were seen; {}: all the time."""
    ranges = trace.whole.ranges
    own = ranges.take(ranges["domain"] == TRACEPROF_DOMAIN)
    return unions_by(own.take(own["name"].isin((WINDOW, CYCLE))))


@fact
def _recordings_of_devices(trace: Trace) -> Mapping[int, Intervals]:
    """Return when each device was recorded, of those of which this is known apart."""
    found: dict[int, Intervals] = {}
    windows, processes = recorded_windows(trace), [*trace.recordings]
    if len({*trace.recordings.values()}) == 1 or (windows and not processes):
        # Devices that rest in all of a part of a trace.
        rest = _recording_of(trace, (processes or [*windows])[0])
        found = dict.fromkeys(used_devices(trace), rest) if rest is not None else found
    worked: set[int] = set()
    for process, devices in devices_at_work(trace).items():
        if (own := _recording_of(trace, process)) is None:
            continue
        for device in devices:
            found[device] = found[device] | own if device in worked else own
            worked.add(device)
    if windows:  # what was queued when one ended was seen to its end
        times = _times_of_devices(trace)
        found = {device: own | times[device].busy for device, own in found.items()}
    whole = Intervals.single(trace.span.start_ns, trace.span.end_ns)
    for (_, device), unknown in work_before_recording(trace).items():
        found[device] = found.get(device, whole) - unknown
    return found


@fact
def work_before_recording(trace: Trace) -> Mapping[tuple[int, int], Intervals]:
    """Return when processes' devices still did what was launched before recording began.

    That is not in the file: the first work of a stream waits, launched, for nothing that was
    recorded. A profiler that is switched on while a program runs, as it is in servers, records what
    is launched from then on.
    """
    found: dict[tuple[int, int], Intervals] = {}
    if trace.info.is_part:  # whatever reaches into a part is in it
        return found
    for name in DEVICE_TABLES:
        work, launches = trace.table(name), launches_of(trace, name)
        opened_ns, number = _windows_of_work(trace, work, launches)
        first = groups_of(work["device"], work["stream"], number).first_rows
        call = launches.call[first]
        first, call = first[call >= 0], call[call >= 0]
        called, starts = trace.api_calls["end_ns"][call], work["start_ns"][first]
        waits_ns = starts - called
        is_early = called - opened_ns[first] < waits_ns
        for row in np.flatnonzero(is_early & (waits_ns > _LONG_NS)).tolist():
            process, device = (int(work[column][first[row]]) for column in ("process", "device"))
            wait = Intervals.single(int(called[row]), int(starts[row]))
            free = wait - _times_of_devices(trace)[device].busy
            alike = number == number[first[row]]
            least_ns = max(
                _FREE * wait.total_ns, _ALONE * _longest_wait(work, launches, first[row], alike)
            )
            if free.total_ns > least_ns:
                known = found.get((process, device), Intervals.empty())
                # What another stream of the same window did meanwhile is no unknown time.
                both = known & free
                found[process, device] = both if len(both) else known | free
    return found


def _windows_of_work(trace: Trace, work: Table, launches: Launches) -> tuple[Ints, Ints]:
    """Return when the recording that each row was launched in began, and the number of that."""
    opened_ns = np.full(len(work), trace.span.start_ns)
    number = np.zeros(len(work), np.int64)
    for process, windows in recorded_windows(trace).items():
        rows = np.flatnonzero((work["process"] == process) & launches.is_known)
        place = np.searchsorted(windows.starts, launches.start_ns[rows], side="right") - 1
        rows, place = rows[place >= 0], place[place >= 0]
        opened_ns[rows], number[rows] = windows.starts[place], place + 1
    return opened_ns, number


def _longest_wait(work: Table, launches: Launches, row: int, alike: Bools) -> int:
    """Return how long what follows a row in its stream waits most, launched, with that free.

    ``alike`` are the rows of the same recording.
    """
    alike = alike & (work["device"] == work["device"][row])
    alike &= work["stream"] == work["stream"][row]
    rows = np.flatnonzero(alike & launches.is_known)
    starts, ends = (times[rows] for times in bounds(work))
    ready = np.maximum(np.maximum.accumulate(ends)[:-1], launches.of_rows(rows[1:]).end_ns)
    return int((starts[1:] - ready).max(initial=0))


def _recording_of(trace: Trace, process: int) -> Intervals | None:
    """Return when the devices of a process were recorded; None: as long as anything was."""
    own, windows = trace.recordings.get(process), recorded_windows(trace).get(process)
    if own is None or windows is None:
        return windows if own is None else Intervals.single(own.start_ns, own.end_ns)
    return windows.clip(own.start_ns, own.end_ns)


def part_of_device(ranks: Ranks, device: int) -> Trace:
    """Return the whole Trace that lists ``device``; the first one where none does."""
    return ranks.whole.parts[_parts_of_devices(ranks).get(device, 0)]


@fact
def _parts_of_devices(ranks: Ranks) -> Mapping[int, int]:
    # Of a device that several list the first counts.
    pairs = [(own, i) for i, part in enumerate(ranks) for own in part.devices["device"].tolist()]
    return dict(reversed(pairs))


@of_window
def device_times(trace: Trace) -> Mapping[int, DeviceTime]:
    """Return what each device that works anywhere in the recording did when, inside the window."""
    whole = _times_of_devices(trace)
    if trace.uncut is None:
        return whole
    times = trace.span.times
    return {device: time.within(times) for device, time in whole.items()}


def devices_of_processes(trace: Trace) -> Mapping[int, tuple[int, ...]]:
    """Return the devices that each process works on, anywhere in the recording."""
    return devices_at_work(trace.whole)


@of_window
def devices_at_work(trace: Trace) -> Mapping[int, tuple[int, ...]]:
    """Return the devices that each process works on in the window."""
    tables = [trace.table(name) for name in DEVICE_TABLES]
    columns = (np.concatenate([own[name] for own in tables]) for name in ("process", "device"))
    found: dict[int, tuple[int, ...]] = {}
    for process, device in groups_of(*columns).keys:
        found[process] = (*found.get(process, ()), device)
    return found


@fact
def _times_of_devices(trace: Trace) -> Mapping[int, DeviceTime]:
    """Return what each device did when, in one pass over the tables for all of them."""
    found: dict[tuple[int, ...], Intervals] = {}
    nothing = Intervals.empty()
    for name in DEVICE_TABLES:
        table = trace.table(name)
        starts, ends = bounds(table)
        for key, rows in rows_by_values(table["device"], places_in_part(trace, name)).items():
            time = Intervals.union_of(starts[rows], ends[rows])
            found[key] = found[key] | time if key in found else time
    return {
        device: DeviceTime(*(found.get((device, place), nothing) for place in range(len(Part))))
        for device in {*used_devices(trace), *(own for own, _ in found)}
    }


def places_in_part(trace: Trace, name: str) -> Ints:
    """Return the place in `Part` of each row of "kernels" or "copies"; -1: none of a device."""
    names: Names = trace.kernels["activity"] if name == "kernels" else trace.copies["direction"]
    parts = (
        [Activity(own).part for own in names.texts]
        if name == "kernels"
        else [_PART_OF_COPY.get(own, Part.TRANSFER) for own in names.texts]
    )
    return names.by_text(np.array([_PLACES[part] for part in parts], np.int64))


@of_window
def device_parts(trace: Trace) -> Table:
    """Return one row per device that worked anywhere in the recording.

    Columns: device, name, duration_ns (of the window, as far as it was recorded), the five parts
    (``compute_ns`` …, see `traceprof.model.activity`), communication_ns and transfer_ns (hidden or
    not), their overlaps (what compute, or any kernel, hides), kernel_ns (when any kernel ran).
    """
    rows: list[dict[str, int | str]] = []
    for device, name in used_devices(trace).items():
        time, recorded = device_time(trace, device), recorded_times(trace, device)
        parts = time.within(recorded).parts_within(recorded.starts, recorded.ends)
        ns = {f"{part}_ns": int(values.sum()) for part, values in parts.items()}
        communication_ns, transfer_ns = time.communication.total_ns, time.transfer.total_ns
        measures = {
            "communication_ns": communication_ns,
            "transfer_ns": transfer_ns,
            "communication_overlap_ns": communication_ns - ns["exposed_communication_ns"],
            "transfer_overlap_ns": transfer_ns - ns["exposed_transfer_ns"],
            "kernel_ns": time.kernel.total_ns,
        }
        rows.append(
            {"device": device, "name": name, "duration_ns": recorded.total_ns, **ns, **measures}
        )
    return Table.of_rows(rows)


_NEARLY_ALL: Final = 0.99


def note_on_unrecorded(result: Result, recorded_ns: Ints) -> tuple[Note, ...]:
    """Return what of the window was not recorded of the devices, where that is considerable."""
    window_ns = int(result.scalars["window_ns"])
    part = recorded_ns < _NEARLY_ALL * window_ns
    if not part.any():
        return ()
    text = "The trace covers up to {most:ns} of the {window:ns} window on {n:count} GPU(s)."
    if len(set(recorded_ns[part].tolist())) == 1:
        text = text.replace("up to ", "")
    text += " traceprof does not count the rest as idle time."
    most_ns = int(recorded_ns[part].max())
    return (Note.of(text, n=int(part.sum()), most=most_ns, window=window_ns),)
