"""The critical path of each step, and what at most could be gained.

See `traceprof.measures.path.graph` for how the path is found. Its parts add up to the step exactly.

Taking a part of the critical path away gains at most its time on the path, and never more than
what brings the window down to the time in which the busiest device still has other work: the
smaller of the two is the bound. A wait that is taken away takes no part of the path with it but
lets the host go on: there the bound is what the host is late by because of it. Several processes
wait for one another, so that each step gains what the one with the most does. Beside it stands
what the devices lose to the same thing: that of a device which is not on the path gains nothing by
itself, and a path may hold what devices hide.

All of it is judged in the same time as findings are, the typical steps; what devices lose is also
given of the whole window, as `idle` and `breakdown` have it.
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
"""What the path consists of.

data: the host fetches data; launch: it launches one piece of work after the other; host: it runs
other code, or a call takes more than a millisecond (it loads a module); latency: between a
launch, or the work ahead, and the start of work; synchronizing: from the end of work to the
return of the call that waited for it.
"""


@of_window
def find_path(trace: Trace, process: int) -> tuple[Mapping[str, Intervals], Segments]:
    """Return when each of `PATH_PARTS` was on the path of ``process``, and its transfers.

    The parts fill the window exactly. The process must have device work somewhere.
    """
    segments = walk_back(dependencies(trace)[process], trace.span)
    parts = {name: _of_kind(segments, kind) for kind, name in enumerate(DEVICE_KINDS)}
    host = _of_kind(segments, HOST)
    nothing = Intervals.empty()
    phases = {own.process: own.times for own in find_host_phases(trace)}
    data = phases.get(process, {}).get("data", nothing)
    launching = _launching(trace).get(process, nothing)
    parts["data"] = host & data
    parts["launch"] = (host - data) & launching
    parts["host"] = host - data - launching
    parts["latency"] = _of_kind(segments, LATENCY)
    parts["synchronizing"] = _of_kind(segments, SYNC)
    return parts, segments.of_kind(DEVICE_KINDS.index("transfer"))


def _of_kind(segments: Segments, kind: int) -> Intervals:
    chosen = segments.kind == kind
    return Intervals.union_of(segments.start_ns[chosen][::-1], segments.end_ns[chosen][::-1])


@of_window
def _launching(trace: Trace) -> Mapping[int, Intervals]:
    """Return when each process made one call after the other, with pauses of at most 200 µs."""
    starts, ends = bounds(trace.api_calls)
    are_quick = ends - starts <= LONGEST_CALL_NS
    until, process_of = ends + LAUNCH_BOUND_NS, trace.api_calls["process"]
    closed = unions_of(starts, until, process_of, where=are_quick)
    # What was added behind the last call of each run of calls is taken off again.
    return {
        process: Intervals(time.starts, time.ends - LAUNCH_BOUND_NS)
        for (process,), time in closed.items()
    }


_MEANING: Final = {
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
    *(total(f"{name}_ns", Unit.NS, _MEANING[name]) for name in PATH_PARTS),
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
    parts, _ = find_path(trace, process)
    starts, ends = ints(steps, "device_start_ns", "device_end_ns")
    columns = {f"{name}_ns": parts[name].covered_ns(starts, ends) for name in PATH_PARTS}
    return Table(
        {"process": process, "step": steps["step"], "duration_ns": ends - starts, **columns}
    )


def path_within(trace: Trace, process: int, step: int, window: TimeWindow) -> Table | None:
    """Return the pieces of the path of a step in ``window`` (-1: of all of it), by time.

    Their columns are part, at_ns (after the start of the run) and duration_ns; they fill the step.
    None where the process is not in ``trace``.
    """
    begin, trace = trace.span.start_ns, trace.whole.within(window)
    if process not in devices_at_work(trace):
        return None
    steps = find_steps(trace).table
    own = steps.take((steps["process"] == process) & (steps["step"] == step))
    start, end = trace.span.start_ns, trace.span.end_ns
    if len(own):
        start, end = int(own["device_start_ns"][0]), int(own["device_end_ns"][0])
    tables = []
    for part, times in find_path(trace, process)[0].items():
        inside = times.clip(start, end)
        at = {"at_ns": inside.starts - begin, "duration_ns": inside.ends - inside.starts}
        tables.append(Table({"part": objects([part] * len(inside.starts)), **at}))
    return Table.stacked(tables).in_order("at_ns")


def _finish(result: Result) -> Result:
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
"""Each with its parts of the path, the union of a device that it frees, and what devices lose."""

_COPIES: Final = "copies at link speed"
_COMMUNICATION: Final = "communication"
_NO_WAITS: Final = "synchronization free"
"""Whatever the host does after a wait it would do earlier, up to the length of each."""

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
_BOUND: Final = Note(
    "Each gain is an upper bound from the critical path. The gains do not add up, since removing "
    "one cost can expose another. GPU shares are means over the GPUs, as in findings."
)


def measure_whatif(ranks: Ranks) -> Result:
    """Return upper bounds of what could be gained."""
    speeds = copy_speeds(ranks)
    judged = usual_time(ranks)
    # Without what the profiler added, where steps without it tell how much that is.
    added_ratio = measured_steps(ranks).scalars.get("profiler_overhead_ratio", 0.0)
    kept_ns = round(judged.total_ns / (1 + added_ratio))
    spans = steps_of_ranks(ranks).table.take(named_usual_steps(ranks))
    found = [own for part in ranks.each(_gains_of_one, speeds, judged, spans) for own in part]
    gains = _together(found, kept_ns) if found else {}
    step_ns = base_of(ranks).unit_ns
    ratio = np.array(list(gains.values()), np.float64) / max(1, kept_ns)
    cases = Table(
        {
            "case": list(gains),
            "gain_ns": ratio * step_ns,
            "gain_ratio": ratio,
            "speedup": 1 / np.where(ratio < 1, 1 - ratio, np.nan),
            "process_count": len(found),
        }
    )
    lost = _lost_by_devices(ranks)
    place = find_matching_rows(cases, lost, "case")
    of_devices = {name: at_rows(lost[name], place) for name in lost if name != "case"}
    cases = cases.assign(**of_devices).in_order("-gain_ratio")
    links = {"direction": list(speeds), "bytes_per_s": list(speeds.values())}
    tables = {"cases": cases, "links": Table(links)}
    return Result(
        "whatif",
        WHATIF_SPEC,
        tables={name: WHATIF_SPEC.table(name).of_rows(table) for name, table in tables.items()},
        scalars={
            "step_ns": step_ns,
            "window_ns": ranks.span.duration_ns,
            "analyzed_ns": judged.total_ns,
        },
        notes=(_BOUND, *_on_steps(ranks, judged), *_on_links(speeds)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Gains:
    """What the cases would gain of the analyzed steps of a process, in ns.

    ``on_path`` by case and step (the number of each in ``steps``), ``busy`` is, by device, how
    long it works, how long without communication, how long it communicates and computes;
    ``copies_ns`` is what faster copies gain in all.
    """

    steps: Ints
    on_path: Mapping[str, Ints]
    busy: Sequence[tuple[int, ...]]
    copies_ns: float


def _gains_of_one(
    trace: Trace, speeds: Mapping[str, float], judged: Intervals, spans: Table
) -> list[_Gains]:
    own = rows_by(spans, "process")
    whole = Table(
        {"step": [-1], "device_start_ns": [trace.span.start_ns], "device_end_ns": trace.span.end_ns}
    )
    return [
        _gains(trace, process, devices, speeds, judged, spans.take(own[process]) if own else whole)
        for process, devices in devices_at_work(trace).items()
        if process in own or not own
    ]


def _gains(
    trace: Trace,
    process: int,
    devices: tuple[int, ...],
    speeds: Mapping[str, float],
    judged: Intervals,
    spans: Table,
) -> _Gains:
    """Return what each case would gain of the ``judged`` time of a process, in its steps."""
    parts, transfers = find_path(trace, process)
    times = [device_time(trace, device).within(judged) for device in devices]
    starts, ends = ints(spans, "device_start_ns", "device_end_ns")
    on_path: dict[str, Ints] = {}
    for case, names, *_ in _CASES:
        of_parts = [(parts[name] & judged).covered_ns(starts, ends) for name in names]
        on_path[case] = np.sum(of_parts, axis=0, dtype=np.int64)
    calls = trace.api_calls
    waits = calls.take(are_waits_of_launching_threads(calls) & (calls["process"] == process))
    late = [time & judged for time in held_up(trace, waits, is_all=True).values()]
    lost = [time.covered_ns(starts, ends) for time in late] or [np.zeros(len(starts), np.int64)]
    on_path[_NO_WAITS] = np.minimum(on_path[_NO_WAITS], np.max(lost, axis=0))
    works = [(own.busy_without_ns(""), own.busy_without_ns(_COMMUNICATION)) for own in times]
    kinds = [(own.communication.total_ns, own.compute.total_ns) for own in times]
    busy = [one + other for one, other in zip(works, kinds, strict=True)]
    return _Gains(spans["step"], on_path, busy, _faster_copies(transfers, speeds, judged))


def _together(found: Sequence[_Gains], kept_ns: int) -> dict[str, float]:
    """Return what each case would gain of all: they wait for one another at each step's end.

    So that in each step no more is gained than by the process that gains the most, and no time is
    shorter than the busiest device has other work for.
    """
    gains: dict[str, float] = {}
    busy = [one for own in found for one in own.busy]
    steps, places = np.unique(np.concatenate([own.steps for own in found]), return_inverse=True)
    for case, _, without, _ in _CASES:
        most = np.zeros(len(steps), np.int64)
        np.maximum.at(most, places, np.concatenate([own.on_path[case] for own in found]))
        gains[case] = max(0, min(int(most.sum()), kept_ns - _needed_ns(busy, case, without)))
    return gains | {_COPIES: max(own.copies_ns for own in found)}


def _needed_ns(busy: Sequence[tuple[int, ...]], case: str, without: str) -> int:
    """Return how long the busiest device has work for, and what is hidden takes all the same.

    Of several devices communication is no work of its own: it may be waiting for another. A host
    that does not wait may have copies behind compute.
    """
    whole, others, communicating, computing = zip(*busy, strict=True)
    if case == _NO_WAITS:
        return int(max(computing))
    if without:
        return int(max(*others, min(communicating)))
    return int(max(whole if len(busy) == 1 else others))


def _lost_by_devices(ranks: Ranks) -> Table:
    """Return what all devices lose to each case, in the analyzed time and in the window."""
    losses, judged = find_losses(ranks), analyzed_times(ranks)
    analyzed_ns = sum(time.total_ns for time in judged.values())
    recorded_ns = sum(
        recorded_times(part, device).total_ns for part in ranks for device in used_devices(part)
    )
    rows = []
    for case, _, _, name in _CASES:
        inside = sum(time.total_ns for time in within(losses[name], judged).values())
        whole = sum(time.total_ns for time in losses[name].values())
        rows.append(
            {
                "case": case,
                "device_ratio": inside / max(1, analyzed_ns),
                "window_ratio": whole / max(1, recorded_ns),
                "device_ns": inside,
                "window_ns": whole,
            }
        )
    return Table.of_rows(rows)


def _faster_copies(copies: Segments, speeds: Mapping[str, float], judged: Intervals) -> float:
    """Return the ns of the ``judged`` path that copies would save at the speed of their link."""
    graph, rows = copies.graph, copies.row
    on_path = judged.covered_ns(copies.start_ns, copies.end_ns)
    length = (graph.ends[rows] - graph.starts[rows]).astype(np.float64)
    of_names = [speeds.get(name, np.nan) for name in graph.direction_names]
    speed = graph.directions[rows].pick(np.array([*of_names, np.nan]))
    n_bytes = graph.n_bytes[rows]
    ideal = np.where(n_bytes >= 0, n_bytes, np.nan) / speed * 1e9
    slack = np.clip(1 - ideal / np.maximum(length, 1), 0, 1)
    return float(np.nansum(on_path * slack))


def _on_steps(ranks: Ranks, judged: Intervals) -> list[Note]:
    """Return what of the window is not judged, where that is anything."""
    window_ns = ranks.span.duration_ns
    is_typical = named_usual_steps(ranks)
    if not is_typical.any() or judged.total_ns == window_ns:
        return []
    return [
        Note.of(
            "Gains and GPU shares are for {n:count} typical step(s) ({judged:ns} of {window:ns}), "
            "without warm-up and slow steps. Findings use all steady steps.",
            n=len(np.unique(steps_of_ranks(ranks).table["step"][is_typical])),
            judged=judged.total_ns,
            window=window_ns,
        )
    ]


def _on_links(speeds: Mapping[str, float]) -> list[Note]:
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
