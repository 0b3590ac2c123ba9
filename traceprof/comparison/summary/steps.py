"""The steps of a run as they are kept: all of them, of long runs blocks of neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.collectives.members import find_members
from traceprof.measures.ranks.steps import find_rank_steps
from traceprof.measures.rows import in_order
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.measures.steps.measured import measured_steps
from traceprof.model.activity import PARTS
from traceprof.model.ranks import Ranks
from traceprof.model.summary import SUMMARY
from traceprof.session.answer import ranks_of_processes

MOST_ROWS: Final = 4_000
"""Rows of steps that are kept, of all ranks together."""

_FEWEST_PER_RANK: Final = 20
_SUMS: Final = (
    *("steps_count", "period_ns", "between_ns", "device_ns"),
    *(f"{part}_ns" for part in PARTS),
    *("waited_ns", "samples_count"),
)


@dataclass(frozen=True, slots=True)
class RankNumbers:
    """The rank of each process; ``are_guessed``: nobody says them, processes are numbered."""

    of_process: Mapping[int, int]
    are_guessed: bool = False


def rank_numbers(ranks: Ranks) -> RankNumbers:
    """Return which rank each process with steps or work is; of one process alone 0."""
    known = ranks_of_processes(ranks.whole)
    stepping = {int(process) for process in steps_of_ranks(ranks.whole).table["process"].unique()}
    active = sorted(stepping | {member.process for member in find_members(ranks.whole)})
    if all(process in known for process in active):
        return RankNumbers(known)
    numbers = {process: place for place, process in enumerate(active)}
    return RankNumbers(numbers, are_guessed=len(active) > 1)


def steps_of_run(ranks: Ranks) -> pd.DataFrame:
    """Return the steps of ``ranks``, cut or whole, or blocks of them, as `SUMMARY` has them."""
    measured = measured_steps(ranks)
    if measured.is_pattern or measured.table.empty:
        return SUMMARY.table("steps").frame()
    steps, numbers = measured.table, rank_numbers(ranks).of_process
    steps = steps.assign(
        life=0,
        rank=[numbers[process] for process in steps["process"].tolist()],
        steps_count=1,
        at_ns=steps["host_at_ns"],
    )
    found = find_rank_steps(ranks)
    waits = found.table
    if len(waits) and (waits["collectives_count"] > 0).any():
        own = waits[["process", "step", "waited_ns"]].assign(
            step=waits["step"] - waits["process"].map(found.shifts).fillna(0).astype(np.int64)
        )
        steps = steps.merge(
            own.drop_duplicates(["process", "step"]), on=["process", "step"], how="left"
        )
    return blocks_of_steps(steps)


def blocks_of_steps(steps: pd.DataFrame, most_rows: int = MOST_ROWS) -> pd.DataFrame:
    """Return at most about ``most_rows`` rows: neighbours added up where there are more.

    Blocks are the same on all ranks, and hold either warm-up or none. Sums stay exact; one of
    which a part is not known is not known. Steps without a batch of their own add no samples.
    """
    spec = SUMMARY.table("steps")
    steps = in_order(steps, "life", "rank", "at_ns", "step")
    n_ranks = max(1, steps["rank"].nunique())
    per_rank = max(_FEWEST_PER_RANK, most_rows // n_ranks)
    place = steps.groupby(["life", "rank"]).cumcount()
    longest = int(place.max()) + 1 if len(place) else 0
    size = -(-longest // per_rank)
    if size <= 1:
        return spec.frame(steps)
    keys = [steps["life"], steps["rank"], steps["is_warmup"].astype(bool), place // size]
    groups = steps.groupby(keys, sort=False)
    sums = [name for name in _SUMS if name in steps]
    found = groups[["life", "rank", "step", "at_ns", "is_warmup"]].first()
    found[sums] = groups[sums].sum(min_count=1)
    are_whole = groups[sums].count().eq(groups.size(), axis=0)
    are_whole["samples_count"] = True
    found[sums] = found[sums].where(are_whole[sums], np.nan)
    return spec.frame(found.reset_index(drop=True))
