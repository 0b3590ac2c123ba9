"""By how much slow and fast steps differ from the typical ones, and what of them grew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.steps.parts import DEVICE_PARTS
from traceprof.names.ranges import PHASES

__all__ = ["BETWEEN_STEPS", "excess_of_steps"]

_Float64Array = npt.NDArray[np.float64]

BETWEEN_STEPS: Final = "between_steps"
"""Stands for a phase where it was the time between two steps."""

_PHASES: Final = tuple(f"{name}_ns" for name in (*PHASES, BETWEEN_STEPS))
_EXPLAINS: Final = 0.5


def excess_of_steps(
    table: pd.DataFrame, outliers: npt.NDArray[np.int64]
) -> Mapping[str, npt.NDArray[Any]]:
    """Return, for each outlier among the steps, what it took more than the typical ones.

    ``outliers`` is 1 for slow rows of ``table``, -1 for fast ones, else 0. Typical are the medians
    over the other steady steps of the process. Columns: excess_ns (below 0 for fast ones; NaN for
    steps that are no outliers), grown_part and grown_phase (the part of the device, and the phase
    of the host, that explains the most of it, at least half; "" where none does) with their
    own growth, grown_part_ns and grown_phase_ns.
    """
    rows = np.flatnonzero(outliers)
    process, owner = np.unique(table["process"].to_numpy(), return_inverse=True)
    typical = ~table["is_warmup"].to_numpy(np.bool_) & (outliers == 0)
    has_typical = np.bincount(owner[typical], minlength=len(process)) > 0
    chosen = typical | ~has_typical[owner]
    names = [name for name in ("duration_ns", *DEVICE_PARTS, *_PHASES) if name in table]
    medians = table.loc[chosen, names].groupby(owner[chosen]).median()
    change = table[names].to_numpy(np.float64)[rows] - medians.to_numpy(np.float64)[owner[rows]]
    excess = np.full(len(table), np.nan)
    excess[rows] = change[:, 0]
    columns: dict[str, npt.NDArray[Any]] = {"excess_ns": excess}
    for column, group in (("grown_part", DEVICE_PARTS), ("grown_phase", _PHASES)):
        own = [i for i, name in enumerate(names) if name in group]
        name, grown_ns = _grown([names[i] for i in own], change[:, own], change[:, 0])
        columns[column] = np.full(len(table), "", object)
        columns[column][rows] = name
        columns[f"{column}_ns"] = np.full(len(table), np.nan)
        columns[f"{column}_ns"][rows] = grown_ns
    return columns


def _grown(
    names: Sequence[str], change: _Float64Array, excess: _Float64Array
) -> tuple[npt.NDArray[np.object_], _Float64Array]:
    """Return which of ``names`` explains the most of each excess, and by how much it grew."""
    found, grown = np.full(len(excess), "", object), np.full(len(excess), np.nan)
    if not names or not len(excess):
        return found, grown
    share = change / np.where(excess == 0, np.nan, excess)[:, None]
    share = np.where(np.isnan(share), -np.inf, share)
    place = share.argmax(axis=1)
    best = np.arange(len(excess))
    explains = share[best, place] >= _EXPLAINS
    labels = np.array([name.removesuffix("_ns") for name in names], object)
    found[explains] = labels[place[explains]]
    grown[explains] = change[best, place][explains]
    return found, grown
