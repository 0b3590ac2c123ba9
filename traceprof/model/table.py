"""Internal tables: numpy columns, with text columns as dictionary codes.

pandas is imported only when a caller requests a frame (`Table.to_frame`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.cache import scratch
from traceprof.cache.scratch import DiskArray
from traceprof.model.names import Array as Array
from traceprof.model.names import Bools as Bools
from traceprof.model.names import Names as Names
from traceprof.model.names import Texts
from traceprof.model.names import objects as objects
from traceprof.model.packed import Packed, packed_if_narrow

if TYPE_CHECKING:
    import pandas as pd

RowsOf = slice | Array
"""A selection of rows: a slice, a boolean mask, or row numbers."""


Column = Array | Names


class Table:
    """Named columns of the same length: numpy arrays or `Names`. Immutable.

    The length is the number of rows; iteration yields column names. Unknown numbers are NaN, other
    unknown values None. Integers are returned as int64; smaller types and `Packed` columns are
    stored unchanged.
    """

    __slots__ = ("_columns", "_n_rows")

    def __init__(self, columns: Mapping[str, Any], n_rows: int | None = None) -> None:
        """Create a table of ``columns``: arrays, Names, sequences, or one value for all rows.

        Raises:
            ValueError: the columns have different lengths.
        """
        known: dict[str, Any] = {}
        singles, lengths = [], set() if n_rows is None else {n_rows}
        for name, given in columns.items():
            known[name] = values = given if type(given) is Names else _column(given)
            if type(values) is _Single:
                singles.append(name)
            else:
                lengths.add(len(values))
        if len(lengths) > 1:
            raise ValueError(f"columns of different lengths: {sorted(lengths)}")
        self._n_rows = next(iter(lengths), 1 if known else 0)
        for name in singles:
            known[name] = _repeated(known[name], self._n_rows)
        self._columns = known

    @classmethod
    def of_rows(
        cls, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None
    ) -> Table:
        """Return a table of ``rows``; by default with all keys of the rows, in order of occurrence.

        Integers become int64, numbers mixed with floats or None float64, booleans bool, everything
        else objects. A missing value is unknown.
        """
        given = list(rows)
        if columns is None:
            columns = list(dict.fromkeys(name for row in given for name in row))
        return cls(
            {name: array_of([row.get(name) for row in given]) for name in columns}, len(given)
        )

    @classmethod
    def stacked(cls, parts: Sequence[Table]) -> Table:
        """Return the rows of all parts, one after another; missing columns are unknown."""
        if len(parts) == 1:
            return parts[0]
        names = list(dict.fromkeys(name for part in parts for name in part))
        filled = [part for part in parts if len(part)]
        if len(filled) == 1 and list(filled[0]) == names:
            return filled[0]
        if not filled:
            kept = {name: next(part[name] for part in parts if name in part) for name in names}
            return cls(kept, 0)
        # One column at a time to limit memory.
        put = spill_to_disk if scratch.files else lambda column: column
        return cls(
            {
                name: put(_joined([_or_unknown(part, name, filled) for part in filled]))
                for name in names
            },
            sum(map(len, filled)),
        )

    def __len__(self) -> int:
        return self._n_rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        return column if type(column) in _PLAIN_TYPES else opened(column)

    def __repr__(self) -> str:
        return f"Table({self.to_frame()!r})"

    @property
    def empty(self) -> bool:
        """Whether the table has no rows."""
        return not self._n_rows

    @property
    def columns(self) -> dict[str, Any]:
        """The columns by name, to create another table from."""
        return {name: self[name] for name in self._columns}

    def stored(self, name: str) -> Any:
        """Return a column in stored form, to keep or to select from: integers may be `Packed`."""
        return in_memory(self._columns[name])

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Return a column, or ``otherwise`` if the table does not have it."""
        return self[name] if name in self._columns else otherwise

    def on_disk(self) -> Table:
        """Return the same table with large columns on disk until they are used."""
        columns = {name: spill_to_disk(column) for name, column in self._columns.items()}
        is_same = all(columns[name] is column for name, column in self._columns.items())
        return self if is_same else Table(columns, self._n_rows)

    def take(self, rows: RowsOf | Sequence[int]) -> Table:
        """Return some of the rows."""
        if not self._n_rows:
            return self
        chosen: Any = rows
        if not isinstance(rows, slice):
            chosen = np.asarray(rows)
            n_chosen = np.count_nonzero(chosen) if chosen.dtype == np.bool_ else len(chosen)
            if not n_chosen:
                chosen = slice(0)
            elif chosen.dtype == np.bool_ and n_chosen == len(chosen) == self._n_rows:
                return self
        taken = {
            name: (column if type(column) in _PLAIN_TYPES else in_memory(column))[chosen]
            for name, column in self._columns.items()
        }
        first = next(iter(taken.values())) if taken else np.arange(self._n_rows)[chosen]
        return _unchecked_table(taken, len(first))

    def take_on_disk(self, rows: RowsOf) -> Table:
        """Return some of the rows, with large columns on disk if this process uses a scratch file.

        Columns are copied one at a time to limit memory.
        """
        if not scratch.files:
            return self.take(rows)
        return Table({name: spill_to_disk(self.stored(name)[rows]) for name in self._columns})

    def known(self, *names: str) -> Table:
        """Return the rows in which all these columns are known."""
        return self.take(np.logical_and.reduce([is_known(self[name]) for name in names]))

    def head(self, n_rows: int) -> Table:
        """Return the first ``n_rows`` rows."""
        return self.take(slice(n_rows))

    def select(self, *names: str) -> Table:
        """Return the columns ``names``, in this order."""
        return _unchecked_table({name: self._columns[name] for name in names}, self._n_rows)

    def without(self, *names: str) -> Table:
        """Return all columns except ``names``."""
        kept = {name: values for name, values in self._columns.items() if name not in names}
        return _unchecked_table(kept, self._n_rows)

    def assign(self, **columns: Any) -> Table:
        """Return the table with added or replaced columns; a single value applies to all rows."""
        more = Table(columns, self._n_rows)._columns
        return _unchecked_table({**self._columns, **more}, self._n_rows)

    def renamed(self, **names: str) -> Table:
        """Return the table with renamed columns: ``renamed(old="new")``."""
        return Table(
            {names.get(name, name): column for name, column in self._columns.items()}, len(self)
        )

    def in_order(self, *columns: str) -> Table:
        """Return the rows sorted by ``columns``; "-NAME" sorts in descending order.

        The sort is stable. Unknown values come last.
        """
        return self.take(self.order(*columns)) if self._n_rows > 1 else self

    def order(self, *columns: str) -> npt.NDArray[np.int64]:
        """Return the row numbers sorted by ``columns``, as in `in_order`."""
        keys: list[Array] = []
        for column in columns:
            name = column.removeprefix("-")
            values = sortable(self[name])
            if name != column:
                values = ~values if values.dtype.kind == "i" else -values
            keys.append(values)
        return np.lexsort(keys[::-1]) if keys else np.arange(self._n_rows)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries of Python values."""
        lists = [self[name].tolist() for name in self._columns]
        names = list(self._columns)
        if not lists:
            return [{} for _ in range(self._n_rows)]
        return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]

    def row(self, place: int) -> dict[str, Any]:
        """Return one row as a dictionary of Python values."""
        last = place + 1 or None
        return self.take(slice(place, last)).rows()[0]

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas frame; text columns become categories."""
        import pandas as pd  # noqa: PLC0415 (half the time of a small command)

        columns = {
            name: pd.Categorical.from_codes(column.codes, pd.Index(column.texts, dtype=object))
            if isinstance(column, Names)
            else column
            for name, column in self.columns.items()
        }
        return pd.DataFrame(columns, index=pd.RangeIndex(self._n_rows), copy=False)


def _unchecked_table(columns: dict[str, Any], n_rows: int) -> Table:
    """Return a table of columns in stored form and of equal length, without checks."""
    made = Table.__new__(Table)
    made._columns, made._n_rows = columns, n_rows
    return made


def array_of(values: Sequence[Any]) -> Array:
    """Return values as an array: int64, float64 (None and NaN: unknown), bool, or objects."""
    kinds = {type(value) for value in values}
    if kinds <= {bool, np.bool_} and kinds:
        return np.array(values, np.bool_)
    numbers = {
        kind for kind in kinds if issubclass(kind, int | float | np.number) and kind is not bool
    }
    if numbers and kinds - numbers <= {type(None)}:
        is_whole = kinds == numbers and all(issubclass(kind, int | np.integer) for kind in kinds)
        try:
            return np.array(
                [np.nan if value is None else value for value in values],
                np.int64 if is_whole else np.float64,
            )
        except OverflowError:
            return objects(values)
    return objects(values)


def is_known(column: Column) -> Bools:
    """Return which values are neither None nor NaN."""
    if isinstance(column, Names) or column.dtype.kind not in "fO":
        return np.ones(len(column), np.bool_)
    if column.dtype.kind == "f":
        return ~np.isnan(column)
    return np.array([value is not None and value == value for value in column.tolist()], np.bool_)


def is_unknown(value: Any) -> bool:
    """Return whether a value is None or NaN."""
    return value is None or bool(value != value)


def sortable(column: Column) -> Array:
    """Return numbers with the same order as the values; unknown values come last."""
    if isinstance(column, Names):
        return column.places()
    if column.dtype.kind == "b":
        return column.astype(np.int64)
    if column.dtype.kind != "O":
        return column
    known = is_known(column)
    values = column[known].tolist()
    place = {value: float(n) for n, value in enumerate(sorted(set(values)))}
    found = np.full(len(column), np.nan)
    found[known] = [place[value] for value in values]
    return found


def at_rows(column: Column, rows: npt.NDArray[np.int64]) -> Any:
    """Return the values at ``rows``; unknown at -1.

    If a row is -1 or the column is empty, integers become float64.
    """
    if not len(column) or (rows < 0).any():
        values = column.plain() if isinstance(column, Names) else column
        kind = np.float64 if values.dtype.kind in "iuf" else object
        return np.append(values.astype(kind), np.array([None], kind))[rows]
    return column[rows]


class _NamesOnDisk:
    """A text column whose codes are on disk."""

    __slots__ = ("codes", "texts")

    def __init__(self, codes: PackedOnDisk, texts: Texts) -> None:
        self.codes, self.texts = codes, texts

    def __len__(self) -> int:
        return len(self.codes)

    def __reduce__(self) -> tuple[Any, ...]:
        return Names, (self.codes.open(), self.texts)

    def open(self) -> Names:
        """Return the column in memory."""
        return Names(self.codes.open(), self.texts)


class PackedOnDisk:
    """Packed integers on disk."""

    __slots__ = ("stored",)

    def __init__(self, stored: DiskArray) -> None:
        self.stored = stored

    def __len__(self) -> int:
        return len(self.stored)

    def __reduce__(self) -> tuple[Any, ...]:
        return Packed.of_stored, (self.stored.open(),)

    def open(self) -> Packed:
        """Return the column in memory."""
        return Packed.of_stored(self.stored.open())


_OnDisk: TypeAlias = DiskArray | PackedOnDisk | _NamesOnDisk


class Opened(Mapping[str, Any]):
    """Columns by name. Columns on disk are in memory only while they are used."""

    __slots__ = ("columns",)

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> Any:
        return opened(self.columns[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


def spill_to_disk(column: Any) -> Any:
    """Return a large column stored on disk; any other column unchanged."""
    if isinstance(column, Names):
        codes = spill_to_disk(column.packed)
        return column if codes is column.packed else _NamesOnDisk(codes, column.texts)
    values = column.stored if isinstance(column, Packed) else column
    if (
        not isinstance(values, np.ndarray)
        or values.nbytes < scratch.MIN_DISK_BYTES // scratch.SMALLEST
    ):
        return column
    stored = scratch.store_on_disk(values)
    if stored is None:
        return column
    return PackedOnDisk(stored) if isinstance(column, Packed) else stored


def in_memory(column: Any) -> Any:
    """Return a column that may be on disk in stored form; integers may be `Packed`."""
    return column.open() if isinstance(column, _OnDisk) else column


def opened(column: Any) -> Any:
    """Return a column that may be on disk as a plain column, for reading and arithmetic."""
    values = in_memory(column)
    return values.wide() if isinstance(values, Packed) else values


_PLAIN_TYPES: Final = frozenset((np.ndarray, Names))
"""Types of columns that are returned unchanged, checked first because they are most frequent."""


def _column(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return packed_if_narrow(values)
    if isinstance(values, Names | Packed | _OnDisk):
        return values
    if isinstance(values, str) or not hasattr(values, "__len__"):
        return _Single(values)
    return array_of(list(values))


class _Single:
    """One value for all rows."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _repeated(single: _Single, n_rows: int) -> Any:
    return np.full(n_rows, single.value, array_of([single.value]).dtype)


def _or_unknown(part: Table, name: str, parts: Sequence[Table]) -> Any:
    """Return a column of ``part`` in stored form; unknown values if it lacks the column."""
    if name in part:
        return part.stored(name)
    known = next((table[name] for table in parts if name in table), None)
    is_number = isinstance(known, np.ndarray) and known.dtype.kind in "iuf"
    return np.full(len(part), np.nan if is_number else None, np.float64 if is_number else object)


def _joined(pieces: Sequence[Any]) -> Any:
    if all(isinstance(piece, Names) for piece in pieces):
        return Names.joined(pieces)
    if all(isinstance(piece, Packed) for piece in pieces):
        return Packed.joined(pieces)
    arrays = [np.asarray(piece) for piece in pieces]
    kinds = {array.dtype for array in arrays}
    if len(kinds) > 1 and any(kind.kind not in "iuf" for kind in kinds):
        return array_of([value for array in arrays for value in array.tolist()])
    return np.concatenate(arrays)
