"""Where the host waits for a device: synchronising calls and blocking copies, by range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.training.layers import plain_name
from traceprof.facts.host.states import is_blocking_copy, is_synchronisation
from traceprof.facts.launches import innermost
from traceprof.facts.steps.find import find_steps
from traceprof.model.trace import Trace
from traceprof.units import format_duration

__all__ = ["ANALYSIS", "Synchronisation", "find_waits", "measure_sync"]

_SMALL_BYTES: Final = 64
"""A copy to the host up to this size, waited for at once, is a `.item()` or an `if tensor:`."""


@dataclass(frozen=True, slots=True, eq=False)
class Synchronisation:
    """One row per call, pattern and range, by total host time.

    ``table``: call, pattern (synchronise, blocking copy, or ``.item()``: a copy of a few bytes
    to the host that is waited for at once), host_range (the innermost range around the call, ""
    where none), count, per_step (NaN without steps), total_ns, mean_ns, max_ns.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def find_waits(trace: Trace) -> pd.DataFrame:
    """Return the API calls of the window that wait for a device, with pattern and host_range."""
    calls = trace.api_calls
    waits, blocking = is_synchronisation(calls["name"]), is_blocking_copy(calls["name"])
    found = calls[waits | blocking].reset_index(drop=True)
    pattern = np.where(is_blocking_copy(found["name"]), "blocking copy", "synchronise")
    pattern = np.where(_reads_a_value(trace, found), ".item()", pattern)
    ranges = trace.whole.ranges
    nested = ranges[ranges["kind"] == "push_pop"]
    rows = innermost(
        nested,
        found["process"].to_numpy(np.int64),
        found["thread"].to_numpy(np.int64),
        found["start_ns"].to_numpy(np.int64),
    )
    names = [plain_name(str(name)) for name in nested["name"].cat.categories]
    codes = nested["name"].cat.codes.to_numpy()
    labels = [names[codes[row]] if row >= 0 else "" for row in rows]
    return found.assign(pattern=pattern, host_range=labels)


def _reads_a_value(trace: Trace, waits: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which waits come right after, or are, a copy of a few bytes to the host."""
    whole = trace.whole
    small = whole.copies[
        (whole.copies["direction"] == "d2h") & whole.copies["n_bytes"].between(1, _SMALL_BYTES)
    ]
    keys = small[["process", "correlation"]].drop_duplicates()
    launches = whole.api_calls.merge(keys, on=["process", "correlation"])
    calls = whole.api_calls[["process", "thread", "start_ns"]]
    is_copy = is_blocking_copy(waits["name"])
    result = np.zeros(len(waits), np.bool_)
    by_thread = waits.groupby(["process", "thread"]).indices
    launch_of = launches.groupby(["process", "thread"]).indices
    for lane, rows in calls.groupby(["process", "thread"]).indices.items():
        mine, own = by_thread.get(lane), launch_of.get(lane)
        if mine is None or own is None:
            continue
        order = np.sort(calls["start_ns"].to_numpy()[rows])
        place = np.searchsorted(order, waits["start_ns"].to_numpy()[mine])
        is_launch = np.isin(order, launches["start_ns"].to_numpy()[own])
        follows = (place > 0) & is_launch[np.maximum(place - 1, 0)]
        result[mine] = np.where(is_copy[mine], is_launch[place], follows)
    return result


def measure_sync(trace: Trace) -> Synchronisation:
    """Return the waits of the host by call, pattern and range."""
    waits = find_waits(trace)
    waits = waits.assign(duration=waits["end_ns"] - waits["start_ns"])
    table = (
        waits.groupby(["name", "pattern", "host_range"], observed=True)["duration"]
        .agg(count="size", total_ns="sum", mean_ns="mean", max_ns="max")
        .reset_index()
        .rename(columns={"name": "call"})
        .astype({"call": object})
    )
    n_steps = len(find_steps(trace))
    table.insert(4, "per_step", table["count"] / n_steps if n_steps else np.nan)
    table = table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)
    return Synchronisation(table, _notes(waits))


def _notes(waits: pd.DataFrame) -> tuple[str, ...]:
    values = waits[waits["pattern"] == ".item()"]
    if values.empty:
        return ()
    lost = format_duration(int(values["duration"].sum()))
    return (
        f"{len(values)} waits for a few bytes from the device ({lost}) look like .item(), .cpu() "
        "of a scalar, or `if tensor:`",
    )


ANALYSIS = Analysis(
    name="sync",
    needs=("api_calls",),
    run=measure_sync,
)
