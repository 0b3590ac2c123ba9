"""Group, join, and look up table rows by integer columns with few distinct values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.packed import Numbers, Packed
from traceprof.model.table import Column, Names, Table, at_rows, is_known, sortable

_Int64Array = npt.NDArray[np.int64]
_BoolArray = npt.NDArray[np.bool_]
_MAX_COUNTED_RANGE: Final = 1 << 16
"""Values in a range up to this size, or up to the number of rows, are counted; others are hashed.
"""
_MAX_RANGE_PER_NUMBER: Final = 4
"""A lookup table is used if the range of values is at most this many times the number of values."""
_PIECE_ROWS: Final = 1 << 20
"""Rows processed at a time, so that temporary arrays are shorter than the table."""
_SAMPLE_ROWS: Final = 1 << 10
_MAX_COMPARED_VALUES: Final = 6
"""Up to this many distinct values, comparing all rows with each value is faster than counting."""
_MAX_PYTHON_ROWS: Final = 64
"""Up to this many rows, plain Python is faster than numpy with its call overhead."""
_MAX_HASH_BITS: Final = 20
_HASH_FACTOR: Final = np.array([0x9E3779B97F4A7C15], np.uint64)


def rows_by_value(column: Numbers) -> Mapping[int, _Int64Array]:
    """Return the rows of each value of ``column``, ordered by value; row numbers ascend."""
    return {values[0]: rows for values, rows in rows_by_values(column).items()}


def rows_by_values(*columns: Numbers | Names) -> Mapping[tuple[int, ...], _Int64Array]:
    """Return the rows of each combination of values, ordered by combination; row numbers ascend.

    ``columns`` are at least one integer column, all of the same length.
    """
    groups = groups_of(*columns)
    return dict(zip(groups.keys, groups.rows, strict=True))


@dataclass(frozen=True, eq=False)
class Groups:
    """The rows of a table, grouped by their combination of values.

    ``values`` contains, for each column, its values in the sorted combinations. ``packed`` (and
    ``number``, in int64) is the group of each row. ``first_rows`` is the first row of each group.
    ``order`` contains the rows sorted by group, ascending within a group, and ``first`` is the
    start of each group in it.
    """

    values: tuple[npt.NDArray[Any], ...]
    packed: Packed
    first: _Int64Array
    first_rows: _Int64Array

    @property
    def number(self) -> _Int64Array:
        """The group of each row as int64: 8 bytes per row."""
        return self.packed.wide()

    @cached_property
    def order(self) -> _Int64Array:
        """The rows sorted by group. Slow to compute, and as long as the table."""
        if len(self.first) < 2:
            return np.arange(len(self.packed))
        return np.argsort(self.packed.stored, kind="stable")  # radix sort of small integers

    @property
    def keys(self) -> list[tuple[int, ...]]:
        """The combination of values of each group, in order."""
        return list(zip(*(column.tolist() for column in self.values), strict=True))

    @property
    def counts(self) -> _Int64Array:
        """The number of rows of each group."""
        return np.diff(np.append(self.first, len(self.packed)))

    @property
    def earlier(self) -> _Int64Array:
        """For each row, the number of earlier rows in its group."""
        found = np.empty(len(self.order), np.int64)
        found[self.order] = np.arange(len(self.order)) - np.repeat(self.first, self.counts)
        return found

    @property
    def rows(self) -> list[_Int64Array]:
        """The row numbers of each group, in ascending order."""
        return [self.order[a:b] for a, b in pairwise([*self.first.tolist(), len(self.order)])]

    def reduced(self, reduce: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return one value per group: the sum (np.add), minimum (np.minimum) … of its rows."""
        if not len(self.first):
            return values[:0]
        is_whole = values.dtype.kind in "iu"
        operands = values.astype(np.int64, copy=False) if is_whole else values
        return np.asarray(reduce.reduceat(operands[self.order], self.first))

    def means(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the mean of each group; NaN if one of its values is NaN."""
        return np.asarray(self.reduced(np.add, values) / self.counts, np.float64)

    def quantiles(self, values: npt.NDArray[Any], share: float = 0.5) -> npt.NDArray[np.float64]:
        """Return a quantile of each group by linear interpolation; by default the median."""
        ordered = values[np.lexsort((values, self.packed.stored))].astype(np.float64)
        rank = share * (self.counts - 1)
        below = rank.astype(np.int64)
        low, high = (ordered[self.first + at] for at in (below, np.ceil(rank).astype(np.int64)))
        return np.asarray(low + (high - low) * (rank - below), np.float64)

    def differ(self, values: npt.NDArray[Any]) -> _BoolArray:
        """Return which groups have rows with different values."""
        largest, smallest = (self.reduced(reduce, values) for reduce in (np.maximum, np.minimum))
        return np.asarray(largest != smallest, np.bool_)

    def counts_where(self, chosen: _BoolArray) -> _Int64Array:
        """Return the number of ``chosen`` rows of each group."""
        found = np.zeros(len(self.first), np.int64)
        for piece in pieces_of(len(chosen)):
            found += np.bincount(self.packed[piece][chosen[piece]], minlength=len(found))
        return found

    def sums(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the sum of the known values of each group; NaN if none is known."""
        if values.dtype.kind == "b":
            return self.counts_where(values)
        if values.dtype.kind in "iu":
            return self.reduced(np.add, values)
        numbers = values.astype(np.float64, copy=False)  # None becomes NaN
        known = ~np.isnan(numbers)
        sums = self.reduced(np.add, np.where(known, numbers, 0.0))
        return np.where(self.counts_where(known) > 0, sums, np.nan)

    def weighted_means(
        self, values: npt.NDArray[Any], weights: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        """Return the weighted mean of the known values of each group; NaN if none is known."""
        numbers = values.astype(np.float64)
        known = np.where(np.isnan(numbers), np.nan, weights.astype(np.float64))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.sums(numbers * known) / self.sums(known), np.float64)

    def first_known(self, values: Any) -> Any:
        """Return the first known value of each group; an unknown value if none is known."""
        if not len(self.first):
            return values[:0]
        known = is_known(values)[self.order]
        place = np.arange(len(known))
        earliest = np.minimum.reduceat(np.where(known, place, len(known)), self.first)
        return values[self.order[np.where(earliest < len(known), earliest, self.first)]]


def groups_of(*columns: Numbers | Names) -> Groups:
    """Return the groups of rows with the same values in all ``columns``: integers, or names.

    Names are grouped by their codes, and `Groups.values` and `Groups.keys` contain the codes.
    """
    numbers = (column.packed if isinstance(column, Names) else column for column in columns)
    arrays = [
        values.stored if isinstance(values, Packed) else np.asarray(values) for values in numbers
    ]
    return _groups_of_few(arrays) if len(arrays[0]) <= _MAX_PYTHON_ROWS else _groups_of_many(arrays)


def _groups_of_many(columns: Sequence[npt.NDArray[Any]]) -> Groups:
    """Return the groups of many rows, piece by piece with numpy."""
    codes = Packed.repeated(0, len(columns[0]))
    n_groups = 1
    for values in columns:
        is_first = values[:_SAMPLE_ROWS] == values[:1]
        if is_first.all() and (len(values) <= _SAMPLE_ROWS or (values == values[:1]).all()):
            continue
        place, distinct = places_of(values)
        if n_groups > 1:
            pairs = codes.wide() * len(distinct)
            pairs += place.stored
            place, distinct = places_of(pairs)
        codes, n_groups = place, len(distinct)
    if n_groups == 1:  # usual for groups by process or device; or no rows
        none = np.zeros(min(len(codes), 1), np.int64)
        return Groups(tuple(column[:1].astype(np.int64) for column in columns), codes, none, none)
    counts, rows = np.zeros(n_groups, np.int64), np.full(n_groups, -1)
    for piece in pieces_of(len(codes)):
        counts += np.bincount(codes[piece], minlength=n_groups)
    place_of = codes.stored
    rows[place_of[:_SAMPLE_ROWS][::-1]] = np.arange(min(len(codes), _SAMPLE_ROWS) - 1, -1, -1)
    if len(codes) > _SAMPLE_ROWS and rows.min() < 0:  # usually every group occurs in the sample
        for piece in reversed([*pieces_of(len(codes))]):  # the first row overwrites later ones
            rows[place_of[piece][::-1]] = np.arange(piece.stop - 1, piece.start - 1, -1)
    values_of = tuple(column[rows].astype(np.int64) for column in columns)
    return Groups(values_of, codes, np.cumsum(counts) - counts, rows)


def _groups_of_few(columns: Sequence[npt.NDArray[Any]]) -> Groups:
    """Return the groups of few rows in plain Python, which is faster than numpy for them."""
    if len(columns) == 1:
        rows: list[Any] = columns[0].tolist()
    else:
        rows = list(zip(*(values.tolist() for values in columns), strict=True))
    place = dict.fromkeys(rows, 0)
    if len(place) < 2:
        none = np.zeros(min(len(rows), 1), np.int64)
        codes = Packed.repeated(0, len(rows))
        return Groups(tuple(column[:1].astype(np.int64) for column in columns), codes, none, none)
    counts = dict.fromkeys(sorted(place), 0)
    first_row = dict(zip(reversed(rows), range(len(rows) - 1, -1, -1), strict=True))
    for value in rows:
        counts[value] += 1
    place = {value: n for n, value in enumerate(counts)}
    first = np.array([0, *accumulate(counts.values())][:-1])
    first_rows = np.array([first_row[value] for value in counts])
    number = Packed.below(len(place), np.array([place[value] for value in rows], np.int64))
    values_of = tuple(column[first_rows].astype(np.int64) for column in columns)
    return Groups(values_of, number, first, first_rows)


def grouped_by(table: Table, *names: str) -> tuple[Table, Groups]:
    """Return the distinct combinations of values in columns of any type, sorted, and the groups.

    Unknown values are one value and come last.
    """
    groups = groups_of(*(_ordered(table[name]) for name in names))
    return table.select(*names).take(groups.first_rows), groups


def _ordered(column: Column) -> npt.NDArray[Any]:
    """Return integers with the same order as the values."""
    values = sortable(column)
    return np.unique(values, return_inverse=True)[1] if values.dtype.kind == "f" else values


def find_matching_rows(table: Table, other: Table, *names: str) -> _Int64Array:
    """Return, for each row of ``table``, the first matching row of ``other``; -1: none."""
    if not len(table) or not len(other):
        return np.full(len(table), -1)
    both = Table.stacked([table.select(*names), other.select(*names)])
    groups = groups_of(*(codes_of(both[name]) for name in names))
    number = groups.number
    first = np.full(len(groups.first), -1)
    first[number[len(table) :][::-1]] = np.arange(len(other))[::-1]
    return np.asarray(first[number[: len(table)]])


def beside(table: Table, other: Table, *names: str) -> Table:
    """Return ``table`` with the other columns of the first matching row of ``other``.

    A row matches if it has the same values in ``names``. Without a match, the new columns are
    unknown.
    """
    rows = find_matching_rows(table, other, *names)
    return table.assign(**{name: at_rows(other[name], rows) for name in other if name not in names})


def joined(first: Table, second: Table, *names: str) -> Table:
    """Return the outer join of both tables by ``names``, sorted, with each combination once.

    Both tables may share only the columns ``names``. Values that one of them lacks are unknown.
    """
    keys, _ = grouped_by(Table.stacked([first.select(*names), second.select(*names)]), *names)
    return beside(beside(keys, first, *names), second, *names)


def numbered(*columns: Numbers | Names) -> tuple[_Int64Array, _Int64Array]:
    """Return the group number of each row, and the first row of each group.

    Groups are numbered by first occurrence, as in pandas ``groupby(..., sort=False).ngroup()``, but
    with little memory if there are few groups.
    """
    groups = groups_of(*columns)
    order = np.argsort(first := groups.first_rows)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return groups.packed.pick(place), first[order]


def rows_by_first(*columns: Numbers | Names) -> list[_Int64Array]:
    """Return the rows of each combination, ordered by first occurrence; row numbers ascend."""
    return sorted(groups_of(*columns).rows, key=lambda rows: int(rows[0]))


def split_by(table: Table, column: str) -> list[tuple[Any, Table]]:
    """Return each value of a column with its rows, ordered by first occurrence."""
    values = table[column]
    found = rows_by_first(codes_of(values)) if len(table) else []
    return [(values[int(rows[0])], table.take(rows)) for rows in found]


def places_of(column: Numbers | Names) -> tuple[Packed, list[int]]:
    """Return the index of each value among the sorted distinct values, and these values.

    Equals np.unique with return_inverse on integers, at a tenth of its cost if few values differ.
    """
    numbers = column.packed if isinstance(column, Names) else column
    values = numbers.stored if isinstance(numbers, Packed) else np.asarray(numbers)
    if not len(values):
        return Packed.repeated(0, 0), []
    if len(values) <= _MAX_PYTHON_ROWS and values.dtype.kind == "i":
        rows = values.tolist()
        ordered = sorted({*rows})
        number = {value: n for n, value in enumerate(ordered)}
        places = np.array([number[value] for value in rows], np.int64)
        return Packed.below(len(ordered), places), ordered
    if len(values) >= _MAX_COUNTED_RANGE:
        few = sorted({*values[:: len(values) // _SAMPLE_ROWS].tolist()})
        if (
            len(few) <= _MAX_COMPARED_VALUES
            and (places_in_few := _places_in_few(few, values)) is not None
        ):
            return places_in_few, [*map(int, few)]
    low, high = int(values.min()), int(values.max())
    if high - low < max(_MAX_COUNTED_RANGE, len(values)):
        counts = np.zeros(high - low + 1, np.int64)
        for piece in pieces_of(len(values)):
            of_piece = np.bincount(values[piece].astype(np.int64, copy=False) - low)
            counts[: len(of_piece)] += of_piece
        found = np.flatnonzero(counts)
        return _looked_up(values, low, high, found), (found + low).tolist()
    leader = leaders_of(values)
    leaders = np.flatnonzero(leader == np.arange(len(values)))
    leaders = leaders[np.argsort(values[leaders])]
    place = np.empty(len(values), np.int64)
    place[leaders] = np.arange(len(leaders))
    return Packed.below(len(leaders), place)[leader], values[leaders].tolist()


def _looked_up(values: npt.NDArray[Any], low: int, high: int, found: _Int64Array) -> Packed:
    """Return the index of each value among the distinct values ``found`` + ``low``."""
    place = np.empty(high - low + 1, np.int64)
    place[found] = np.arange(len(found))
    small = Packed.below(len(found), place).stored
    places = np.empty(len(values), small.dtype)
    for piece in pieces_of(len(values)):
        places[piece] = small[values[piece].astype(np.int64, copy=False) - low]
    return Packed.of_stored(places)


def _places_in_few(few: Sequence[int], values: npt.NDArray[Any]) -> Packed | None:
    """Return the index of each value in ``few``; None if another value occurs."""
    kind = Packed.below(len(few), np.empty(0, np.int8)).stored.dtype
    places = np.zeros(len(values), kind)
    n_known = 0
    for piece in pieces_of(len(values)):
        for place, value in enumerate(few):
            is_one = values[piece] == value
            n_known += int(np.count_nonzero(is_one))
            if place:  # at most one value is that of a row, so sums are places
                places[piece] += is_one.view(np.int8) * kind.type(place)
    return Packed.of_stored(places) if n_known == len(values) else None


def pieces_of(n_rows: int) -> Iterator[slice]:
    """Yield consecutive slices of up to `_PIECE_ROWS` rows that cover ``n_rows``."""
    for first in range(0, n_rows, _PIECE_ROWS):
        yield slice(first, min(first + _PIECE_ROWS, n_rows))


def leaders_of(numbers: npt.NDArray[Any]) -> _Int64Array:
    """Return, for each row, a representative row with the same 64-bit number.

    All rows with the same number get the same representative. Uses hashing, which costs a fifth of
    sorting if few numbers differ.
    """
    all_keys = numbers.astype(np.int64, copy=False).view(np.uint64)
    leader = np.empty(len(all_keys), np.int64)
    bits = min(max(2 * len(all_keys), 2).bit_length(), _MAX_HASH_BITS)
    row_at = np.empty(1 << bits, np.int64)
    rows, keys, factor = np.arange(len(all_keys)), all_keys, _HASH_FACTOR
    while len(rows):
        slot = ((keys * factor) >> np.uint64(64 - bits)).view(np.int64)
        row_at[slot] = rows
        found = row_at[slot]
        is_same = all_keys[found] == keys
        leader[rows[is_same]] = found[is_same]
        rows, factor = rows[~is_same], factor * _HASH_FACTOR  # hash collisions: try again
        keys = all_keys[rows]
    return leader


def first_rows(numbers: _Int64Array, wanted: _Int64Array) -> _Int64Array:
    """Return the first row of ``numbers`` with each ``wanted`` value; -1: none.

    Uses a lookup table if the range of values is small: np.isin hashes and takes ten times as long.
    """
    if not len(numbers):
        return np.full(len(wanted), -1)
    low, high = int(numbers.min()), int(numbers.max())
    if high - low >= max(_MAX_COUNTED_RANGE, _MAX_RANGE_PER_NUMBER * len(numbers)):
        order = np.argsort(numbers, kind="stable")
        known = numbers[order]
        place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[place] == wanted, order[place], -1)
    row_of = np.full(high - low + 2, -1, np.min_scalar_type(-len(numbers)))
    for piece in reversed([*pieces_of(len(numbers))]):  # the first row overwrites later ones
        row_of[numbers[piece][::-1] - low] = np.arange(piece.stop - 1, piece.start - 1, -1)
    found = np.empty(len(wanted), np.int64)
    for piece in pieces_of(len(wanted)):
        place = wanted[piece] - low
        place[(place < 0) | (place > high - low)] = high - low + 1  # index of "no row"
        found[piece] = row_of[place]
    return found


def is_in(values: npt.NDArray[Any], candidates: npt.ArrayLike) -> _BoolArray:
    """Return which integers occur in ``candidates``; uses a lookup table of one byte per value."""
    numbers = np.asarray(candidates)
    if not len(numbers):
        return np.zeros(len(values), np.bool_)
    if len(values) + len(numbers) <= 2 * _MAX_PYTHON_ROWS:
        known = {*numbers.tolist()}
        return np.array([value in known for value in values.tolist()], np.bool_)
    low, high = int(numbers.min()), int(numbers.max())
    if high - low >= max(_MAX_COUNTED_RANGE, _MAX_RANGE_PER_NUMBER * len(numbers)):
        return np.asarray(first_rows(numbers, values) >= 0, np.bool_)
    is_there = np.zeros(high - low + 2, np.bool_)
    for piece in pieces_of(len(numbers)):
        is_there[numbers[piece].astype(np.int64, copy=False) - low] = True
    found = np.empty(len(values), np.bool_)
    for piece in pieces_of(len(values)):
        place = values[piece].astype(np.int64, copy=False) - low
        place[(place < 0) | (place > high - low)] = high - low + 1  # index of "not a candidate"
        found[piece] = is_there[place]
    return found


def renamed(values: _Int64Array, names: Mapping[int, int]) -> _Int64Array:
    """Return ``values`` replaced by their new ``names``; values without a new name stay."""
    if all(old == new for old, new in names.items()):
        return values
    place, distinct = places_of(values)
    return place.pick(np.array([names.get(value, value) for value in distinct], np.int64))


def codes_of(column: Column) -> Packed | npt.NDArray[Any]:
    """Return an integer per row of any column, equal where the values are equal."""
    if isinstance(column, Names):
        return column.packed
    if column.dtype.kind in "iu":
        return column
    if column.dtype.kind == "b":
        return Packed.of_stored(column.view(np.int8))
    place: dict[Any, int] = {}
    rows = (None if value != value else value for value in column.tolist())
    return np.fromiter((place.setdefault(row, len(place)) for row in rows), np.int64, len(column))
