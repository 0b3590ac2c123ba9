"""Steps that nobody named, inferred from the sequence of kernels on a device.

The times are those of the device: a step here lasts from the end of the previous step's last
kernel to the end of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.steps.period import find_period
from traceprof.model.activity import Activity
from traceprof.model.grouping import groups_of
from traceprof.model.timing import STEP_COLUMNS, empty_steps
from traceprof.model.trace import Trace
from traceprof.values import dataclass

__all__ = ["InferredSteps", "find_optimizer_steps", "find_periodic_steps"]

_HEAVY: Final = (
    Activity.GEMM.value,
    Activity.CONVOLUTION.value,
    Activity.ATTENTION.value,
)
"""Work of the forward and backward passes, never of an optimizer step."""
_FEWEST_STEPS: Final = 3
_FEWEST_KERNELS: Final = 8
"""A burst of optimizer kernels that comes more often than this ends no step."""


@dataclass(frozen=True, slots=True)
class InferredSteps:
    """The steps (columns as `Steps.table`) and how far the kernel sequence bears them out."""

    table: pd.DataFrame
    confidence_ratio: float


def find_optimizer_steps(trace: Trace) -> InferredSteps:
    """Return the steps between the ends of the bursts of optimizer kernels."""
    tables, alike = [], []
    for process, kernels in _busiest_lanes(trace.kernels):
        optimizer = np.flatnonzero(kernels["activity"] == Activity.OPTIMIZER.value)
        heavy = np.cumsum(kernels["activity"].isin(_HEAVY).to_numpy())
        if len(optimizer) < _FEWEST_STEPS:
            continue
        last = optimizer[np.append(np.diff(heavy[optimizer]) > 0, True)]
        if len(last) <= _FEWEST_STEPS:
            continue
        sizes = np.diff(last)
        if np.median(sizes) < _FEWEST_KERNELS:
            continue
        tables.append(_between(process, kernels, last))
        alike.append(float(np.mean(np.abs(sizes - np.median(sizes)) <= 0.1 * np.median(sizes))))
    return _joined(tables, alike)


def find_periodic_steps(trace: Trace) -> InferredSteps:
    """Return the steps that repeat the same sequence of kernel names."""
    tables, alike = [], []
    for process, kernels in _busiest_lanes(trace.kernels):
        starts, ends = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
        gaps = np.append(np.maximum(starts[1:] - np.maximum.accumulate(ends)[:-1], 0), 0)
        codes = np.asarray(kernels["name"].cat.codes, np.int64)
        period = find_period(codes, gaps)
        if period is None or len(period.lasts) <= _FEWEST_STEPS:
            continue
        tables.append(_between(process, kernels, period.lasts))
        alike.append(period.match_ratio)
    return _joined(tables, alike)


def _busiest_lanes(kernels: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    """Return, per process, the kernels of the stream that runs the most of them.

    Of a process with too few for steps there are none.
    """
    groups = groups_of(kernels["process"], kernels["device"], kernels["stream"])
    counts = groups.counts
    busiest: dict[int, int] = {}
    for place in np.flatnonzero(counts > _FEWEST_STEPS).tolist():
        process = groups.keys[place][0]
        if process not in busiest or counts[place] > counts[busiest[process]]:
            busiest[process] = place
    return [
        (process, kernels.iloc[groups.order[first : first + n]])
        for process, place in busiest.items()
        for first, n in [(groups.first[place], counts[place])]
    ]


def _between(process: int, kernels: pd.DataFrame, lasts: npt.NDArray[np.int64]) -> pd.DataFrame:
    """Return the steps after each last kernel up to the next one."""
    ends = np.maximum.accumulate(kernels["end_ns"].to_numpy())[lasts]
    table = pd.DataFrame(
        {
            "process": process,
            "step": np.arange(1, len(ends)),
            "start_ns": ends[:-1],
            "end_ns": ends[1:],
            "declared_warmup": False,
        }
    )
    return table[list(STEP_COLUMNS)]


def _joined(tables: list[pd.DataFrame], alike: list[float]) -> InferredSteps:
    if not tables:
        return InferredSteps(empty_steps(), 1.0)
    # An inference is never certain, however well the sequence repeats.
    return InferredSteps(pd.concat(tables, ignore_index=True), min(0.99, *alike))
