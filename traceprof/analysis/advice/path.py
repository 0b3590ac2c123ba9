"""The critical path of each step: what decided how long it took.

See `traceprof.facts.path` for how the path is found. Its parts add up to the step exactly.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.device.times import devices_at_work
from traceprof.facts.path.parts import PATH_PARTS, find_path
from traceprof.facts.steps.find import find_steps
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    total,
)
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS"]

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
SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "path",
            "one row per process and step (one per process where steps are not known)",
            (
                key("process", "the process", Unit.NUMBER),
                key("step", "the number of the step, -1 for the window", Unit.NUMBER),
                total("duration_ns", Unit.NS, "its length: the parts add up to it"),
                *(total(f"{name}_ns", Unit.NS, _MEANING[name]) for name in PATH_PARTS),
                derived("bound_by", Unit.TEXT, "the largest part"),
            ),
        ),
    )
)
_PARTS: Final = [f"{name}_ns" for name in PATH_PARTS]


def measure_path(trace: Trace) -> Result:
    """Return the critical path of every step of every process with device work."""
    steps = find_steps(trace).table
    steps_of = steps.groupby("process").indices
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
    return result.with_table(table.sort_values("process", kind="stable", ignore_index=True))


ANALYSIS = Analysis(
    name="path",
    spec=SPEC,
    needs=("kernels", "api_calls"),
    uses=("copies", "ranges"),
    of_steps=True,
    of_rank=measure_path,
    finish=_finish,
)
