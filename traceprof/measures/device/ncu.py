"""Which launch of its function each kernel is: how Nsight Compute finds it again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.facts import fact
from traceprof.measures.rows import Ints, bounds
from traceprof.model.intervals import Intervals
from traceprof.model.tables import ABSENT, categorical
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


def recorded_program(environment: pd.DataFrame) -> str:
    """Return the command line of the program, "" where the recording did not note it."""
    known = environment.loc[environment["name"] == "command", "value"]
    return str(known.iloc[0]) if len(known) else ""


def function_names(kernels: pd.DataFrame) -> pd.Categorical:
    """Return the function of each kernel: its name without types, scopes and arguments."""
    names = kernels["name"].cat
    functions = (parse_name(str(name)).identifier or str(name) for name in names.categories)
    return categorical(functions, names.codes.to_numpy())


@fact
def launch_numbers(trace: Trace) -> Ints:
    """Return how many kernels of the same function its process had launched before each kernel.

    CUDA numbers launches as they are made (the correlation id), which need not be the order in
    which they run; kernels of one launch (of a graph), and kernels without a number, are taken as
    they ran. An element for each kernel of the whole trace.
    """
    kernels = trace.kernels.to_frame()
    functions = function_names(kernels).codes.astype(np.int64)
    processes, starts = kernels["process"].to_numpy(), kernels["start_ns"].to_numpy()
    order = np.lexsort((starts, _launches(kernels), functions, processes))
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = np.diff(processes[order]).astype(bool) | np.diff(functions[order]).astype(bool)
    begins = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order)) - begins
    return numbers


def longest_launch(part: Trace, name: str, inside: Intervals) -> KernelLaunch | None:
    """Return the longest of the kernels called ``name`` that start ``inside``, None without any."""
    kernels = part.kernels.to_frame()
    starts, ends = bounds(kernels)
    wanted = np.append(kernels["name"].cat.categories == name, False)
    fits = wanted[kernels["name"].cat.codes.to_numpy()]
    rows = np.flatnonzero(fits)
    rows = rows[inside.covered_ns(starts[rows], starts[rows] + 1) > 0]
    if not len(rows):
        return None
    row = int(rows[(ends - starts)[rows].argmax()])
    own = int(np.arange(len(part.whole.kernels.to_frame()))[part.rows_in_whole("kernels")][row])
    function = parse_name(name).identifier or name
    return KernelLaunch(function, _launched_before(part.whole, own), int(ends[row] - starts[row]))


def _launched_before(trace: Trace, row: int) -> int:
    """Return what `launch_numbers` says of one kernel, without ordering all of them."""
    kernels = trace.kernels.to_frame()
    functions, processes = function_names(kernels).codes, kernels["process"].to_numpy()
    alike = np.flatnonzero((functions == functions[row]) & (processes == processes[row]))
    starts, launches = kernels["start_ns"].to_numpy(), _launches(kernels)
    order = alike[np.lexsort((starts[alike], launches[alike]))]
    return int(np.flatnonzero(order == row)[0])


def _launches(kernels: pd.DataFrame) -> Ints:
    """Return what orders launches: their numbers, nothing where one is not known."""
    launches = kernels["correlation"].to_numpy()
    return np.zeros(len(kernels), np.int64) if (launches == ABSENT).any() else launches
