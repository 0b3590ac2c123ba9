"""Combine the results of several ranks, column by column, by the rules of their declarations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import Groups, codes_of, groups_of, numbered, rows_by_value
from traceprof.model.packed import Packed
from traceprof.model.results import Column, Combine, Note, Result, Samples, TableSpec
from traceprof.model.table import Table, is_known, is_unknown

_REDUCTIONS: Final[Mapping[Combine, np.ufunc]] = {
    Combine.SUM: np.add,
    Combine.MIN: np.minimum,
    Combine.MAX: np.maximum,
}
_MAX_PIECE_SAMPLES: Final = 1_000_000
"""Approximate number of samples that are combined at a time."""
_PROBES_PER_PIECE: Final = 64
"""Sampled rows per piece from which the borders of the pieces are estimated."""
_MAX_PARTITIONED_ROWS: Final = 1000


def combine(results: Sequence[Result]) -> Result:
    """Combine several results of one analysis (at least one) into the result of all ranks.

    Rows with the same key become one row; each column combines by its declared rule. Other rows are
    appended. Derived columns and medians are left to the analysis (`medians_of`).
    """
    first = results[0]
    if len(results) == 1:
        return first
    tables, samples = {}, {}
    for spec in first.spec.tables:
        tables_of_ranks = [
            result.tables[spec.name] for result in results if spec.name in result.tables
        ]
        if not tables_of_ranks:
            continue
        tables[spec.name], rows = _combined(spec, tables_of_ranks)
        if any(spec.name in result.samples for result in results):
            samples[spec.name] = _samples_of(results, spec.name, tables_of_ranks, rows)
    return replace(
        first, tables=tables, scalars=_scalars(results), notes=_notes(results), samples=samples
    )


def medians_of(table: Sized, samples: Samples) -> npt.NDArray[np.float64]:
    """Return the exact median of the samples of each row of ``table``; NaN without samples."""
    is_single = samples.counts is None and samples.values.ndim == 1
    if is_single and samples.values.dtype == np.int64 and len(table) <= _MAX_PARTITIONED_ROWS:
        return _medians_of_few(len(table), samples)
    rows, values, counts = _sorted(samples)
    first = np.searchsorted(rows, np.arange(len(table)), side="left")
    last = np.searchsorted(rows, np.arange(len(table)), side="right")
    found = np.full(len(table), np.nan)
    known = last > first
    if counts is None:
        places = [first + (last - first - 1) // 2, first + (last - first) // 2]
    else:
        until = np.concatenate(([0], np.cumsum(counts)))
        before, n = until[first], until[last] - until[first]
        places = [
            np.searchsorted(until, before + k, side="right") - 1 for k in ((n - 1) // 2, n // 2)
        ]
    low, high = (values[place[known]].astype(np.float64) for place in places)
    found[known] = (low + high) / 2
    return found


def medians_of_groups(
    group: npt.NDArray[Any], values: npt.NDArray[Any], n_groups: int
) -> npt.NDArray[np.float64]:
    """Return the exact median of the known values of each group; NaN for groups without any."""
    known = is_known(values)
    return medians_of(range(n_groups), Samples(group[known], values[known]))


def _medians_of_few(n_rows: int, samples: Samples) -> npt.NDArray[np.float64]:
    """Return medians for few rows: partitioning each row's samples costs less than sorting all."""
    found = np.full(n_rows, np.nan)
    values = samples.values
    for row, rows in rows_by_value(samples.rows).items():
        middle = [(len(rows) - 1) // 2, len(rows) // 2]
        low, high = np.partition(values[rows], middle)[middle].astype(np.float64)
        found[row] = (low + high) / 2
    return found


def compacted(result: Result) -> Result:
    """Return ``result`` with equal samples merged and counted, in compact form."""
    samples = {name: counted(table_samples) for name, table_samples in result.samples.items()}
    return replace(result, samples=samples)


def counted(samples: Samples) -> Samples:
    """Return the distinct ``samples`` with their counts, in the smallest integer types."""
    if samples.values.ndim != 1 or not len(samples):
        return samples
    rows, values, counts = _sorted(samples)
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (rows[1:] != rows[:-1]) | (values[1:] != values[:-1])
    place = np.flatnonzero(is_new)
    if counts is None:
        counts = np.diff(np.append(place, len(values)))
    else:
        counts = np.add.reduceat(counts, place, dtype=np.int64)
    values = values[place]
    small = Packed(values) if values.dtype.kind == "i" else values
    return Samples(Packed(rows[place]), small, Packed(counts))


def _as_numbers(samples: Samples) -> npt.NDArray[np.int64] | None:
    """Encode row and value of each sample as one int64 of the same order; None on overflow."""
    rows, values = samples.rows, samples.values
    if not len(samples) or values.dtype.kind != "i" or rows.min() < 0:
        return None
    least = int(values.min())
    n_values = int(values.max()) - least + 1
    if (int(rows.max()) + 1) * n_values >= np.iinfo(np.int64).max:
        return None
    found = rows.astype(np.int64)
    found *= n_values
    found += values
    found -= least
    return found


def counted_together(parts: Sequence[Samples]) -> Samples:
    """Return the distinct samples of all ``parts`` (at least one), with counts.

    Ranges of row and value are combined one after another, so that the samples of a thousand ranks
    need only the memory of the distinct ones.
    """
    n_pieces = -(-sum(map(len, parts)) // _MAX_PIECE_SAMPLES)
    is_whole = all(
        samples.values.dtype.kind == "i" and samples.values.ndim == 1 for samples in parts
    )
    if n_pieces <= 1 or not is_whole:
        return counted(Samples.joined(parts))
    cuts = _quantiles(parts, n_pieces)
    pieces = [
        counted(Samples.joined([_samples_between(samples, begin, end) for samples in parts]))
        for begin, end in pairwise([None, *cuts, None])
    ]
    return Samples.joined(pieces)


_RowAndValue: TypeAlias = tuple[int, int]
"""A row and a value; samples are ordered by both."""


def _quantiles(parts: Sequence[Samples], n_pieces: int) -> list[_RowAndValue]:
    """Return sorted, distinct samples that divide all into about ``n_pieces`` equal parts."""
    step = max(1, sum(map(len, parts)) // (_PROBES_PER_PIECE * n_pieces))
    few = Samples.joined([samples.take(slice(None, None, step)) for samples in parts])
    rows, values = few.rows, few.values
    order = np.lexsort((values, rows))
    chosen = order[len(order) // n_pieces :: max(1, len(order) // n_pieces)]
    return sorted({(int(rows[row]), int(values[row])) for row in chosen})


def _samples_between(
    samples: Samples, begin: _RowAndValue | None, end: _RowAndValue | None
) -> Samples:
    """Return the samples from ``begin`` (inclusive) to ``end`` (exclusive); None: no bound."""
    is_between = np.ones(len(samples), np.bool_)
    if begin is not None:
        is_between &= ~_are_before(samples, begin)
    if end is not None:
        is_between &= _are_before(samples, end)
    return samples.take(is_between)


def _are_before(samples: Samples, place: _RowAndValue) -> npt.NDArray[np.bool_]:
    """Return which samples are before ``place`` in the order of row and value."""
    row, value = place
    rows = samples.rows
    found: npt.NDArray[np.bool_] = samples.values < value
    found &= rows == row
    found |= rows < row
    return found


def median_of_counted(values: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> float:
    """Return the median of ``values`` with their ``counts``; NaN if there are none."""
    samples = Samples(np.zeros(len(values), np.int64), values, counts)
    return float(medians_of(range(1), samples)[0])


def _sorted(
    samples: Samples,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], npt.NDArray[np.int64] | None]:
    """Return rows and values sorted by both, and the count of each (None: each occurs once)."""
    rows, values, counts = samples.rows, samples.values, samples.counts
    if counts is not None:
        order = np.lexsort((values, rows))
        return rows[order], values[order], counts[order]
    both = _as_numbers(samples)
    if both is not None and values.dtype == np.int64:
        # Sorting numbers costs a tenth of sorting pairs.
        both.sort()
        least = int(values.min())
        n_values = int(values.max()) - least + 1
        row = both // n_values
        return row, both - row * n_values + least, None
    order = np.lexsort((values, rows))
    return rows[order], values[order], None


def _combined(spec: TableSpec, tables: Sequence[Table]) -> tuple[Table, npt.NDArray[np.int64]]:
    """Return the combined rows of all ``tables``, and the combined row of each input row."""
    if not any(map(len, tables)):
        return tables[0], np.empty(0, np.int64)
    stacked = Table.stacked([table for table in tables if len(table)])
    keys = [codes_of(stacked[name]) for name in spec.keys if name in stacked]
    number, first = numbered(*keys) if keys else (np.arange(len(stacked)), ())
    if not keys or len(first) == len(stacked):
        return spec.of_rows(stacked), np.arange(len(stacked))
    groups = groups_of(number)
    columns = {
        column.name: _column(column, stacked, groups)
        for column in spec
        if column.name in stacked and column.combine is not Combine.DERIVED
    }
    return spec.of_rows(Table(columns, len(first))), number.astype(np.int64)


def _column(column: Column, stacked: Table, groups: Groups) -> Any:
    values = stacked[column.name]
    if column.combine is Combine.MEDIAN:
        return np.full(len(groups.keys), np.nan)
    if column.combine is Combine.MEAN:
        return groups.weighted_means(values, stacked[column.weight])
    reduce = _REDUCTIONS.get(column.combine)
    if reduce is None:
        return groups.first_known(values)
    if reduce is np.add:
        return groups.sums(values)
    if values.dtype.kind == "O":
        values = values.astype(np.float64)  # None becomes NaN
    if values.dtype.kind != "f":
        return groups.reduced(reduce, values)
    return groups.reduced(np.fmin if reduce is np.minimum else np.fmax, values)


def _samples_of(
    results: Sequence[Result], name: str, tables: Sequence[Table], rows: npt.NDArray[np.int64]
) -> Samples:
    sizes = list(map(len, tables))
    offsets = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    new_rows = Packed(rows)
    samples_of_ranks = [
        result.samples[name].with_rows(new_rows[offset:])
        for result, offset in zip(results, offsets.tolist(), strict=True)
    ]
    is_single = all(samples.counts is None for samples in samples_of_ranks)
    return Samples.joined(samples_of_ranks) if is_single else counted_together(samples_of_ranks)


def _scalars(results: Sequence[Result]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for column in results[0].spec.scalars:
        values = [result.scalars.get(column.name) for result in results]
        weights = [result.scalars.get(column.weight) for result in results]
        pairs = [
            (value, weight)
            for value, weight in zip(values, weights, strict=True)
            if not is_unknown(value)
        ]
        if pairs and column.combine is not Combine.DERIVED:
            found[column.name] = _scalar(column, pairs)
    return found


def _scalar(column: Column, pairs: Sequence[tuple[Any, Any]]) -> Any:
    known = [value for value, _ in pairs]
    match column.combine:
        case Combine.SUM:
            return sum(known)
        case Combine.MIN:
            return min(known)
        case Combine.MAX:
            return max(known)
        case Combine.MEAN:
            weighted = [(value, weight) for value, weight in pairs if not is_unknown(weight)]
            values, weights = np.array(weighted, np.float64).T
            return float(np.average(values, weights=weights))
        case _:
            return known[0]


def _notes(results: Sequence[Result]) -> tuple[Note, ...]:
    """Return the distinct notes of all ranks."""
    found: list[Note] = []
    for result in results:
        found += [note for note in result.notes if note not in found]
    return tuple(found)
