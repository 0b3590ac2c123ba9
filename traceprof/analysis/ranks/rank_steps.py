"""Every step of every rank: how long, how much it waited, how late it came (a heat map's data)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.communication.by_step import steps_of_collectives
from traceprof.analysis.communication.matches import find_matches
from traceprof.errors import NotRecordedError
from traceprof.model.steps import find_steps
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "RankSteps", "measure_rank_steps"]

_COLUMNS: Final = [
    "rank",
    "process",
    "host",
    "step",
    "duration_ns",
    "skew_ns",
    "collectives_count",
    "waited_ns",
    "late_ns",
]


@dataclass(frozen=True, slots=True, eq=False)
class RankSteps:
    """One row per step and rank.

    ``table``: rank, process, host, step, duration_ns, skew_ns (its duration beyond the shortest
    of the ranks in this step), collectives_count (those shared with other ranks), waited_ns (in
    them, for the last rank), late_ns (how much it held up the median rank where it came last).
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table, step by step."""
        return self.table


def measure_rank_steps(trace: Trace) -> RankSteps:
    """Return every step that lies in the window, of every rank.

    Raises:
        NotRecordedError: no steps are known.
    """
    steps = find_steps(trace)
    if not len(steps):
        raise NotRecordedError(
            "no whole step is known in this window: record with `traceprof record`, "
            "call traceprof.step(), or choose a larger window"
        )
    matches = find_matches(trace.whole)
    rows = matches.rows[matches.rows["match"] >= 0]
    shared = matches.table.loc[rows["match"]]
    started = rows["start_ns"].to_numpy(np.int64)
    median = rows.groupby("match")["start_ns"].transform("median")
    is_last = shared["last_member"].to_numpy() == rows["member"].to_numpy()
    sums = pd.DataFrame(
        {
            "place": steps_of_collectives(steps, rows),
            "collectives_count": 1,
            "waited_ns": shared["last_start_ns"].to_numpy(np.int64) - started,
            "late_ns": np.where(is_last, np.rint(started - median), 0).astype(np.int64),
        }
    )
    added = sums.groupby("place").sum().reindex(range(len(steps)), fill_value=0)
    table = steps.table
    duration = table["end_ns"] - table["start_ns"]
    names = {member.process: member for member in matches.members}
    ranks = [names[p].rank if p in names else ABSENT for p in table["process"]]
    result = pd.DataFrame(
        {
            "rank": [None if rank == ABSENT else rank for rank in ranks],
            "process": table["process"],
            "host": [names[p].host if p in names else "" for p in table["process"]],
            "step": table["step"],
            "duration_ns": duration,
            "skew_ns": duration - duration.groupby(table["step"]).transform("min"),
            **{name: added[name].to_numpy() for name in added},
        }
    )[_COLUMNS]
    return RankSteps(result.sort_values(["step", "rank", "process"], ignore_index=True))


ANALYSIS = Analysis(
    name="rank-steps",
    needs=(),
    run=measure_rank_steps,
)
