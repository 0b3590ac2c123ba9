"""Between which numbers the columns of a table lie in each of its leaves.

Rows are nearly in the order of time, so that most leaves have no row of a small window; which, is
exact: every row was looked at once. Of files that were read before it is remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from threading import Lock
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.columns import ColumnType
from traceprof.formats.sqlite.pages.block import Block
from traceprof.formats.sqlite.pages.columns import kinds_to_decode
from traceprof.formats.sqlite.pages.rows import BlockRows
from traceprof.formats.sqlite.pages.table import PageTable
from traceprof.formats.sqlite.pages.tree import Leaves

__all__ = ["Bounds", "bounds_of", "joined", "of_block", "recall", "remember"]

Bounds: TypeAlias = "dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]"
"""Column → its smallest and greatest number in each leaf, where NULL is the smallest of all."""

_MOST_BYTES: Final = 64 << 20
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class _Known(OrderedDict[object, Bounds]):
    """Bounds by table, and the memory of all of them: of a thousand files there are thousands."""

    n_bytes = 0

    def keep(self, table: object, bounds: Bounds) -> None:
        self.forget(table)
        self[table] = bounds
        self.n_bytes += _n_bytes(bounds)

    def forget(self, table: object) -> None:
        self.n_bytes -= _n_bytes(self.pop(table, {}))


_known: Final = _Known()
_lock: Final = Lock()


def of_block(rows: BlockRows, columns: Collection[str]) -> Bounds:
    """Return the bounds in each leaf of a block with all its rows."""
    block = rows.block
    found: Bounds = {}
    n_leaves = len(block.n_rows)
    for name in columns:
        least, most = np.full(n_leaves, _LAST), np.full(n_leaves, _FIRST)
        if len(block):
            values = rows.integers(name)
            first = np.cumsum(block.n_rows) - block.n_rows
            least, most = np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)
            odd = block.odd
            if len(odd):  # what is in them was not seen
                leaves = np.searchsorted(first, odd, "right") - 1
                least[leaves], most[leaves] = _FIRST, _LAST
        found[name] = least, most
    return found


def joined(parts: Collection[Bounds]) -> Bounds:
    """Return the bounds in the leaves of all parts one after another."""
    names = next(iter(parts), {})
    return {
        name: (
            np.concatenate([part[name][0] for part in parts]),
            np.concatenate([part[name][1] for part in parts]),
        )
        for name in names
    }


def bounds_of(table: PageTable, leaves: Leaves, columns: Collection[str]) -> Bounds:
    """Return the bounds of columns, remembered or looked for.

    Raises:
        NotPlainError: SQLite itself has to read the table.
    """
    found = recall(table)
    missing = [name for name in columns if name not in found]
    if missing:
        kinds = kinds_to_decode(table.layout, dict.fromkeys(missing, ColumnType.INTEGER))

        def of(block: Block, _first: int) -> Bounds:
            return of_block(BlockRows(block, table.layout), missing)

        remember(table, joined(table.map(kinds, leaves, of)))
        found = recall(table)
    return found


def recall(table: PageTable) -> Bounds:
    """Return what is known of a table of this very file."""
    with _lock:
        return dict(_known.get((table.identity, table.layout.table), {}))


def remember(table: PageTable, found: Bounds) -> None:
    """Keep bounds; what was kept first is forgotten where it is too much."""
    key = table.identity, table.layout.table
    with _lock:
        _known.keep(key, {**_known.get(key, {}), **found})
        while len(_known) > 1 and _known.n_bytes > _MOST_BYTES:
            _known.forget(next(iter(_known)))


def _n_bytes(bounds: Bounds) -> int:
    return sum(array.nbytes for pair in bounds.values() for array in pair)
