"""What the rows of a table are like as a whole, and in each of its leaves.

How many there are, from when to when, and whose; and between which numbers columns lie in each
leaf. Rows are nearly in the order of time, so that most leaves have no row of a small window;
which, is exact: every row was looked at once. Of files that were read before it is remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.compiled import library
from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.conditions import Condition
from traceprof.formats.sqlite.pages import blocks
from traceprof.formats.sqlite.pages.blocks import BlockRows, RowBlock
from traceprof.formats.sqlite.pages.columns import PageTable, kinds_to_decode, read_pages
from traceprof.formats.sqlite.pages.tree import Leaves, NotPlainError, Query
from traceprof.formats.sqlite.schema import Soundness, UnsoundRowsError

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


def bounds_of_block(rows: BlockRows, columns: Collection[str]) -> Bounds:
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


def joined_bounds(parts: Collection[Bounds]) -> Bounds:
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
    found = known_bounds(table)
    missing = [name for name in columns if name not in found]
    if missing:
        kinds = kinds_to_decode(table.layout, dict.fromkeys(missing, ColumnType.INTEGER))

        def of(block: RowBlock, _first: int) -> Bounds:
            return bounds_of_block(BlockRows(block, table.layout), missing)

        keep_bounds(table, joined_bounds(table.map(kinds, leaves, of)))
        found = known_bounds(table)
    return found


def known_bounds(table: PageTable) -> Bounds:
    """Return what is known of a table of this very file."""
    with _lock:
        return dict(_known.get((table.identity, table.layout.table), {}))


def keep_bounds(table: PageTable, found: Bounds) -> None:
    """Keep bounds; what was kept first is forgotten where it is too much."""
    key = table.identity, table.layout.table
    with _lock:
        _known.keep(key, {**_known.get(key, {}), **found})
        while len(_known) > 1 and _known.n_bytes > _MOST_BYTES:
            _known.forget(next(iter(_known)))


def _n_bytes(bounds: Bounds) -> int:
    return sum(array.nbytes for pair in bounds.values() for array in pair)


Numbers: TypeAlias = "npt.NDArray[np.int64]"
Columns: TypeAlias = "dict[str, Numbers]"


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows whose totals are wanted, by the columns that tell them.

    Without ``end`` they are instants; an empty ``number`` or ``device`` tells nobody. The process
    of a row is what ``processes`` makes of ``number`` (the same for numbers that differ in the
    lowest ``number_bits`` alone). ``sought`` are columns by whose bounds rows are found later.
    """

    start: str
    end: str
    number: str
    device: str
    processes: Callable[[Numbers], Numbers]
    number_bits: int
    where: Condition | None = None
    sought: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """The columns that are looked at."""
        return [name for name in (self.start, self.end, self.number, self.device) if name]


@dataclass(frozen=True, slots=True)
class Totals:
    """How many rows there are, how many have no end, first and last time, and whose they are.

    ``n_of`` counts the rows of each (process, device); a column that is not there is left out.
    """

    n_rows: int
    n_open: int
    first: int
    last: int
    n_of: dict[tuple[int, ...], int]


def totals_of(
    table: PageTable, query: Query, asked: Sequence[Counted], sound: Soundness | None = None
) -> list[Totals]:
    """Return the totals of rows of one table, in one pass over it.

    Raises:
        NotPlainError: SQLite itself has to look.
        UnsoundRowsError: some rows are not ``sound``.
    """
    sought = sorted({name for one in asked for name in one.sought})
    wanted = {name for one in asked for name in one.columns} | set(sought)
    wanted |= set(sound.columns) if sound else set()
    kinds = kinds_to_decode(table.layout, dict.fromkeys(sorted(wanted), ColumnType.INTEGER))
    for one in asked:
        kinds |= kinds_to_decode(table.layout, {}, one.where)

    def of(block: RowBlock, _first: int) -> tuple[list[Totals], Bounds, bool]:
        told = _sound_columns(table, block, sound)
        found = [_totals_of_rows(_columns(table, block, one, told), one) for one in asked]
        return found, bounds_of_block(BlockRows(block, table.layout), sought), bool(len(block.odd))

    leaves = table.leaves()
    parts = table.map(kinds, leaves, of)
    keep_bounds(table, joined_bounds([bounds for _, bounds, _ in parts]))
    if any(has_odd for *_, has_odd in parts):
        if sound is not None:
            names = dict.fromkeys(sound.columns, ColumnType.INTEGER)
            if sound.is_broken(read_pages(table, query, names, leaves)):
                raise UnsoundRowsError(sound.table)
        return [_read(table, query, one) for one in asked]
    return [_sum([found[place] for found, *_ in parts]) for place in range(len(asked))]


def _sound_columns(table: PageTable, block: RowBlock, sound: Soundness | None) -> Columns:
    """Return the columns that tell of sound rows; what SQLite has to read is not looked at."""
    if sound is None:
        return {}
    rows = BlockRows(block, table.layout)
    columns = {name: rows.integers(name) for name in sound.columns}
    plain = columns
    if len(block.odd):
        plain = {name: np.delete(values, block.odd) for name, values in columns.items()}
    if sound.is_broken(plain):
        raise UnsoundRowsError(sound.table)
    return columns


def _read(table: PageTable, query: Query, asked: Counted) -> Totals:
    """Return the totals of rows of which SQLite has to read some."""
    names = dict.fromkeys(asked.columns, ColumnType.INTEGER)
    found = read_pages(table, query, names, table.leaves(), asked.where)
    return _totals_of_rows({name: np.asarray(one) for name, one in found.items()}, asked)


def _columns(table: PageTable, block: RowBlock, asked: Counted, told: Columns) -> Columns:
    """Return the columns of the rows that are counted; those that are ``told`` are decoded."""
    rows = BlockRows(block, table.layout)
    if asked.where is not None and len(block):
        kept = np.flatnonzero(asked.where.of(rows))
        if len(kept) < len(block):
            rows = BlockRows(block.only(kept), table.layout)
            told = {name: values[kept] for name, values in told.items()}
    return {name: told[name] if name in told else rows.integers(name) for name in asked.columns}


def _totals_of_rows(columns: Columns, asked: Counted) -> Totals:
    starts = columns[asked.start]
    if not len(starts):
        return Totals(0, 0, 0, 0, {})
    n_open = 0
    first, last = int(starts.min()), int(starts.max())
    if first == NULL:
        raise NotPlainError("rows without a time")
    if asked.end:
        ends = columns[asked.end]
        last = max(last, int(ends.max()))
        if int(ends.min()) == NULL:
            n_open = int((ends == NULL).sum())
    return Totals(len(starts), n_open, first, last, _n_of(columns, asked))


def _n_of(columns: Columns, asked: Counted) -> dict[tuple[int, ...], int]:
    """Return how many rows each owner has."""
    if not asked.number:
        return {}
    numbers = columns[asked.number]
    # Without its lowest bits NULL would be one with other negative numbers.
    bits = asked.number_bits if int(numbers.min()) >= 0 else 0
    devices = columns[asked.device] if asked.device else None
    first, n_rows = _owners(numbers, bits, devices)
    owners = [asked.processes(numbers[first]).tolist()]
    if devices is not None:
        owners.append(devices[first].tolist())
    found: dict[tuple[int, ...], int] = {}
    for *owner, n in zip(*owners, n_rows.tolist(), strict=True):
        found[tuple(owner)] = found.get(tuple(owner), 0) + n
    return found


def _owners(numbers: Numbers, bits: int, devices: Numbers | None) -> tuple[Numbers, Numbers]:
    """Return the first row of each owner, and how many rows each has."""
    found = blocks.owners(numbers, bits, devices) if library.is_there() else None
    if found is not None:
        return found
    codes, first = _distinct(numbers >> bits)
    if devices is not None:
        of_device, _ = _distinct(devices)
        codes, first = _distinct(codes * (int(of_device.max()) + 1) + of_device)
    return first, np.bincount(codes)


def _distinct(values: Numbers) -> tuple[Numbers, Numbers]:
    """Return the code of each value, and where each code stands first."""
    if (values == values[0]).all():
        return np.zeros(len(values), np.int64), np.zeros(1, np.int64)
    codes, uniques = pd.factorize(values)
    first = np.full(len(uniques), len(values))
    np.minimum.at(first, codes, np.arange(len(codes)))
    return codes, first


def _sum(parts: Sequence[Totals]) -> Totals:
    filled = [part for part in parts if part.n_rows]
    n_of: dict[tuple[int, ...], int] = {}
    for part in filled:
        for owner, n_rows in part.n_of.items():
            n_of[owner] = n_of.get(owner, 0) + n_rows
    return Totals(
        sum(part.n_rows for part in filled),
        sum(part.n_open for part in filled),
        min((part.first for part in filled), default=0),
        max((part.last for part in filled), default=0),
        n_of,
    )
