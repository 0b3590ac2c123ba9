"""Packed integers: a column in the smallest type that holds it, for storage only.

numpy wraps around if a sum of two 16-bit numbers needs 17 bits, and raises if a Python integer does
not fit. So packed columns have no arithmetic: convert them to int64 (`Packed.wide`) first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Self, TypeAlias, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Bools: TypeAlias = npt.NDArray[np.bool_]
Ints: TypeAlias = npt.NDArray[np.int64]

Numbers: TypeAlias = "npt.ArrayLike | Packed"
"""A column of integers, packed or not."""
_Scalar = TypeVar("_Scalar", bound=np.generic)
_WORD_BYTES: Final = 8


class Packed:
    """A column of integers in the smallest type that holds it. Immutable.

    An integer index returns a Python integer, any other index packed rows; `wide` returns int64.
    numpy accepts it as an int64 array. The only operators are ``==`` and ``!=``.
    """

    __slots__ = ("stored",)
    __hash__ = None  # type: ignore[assignment]

    stored: Array
    """The numbers in their small type: for writing bytes and selecting rows, never for arithmetic.
    """

    def __init__(self, values: npt.ArrayLike | Packed) -> None:
        """Pack ``values``, integers, packed or not. The type also holds their negatives."""
        stored = values.stored if isinstance(values, Packed) else np.asarray(values)
        if stored.dtype != np.int8:
            largest = max(int(stored.max(initial=0)), -int(stored.min(initial=0)) - 1)
            stored = stored.astype(_type_for(-largest - 1), copy=False)
        self.stored = stored

    @classmethod
    def of_stored(cls, stored: Array) -> Self:
        """Return a column from ``stored``, an array of a small type."""
        found = object.__new__(cls)
        found.stored = stored
        return found

    @classmethod
    def below(cls, n_values: int, values: Array) -> Self:
        """Return ``values`` between -1 and ``n_values`` - 1, without a search for the maximum."""
        return cls.of_stored(values.astype(_type_for(-max(n_values, 1)), copy=False))

    @classmethod
    def repeated(cls, value: int, n_rows: int) -> Self:
        """Return ``value`` repeated ``n_rows`` times."""
        return cls.of_stored(np.full(n_rows, value, _type_for(min(value, -value - 1))))

    @classmethod
    def joined(cls, parts: Sequence[Packed]) -> Self:
        """Return the numbers of all ``parts`` (at least one), one after another."""
        return cls.of_stored(np.concatenate([part.stored for part in parts]))

    @property
    def n_bytes(self) -> int:
        """Memory size in bytes."""
        return int(self.stored.nbytes)

    def __len__(self) -> int:
        return len(self.stored)

    def __iter__(self) -> Iterator[int]:
        return iter(self.tolist())

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> int: ...
    @overload
    def __getitem__(self, rows: slice | Array | Packed) -> Packed: ...
    def __getitem__(self, rows: Any) -> Any:
        found = self.stored[rows.stored if isinstance(rows, Packed) else rows]
        return Packed.of_stored(found) if isinstance(found, np.ndarray) else int(found)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.stored.astype(np.int64 if dtype is None else dtype, copy=copy is not False)

    def __eq__(self, other: object) -> Bools:  # type: ignore[override]
        known: Any = other.stored if isinstance(other, Packed) else other
        return np.asarray(self.stored == known, np.bool_)

    def __ne__(self, other: object) -> Bools:  # type: ignore[override]
        return ~(self == other)

    def __repr__(self) -> str:
        return f"Packed({self.tolist()!r})"

    def wide(self) -> Ints:
        """Return the numbers as int64, for arithmetic."""
        found: Ints = self.stored.astype(np.int64, copy=False)
        if found is self.stored:
            found = found.view()
            found.flags.writeable = False
        return found

    def tolist(self) -> list[int]:
        """Return the numbers as Python integers."""
        return cast("list[int]", self.stored.tolist())

    def pick(self, values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        """Return ``values[self]``: the value at each index; the last value for -1."""
        return values[self.stored]


def packed_if_narrow(values: Numbers) -> Packed | Array:
    """Return an array to store; integers of a type smaller than int64 become `Packed`."""
    if isinstance(values, Packed):
        return values
    found = np.asarray(values)
    is_narrow = found.dtype.kind in "iu" and found.dtype.itemsize < _WORD_BYTES
    return Packed.of_stored(found) if is_narrow else found


def joined_numbers(parts: Sequence[Packed | Array]) -> Packed | Array:
    """Return the numbers of all ``parts``, one after another; packed if all parts are."""
    packed = [part for part in parts if isinstance(part, Packed)]
    return (
        Packed.joined(packed)
        if len(packed) == len(parts)
        else np.concatenate([*map(np.asarray, parts)])
    )


def _type_for(smallest: int) -> np.dtype[Any]:
    """Return the smallest integer type for ``smallest`` (negative) to -``smallest`` - 1."""
    return np.min_scalar_type(smallest)
