"""Measure the critical path of each step, and upper bounds on possible gains.

The parts of the path add up to the step exactly. `traceprof.measures.path.graph` finds the path.

The bound of a gain is the smaller of two: the time of the removed part on the path, and the time
until the busiest device has only its other work. Removing a wait removes no part of the path, but
the host continues earlier. Its bound is the time by which the host is late. Processes wait for one
another, so each step gains as much as the process with the largest gain.

The result also contains the loss of the devices to the same cause. The two differ: a loss outside
the path gains nothing, and a path may contain time that devices hide. Gains refer to the typical
steps, as in findings. Losses are also reported for the whole window, as in `idle` and `breakdown`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.device.times import (
    device_time,
    devices_at_work,
    recorded_times,
    used_devices,
)
from traceprof.measures.facts import of_window
from traceprof.measures.host.states import are_waits_of_launching_threads, find_host_phases
from traceprof.measures.idle.gaps import LAUNCH_BOUND_NS, LONGEST_CALL_NS
from traceprof.measures.idle.losses import analyzed_times, find_losses, held_up, within
from traceprof.measures.path.graph import (
    DEVICE_KINDS,
    HOST,
    LATENCY,
    SYNC,
    Segments,
    dependencies,
    walk_back,
)
from traceprof.measures.rows import Ints, bounds, ints, rows_by, unions_of
from traceprof.measures.steps.base import base_of, named_usual_steps, usual_time
from traceprof.measures.steps.find import find_steps, steps_of_ranks
from traceprof.measures.steps.measured import measured_steps
from traceprof.measures.traffic.copies import copy_speeds
from traceprof.model.grouping import find_matching_rows
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec, Unit, total
from traceprof.model.table import Table, at_rows, objects
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

PATH_PARTS: Final = (*DEVICE_KINDS, "data", "launch", "host", "latency", "synchronizing")
"""Parts of the path, in addition to the kinds of device work.

* data: the host fetches data.
* launch: the host launches one piece of work after the other.
* host: the host runs other code, or a call takes more than 1 ms (it loads a module).
* latency: time from a launch, or from the end of the previous work, to the start of work.
* synchronizing: time from the end of work to the return of the call that waited for it.
"""


@of_window
def find_path(trace: Trace, process: int) -> tuple[Mapping[str, Intervals], Segments]:
    """Return when each of `PATH_PARTS` was on the path of ``process``, and the transfers on it.

    The parts fill the window exactly. The process must have device work somewhere in the trace.
    """
    segments = walk_back(dependencies(trace)[process], trace.span)
    parts = {name: segments.times_of_kind(kind) for kind, name in enumerate(DEVICE_KINDS)}
    host = segments.times_of_kind(HOST)
    nothing = Intervals.empty()
    phases = {host_phases.process: host_phases.times for host_phases in find_host_phases(trace)}
    data = phases.get(process, {}).get("data", nothing)
    launching = _launching(trace).get(process, nothing)
    parts["data"] = host & data
    parts["launch"] = (host - data) & launching
    parts["host"] = host - data - launching
    parts["latency"] = segments.times_of_kind(LATENCY)
    parts["synchronizing"] = segments.times_of_kind(SYNC)
    return parts, segments.of_kind(DEVICE_KINDS.index("transfer"))


@of_window
def _launching(trace: Trace) -> Mapping[int, Intervals]:
    """Return when each process made consecutive calls, with pauses of at most `LAUNCH_BOUND_NS`."""
    starts, ends = bounds(trace.api_calls)
    are_quick = ends - starts <= LONGEST_CALL_NS
    until, process_of = ends + LAUNCH_BOUND_NS, trace.api_calls["process"]
    closed = unions_of(starts, until, process_of, where=are_quick)
    # Remove the pause that was added after the last call of each sequence.
    return {
        process: Intervals(time.starts, time.ends - LAUNCH_BOUND_NS)
        for (process,), time in closed.items()
    }


_PART_MEANINGS: Final = {
    "compute": "compute kernels on the critical path",
    "communication": "communication kernels on the critical path",
    "transfer": "copies to or from the GPU on the critical path",
    "device_memory": "copies and memsets inside a GPU on the critical path",
    "data": "data loading on the host",
    "launch": "the host launches GPU work",
    "host": "the host runs other code, or a call takes more than 1 ms",
    "latency": "time from the launch, or from the end of the previous work, to the start of work",
    "synchronizing": "time from the end of GPU work to the return of the call that waited for it",
}
PATH_SPEC: Final = ResultSpec.of(
    """
    table path: one row per process and step (one per process if no steps are known)
    key process: process
    key step: step number; -1 for the window
    total duration_ns: duration; equals the sum of the parts
    """,
    *(total(f"{name}_ns", Unit.NS, _PART_MEANINGS[name]) for name in PATH_PARTS),
    "derived bound_by: largest part",
)
_PARTS: Final = [f"{name}_ns" for name in PATH_PARTS]


def measure_path(trace: Trace) -> Result:
    """Return the critical path of every step of every process with device work."""
    steps = find_steps(trace).table
    steps_of = rows_by(steps, "process")
    span = {"device_start_ns": [trace.span.start_ns], "device_end_ns": [trace.span.end_ns]}
    window = Table({"step": [-1], **span})
    tables = [
        _of_process(
            trace, process, steps.take(steps_of[process]) if process in steps_of else window
        )
        for process in devices_at_work(trace)
    ]
    table = Table.stacked(tables) if tables else PATH_SPEC.tables[0].of_rows()
    return Result("path", PATH_SPEC, tables={"path": table})


def _of_process(trace: Trace, process: int, steps: Table) -> Table:
    """Return the rows of table path for one process."""
    parts, _ = find_path(trace, process)
    starts, ends = ints(steps, "device_start_ns", "device_end_ns")
    columns = {f"{name}_ns": parts[name].covered_ns(starts, ends) for name in PATH_PARTS}
    return Table(
        {"process": process, "step": steps["step"], "duration_ns": ends - starts, **columns}
    )


def path_within(trace: Trace, process: int, step: int, window: TimeWindow) -> Table | None:
    """Return the segments of the path of a step in ``window``, sorted by time.

    Step -1 is the whole window. Columns: part, at_ns (from the start of the run), duration_ns. The
    rows fill the step. None if the process is not in ``trace``.
    """
    begin, trace = trace.span.start_ns, trace.whole.within(window)
    if process not in devices_at_work(trace):
        return None
    steps = find_steps(trace).table
    steps_of_process = steps.take((steps["process"] == process) & (steps["step"] == step))
    start, end = trace.span.start_ns, trace.span.end_ns
    if len(steps_of_process):
        start, end = (
            int(steps_of_process["device_start_ns"][0]),
            int(steps_of_process["device_end_ns"][0]),
        )
    tables = []
    for part, times in find_path(trace, process)[0].items():
        inside = times.clip(start, end)
        at = {"at_ns": inside.starts - begin, "duration_ns": inside.ends - inside.starts}
        tables.append(Table({"part": objects([part] * len(inside.starts)), **at}))
    return Table.stacked(tables).in_order("at_ns")


def _finish(result: Result) -> Result:
    """Return the combined result of all ranks with the largest part of each row, and notes."""
    table = result.table
    if table.empty:
        return result.with_notes(Note("No GPU activity in this window."))
    largest = np.stack(ints(table, *_PARTS), axis=1).argmax(axis=1)
    table = table.assign(bound_by=np.array(PATH_PARTS, object)[largest])
    return result.with_table(table.in_order("process"))


PATH = Analysis(
    "path",
    PATH_SPEC,
    needs=("kernels", "api_calls"),
    uses=("copies", "ranges"),
    of_steps=True,
    of_rank=measure_path,
    finish=_finish,
)


_CASES: Final = (
    ("communication fully hidden", ("communication",), "communication", "exposed_communication"),
    ("data loading free", ("data",), "", "data"),
    ("launch gaps closed", ("launch", "latency"), "", "launch"),
    ("host code free", ("host",), "", "host"),
    (
        "synchronization free",
        ("data", "launch", "host", "latency", "synchronizing", "transfer"),
        "",
        "synchronizing",
    ),
)
"""Hypothetical changes: the name, the parts of the path that it removes, the activity that it
removes from devices ("" for none), and the name of the corresponding loss in `find_losses`.
"""

_COPIES: Final = "copies at link speed"
_COMMUNICATION: Final = "communication"
_NO_WAITS: Final = "synchronization free"
"""Case in which the host does not wait. It would be earlier by up to the length of each wait."""

WHATIF_SPEC: Final = ResultSpec.of("""
    table cases: one row per case, sorted by gain; with several processes, each step uses the
        process with the largest gain
    key case: hypothetical change
    derived gain_ns: upper bound on the reduction of the typical step time (of the window, if no
        steps are known)
    derived gain_ratio: upper bound on the gain, as a share of the analyzed time
    derived speedup [factor]: upper bound on the speedup
    derived device_ratio: device_ns as a share of the analyzed time of all GPUs, as in `findings`
    derived window_ratio: window_ns as a share of the recorded part of the window, over all GPUs
    total device_ns: exposed communication, or idle time with this cause, in the analyzed time;
        summed over GPUs
    total window_ns: the same for the whole window, as in `breakdown` and `idle`
    total process_count: number of processes
    table links: the rates that traceprof assumes for copies
    key direction: direction of the copies
    same bytes_per_s: peak of the link, or the rate of the fastest large copies
    scalars:
    same step_ns: median duration of a typical step, or the window if no steps are known
    same window_ns: duration of the window
    same analyzed_ns: analyzed part of the window: the typical steps
    """)
_NOTE_ON_BOUNDS: Final = Note(
    "Each gain is an upper bound from the critical path. The gains do not add up, since removing "
    "one cost can expose another. GPU shares are means over the GPUs, as in findings."
)


def measure_whatif(ranks: Ranks) -> Result:
    """Return upper bounds of the gains of hypothetical changes."""
    speeds = copy_speeds(ranks)
    analyzed = usual_time(ranks)
    # Exclude the overhead of the profiler, if it is known from steps without the profiler.
    added_ratio = measured_steps(ranks).scalars.get("profiler_overhead_ratio", 0.0)
    kept_ns = round(analyzed.total_ns / (1 + added_ratio))
    spans = steps_of_ranks(ranks).table.take(named_usual_steps(ranks))
    of_ranks = ranks.each(_gains_of_rank, speeds, analyzed, spans)
    processes = [process for of_rank in of_ranks for process in of_rank]
    gains = _combine_gains(processes, kept_ns) if processes else {}
    step_ns = base_of(ranks).unit_ns
    ratio = np.array(list(gains.values()), np.float64) / max(1, kept_ns)
    cases = Table(
        {
            "case": list(gains),
            "gain_ns": ratio * step_ns,
            "gain_ratio": ratio,
            "speedup": 1 / np.where(ratio < 1, 1 - ratio, np.nan),
            "process_count": len(processes),
        }
    )
    lost = _lost_by_devices(ranks)
    place = find_matching_rows(cases, lost, "case")
    of_devices = {name: at_rows(lost[name], place) for name in lost if name != "case"}
    cases = cases.assign(**of_devices).in_order("-gain_ratio")
    links = Table({"direction": list(speeds), "bytes_per_s": list(speeds.values())})
    tables = {"cases": cases, "links": links}
    return Result(
        "whatif",
        WHATIF_SPEC,
        tables={name: WHATIF_SPEC.table(name).of_rows(table) for name, table in tables.items()},
        scalars={
            "step_ns": step_ns,
            "window_ns": ranks.span.duration_ns,
            "analyzed_ns": analyzed.total_ns,
        },
        notes=(_NOTE_ON_BOUNDS, *_note_on_steps(ranks, analyzed), *_note_on_links(speeds)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Gains:
    """The gains of the cases in the analyzed steps of a process, in ns.

    ``steps`` are step numbers. ``on_path`` has the gain by case and step. ``busy`` has, for each
    device, the time in which it works, works on anything except communication, communicates, and
    computes. ``copies_ns`` is the total gain of faster copies.
    """

    steps: Ints
    on_path: Mapping[str, Ints]
    busy: Sequence[tuple[int, ...]]
    copies_ns: float


def _gains_of_rank(
    trace: Trace, speeds: Mapping[str, float], analyzed: Intervals, spans: Table
) -> list[_Gains]:
    """Return the gains of each process of a rank."""
    rows_of_process = rows_by(spans, "process")
    whole = Table(
        {"step": [-1], "device_start_ns": [trace.span.start_ns], "device_end_ns": trace.span.end_ns}
    )
    return [
        _gains_of_process(
            trace,
            process,
            devices,
            speeds,
            analyzed,
            spans.take(rows_of_process[process]) if rows_of_process else whole,
        )
        for process, devices in devices_at_work(trace).items()
        if process in rows_of_process or not rows_of_process
    ]


def _gains_of_process(
    trace: Trace,
    process: int,
    devices: tuple[int, ...],
    speeds: Mapping[str, float],
    analyzed: Intervals,
    spans: Table,
) -> _Gains:
    """Return the gains of each case in the ``analyzed`` time of a process, by step."""
    parts, transfers = find_path(trace, process)
    times = [device_time(trace, device).within(analyzed) for device in devices]
    starts, ends = ints(spans, "device_start_ns", "device_end_ns")
    on_path: dict[str, Ints] = {}
    for case, names, *_ in _CASES:
        of_parts = [(parts[name] & analyzed).covered_ns(starts, ends) for name in names]
        on_path[case] = np.sum(of_parts, axis=0, dtype=np.int64)
    calls = trace.api_calls
    waits = calls.take(are_waits_of_launching_threads(calls) & (calls["process"] == process))
    late = [time & analyzed for time in held_up(trace, waits, is_all=True).values()]
    lost = [time.covered_ns(starts, ends) for time in late] or [np.zeros(len(starts), np.int64)]
    on_path[_NO_WAITS] = np.minimum(on_path[_NO_WAITS], np.max(lost, axis=0))
    works = [(time.busy_without_ns(""), time.busy_without_ns(_COMMUNICATION)) for time in times]
    kinds = [(time.communication.total_ns, time.compute.total_ns) for time in times]
    busy = [work + kind for work, kind in zip(works, kinds, strict=True)]
    return _Gains(spans["step"], on_path, busy, transfers.copy_saving_ns(speeds, analyzed))


def _combine_gains(processes: Sequence[_Gains], kept_ns: int) -> dict[str, float]:
    """Return the gain of each case over all processes.

    Processes wait for one another at the end of each step, so the gain of a step is that of the
    process with the largest gain. No gain makes the time shorter than the busiest device needs for
    its other work.
    """
    gains: dict[str, float] = {}
    busy = [times for process in processes for times in process.busy]
    all_steps = np.concatenate([process.steps for process in processes])
    steps, places = np.unique(all_steps, return_inverse=True)
    for case, _, without, _ in _CASES:
        largest = np.zeros(len(steps), np.int64)
        np.maximum.at(
            largest, places, np.concatenate([process.on_path[case] for process in processes])
        )
        gains[case] = max(0, min(int(largest.sum()), kept_ns - _min_busy_ns(busy, case, without)))
    return gains | {_COPIES: max(process.copies_ns for process in processes)}


def _min_busy_ns(busy: Sequence[tuple[int, ...]], case: str, without: str) -> int:
    """Return the time that the busiest device needs in a case, in ns.

    With several devices, communication does not count as work of a device, because it may be
    waiting for another device. Communication that is fully hidden still takes its time. If the host
    does not wait, copies can overlap with compute.
    """
    total, others, communicating, computing = zip(*busy, strict=True)
    if case == _NO_WAITS:
        return int(max(computing))
    if without:
        return int(max(*others, min(communicating)))
    return int(max(total if len(busy) == 1 else others))


def _lost_by_devices(ranks: Ranks) -> Table:
    """Return the loss of all devices in each case, in the analyzed time and in the window."""
    losses, analyzed = find_losses(ranks), analyzed_times(ranks)
    analyzed_ns = sum(time.total_ns for time in analyzed.values())
    recorded_ns = sum(
        recorded_times(part, device).total_ns for part in ranks for device in used_devices(part)
    )
    rows = []
    for case, _, _, name in _CASES:
        in_analyzed = sum(time.total_ns for time in within(losses[name], analyzed).values())
        in_window = sum(time.total_ns for time in losses[name].values())
        rows.append(
            {
                "case": case,
                "device_ratio": in_analyzed / max(1, analyzed_ns),
                "window_ratio": in_window / max(1, recorded_ns),
                "device_ns": in_analyzed,
                "window_ns": in_window,
            }
        )
    return Table.of_rows(rows)


def _note_on_steps(ranks: Ranks, analyzed: Intervals) -> list[Note]:
    """Return a note on the analyzed steps, if they are not the whole window."""
    window_ns = ranks.span.duration_ns
    is_typical = named_usual_steps(ranks)
    if not is_typical.any() or analyzed.total_ns == window_ns:
        return []
    return [
        Note.of(
            "Gains and GPU shares are for {n:count} typical step(s) ({judged:ns} of {window:ns}), "
            "without warm-up and slow steps. Findings use all steady steps.",
            n=len(np.unique(steps_of_ranks(ranks).table["step"][is_typical])),
            judged=analyzed.total_ns,
            window=window_ns,
        )
    ]


def _note_on_links(speeds: Mapping[str, float]) -> list[Note]:
    """Return a note on the assumed link rates, if there are any."""
    if not speeds:
        return []
    listed = ", ".join(f"{name} {{{name}:bytes/s}}" for name in speeds)
    text = f"Assumed link rate (the peak, or the rate of the fastest large copies): {listed}"
    return [Note(text, dict(speeds))]


WHATIF = Analysis(
    "whatif",
    WHATIF_SPEC,
    needs=("kernels", "api_calls"),
    uses=("copies", "ranges", "overheads", "devices", "environment", "collectives"),
    whole=("kernels", "copies"),
    of_steps=True,
    of_ranks=measure_whatif,
)
