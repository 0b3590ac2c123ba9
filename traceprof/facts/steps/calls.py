"""The step in which something was called, whatever it was."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.grouping import rows_by_value
from traceprof.model.tables import ABSENT
from traceprof.model.timing import Steps

__all__ = ["steps_of_calls"]


def steps_of_calls(steps: Steps, work: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return the row of ``steps.table`` that each row of ``work`` was called in, -1 for none.

    ``work`` has process, call_ns and start_ns: what has no known call belongs to the step in
    which it started.
    """
    found = np.full(len(work), ABSENT, np.int64)
    called = work["call_ns"].to_numpy(np.int64)
    instants = np.where(called != ABSENT, called, work["start_ns"].to_numpy(np.int64))
    begins, finishes = (steps.table[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    by_process = rows_by_value(work["process"])
    for process, rows in steps.table.groupby("process").indices.items():
        mine = by_process.get(int(str(process)))
        if mine is None:
            continue
        place = np.searchsorted(begins[rows], instants[mine], side="right") - 1
        step = rows[np.maximum(place, 0)]
        inside = (place >= 0) & (instants[mine] < finishes[step])
        found[mine] = np.where(inside, step, ABSENT)
    return found
