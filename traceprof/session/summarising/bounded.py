"""What is kept is bounded, however much was recorded; what is left out is said, sums stay exact."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.model.results import Note, Result

__all__ = ["OTHERS", "bounded_makeup", "bounded_result"]

OTHERS: Final = "(others)"
"""Stands for what has too little time to be kept by its name."""

_MOST_ROWS: Final = 250
_MOST_NAMES: Final = 300
_LONGEST_NAME: Final = 600
_KEYS: Final = ["part", "kind", "class", "name"]


def bounded_result(result: Result) -> Result:
    """Return a result with the first rows of its tables, and how many are left out of each."""
    notes = []
    tables = dict(result.tables)
    for name, frame in result.tables.items():
        if len(frame) > _MOST_ROWS:
            tables[name] = frame.head(_MOST_ROWS)
            notes.append(
                Note.of(
                    "{kept:count} of {n:count} rows of {name} are kept",
                    kept=_MOST_ROWS,
                    n=len(frame),
                    name=name,
                )
            )
    kept = Result(result.name, result.spec, tables, result.scalars, result.notes)
    return kept.with_notes(*notes)


def bounded_makeup(made: pd.DataFrame) -> pd.DataFrame:
    """Return what a window is made of with the longest names by themselves, all ns kept.

    What is left is added up by part, kind and class under `OTHERS`.
    """
    made = made.assign(**{"class": made["class"].fillna("")})
    made["name"] = made["name"].astype(str).str.slice(0, _LONGEST_NAME)
    order = np.argsort(-made["ns"].to_numpy(np.int64), kind="stable")
    is_kept = np.zeros(len(made), np.bool_)
    is_kept[order[:_MOST_NAMES]] = True
    made["name"] = made["name"].where(is_kept, OTHERS)
    weight = made["count"].where(made["place_ratio"].notna(), 0)
    made = made.assign(weight=weight, place=made["place_ratio"].fillna(0) * weight)
    groups = made.groupby(_KEYS, sort=True)
    sums = groups[["ns", "count", "weight", "place"]].sum()
    sums = sums.assign(n_bytes=groups["n_bytes"].sum(min_count=1)).reset_index()
    place = sums["place"] / sums["weight"].where(sums["weight"] > 0)
    return sums.assign(place_ratio=place).drop(columns=["weight", "place"])
