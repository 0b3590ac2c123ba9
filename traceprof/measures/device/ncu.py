"""Number kernel launches per function, so that Nsight Compute can find a launch again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.facts import fact
from traceprof.measures.rows import Ints, are_first, bounds, ints
from traceprof.model.intervals import Intervals
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.parsing import parse_name
from traceprof.secrets import masked_text

_PROGRAM: Final = "YOUR PROGRAM"


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch of ``function``, after ``skip`` earlier launches of it in the same process."""

    function: str
    skip: int
    duration_ns: int


def ncu_command(function: str, skip: int, program: str = "") -> str:
    """Return the command that profiles one launch of ``function``, after ``skip`` earlier ones.

    Nsight Compute counts matching launches in each process separately. ``program`` is the recorded
    command line; its secrets are masked.
    """
    return (
        f"ncu --target-processes all --kernel-name {shlex.quote(function)} --launch-skip {skip} "
        f"--launch-count 1 -- {masked_text(program) or _PROGRAM}"
    )


def recorded_program(environment: Table) -> str:
    """Return the command line of the program; "" if it was not recorded."""
    known = environment["value"][environment["name"] == "command"]
    return str(known[0]) if len(known) else ""


def function_names(kernels: Table) -> Names:
    """Return the function of each kernel: its name without types, scopes, and arguments."""
    names = kernels["name"]
    functions = (parse_name(name).identifier or name for name in names.texts.tolist())
    return Names.coded(functions, names.packed)


@fact
def launch_numbers(trace: Trace) -> Ints:
    """Return the number of earlier launches of the same function in the process of each kernel.

    CUDA numbers launches in launch order (the correlation ID), which can differ from the order on
    the device. Kernels of one graph launch, and kernels without a number, are ordered by start
    time. The array has one element per kernel of the whole trace.
    """
    functions = function_names(trace.kernels).codes
    processes, starts = ints(trace.kernels, "process", "start_ns")
    order = np.lexsort((starts, _launch_order(trace.kernels), functions, processes))
    is_first = are_first(processes[order], functions[order])
    begins = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order)) - begins
    return numbers


def longest_launch(part: Trace, name: str, inside: Intervals) -> KernelLaunch | None:
    """Return the longest kernel called ``name`` that starts ``inside``; None if there is none."""
    starts, ends = bounds(part.kernels)
    rows = np.flatnonzero(part.kernels["name"] == name)
    rows = rows[inside.covered_ns(starts[rows], starts[rows] + 1) > 0]
    if not len(rows):
        return None
    row = int(rows[(ends - starts)[rows].argmax()])
    row_in_whole = int(np.arange(len(part.whole.kernels))[part.rows_in_whole("kernels")][row])
    return KernelLaunch(
        function=parse_name(name).identifier or name,
        skip=_launched_before(part.whole, row_in_whole),
        duration_ns=int(ends[row] - starts[row]),
    )


def _launched_before(trace: Trace, row: int) -> int:
    """Return the element of `launch_numbers` for one kernel, without ordering all kernels."""
    functions, processes = function_names(trace.kernels).codes, trace.kernels["process"]
    rows = np.flatnonzero((functions == functions[row]) & (processes == processes[row]))
    starts, launches = trace.kernels["start_ns"], _launch_order(trace.kernels)
    order = rows[np.lexsort((starts[rows], launches[rows]))]
    return int(np.flatnonzero(order == row)[0])


def _launch_order(kernels: Table) -> Ints:
    """Return the launch number of each kernel; zeros if the number of any kernel is unknown."""
    launches: Ints = kernels["correlation"]
    return np.zeros(len(kernels), np.int64) if (launches == ABSENT).any() else launches
