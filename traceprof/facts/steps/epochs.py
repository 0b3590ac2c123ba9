"""Epochs that nobody named: the passes over a loader that was trained from."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.facts.steps.find import find_steps
from traceprof.facts.steps.passes import passes_of_loaders
from traceprof.facts.steps.spans import rows_by
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import Trace

__all__ = ["epochs_of_loaders"]

_BEGINS: Final = "data.start"
_FETCHES: Final = "data"


@fact
def epochs_of_loaders(trace: Trace) -> pd.DataFrame:
    """Return process, start_ns and end_ns of each pass over a loader that trains.

    A pass lasts to the next one, the last to the end of the last step: what lies between two, such
    as a validation, is of the first. A loader that only validates has none. Of loaders side by side
    the passes with most batches count.
    """
    own = trace.ranges[trace.ranges["domain"] == OWN_DOMAIN]
    begun, fetched = (own[own["name"] == name] for name in (_BEGINS, _FETCHES))
    steps = find_steps(trace.whole).table
    passes = passes_of_loaders(trace)
    of_passes = rows_by(passes, "process")
    of_fetches, of_steps = rows_by(fetched, "process"), rows_by(steps, "process")
    found = []
    for process, rows in rows_by(begun, "process").items():
        if process not in of_steps or process not in of_fetches:
            continue
        starts = np.sort(begun["start_ns"].to_numpy(np.int64)[rows])
        table = steps.iloc[of_steps[process]]
        if process in of_passes:
            chosen = _longest(passes.iloc[of_passes[process]])
            place = np.searchsorted(starts, chosen, side="right") - 1
            chosen = np.where(place >= 0, starts[np.maximum(place, 0)], chosen)
        else:  # recorded before passes were numbered
            fetches = np.sort(fetched["start_ns"].to_numpy(np.int64)[of_fetches[process]])
            first = np.append(fetches, -1)[np.searchsorted(fetches, starts)]
            chosen = starts[np.isin(first, table["start_ns"].to_numpy(np.int64))]
        ends = np.append(chosen[1:], table["next_ns"].max())[: len(chosen)]
        found.append(pd.DataFrame({"process": process, "start_ns": chosen, "end_ns": ends}))
    columns = {name: np.empty(0, np.int64) for name in ("process", "start_ns", "end_ns")}
    return pd.concat([pd.DataFrame(columns), *found], ignore_index=True)


def _longest(passes: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return when those passes that train begin which lie in no longer one by half or more."""
    training = passes[passes["is_training"].astype(bool)]
    kept: list[tuple[int, int]] = []
    order = training.sort_values("fetches_count", ascending=False, kind="stable")
    for start, end in order[["start_ns", "end_ns"]].astype(np.int64).to_numpy().tolist():
        shared = sum(max(0, min(end, other[1]) - max(start, other[0])) for other in kept)
        if 2 * shared < max(end - start, 1):
            kept.append((start, end))
    return np.array(sorted(start for start, _ in kept), np.int64)
