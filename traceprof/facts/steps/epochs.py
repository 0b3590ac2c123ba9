"""Epochs that nobody named: the passes over a loader that was trained from."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.facts.steps.find import find_steps
from traceprof.facts.steps.spans import rows_by
from traceprof.model.steps import OWN_DOMAIN
from traceprof.model.trace import Trace

__all__ = ["epochs_of_loaders"]

_BEGINS: Final = "data.start"
_FETCHES: Final = "data"


@fact
def epochs_of_loaders(trace: Trace) -> pd.DataFrame:
    """Return process, start_ns and end_ns of each pass over a loader whose batches begin steps.

    A pass lasts to the next one, the last to the end of the last step: what lies between two, such
    as a validation, is of the first. A loader that only validates has none.
    """
    own = trace.ranges[trace.ranges["domain"] == OWN_DOMAIN]
    begun, fetched = (own[own["name"] == name] for name in (_BEGINS, _FETCHES))
    steps = find_steps(trace.whole).table
    of_fetches, of_steps = rows_by(fetched, "process"), rows_by(steps, "process")
    found = []
    for process, rows in rows_by(begun, "process").items():
        if process not in of_steps or process not in of_fetches:
            continue
        starts = np.sort(begun["start_ns"].to_numpy(np.int64)[rows])
        fetches = np.sort(fetched["start_ns"].to_numpy(np.int64)[of_fetches[process]])
        first = np.append(fetches, -1)[np.searchsorted(fetches, starts)]
        table = steps.iloc[of_steps[process]]
        chosen = starts[np.isin(first, table["start_ns"].to_numpy(np.int64))]
        ends = np.append(chosen[1:], table["next_ns"].max())[: len(chosen)]
        found.append(pd.DataFrame({"process": process, "start_ns": chosen, "end_ns": ends}))
    columns = {name: np.empty(0, np.int64) for name in ("process", "start_ns", "end_ns")}
    return pd.concat([pd.DataFrame(columns), *found], ignore_index=True)
