"""Which launch of its function each kernel is: how Nsight Compute finds it again."""

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
    """One launch: of which ``function``, and after how many others of it in its process."""

    function: str
    skip: int
    duration_ns: int


def ncu_command(function: str, skip: int, program: str = "") -> str:
    """Return what profiles the launch of ``function`` after ``skip`` others of it.

    Nsight Compute counts the launches that match in each process by itself. Of the ``program``
    that was recorded what tells to be a secret is masked.
    """
    return (
        f"ncu --target-processes all --kernel-name {shlex.quote(function)} --launch-skip {skip} "
        f"--launch-count 1 -- {masked_text(program) or _PROGRAM}"
    )


def recorded_program(environment: Table) -> str:
    """Return the command line of the program, "" where the recording did not note it."""
    known = environment["value"][environment["name"] == "command"]
    return str(known[0]) if len(known) else ""


def function_names(kernels: Table) -> Names:
    """Return the function of each kernel: its name without types, scopes and arguments."""
    names = kernels["name"]
    functions = (parse_name(name).identifier or name for name in names.texts.tolist())
    return Names.coded(functions, names.packed)


@fact
def launch_numbers(trace: Trace) -> Ints:
    """Return how many kernels of the same function its process had launched before each kernel.

    CUDA numbers launches as they are made (the correlation id), which need not be the order in
    which they run; kernels of one launch (of a graph), and kernels without a number, are taken as
    they ran. An element for each kernel of the whole trace.
    """
    functions = function_names(trace.kernels).codes
    processes, starts = ints(trace.kernels, "process", "start_ns")
    order = np.lexsort((starts, _launches(trace.kernels), functions, processes))
    is_first = are_first(processes[order], functions[order])
    begins = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order)) - begins
    return numbers


def longest_launch(part: Trace, name: str, inside: Intervals) -> KernelLaunch | None:
    """Return the longest of the kernels called ``name`` that start ``inside``, None without any."""
    starts, ends = bounds(part.kernels)
    rows = np.flatnonzero(part.kernels["name"] == name)
    rows = rows[inside.covered_ns(starts[rows], starts[rows] + 1) > 0]
    if not len(rows):
        return None
    row = int(rows[(ends - starts)[rows].argmax()])
    own = int(np.arange(len(part.whole.kernels))[part.rows_in_whole("kernels")][row])
    function = parse_name(name).identifier or name
    return KernelLaunch(function, _launched_before(part.whole, own), int(ends[row] - starts[row]))


def _launched_before(trace: Trace, row: int) -> int:
    """Return what `launch_numbers` says of one kernel, without ordering all of them."""
    functions, processes = function_names(trace.kernels).codes, trace.kernels["process"]
    alike = np.flatnonzero((functions == functions[row]) & (processes == processes[row]))
    starts, launches = trace.kernels["start_ns"], _launches(trace.kernels)
    order = alike[np.lexsort((starts[alike], launches[alike]))]
    return int(np.flatnonzero(order == row)[0])


def _launches(kernels: Table) -> Ints:
    """Return what orders launches: their numbers, nothing where one is not known."""
    launches: Ints = kernels["correlation"]
    return np.zeros(len(kernels), np.int64) if (launches == ABSENT).any() else launches
