"""Why devices were idle: the gaps by cause and by length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.gaps import CAUSES, find_gaps
from traceprof.facts.steps.find import find_steps
from traceprof.facts.steps.parts import sums_of_gaps
from traceprof.model.trace import Trace
from traceprof.units import format_ratio

__all__ = ["ANALYSIS", "Idle", "measure_idle"]

_EDGES_NS: Final = (0, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
_HOST_CAUSES: Final = ("data", "synchronising", "launch", "host")
_HOST_BOUND: Final = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """One row per device and cause (see `traceprof.facts.gaps`), the largest first.

    ``table``: device, cause, total_ns, share_ratio (of the window), idle_ratio (of the idle time
    of the device), gap_count (gaps in which it is the largest cause). Per device the causes add
    up to its idle time exactly. ``histogram``: device, from_ns, up_to_ns, count, total_ns of the
    gaps by length. ``host_bound_steps``: process, step, idle_ratio of the steps in which devices
    waited more than 30 % of the time for the host.
    """

    table: pd.DataFrame
    histogram: pd.DataFrame
    host_bound_steps: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table of causes."""
        return self.table


def measure_idle(trace: Trace) -> Idle:
    """Return the idle time of each device by cause."""
    gaps = find_gaps(trace)
    steps = _host_bound_steps(trace, gaps)
    return Idle(_by_cause(gaps, trace.span.duration_ns), _histogram(gaps), steps, _notes(steps))


def _by_cause(gaps: pd.DataFrame, window_ns: int) -> pd.DataFrame:
    columns = ["device", "cause", "total_ns", "share_ratio", "idle_ratio", "gap_count"]
    rows = []
    for device, own in gaps.groupby("device"):
        idle_ns = int((own["end_ns"] - own["start_ns"]).sum())
        main = own[list(CAUSES)].to_numpy().argmax(axis=1)
        rows += [
            (device, cause, total, total / window_ns, total / idle_ns, int((main == i).sum()))
            for i, cause in enumerate(CAUSES)
            if (total := int(own[cause].sum()))
        ]
    table = pd.DataFrame(rows, columns=columns)
    return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


def _histogram(gaps: pd.DataFrame) -> pd.DataFrame:
    lengths = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    place = np.searchsorted(_EDGES_NS, lengths, side="right") - 1
    grouped = pd.DataFrame(
        {"device": gaps["device"], "place": place, "count": 1, "total_ns": lengths}
    ).groupby(["device", "place"])
    table: pd.DataFrame = grouped.sum().reset_index()
    edges = np.array([*_EDGES_NS, np.iinfo(np.int64).max])
    places = table.pop("place").to_numpy(np.int64)
    table.insert(1, "from_ns", edges[places])
    table.insert(2, "up_to_ns", edges[places + 1])
    return table


def _host_bound_steps(trace: Trace, gaps: pd.DataFrame) -> pd.DataFrame:
    steps = find_steps(trace).table
    idle = sums_of_gaps(trace, steps, gaps.assign(waited=gaps[list(_HOST_CAUSES)].sum(axis=1)))
    ratio = idle / (steps["end_ns"] - steps["start_ns"]).to_numpy()
    found: pd.DataFrame = steps[["process", "step"]].assign(idle_ratio=ratio)
    return found.loc[np.flatnonzero(ratio > _HOST_BOUND)].reset_index(drop=True)


def _notes(steps: pd.DataFrame) -> tuple[str, ...]:
    if steps.empty:
        return ()
    shown = ", ".join(map(str, steps["step"].unique()[:12]))
    more = "" if steps["step"].nunique() <= 12 else " …"
    return (
        f"{len(steps)} step(s) are host-bound (devices wait for the host more than "
        f"{format_ratio(_HOST_BOUND)} of the time): {shown}{more}",
    )


ANALYSIS = Analysis(
    name="idle",
    needs=("kernels", "copies", "api_calls"),
    run=measure_idle,
)
