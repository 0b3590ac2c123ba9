"""Steps that took longer because something else was done: evaluation, saving, compiling.

They are no slow steps: what takes the time is known, and it is meant to be done. Its cost is told
apart, and the loop is judged without these steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.steps.between import CHECKPOINT, EVALUATION, between_steps
from traceprof.facts.steps.costs import COMPILING, GARBAGE, LOADING_KERNELS, costs_of_processes
from traceprof.facts.steps.spans import rows_by
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace

__all__ = ["OCCASIONS", "explained_by", "notes_on_occasions", "occasions_in"]

_Float64Array = npt.NDArray[np.float64]

OCCASIONS: Final = (EVALUATION, CHECKPOINT, COMPILING, LOADING_KERNELS, GARBAGE)
"""What is done now and then, beside the steps."""

_FLOOR: Final = 0.05
_EXPLAINS: Final = 0.5
_MOST: Final = 0.5
"""What is done in more of the steps than this belongs to the loop."""


def occasions_in(trace: Trace, spans: pd.DataFrame) -> Mapping[str, _Float64Array]:
    """Return how long each of `OCCASIONS` took in each of ``spans`` (process, start_ns, end_ns)."""
    costs, between = costs_of_processes(trace), between_steps(trace)
    of_process = rows_by(between, "process")
    found = {kind: np.zeros(len(spans)) for kind in OCCASIONS}
    for process, rows in rows_by(spans, "process").items():
        own = between.iloc[of_process.get(process, np.empty(0, np.int64))]
        starts, ends = (spans[name].to_numpy(np.int64)[rows] for name in ("start_ns", "end_ns"))
        for kind in OCCASIONS:
            # A forward pass between two steps is evaluation whatever it is called.
            rests = own[own["cause"] == kind]
            time = Intervals.union_of(rests["start_ns"], rests["end_ns"])
            if (process, kind) in costs:
                time = time | costs[process, kind][1]
            found[kind][rows] = time.covered_ns(starts, np.maximum(starts, ends))
    return found


def explained_by(
    steps: pd.DataFrame, took: Mapping[str, _Float64Array], is_judged: npt.NDArray[np.bool_]
) -> npt.NDArray[np.object_]:
    """Return what of `OCCASIONS` made each step longer; "" for the others.

    ``took`` is what `occasions_in` says of ``steps`` (process, step, duration_ns). A step is
    explained that takes at least 5 % longer than those of its process without, and at least half
    of that is known. Ranks wait for one another: what one did in a step explains the others', too.
    """
    names = np.array(list(took), object)
    own_ns = pd.DataFrame(dict(took), steps.index)
    each = own_ns.groupby(steps["step"]).transform("max").to_numpy(np.float64)
    whole = each.sum(axis=1)
    durations = steps["duration_ns"].to_numpy(np.float64)
    found = np.full(len(steps), "", object)
    judged = np.flatnonzero(is_judged)
    by_process: Mapping[int, npt.NDArray[np.int64]] = rows_by(steps.iloc[judged], "process")
    for own in by_process.values():
        rows = judged[own]
        has = whole[rows] > _FLOOR * float(np.median(durations[rows]))
        if not has.any() or has.mean() > _MOST:
            continue
        typical = float(np.median(durations[rows[~has]]))
        excess = durations[rows] - typical
        is_known = has & (excess > _FLOOR * typical) & (whole[rows] >= _EXPLAINS * excess)
        found[rows[is_known]] = names[each[rows[is_known]].argmax(axis=1)]
    return found


def notes_on_occasions(steps: pd.DataFrame) -> Iterable[Note]:
    """Say what each of `OCCASIONS` costs, of the process that pays the most.

    ``steps`` is the table of the measured steps.
    """
    steady = steps[~steps["is_warmup"].to_numpy(np.bool_)]
    chosen = steady[(steady["excess_cause"] != "").to_numpy(np.bool_)]
    for kind, rows in chosen.groupby("excess_cause", sort=True):
        sums = rows.groupby("process")["excess_ns"].sum()
        own = rows[rows["process"] == sums.idxmax()]
        of_process = steady.loc[steady["process"] == sums.idxmax(), "duration_ns"]
        yield Note.of(
            f"{{kind}} {_how_often(own)}, {{share:ratio}} of the loop",
            kind=str(kind),
            n=len(own),
            step=int(own["step"].iloc[0]),
            every=_distance(own),
            each=float(own["excess_ns"].mean()),
            share=float(own["excess_ns"].sum() / of_process.sum()),
        )


def _how_often(rows: pd.DataFrame) -> str:
    if len(rows) == 1:
        return "in step {step}: {each:ns}"
    if _distance(rows):
        return "every {every:count} steps: {each:ns} each"
    return "in {n:count} steps: {each:ns} each"


def _distance(rows: pd.DataFrame) -> int:
    """Return how many steps lie between each and the next; 0 where that differs."""
    apart = np.unique(np.diff(np.sort(rows["step"].to_numpy(np.int64))))
    return int(apart[0]) if len(apart) == 1 else 0
