"""Tables inside traceprof: columns of numpy arrays, names as codes of a dictionary.

pandas comes in only where somebody asks for a frame (`Table.to_frame`).
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
"""Which rows: a slice, whether each, or their places."""


Column = Array | Names


class Table:
    """Columns of one length by name: numpy arrays, or `Names`. Nothing of it changes.

    Its length is that of its rows; to go through it gives the names of its columns. Numbers that
    are not known are NaN, other values None. Whole numbers come out in int64; it stores those of
    smaller types, and `Packed` ones, as they are given.
    """

    __slots__ = ("_columns", "_n_rows")

    def __init__(self, columns: Mapping[str, Any], n_rows: int | None = None) -> None:
        """Make a table of ``columns``: arrays, Names, sequences, or one value for all rows.

        Raises:
            ValueError: columns of different lengths.
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
        """Return a table of ``rows``; without ``columns`` of all that a row has, as they come.

        Whole numbers make int64, numbers with others or with None float64, True and False bool,
        all else objects; what a row lacks is not known.
        """
        given = list(rows)
        if columns is None:
            columns = list(dict.fromkeys(name for row in given for name in row))
        return cls(
            {name: array_of([row.get(name) for row in given]) for name in columns}, len(given)
        )

    @classmethod
    def stacked(cls, parts: Sequence[Table]) -> Table:
        """Return the rows of all parts, one after another; columns that one lacks are unknown."""
        if len(parts) == 1:
            return parts[0]
        names = list(dict.fromkeys(name for part in parts for name in part))
        filled = [part for part in parts if len(part)]
        if len(filled) == 1 and list(filled[0]) == names:
            return filled[0]
        if not filled:
            kept = {name: next(part[name] for part in parts if name in part) for name in names}
            return cls(kept, 0)
        # A column at a time: all together take much memory.
        put = set_aside if scratch.files else lambda column: column
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
        """Whether there is no row."""
        return not self._n_rows

    @property
    def columns(self) -> dict[str, Any]:
        """The columns by name, to make another table of."""
        return {name: self[name] for name in self._columns}

    def stored(self, name: str) -> Any:
        """Return a column to keep or to choose rows of: whole numbers may be `Packed`."""
        return in_memory(self._columns[name])

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Return a column; ``otherwise`` where there is none."""
        return self[name] if name in self._columns else otherwise

    def on_disk(self) -> Table:
        """Return the same table, whose large columns are on the disk until they are looked at."""
        columns = {name: set_aside(column) for name, column in self._columns.items()}
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

    def take_aside(self, rows: RowsOf) -> Table:
        """Return some of the rows with large columns on the disk, where there is one for them.

        A column at a time: all together take much memory.
        """
        if not scratch.files:
            return self.take(rows)
        return Table({name: set_aside(self.stored(name)[rows]) for name in self._columns})

    def known(self, *names: str) -> Table:
        """Return the rows in which all of these columns are known."""
        return self.take(np.logical_and.reduce([is_known(self[name]) for name in names]))

    def head(self, n_rows: int) -> Table:
        """Return the first rows."""
        return self.take(slice(n_rows))

    def select(self, *names: str) -> Table:
        """Return some of the columns, in this order."""
        return _unchecked_table({name: self._columns[name] for name in names}, self._n_rows)

    def without(self, *names: str) -> Table:
        """Return all columns but these."""
        kept = {name: values for name, values in self._columns.items() if name not in names}
        return _unchecked_table(kept, self._n_rows)

    def assign(self, **columns: Any) -> Table:
        """Return the table with more columns, or others of the same name; one value is for all."""
        more = Table(columns, self._n_rows)._columns
        return _unchecked_table({**self._columns, **more}, self._n_rows)

    def renamed(self, **names: str) -> Table:
        """Return the table with other names for columns: ``renamed(old="new")``."""
        return Table(
            {names.get(name, name): column for name, column in self._columns.items()}, len(self)
        )

    def in_order(self, *columns: str) -> Table:
        """Return the rows sorted by columns; by "-NAME" with the largest first. Stable.

        What is not known comes last.
        """
        return self.take(self.order(*columns)) if self._n_rows > 1 else self

    def order(self, *columns: str) -> npt.NDArray[np.int64]:
        """Return the places of the rows sorted by columns, as `in_order` takes them."""
        keys: list[Array] = []
        for column in columns:
            name = column.removeprefix("-")
            values = sortable(self[name])
            if name != column:
                values = ~values if values.dtype.kind == "i" else -values
            keys.append(values)
        return np.lexsort(keys[::-1]) if keys else np.arange(self._n_rows)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, each with its values by column, as Python's own."""
        lists = [self[name].tolist() for name in self._columns]
        names = list(self._columns)
        if not lists:
            return [{} for _ in range(self._n_rows)]
        return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]

    def row(self, place: int) -> dict[str, Any]:
        """Return a row, as Python's own values."""
        last = place + 1 or None
        return self.take(slice(place, last)).rows()[0]

    def to_frame(self) -> pd.DataFrame:
        """Return a frame of pandas; names are categories."""
        import pandas as pd  # noqa: PLC0415 (half of what a small command costs)

        columns = {
            name: pd.Categorical.from_codes(column.codes, pd.Index(column.texts, dtype=object))
            if isinstance(column, Names)
            else column
            for name, column in self.columns.items()
        }
        return pd.DataFrame(columns, index=pd.RangeIndex(self._n_rows), copy=False)


def _unchecked_table(columns: dict[str, Any], n_rows: int) -> Table:
    """Return a table of columns that are as a table has them, of one length: none is looked at."""
    made = Table.__new__(Table)
    made._columns, made._n_rows = columns, n_rows
    return made


def array_of(values: Sequence[Any]) -> Array:
    """Return values as an array: int64, float64 (None and NaN: not known), bool, or objects."""
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
    """Return numbers in whose order the values are; those that are not known come last."""
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
    """Return the values of ``rows``; at -1 it is not known: whole numbers become others then."""
    if not len(column) or (rows < 0).any():
        values = column.plain() if isinstance(column, Names) else column
        kind = np.float64 if values.dtype.kind in "iuf" else object
        return np.append(values.astype(kind), np.array([None], kind))[rows]
    return column[rows]


class _NamesOnDisk:
    """Names whose codes are on the disk."""

    __slots__ = ("codes", "texts")

    def __init__(self, codes: PackedOnDisk, texts: Texts) -> None:
        self.codes, self.texts = codes, texts

    def __len__(self) -> int:
        return len(self.codes)

    def __reduce__(self) -> tuple[Any, ...]:
        return Names, (self.codes.open(), self.texts)

    def open(self) -> Names:
        """Return the names in memory."""
        return Names(self.codes.open(), self.texts)


class PackedOnDisk:
    """Packed numbers that are on the disk."""

    __slots__ = ("stored",)

    def __init__(self, stored: DiskArray) -> None:
        self.stored = stored

    def __len__(self) -> int:
        return len(self.stored)

    def __reduce__(self) -> tuple[Any, ...]:
        return Packed.of_stored, (self.stored.open(),)

    def open(self) -> Packed:
        """Return the numbers in memory."""
        return Packed.of_stored(self.stored.open())


_OnDisk: TypeAlias = DiskArray | PackedOnDisk | _NamesOnDisk


class Opened(Mapping[str, Any]):
    """Columns by name, of which those on the disk are in memory while they are looked at."""

    __slots__ = ("columns",)

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> Any:
        return opened(self.columns[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


def set_aside(column: Any) -> Any:
    """Return a large column as it is on the disk; any other as it is."""
    if isinstance(column, Names):
        codes = set_aside(column.packed)
        return column if codes is column.packed else _NamesOnDisk(codes, column.texts)
    values = column.stored if isinstance(column, Packed) else column
    if (
        not isinstance(values, np.ndarray)
        or values.nbytes < scratch.LEAST_BYTES // scratch.SMALLEST
    ):
        return column
    stored = scratch.put_aside(values)
    if stored is None:
        return column
    return PackedOnDisk(stored) if isinstance(column, Packed) else stored


def in_memory(column: Any) -> Any:
    """Return a column that may be `set_aside` as it is kept; whole numbers may be `Packed`."""
    return column.open() if isinstance(column, _OnDisk) else column


def opened(column: Any) -> Any:
    """Return a column to look at and to compute with, whether it was `set_aside` or not."""
    values = in_memory(column)
    return values.wide() if isinstance(values, Packed) else values


_PLAIN_TYPES: Final = frozenset((np.ndarray, Names))
"""What columns are mostly, to be taken as they are."""


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
    kind = array_of([single.value]).dtype
    return np.full(n_rows, single.value, kind)


def _or_unknown(part: Table, name: str, parts: Sequence[Table]) -> Any:
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
    if len(kinds) == 1:
        return np.concatenate(arrays)
    if any(kind.kind not in "iuf" for kind in kinds):
        return array_of([value for array in arrays for value in array.tolist()])
    return np.concatenate(arrays)
