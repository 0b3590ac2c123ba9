"""Tying collectives to the kernels that carry them out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.activity import Activity
from traceprof.model.tables import ABSENT

__all__ = ["tied_by_launch"]


def tied_by_launch(
    collectives: pd.DataFrame,
    kernels: pd.DataFrame,
    api_calls: pd.DataFrame,
    latest_ns: npt.NDArray[np.int64] | None = None,
) -> pd.DataFrame:
    """Return ``collectives`` with a correlation for those that have none.

    It is that of the first communication kernel that the same thread launched inside the call
    or, where ``latest_ns`` is given, between its start and that time.
    """
    is_communication = kernels["activity"] == Activity.COMMUNICATION.value
    launched = kernels.loc[is_communication, ["process", "correlation"]].drop_duplicates()
    launches = api_calls.merge(launched, on=["process", "correlation"])
    launches = launches.sort_values("start_ns", kind="stable")
    open_rows = (collectives["correlation"] == ABSENT).to_numpy()
    if not open_rows.any() or launches.empty:
        return collectives
    until = collectives["end_ns"].to_numpy() if latest_ns is None else latest_ns
    begins = collectives["start_ns"].to_numpy()
    correlation = collectives["correlation"].to_numpy().copy()
    wanted = collectives[open_rows].groupby(["process", "thread"]).indices
    for lane, mine in launches.groupby(["process", "thread"]):
        if lane not in wanted:
            continue
        places = np.flatnonzero(open_rows)[wanted[lane]]
        starts = mine["start_ns"].to_numpy()
        first = np.searchsorted(starts, begins[places])
        found = first < len(starts)
        places, first = places[found], first[found]
        inside = starts[first] < until[places]
        correlation[places[inside]] = mine["correlation"].to_numpy()[first[inside]]
    return collectives.assign(correlation=correlation)
