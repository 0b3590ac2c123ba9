"""Durations by group: the columns that several analyses share, measured and finished alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.combining import medians_of
from traceprof.model.results import (
    Column,
    Result,
    Samples,
    Unit,
    derived,
    largest,
    median,
    smallest,
    total,
)

__all__ = ["DURATIONS", "finish_durations", "summarise"]

DURATIONS: Final[tuple[Column, ...]] = (
    total("count", Unit.COUNT, "how many"),
    total("total_ns", Unit.NS, "the durations of all added up"),
    derived("share_ratio", Unit.RATIO, "total_ns of the sum over all rows"),
    derived("mean_ns", Unit.NS, "the mean duration"),
    median("median_ns", Unit.NS, "the median duration"),
    smallest("min_ns", Unit.NS, "the shortest duration"),
    largest("max_ns", Unit.NS, "the longest duration"),
)
"""The columns of a table of durations by group, after its keys."""


def summarise(frame: pd.DataFrame, keys: Sequence[str]) -> tuple[pd.DataFrame, Samples]:
    """Return count and durations of the rows of ``frame`` by ``keys``, and the single durations.

    The groups are sorted by their keys; sums are exact integers. `finish_durations` adds the
    derived columns of `DURATIONS` and the medians once all ranks are together.
    """
    durations = frame["end_ns"] - frame["start_ns"]
    by = [frame[key] for key in keys]
    groups = durations.groupby(by, observed=True, sort=True)
    table = groups.agg(count="size", total_ns="sum", min_ns="min", max_ns="max").reset_index()
    for key in keys:
        if isinstance(table[key].dtype, pd.CategoricalDtype):
            table[key] = table[key].astype(object)
    rows: npt.NDArray[np.int64] = np.asarray(groups.ngroup(), np.int64)
    return table, Samples(rows, durations.to_numpy(np.int64))


def finish_durations(result: Result) -> Result:
    """Return ``result`` with share, mean and median of its first table, the longest total first."""
    name = result.spec.tables[0].name
    table = result.table
    whole = int(table["total_ns"].sum())
    table = table.assign(
        share_ratio=table["total_ns"] / (whole or float("nan")),
        mean_ns=table["total_ns"] / table["count"],
        median_ns=medians_of(table, result.samples[name]),
    )
    keys = [key for key in result.spec.tables[0].keys if key in table]
    order = [False, *(True for _ in keys)]
    return result.with_table(
        table.sort_values(["total_ns", *keys], ascending=order, ignore_index=True)
    )
