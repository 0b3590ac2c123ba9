"""Results of several ranks put together, column by column, as their declarations say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.results import Column, Combine, Note, Result, Samples, TableSpec

__all__ = ["combine", "medians_of"]

_SIMPLE: Final[Mapping[Combine, Callable[[Any], pd.Series]]] = {
    Combine.SUM: lambda groups: groups.sum(min_count=1),
    Combine.MIN: lambda groups: groups.min(),
    Combine.MAX: lambda groups: groups.max(),
    Combine.SAME: lambda groups: groups.first(),
}


def combine(results: Sequence[Result]) -> Result:
    """Return several results of one analysis (at least one) as that of all ranks together.

    Rows of different keys stand one after the other; of rows with the same key each column
    combines as it is declared. Derived columns and medians are left to the analysis (`medians_of`).
    """
    first = results[0]
    if len(results) == 1:
        return first
    tables, samples = {}, {}
    for spec in first.spec.tables:
        frames = [result.tables[spec.name] for result in results if spec.name in result.tables]
        if not frames:
            continue
        tables[spec.name], rows = _combined(spec, frames)
        if any(spec.name in result.samples for result in results):
            samples[spec.name] = _samples_of(results, spec.name, frames, rows)
    return replace(
        first,
        tables=tables,
        scalars=_scalars(results),
        notes=_notes(results),
        samples=samples,
    )


def medians_of(table: pd.DataFrame, samples: Samples) -> npt.NDArray[np.float64]:
    """Return the exact median of the samples of each row of ``table``; NaN where it has none."""
    if len(samples.rows) and int(samples.rows.min()) < 0:  # of no row
        kept = samples.rows >= 0
        samples = Samples(samples.rows[kept], samples.values[kept])
    count = np.bincount(samples.rows, minlength=len(table))[: len(table)]
    known = np.flatnonzero(count)
    before = (np.cumsum(count) - count)[known]
    low, high = _sorted_at(
        samples, known, before + (count[known] - 1) // 2, before + count[known] // 2
    )
    found = np.full(len(table), np.nan)
    found[known] = (low.astype(np.float64) + high.astype(np.float64)) / 2
    return found


def _sorted_at(
    samples: Samples, rows: npt.NDArray[np.int64], *places: npt.NDArray[np.int64]
) -> list[npt.NDArray[Any]]:
    """Return the values at ``places``, which are of ``rows``, of samples sorted by both."""
    of_rows, values = samples.rows, samples.values
    if len(of_rows) and values.dtype == np.int64:
        least = int(values.min())
        n_values = int(values.max()) - least + 1
        if (int(of_rows.max()) + 1) * n_values < np.iinfo(np.int64).max:
            # One number for both: to sort numbers costs a tenth of sorting pairs.
            both = np.sort(of_rows * n_values + (values - least))
            return [both[place] - rows * n_values + least for place in places]
    ordered = values[np.lexsort((values, of_rows))]
    return [ordered[place] for place in places]


def _combined(
    spec: TableSpec, frames: Sequence[pd.DataFrame]
) -> tuple[pd.DataFrame, npt.NDArray[np.int64]]:
    """Return the rows of all ``frames`` as one table, and which row of it each has become."""
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        return frames[0], np.empty(0, np.int64)
    stacked = filled[0] if len(filled) == 1 else pd.concat(filled, ignore_index=True)
    keys = [name for name in spec.keys if name in stacked]
    if not keys or not stacked.duplicated(keys).any():
        return spec.frame(stacked), np.arange(len(stacked))
    groups = stacked.groupby(keys, sort=False, dropna=False, observed=True)
    number: npt.NDArray[np.int64] = np.asarray(groups.ngroup(), np.int64)
    columns = {
        column.name: _column(column, stacked, number)
        for column in spec
        if column.name in stacked and column.combine is not Combine.DERIVED
    }
    return spec.frame(pd.DataFrame(columns)), number


def _column(column: Column, stacked: pd.DataFrame, number: npt.NDArray[np.int64]) -> pd.Series:
    values = stacked[column.name]
    if column.combine is Combine.MEAN:
        weights = stacked[column.weight].astype(np.float64).where(values.notna())
        sums = (values.astype(np.float64) * weights).groupby(number).sum(min_count=1)
        return sums / weights.groupby(number).sum()
    if column.combine is Combine.MEDIAN:
        return pd.Series(np.nan, range(int(number.max()) + 1))
    simple = _SIMPLE.get(column.combine, _SIMPLE[Combine.SAME])
    found = simple(values.groupby(number))
    return found.astype(values.dtype) if found.notna().all() else found


def _samples_of(
    results: Sequence[Result],
    name: str,
    frames: Sequence[pd.DataFrame],
    rows: npt.NDArray[np.int64],
) -> Samples:
    sizes = [len(frame) for frame in frames]
    offsets = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    own = [result.samples[name] for result in results]
    numbers = [rows[one.rows + offset] for one, offset in zip(own, offsets.tolist(), strict=True)]
    return Samples(np.concatenate(numbers), np.concatenate([one.values for one in own]))


def _scalars(results: Sequence[Result]) -> dict[str, Any]:
    frame = pd.DataFrame([dict(result.scalars) for result in results], dtype=object)
    found: dict[str, Any] = {}
    for column in results[0].spec.scalars:
        known = [value for value in frame.get(column.name, ()) if not pd.isna(value)]
        if known and column.combine is not Combine.DERIVED:
            found[column.name] = _scalar(column, known, frame)
    return found


def _scalar(column: Column, known: list[Any], frame: pd.DataFrame) -> Any:
    match column.combine:
        case Combine.SUM:
            return sum(known)
        case Combine.MIN:
            return min(known)
        case Combine.MAX:
            return max(known)
        case Combine.MEAN:
            pairs = frame[[column.name, column.weight]].dropna().astype(np.float64)
            return float(np.average(pairs[column.name], weights=pairs[column.weight]))
        case _:
            return known[0]


def _notes(results: Sequence[Result]) -> tuple[Note, ...]:
    """Return the notes of all ranks, each once."""
    found: list[Note] = []
    for result in results:
        found += [note for note in result.notes if note not in found]
    return tuple(found)
