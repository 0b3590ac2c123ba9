"""What the rows of a table are like as a whole, and in each of its leaves.

How many there are, from when to when, and whose; and between which numbers columns lie in each
leaf. Rows are nearly in the order of time, so that most leaves have no row of a small window;
which, is exact: every row was looked at once. Of files that were read before it is remembered.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from threading import Lock
from typing import Any, Final

import numpy as np

from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.conditions import Bounds, Condition
from traceprof.formats.sqlite.pages.blocks import RowBlock, owners_of
from traceprof.formats.sqlite.pages.columns import PageTable, kinds_to_decode, read_pages
from traceprof.formats.sqlite.pages.tree import Leaves, NotPlainError, Numbers
from traceprof.formats.sqlite.schema import Query, Soundness, UnsoundRowsError
from traceprof.model.table import Table

_MOST_BYTES: Final = 64 << 20
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class _Known(OrderedDict[object, Bounds]):
    """Bounds by table, and the memory of all of them: of a thousand files there are thousands."""

    n_bytes = 0


_known: Final = _Known()
_lock: Final = Lock()


def bounds_of(table: PageTable, leaves: Leaves, columns: Collection[str]) -> Bounds:
    """Return the bounds of columns in each of all ``leaves``, remembered or looked for.

    Raises:
        NotPlainError: SQLite itself has to read the table.
    """
    missing = [name for name in columns if name not in known_bounds(table)]
    if missing:
        kinds = kinds_to_decode(table.layout, dict.fromkeys(missing, ColumnType.INTEGER))
        _keep(table, table.map(kinds, leaves, lambda block, _: _bounds_in(block, missing)))
    return known_bounds(table)


def known_bounds(table: PageTable) -> Bounds:
    """Return the bounds that are remembered of a table of this very file."""
    with _lock:
        return dict(_known.get((table.identity, table.layout.table), {}))


def _bounds_in(block: RowBlock, columns: Collection[str]) -> Bounds:
    """Return the bounds in each leaf of a block with all its rows."""
    found = {}
    n_leaves = len(block.n_rows)
    for name in columns:
        least, most = np.full(n_leaves, _LAST), np.full(n_leaves, _FIRST)
        if len(block.ids):
            values = block.values[name]
            first = np.cumsum(block.n_rows) - block.n_rows
            least, most = np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)
            # What is in rows that were not decoded was not seen.
            leaves = np.searchsorted(first, block.odd, "right") - 1
            least[leaves], most[leaves] = _FIRST, _LAST
        found[name] = least, most
    return found


def _keep(table: PageTable, parts: Sequence[Bounds]) -> None:
    """Remember bounds of leaves; what was kept first is forgotten where it is too much."""
    key = table.identity, table.layout.table
    found = {
        name: (
            np.concatenate([part[name][0] for part in parts]),
            np.concatenate([part[name][1] for part in parts]),
        )
        for name in parts[0]
    }
    with _lock:
        known = _known.get(key, {})
        _known[key] = {**known, **found}
        _known.move_to_end(key)
        new = [pair for name, pair in found.items() if name not in known]
        _known.n_bytes += sum(array.nbytes for pair in new for array in pair)
        while len(_known) > 1 and _known.n_bytes > _MOST_BYTES:
            _, dropped = _known.popitem(last=False)
            _known.n_bytes -= sum(array.nbytes for pair in dropped.values() for array in pair)


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows that are looked at as a whole, by the columns that tell them.

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


Owners = list[tuple[Any, ...]]
"""Whose rows are: process, or process and device, as the file has them."""


@dataclass(frozen=True, slots=True)
class TableExtent:
    """How many rows a table has, how many of them without an end, and the time they cover (ns).

    Without rows it covers nothing: ``start_ns`` and ``end_ns`` are None.
    """

    n_rows: int = 0
    n_open: int = 0
    start_ns: int | None = None
    end_ns: int | None = None

    def __or__(self, other: TableExtent) -> TableExtent:
        """Return the extent of the rows of both."""
        starts = [one for one in (self.start_ns, other.start_ns) if one is not None]
        ends = [one for one in (self.end_ns, other.end_ns) if one is not None]
        return TableExtent(
            self.n_rows + other.n_rows,
            self.n_open + other.n_open,
            min(starts, default=None),
            max(ends, default=None),
        )

    def since(self, zero_ns: int) -> TableExtent:
        """Return it with times that count from ``zero_ns``."""
        if self.start_ns is None or self.end_ns is None:
            return self
        return replace(self, start_ns=self.start_ns - zero_ns, end_ns=self.end_ns - zero_ns)

    @staticmethod
    def of(table: Table) -> TableExtent:
        """Return the extent of a table that was read."""
        if table.empty:
            return TableExtent()
        ends = table["end_ns" if "end_ns" in table else "start_ns"]
        return TableExtent(len(table), 0, int(table["start_ns"][0]), int(ends.max()))


@dataclass(frozen=True, slots=True)
class Scan:
    """What some rows are, and whose; ``n_of`` says how many each owner has, where it is known.

    An owner is (process, device), or a process alone.
    """

    extent: TableExtent
    owners: Owners
    n_of: Mapping[tuple[Any, ...], int] | None = field(default=None, compare=False)


def scans_of(
    table: PageTable, query: Query, asked: Sequence[Counted], sound: Soundness | None = None
) -> list[Scan]:
    """Return what rows of one table are, in one pass over it.

    Raises:
        NotPlainError: SQLite itself has to look.
        UnsoundRowsError: some rows are not ``sound``.
    """
    sought = sorted({name for one in asked for name in one.sought})
    wanted = {*sought, *(sound.columns if sound else ())}
    wanted |= {name for one in asked for name in one.columns}
    kinds = kinds_to_decode(table.layout, dict.fromkeys(sorted(wanted), ColumnType.INTEGER))
    for one in asked:
        kinds |= kinds_to_decode(table.layout, {}, one.where)
    parts = table.map(
        kinds,
        None,
        lambda block, _: (
            _scans_in(block, asked, sound),
            _bounds_in(block, sought),
            block.odd.size,
        ),
    )
    _keep(table, [bounds for _, bounds, _ in parts])
    if any(n_odd for *_, n_odd in parts):
        leaves = table.leaves()
        if sound is not None:
            names = dict.fromkeys(sound.columns, ColumnType.INTEGER)
            if sound.is_broken(read_pages(table, query, names, leaves)):
                raise UnsoundRowsError(sound.table)
        found = []
        for one in asked:
            names = dict.fromkeys(one.columns, ColumnType.INTEGER)
            read = read_pages(table, query, names, leaves, one.where)
            found.append(_scan({name: np.asarray(column) for name, column in read.items()}, one))
        return found
    scans = []
    for place in range(len(asked)):
        some = [found[place] for found, *_ in parts]
        n_of = Counter[tuple[int, ...]]()
        for scan in some:
            n_of.update(scan.n_of or {})
        scans.append(Scan(reduce(or_, (scan.extent for scan in some)), list(n_of), n_of))
    return scans


def _scans_in(block: RowBlock, asked: Sequence[Counted], sound: Soundness | None) -> list[Scan]:
    """Return what the rows of a block are; what SQLite has to read is not looked at."""
    if sound is not None:
        columns = {name: block.values[name] for name in sound.columns}
        if len(block.odd):
            columns = {name: np.delete(values, block.odd) for name, values in columns.items()}
        if sound.is_broken(columns):
            raise UnsoundRowsError(sound.table)
    found = []
    for one in asked:
        columns = {name: block.values[name] for name in one.columns}
        if one.where is not None and len(block.ids):
            holds = one.where.holds(block)
            if not holds.all():
                columns = {name: values[holds] for name, values in columns.items()}
        found.append(_scan(columns, one))
    return found


def _scan(columns: Mapping[str, Numbers], asked: Counted) -> Scan:
    starts = columns[asked.start]
    if not len(starts):
        return Scan(TableExtent(), [], {})
    n_open = 0
    first, last = int(starts.min()), int(starts.max())
    if first == NULL:
        raise NotPlainError("rows without a time")
    if asked.end:
        ends = columns[asked.end]
        last = max(last, int(ends.max()))
        if int(ends.min()) == NULL:
            n_open = int((ends == NULL).sum())
    n_of = Counter[tuple[int, ...]]()
    if asked.number:
        numbers = columns[asked.number]
        # Without its lowest bits NULL would be one with other negative numbers.
        bits = asked.number_bits if int(numbers.min()) >= 0 else 0
        devices = columns[asked.device] if asked.device else None
        places, n_rows = owners_of(numbers, bits, devices)
        owners = [asked.processes(numbers[places]).tolist()]
        owners += [devices[places].tolist()] if devices is not None else []
        for owner, n in zip(zip(*owners, strict=True), n_rows.tolist(), strict=True):
            n_of[owner] += n  # who owns rows may come several times
    return Scan(TableExtent(len(starts), n_open, first, last), list(n_of), n_of)
