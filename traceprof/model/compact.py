"""Compact tables for large data: integers in the smallest type, repeated values as codes.

For tables of a run with many ranks that are kept. A column is expanded only while it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.cache import scratch
from traceprof.model.grouping import pieces_of
from traceprof.model.packed import Packed, joined_numbers, packed_if_narrow
from traceprof.model.table import Names, RowsOf, Table, in_memory, spill_to_disk

_Array = npt.NDArray[Any]

_MAX_DISTINCT: Final = 255
_SAMPLE_ROWS: Final = 1024
_INT64: Final = np.dtype(np.int64)
_MIN_PACKED_ROWS: Final = 32
"""Shorter columns need less memory unpacked than the description of their packed form."""


class CompactTable(Table):
    """A table in compact form: packed columns, and the selected rows in their order.

    Selected rows and added columns stay compact. Everything else sees plain columns.
    """

    __slots__ = ()
    _columns: _Columns  # type: ignore[assignment]

    def __init__(self, columns: Mapping[str, Any], n_rows: int | None = None) -> None:
        """Create a table of ``columns``, as `Table` accepts them."""
        super().__init__(columns, n_rows)
        self._columns = _Columns({name: _packed(values) for name, values in self._columns.items()})

    @classmethod
    def of_each(cls, columns: Iterable[tuple[str, Any]], n_rows: int) -> CompactTable:
        """Return a table of ``columns``, arrays or Names, packed one at a time to save memory."""
        packed = {name: _packed(values) for name, values in columns}
        return object.__new__(cls)._with(_Columns(packed), n_rows)

    @classmethod
    def stacked(cls, parts: Sequence[Table]) -> CompactTable:
        """Return the rows of all ``parts`` (at least one), which have the same columns."""
        tables = [part if isinstance(part, CompactTable) else cls(part.columns) for part in parts]
        if len(tables) == 1:
            return tables[0]
        columns = {
            name: _joined([part._columns.rows_of(name) for part in tables]) for name in tables[0]
        }
        return tables[0]._with(_Columns(columns), sum(map(len, tables)))

    def on_disk(self) -> CompactTable:
        """Return the same table with large columns on disk until they are used."""
        columns = self._columns
        packed = {name: _on_disk(values) for name, values in columns.packed.items()}
        return self._with(_Columns(packed, spill_to_disk(columns.rows)), len(self))

    @property
    def n_bytes(self) -> int:
        """Memory size in bytes."""
        rows = self._columns.rows
        n_bytes = 0 if rows is None else in_memory(rows).n_bytes
        for column in self._columns.packed.values():
            values = _values_of(in_memory(column))
            n_bytes += values.n_bytes if isinstance(values, Packed) else values.nbytes
        return n_bytes

    def take(self, rows: RowsOf | Sequence[int]) -> CompactTable:
        """Return some of the rows. Only the selection is stored; the columns are shared."""
        columns = self._columns
        if isinstance(rows, slice):
            places: _Array = np.arange(*rows.indices(len(self)))
        else:
            given = np.asarray(rows)
            places = np.flatnonzero(given) if given.dtype == np.bool_ else given
        at = (
            Packed.below(len(self), places)
            if columns.rows is None
            else in_memory(columns.rows)[places]
        )
        return self._with(_Columns(columns.packed, at), len(at))

    def take_on_disk(self, rows: RowsOf) -> CompactTable:
        """Return some of the rows, with the selection on disk."""
        return self.take(rows).on_disk() if scratch.files else self.take(rows)

    def narrowed(self, *names: str) -> CompactTable:
        """Return a compact table of the columns ``names``, in this order."""
        packed = {name: self._columns.packed[name] for name in names}
        return self._with(_Columns(packed, self._columns.rows), len(self))

    def codes_of_column(self, name: str) -> Packed | _Array:
        """Return compact integers per row, equal exactly where the column values are equal."""
        return _values_of(self._columns.rows_of(name))

    def stored(self, name: str) -> Any:
        """Return a column in compact form, to keep or to select from: integers are `Packed`."""
        column = self._columns.rows_of(name)
        is_packed = (
            isinstance(column, _Numbers) and column.distinct is None and column.dtype.kind == "i"
        )
        return column.values if is_packed else self[name]

    def laid_out(self) -> CompactTable:
        """Return a table that contains only the selected rows, in their order."""
        if self._columns.rows is None:
            return self
        columns = {name: self._columns.rows_of(name) for name in self._columns}
        return self._with(_Columns(columns), len(self))

    def assign(self, **columns: Any) -> CompactTable:
        """Return the table with added or replaced columns; a single value applies to all rows."""
        added = CompactTable(columns, len(self))
        packed = {**self.laid_out()._columns.packed, **added._columns.packed}
        return self._with(_Columns(packed), len(self))

    def _with(self, columns: _Columns, n_rows: int) -> CompactTable:
        found = object.__new__(CompactTable)
        found._columns, found._n_rows = columns, n_rows
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Columns(Mapping[str, Any]):
    """Columns by name, expanded on access: the selected ``rows``, or all rows if None.

    In ``packed``, names and non-numeric columns are unpacked.
    """

    packed: Mapping[str, Any]
    rows: Any = None

    def rows_of(self, name: str) -> Any:
        """Return the selected rows of a column in stored form."""
        column = self.packed[name]
        if isinstance(column, _Numbers):
            column = _Numbers(in_memory(column.values), column.dtype, column.distinct)
        column = in_memory(column)
        return column if self.rows is None else column[in_memory(self.rows).stored]

    def __getitem__(self, name: str) -> Any:
        column = self.rows_of(name)
        return column.plain() if isinstance(column, _Numbers) else column

    def __contains__(self, name: object) -> bool:
        return name in self.packed

    def __iter__(self) -> Iterator[str]:
        return iter(self.packed)

    def __len__(self) -> int:
        return len(self.packed)


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    """Numbers in the smallest type. With ``distinct``, ``values`` are indices into it."""

    values: Any  # Packed or floats; large ones may be on disk
    dtype: np.dtype[Any]
    distinct: _Array | None = None

    def __getitem__(self, rows: _Array) -> _Numbers:
        return _Numbers(self.values[rows], self.dtype, self.distinct)

    def plain(self) -> _Array:
        """Return the values as a plain array; integers as int64."""
        values: Packed | _Array = self.values
        if not isinstance(values, Packed):
            return values.astype(self.dtype, copy=False)
        if self.distinct is not None:
            return values.pick(self.distinct)
        return values.wide() if self.dtype.kind == "i" else np.asarray(values, self.dtype)


def _on_disk(column: Any) -> Any:
    if isinstance(column, _Numbers):
        return _Numbers(spill_to_disk(column.values), column.dtype, column.distinct)
    return spill_to_disk(column)


def _values_of(column: Any) -> Packed | _Array:
    plain: Any = in_memory(column.values) if isinstance(column, _Numbers) else column
    values: Packed | _Array = plain.packed if isinstance(plain, Names) else plain
    return values


def _packed(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        values = packed_if_narrow(values)
    if isinstance(values, np.ndarray) and values.dtype.kind == "O":
        if not len(values) or not all(type(value) is str for value in values):
            return values
        values = Names.of(values)
    if isinstance(values, Names):
        return Names(Packed(values.packed), values.texts)
    if isinstance(values, Packed):
        return _Numbers(Packed(values), _INT64)
    if values.dtype.kind not in "if" or len(values) < _MIN_PACKED_ROWS:
        return values
    coded = _with_codes(values) if len(values) >= _SAMPLE_ROWS else None
    return coded or _Numbers(_smaller(values), values.dtype)


def _joined(parts: Sequence[Any]) -> Any:
    """Return the values of all ``parts``, one after another."""
    numbers = [part for part in parts if isinstance(part, _Numbers)]
    kinds = [part.distinct for part in numbers if part.distinct is not None]
    have_same_kind = len({part.dtype for part in numbers}) == 1 and len(kinds) in (0, len(parts))
    if len(numbers) < len(parts) or not have_same_kind:
        plain = [part.plain() if isinstance(part, _Numbers) else part for part in parts]
        return _packed(Table.stacked([Table({"": values}) for values in plain])[""])
    if not kinds:
        return _Numbers(joined_numbers([part.values for part in numbers]), numbers[0].dtype)
    distinct, found = np.unique(_bits(np.concatenate(kinds)), return_inverse=True)
    places, first = Packed(found), np.cumsum([0, *map(len, kinds)]).tolist()
    codes = [places[at:][part.values] for at, part in zip(first, numbers, strict=False)]
    return _Numbers(Packed.joined(codes), numbers[0].dtype, distinct.view(kinds[0].dtype))


def _with_codes(values: _Array) -> _Numbers | None:
    """Return numbers as indices into their distinct values; None if these are too many."""
    bits = _bits(values)
    kinds = np.unique(bits[:: len(bits) // _SAMPLE_ROWS])
    if len(kinds) > _MAX_DISTINCT // 2:
        return None
    codes = _places(kinds, bits)
    rare = bits[kinds[codes] != bits]
    if len(rare):
        kinds = np.union1d(kinds, rare)
        if len(kinds) > _MAX_DISTINCT:
            return None
        codes = _places(kinds, bits)
    return _Numbers(Packed.of_stored(codes), values.dtype, kinds.view(values.dtype))


def _places(kinds: _Array, bits: _Array) -> npt.NDArray[np.uint8]:
    """Return the index of each value in the sorted ``kinds``."""
    found = np.empty(len(bits), np.uint8)
    for piece in pieces_of(len(bits)):
        found[piece] = np.minimum(np.searchsorted(kinds, bits[piece]), len(kinds) - 1)
    return found


def _bits(values: _Array) -> _Array:
    """Return floats as integers of their bits, to distinguish every NaN and signed zero."""
    return values.view(f"i{values.dtype.itemsize}") if values.dtype.kind == "f" else values


def _smaller(values: _Array) -> Packed | _Array:
    """Return integers, and floats with integer values, in the smallest type; others unchanged."""
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            whole = values.astype(np.int32)
        is_same = np.array_equal(_bits(whole.astype(values.dtype)), _bits(values))
        return Packed.of_stored(whole) if is_same else values
    return Packed(values)
