"""Durations by group: the table that several analyses share."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

__all__ = ["summarise"]


def summarise(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return count and durations of the rows of ``frame`` by ``keys``, the longest total first.

    Columns: the keys, count, total_ns, share_ratio (of the sum of all rows), mean_ns, median_ns,
    min_ns, max_ns. Totals are exact integers.
    """
    durations = frame["end_ns"] - frame["start_ns"]
    groups = durations.groupby([frame[key] for key in keys], observed=True, sort=True)
    table = groups.agg(
        count="size",
        total_ns="sum",
        mean_ns="mean",
        median_ns="median",
        min_ns="min",
        max_ns="max",
    ).reset_index()
    whole = int(durations.sum())
    share = table["total_ns"] / whole if whole else table["total_ns"] * float("nan")
    table.insert(len(keys) + 2, "share_ratio", share)
    for key in keys:
        if isinstance(table[key].dtype, pd.CategoricalDtype):
            table[key] = table[key].astype(object)
    return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)
