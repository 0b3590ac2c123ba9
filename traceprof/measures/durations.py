"""Summarizes durations by group: columns that several analyses share."""

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
"""Columns of a table of durations by group, after its keys."""


def summarize(rows: Table, keys: Sequence[str]) -> tuple[Table, Samples]:
    """Return count and durations of ``rows`` grouped by ``keys``, and the single durations.

    Groups are sorted by key; sums are exact integers. `finish_durations` adds the derived columns
    and medians of `DURATIONS` after all ranks are combined.
    """
    durations = lengths_of(rows)
    groups, columns = grouped({key: rows[key] for key in keys})
    reduced = {"total_ns": np.add, "min_ns": np.minimum, "max_ns": np.maximum}
    columns |= {"count": groups.counts}
    columns |= {name: groups.reduced(how, durations) for name, how in reduced.items()}
    return Table(columns), Samples(groups.number, durations)


def finish_durations(result: Result) -> Result:
    """Return ``result`` with share, mean, and median in its first table, longest total first."""
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
