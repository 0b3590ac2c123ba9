"""The critical path of each step: what decided how long it took.

See `traceprof.measures.path.graph` for how the path is found. Its parts add up to the step
exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.analyses import Analysis
from traceprof.measures.device.times import devices_at_work
from traceprof.measures.facts import of_window
from traceprof.measures.host.states import find_host_phases
from traceprof.measures.idle.gaps import LAUNCH_BOUND_NS, LONGEST_CALL_NS
from traceprof.measures.path.graph import (
    DEVICE_KINDS,
    HOST,
    LATENCY,
    SYNC,
    Segments,
    dependencies,
    walk_back,
)
from traceprof.measures.rows import in_order, lengths_of, rows_by, unions_by
from traceprof.measures.steps.find import find_steps
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note, Result, ResultSpec, TableSpec, Unit, total
from traceprof.model.trace import Trace

PATH_PARTS: Final = (*DEVICE_KINDS, "data", "launch", "host", "latency", "synchronising")
"""What the path consists of.

data: the host fetches data; launch: it launches one piece of work after the other; host: it runs
other code, or a call takes more than a millisecond (it loads a module); latency: between a
launch, or the work ahead, and the start of work; synchronising: from the end of work to the
return of the call that waited for it.
"""


@of_window
def find_path(trace: Trace, process: int) -> tuple[Mapping[str, Intervals], Segments]:
    """Return when each of `PATH_PARTS` was on the path of ``process``, and the segments.

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
    parts["synchronising"] = _of_kind(segments, SYNC)
    return parts, segments


def _of_kind(segments: Segments, kind: int) -> Intervals:
    chosen = segments.kind == kind
    return Intervals.union_of(segments.start_ns[chosen][::-1], segments.end_ns[chosen][::-1])


@of_window
def _launching(trace: Trace) -> Mapping[int, Intervals]:
    """Return when each process made one call after the other, with pauses of at most 200 µs."""
    calls = trace.api_calls[["process", "start_ns", "end_ns"]]
    quick = calls[lengths_of(calls) <= LONGEST_CALL_NS]
    closed = unions_by(quick.assign(end_ns=quick["end_ns"] + LAUNCH_BOUND_NS))
    # What was added behind the last call of each run of calls is taken off again.
    return {
        process: Intervals(time.starts, time.ends - LAUNCH_BOUND_NS)
        for process, time in closed.items()
    }


_MEANING: Final = {
    "compute": "compute kernels on the path",
    "communication": "communication kernels on the path",
    "transfer": "copies from or to elsewhere on the path",
    "device_memory": "copies and memsets inside a device on the path",
    "data": "the host fetches data",
    "launch": "the host launches one piece of work after the other",
    "host": "the host runs other code, or a call takes more than a millisecond",
    "latency": "between a launch, or the work ahead, and the start of work",
    "synchronising": "from the end of work to the return of the call that waited for it",
}
SPEC: Final = ResultSpec.of(
    TableSpec.of(
        "path",
        "one row per process and step (one per process where steps are not known)",
        """
        key process: the process
        key step: the number of the step, -1 for the window
        total duration_ns: its length: the parts add up to it
        """,
        *(total(f"{name}_ns", Unit.NS, _MEANING[name]) for name in PATH_PARTS),
        """
        derived bound_by: the largest part
        """,
    )
)
_PARTS: Final = [f"{name}_ns" for name in PATH_PARTS]


def measure_path(trace: Trace) -> Result:
    """Return the critical path of every step of every process with device work."""
    steps = find_steps(trace).table
    steps_of = rows_by(steps, "process")
    span = {"device_start_ns": [trace.span.start_ns], "device_end_ns": [trace.span.end_ns]}
    window = pd.DataFrame({"step": [-1], **span})
    tables = [
        _of_process(
            trace, process, steps.iloc[steps_of[process]] if process in steps_of else window
        )
        for process in devices_at_work(trace)
    ]
    table = pd.concat(tables, ignore_index=True) if tables else SPEC.tables[0].frame()
    return Result("path", SPEC, tables={"path": table})


def _of_process(trace: Trace, process: int, steps: pd.DataFrame) -> pd.DataFrame:
    parts, _ = find_path(trace, process)
    borders = ("device_start_ns", "device_end_ns")
    starts, ends = (steps[name].to_numpy(np.int64) for name in borders)
    columns = {f"{name}_ns": parts[name].covered_ns(starts, ends) for name in PATH_PARTS}
    of_steps = {"step": steps["step"].to_numpy(), "duration_ns": ends - starts}
    return pd.DataFrame({"process": process, **of_steps, **columns})


def _finish(result: Result) -> Result:
    table = result.table
    if table.empty:
        return result.with_notes(Note("no device worked in this window"))
    largest = table[_PARTS].to_numpy(np.int64).argmax(axis=1)
    table = table.assign(bound_by=np.array(PATH_PARTS, object)[largest])
    return result.with_table(in_order(table, "process"))


PATH = Analysis(
    name="path",
    spec=SPEC,
    needs=("kernels", "api_calls"),
    uses=("copies", "ranges"),
    of_steps=True,
    of_rank=measure_path,
    finish=_finish,
)
