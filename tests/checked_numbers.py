"""Fail where somebody computes with numbers that are packed.

Arrays of small types that `Packed` stores raise `AssertionError` in every ufunc that can leave
their type; to compare, to choose rows and to join them is what they are for. Tables and names may
not give an array of such a type at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pytest

from traceprof.model.names import Names
from traceprof.model.packed import Array, Packed
from traceprof.model.table import Table

_ARITHMETIC: Final = frozenset(
    (
        *(np.add, np.subtract, np.multiply, np.floor_divide, np.remainder, np.power, np.square),
        *(np.negative, np.absolute, np.left_shift, np.invert),
    )
)


class Checked(np.ndarray[Any, Any]):
    """Numbers of a small type with which nobody computes."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        given = [one.view(np.ndarray) if isinstance(one, Checked) else one for one in inputs]
        if out := more.get("out"):
            more["out"] = tuple(
                one.view(np.ndarray) if isinstance(one, Checked) else one for one in out
            )
        found = getattr(ufunc, method)(*given, **more)
        if ufunc in _ARITHMETIC and isinstance(found, np.ndarray) and is_narrow(found):
            raise AssertionError(f"{ufunc.__name__} of packed numbers of type {found.dtype}")
        return found


def is_narrow(values: Array) -> bool:
    """Return whether ``values`` are whole numbers of a type smaller than int64."""
    return values.dtype.kind in "iu" and values.dtype.itemsize < np.dtype(np.int64).itemsize


def checked(values: Array) -> Array:
    """Return an array in whose small type nobody computes; any other as it is."""
    is_plain = type(values) is np.ndarray and is_narrow(values)
    return values.view(Checked) if is_plain else values


@contextmanager
def checked_numbers() -> Iterator[None]:
    """Let whoever computes with packed numbers fail."""
    pack, of_stored = Packed.__init__, Packed.of_stored
    look, by_text = Table.__getitem__, Names.by_text

    def packs(self: Packed, values: Any) -> None:
        pack(self, values)
        self.stored = checked(self.stored)

    def stores(cls: type[Packed], stored: Array) -> Packed:
        return of_stored(checked(stored))

    def gives(self: Table, name: str) -> Any:
        found = look(self, name)
        assert not (isinstance(found, np.ndarray) and is_narrow(found)), name
        return found

    def tells(self: Names, values: Any) -> Array:
        found = by_text(self, values)
        assert not is_narrow(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Packed, "__init__", packs)
        patch.setattr(Packed, "of_stored", classmethod(stores))
        patch.setattr(Table, "__getitem__", gives)
        patch.setattr(Names, "by_text", tells)
        yield
