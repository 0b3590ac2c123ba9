"""Durations by group: the columns that several analyses share, measured and finished alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from traceprof.measures.rows import grouped, lengths_of
from traceprof.model.combining import medians_of
from traceprof.model.results import Column, Result, Samples, columns
from traceprof.model.table import Table

DURATIONS: Final[tuple[Column, ...]] = columns("""
    total count: number of occurrences
    total total_ns: total duration
    derived share_ratio: total_ns as a share of the sum over all rows
    derived mean_ns: mean duration
    median median_ns: median duration
    smallest min_ns: shortest duration
    largest max_ns: longest duration
    """)
"""The columns of a table of durations by group, after its keys."""


def summarise(rows: Table, keys: Sequence[str]) -> tuple[Table, Samples]:
    """Return count and durations of ``rows`` by ``keys``, and the single durations.

    The groups are sorted by their keys; sums are exact integers. `finish_durations` adds the
    derived columns of `DURATIONS` and the medians once all ranks are together.
    """
    durations = lengths_of(rows)
    groups, columns = grouped({key: rows[key] for key in keys})
    reduced = {"total_ns": np.add, "min_ns": np.minimum, "max_ns": np.maximum}
    columns |= {"count": groups.counts}
    columns |= {name: groups.reduced(how, durations) for name, how in reduced.items()}
    return Table(columns), Samples(groups.number, durations)


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
    return result.with_table(table.in_order("-total_ns", *keys))
