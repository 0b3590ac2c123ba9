"""Tables of many rows in few bytes: whole numbers as small as they fit, what repeats as codes.

For what grows with a run of many ranks and is kept: a column is made plain while it is looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.grouping import compact

_Array = npt.NDArray[Any]

_MOST_KINDS: Final = 255
_SAMPLED: Final = 1024


class CompactTable:
    """Columns of one length, and which of their rows are meant, in which order.

    It is read like a `pd.DataFrame` with a plain index: a name gives a Series, names a frame, each
    made for who asks. Nothing of it changes.
    """

    __slots__ = ("_at", "_columns", "_n_rows")

    def __init__(
        self, columns: Mapping[str, _Column], n_rows: int, at: npt.NDArray[np.int32] | None = None
    ) -> None:
        self._columns, self._n_rows, self._at = dict(columns), n_rows, at

    @classmethod
    def of(cls, columns: Mapping[str, _Array]) -> CompactTable:
        """Return the rows of ``columns``, which are equally long (at least one)."""
        kept = {name: _Column.of(values) for name, values in columns.items()}
        return cls(kept, len(next(iter(kept.values())).values))

    @classmethod
    def of_frame(cls, frame: pd.DataFrame) -> CompactTable:
        """Return the rows of ``frame``; its index is not kept."""
        return cls.of({str(name): frame[name].to_numpy() for name in frame})

    @classmethod
    def stacked(cls, parts: Sequence[CompactTable]) -> CompactTable:
        """Return the rows of all of ``parts`` (at least one), which have the same columns."""
        if len(parts) == 1:
            return parts[0]
        columns = {
            name: _Column.joined([part._column(name) for part in parts])
            for name in parts[0]._columns
        }
        return cls(columns, sum(map(len, parts)))

    def __len__(self) -> int:
        return self._n_rows if self._at is None else len(self._at)

    @property
    def empty(self) -> bool:
        """Whether there is no row."""
        return not len(self)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    @property
    def n_bytes(self) -> int:
        """What it takes in memory."""
        at = 0 if self._at is None else self._at.nbytes
        return at + sum(column.values.nbytes for column in self._columns.values())

    @overload
    def __getitem__(self, name: str) -> pd.Series: ...

    @overload
    def __getitem__(self, name: list[str]) -> pd.DataFrame: ...

    def __getitem__(self, name: str | list[str]) -> pd.Series | pd.DataFrame:
        if isinstance(name, str):
            values = self.array(name)
            return pd.Series(values, name=name, dtype=values.dtype, copy=False)
        return pd.DataFrame({own: self[own] for own in name}, index=pd.RangeIndex(len(self)))

    def frame(self) -> pd.DataFrame:
        """Return all columns of all rows."""
        return self[list(self._columns)]

    def array(self, name: str) -> _Array:
        """Return a column as it was given; it must not be modified."""
        return self._column(name).plain()

    def codes(self, name: str) -> _Array:
        """Return a whole number for each row, the same where the values of a column are."""
        column = self._column(name)
        if column.kinds is None and column.values.dtype.kind in "fO":
            return np.asarray(pd.factorize(column.values, use_na_sentinel=False)[0])
        return column.values

    def isin(self, name: str, values: Collection[Any]) -> npt.NDArray[np.bool_]:
        """Return which rows have one of ``values`` in a column."""
        column = self._column(name)
        if column.kinds is None:
            return np.asarray(pd.Series(column.plain()).isin(list(values)), np.bool_)
        wanted = pd.Series(column.kinds).isin(list(values)).to_numpy(np.bool_)
        found: npt.NDArray[np.bool_] = wanted[column.values]
        return found

    def where(self, rows: _Array) -> CompactTable:
        """Return the rows that ``rows`` says: for each whether, or the places of some."""
        places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        at = places.astype(np.int32) if self._at is None else self._at[places]
        return CompactTable(self._columns, self._n_rows, at)

    def in_order(self, order: _Array) -> CompactTable:
        """Return the rows at the places ``order``, laid out anew."""
        columns = {
            name: _Column(own.values[order], own.dtype, own.kinds)
            for name, own in ((name, self._column(name)) for name in self._columns)
        }
        return CompactTable(columns, len(order))

    def assign(self, **arrays: _Array) -> CompactTable:
        """Return the rows with more columns, or with others of the same name."""
        base = self if self._at is None else self.in_order(np.arange(len(self)))
        columns = base._columns | {name: _Column.of(own) for name, own in arrays.items()}
        return CompactTable(columns, len(self))

    def _column(self, name: str) -> _Column:
        column = self._columns[name]
        if self._at is None:
            return column
        return _Column(column.values[self._at], column.dtype, column.kinds)


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """Values as small as they fit; where ``kinds`` are given, the places of the values there."""

    values: _Array
    dtype: np.dtype[Any]
    kinds: _Array | None = None

    @classmethod
    def of(cls, values: _Array) -> _Column:
        if values.dtype.kind == "O":
            return cls._of_objects(values)
        if values.dtype.kind not in "if" or values.dtype.itemsize < 4:
            return cls(values, values.dtype)
        return _with_codes(values) or cls(_smaller(values), values.dtype)

    @classmethod
    def _of_objects(cls, values: _Array) -> _Column:
        codes, kinds = pd.factorize(values, use_na_sentinel=False)
        if len(kinds) > np.iinfo(np.int32).max or not all(type(kind) is str for kind in kinds):
            return cls(values, values.dtype)
        return cls(_smaller(np.asarray(codes, np.int64)), values.dtype, np.asarray(kinds, object))

    @classmethod
    def joined(cls, parts: Sequence[_Column]) -> _Column:
        """Return the values of all ``parts``, one after another."""
        dtypes = {part.dtype for part in parts}
        has_kinds = [part.kinds is not None for part in parts]
        if len(dtypes) == 1 and not any(has_kinds):
            return cls(np.concatenate([part.values for part in parts]), parts[0].dtype)
        if len(dtypes) > 1 or not all(has_kinds):
            return cls.of(np.concatenate([part.plain() for part in parts]))
        offsets = np.cumsum([0, *(len(part.kinds) for part in parts if part.kinds is not None)])
        every = np.concatenate([part.kinds for part in parts if part.kinds is not None])
        places, kinds = pd.factorize(_bits(every), use_na_sentinel=False)
        places = _smaller(np.asarray(places, np.int64))
        codes = [
            places[first + part.values.astype(np.int64)]
            for first, part in zip(offsets.tolist(), parts, strict=False)
        ]
        return cls(np.concatenate(codes), parts[0].dtype, np.asarray(kinds).view(every.dtype))

    def plain(self) -> _Array:
        """Return the values as they were given."""
        if self.kinds is not None:
            found: _Array = self.kinds[self.values]
            return found
        return self.values.astype(self.dtype, copy=False)


def _with_codes(values: _Array) -> _Column | None:
    """Return numbers by the places of those that there are, where these are few."""
    sample = _bits(values[:: max(1, len(values) // _SAMPLED)])
    if len(np.unique(sample)) > _MOST_KINDS // 2 or len(values) < _SAMPLED:
        return None
    codes, kinds = pd.factorize(_bits(values))
    if len(kinds) > _MOST_KINDS:
        return None
    return _Column(codes.astype(np.uint8), values.dtype, np.asarray(kinds).view(values.dtype))


def _bits(values: _Array) -> _Array:
    """Return what tells numbers apart, and every NaN and zero as well."""
    return values.view(f"i{values.dtype.itemsize}") if values.dtype.kind == "f" else values


def _smaller(values: _Array) -> _Array:
    """Return whole numbers in the smallest type that holds them all; others as they are."""
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            whole = values.astype(np.int32)
        return whole if np.array_equal(_bits(whole.astype(values.dtype)), _bits(values)) else values
    return compact(values)
