"""Which launch of its function each kernel is: how Nsight Compute finds it again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.model.kernel_names.parsing import parse_name
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["function_names", "launch_numbers"]


def function_names(kernels: pd.DataFrame) -> pd.Categorical:
    """Return the function of each kernel: its name without types, scopes and arguments."""
    names = kernels["name"].cat
    functions = [parse_name(str(name)).identifier or str(name) for name in names.categories]
    distinct = list(dict.fromkeys(functions))
    place = {function: code for code, function in enumerate(distinct)}
    codes = np.array([place[function] for function in functions], np.int64)
    return pd.Categorical.from_codes(
        codes[names.codes.to_numpy()] if len(codes) else [], pd.Index(distinct, dtype=object)
    )


@fact
def launch_numbers(trace: Trace) -> npt.NDArray[np.int64]:
    """Return how many kernels of the same function its process had launched before each kernel.

    CUDA numbers launches as they are made (the correlation id), which need not be the order in
    which they run; kernels of one launch (of a graph), and kernels without a number, are taken as
    they ran. An element for each kernel of the whole trace.
    """
    kernels = trace.kernels
    functions = function_names(kernels).codes.astype(np.int64)
    processes, starts = kernels["process"].to_numpy(), kernels["start_ns"].to_numpy()
    launches = kernels["correlation"].to_numpy()
    if (launches == ABSENT).any():
        launches = np.zeros(len(kernels), np.int64)
    order = np.lexsort((starts, launches, functions, processes))
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = np.diff(processes[order]).astype(bool) | np.diff(functions[order]).astype(bool)
    begins = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order)) - begins
    return numbers
