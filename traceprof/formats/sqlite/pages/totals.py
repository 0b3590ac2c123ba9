"""Totals of a table, and bounds of its columns in each leaf page.

Totals are the number of rows, their time span, and their owners. Bounds are the smallest and the
largest number of a column in a leaf. Rows are almost in the order of time, so most leaves have no
row of a small window. The bounds are exact, because every row was read once. They are cached for
files that were read before.
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

_MAX_CACHE_BYTES: Final = 64 << 20
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class _BoundsCache(OrderedDict[object, Bounds]):
    """Bounds by table, and their memory in bytes: a thousand files have thousands of tables."""

    n_bytes = 0


_cache: Final = _BoundsCache()
_lock: Final = Lock()


def bounds_of(table: PageTable, leaves: Leaves, columns: Collection[str]) -> Bounds:
    """Return the bounds of columns in each of all ``leaves``, cached or measured.

    Raises:
        NotPlainError: SQLite itself has to read the table.
    """
    missing = [name for name in columns if name not in known_bounds(table)]
    if missing:
        kinds = kinds_to_decode(table.layout, dict.fromkeys(missing, ColumnType.INTEGER))
        _remember(table, table.map(kinds, leaves, lambda block, _: _bounds_in(block, missing)))
    return known_bounds(table)


def known_bounds(table: PageTable) -> Bounds:
    """Return the cached bounds of a table of this unchanged file."""
    with _lock:
        return dict(_cache.get((table.identity, table.layout.table), {}))


def _bounds_in(block: RowBlock, columns: Collection[str]) -> Bounds:
    """Return the bounds in each leaf of a block that contains all rows of its leaves."""
    found = {}
    n_leaves = len(block.n_rows)
    for name in columns:
        least, most = np.full(n_leaves, _LAST), np.full(n_leaves, _FIRST)
        if len(block.ids):
            values = block.values[name]
            first = np.cumsum(block.n_rows) - block.n_rows
            least, most = np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)
            # The values of rows that were not decoded are unknown.
            leaves = np.searchsorted(first, block.odd, "right") - 1
            least[leaves], most[leaves] = _FIRST, _LAST
        found[name] = least, most
    return found


def _remember(table: PageTable, parts: Sequence[Bounds]) -> None:
    """Cache bounds of leaves; evict the oldest entries if the cache is too large."""
    key = table.identity, table.layout.table
    found = {
        name: (
            np.concatenate([part[name][0] for part in parts]),
            np.concatenate([part[name][1] for part in parts]),
        )
        for name in parts[0]
    }
    with _lock:
        known = _cache.get(key, {})
        _cache[key] = {**known, **found}
        _cache.move_to_end(key)
        new = [pair for name, pair in found.items() if name not in known]
        _cache.n_bytes += sum(array.nbytes for pair in new for array in pair)
        while len(_cache) > 1 and _cache.n_bytes > _MAX_CACHE_BYTES:
            _, dropped = _cache.popitem(last=False)
            _cache.n_bytes -= sum(array.nbytes for pair in dropped.values() for array in pair)


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows to measure as a whole, described by their columns.

    Without ``end`` they are instants. Without ``number`` they have no owner, without ``device`` no
    device. ``processes`` converts ``number`` to processes; it returns the same process for numbers
    that differ only in the lowest ``number_bits``. ``sought`` are columns whose bounds are cached,
    to find rows later.
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
        """The names of the columns to read."""
        return [name for name in (self.start, self.end, self.number, self.device) if name]


Owners = list[tuple[Any, ...]]
"""Owners of rows: process, or process and device, with the numbers of the file."""


@dataclass(frozen=True, slots=True)
class TableExtent:
    """Number of rows of a table, number of rows without an end, and the time that they cover (ns).

    ``start_ns`` and ``end_ns`` are None if there are no rows.
    """

    n_rows: int = 0
    n_open: int = 0
    start_ns: int | None = None
    end_ns: int | None = None

    def __or__(self, other: TableExtent) -> TableExtent:
        """Return the extent of the rows of both."""
        starts = [time_ns for time_ns in (self.start_ns, other.start_ns) if time_ns is not None]
        ends = [time_ns for time_ns in (self.end_ns, other.end_ns) if time_ns is not None]
        return TableExtent(
            self.n_rows + other.n_rows,
            self.n_open + other.n_open,
            min(starts, default=None),
            max(ends, default=None),
        )

    def since(self, zero_ns: int) -> TableExtent:
        """Return the extent with times relative to ``zero_ns``."""
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
    """The extent of some rows, and their owners; ``n_of`` counts rows by owner, if known.

    An owner is (process, device), or (process,).
    """

    extent: TableExtent
    owners: Owners
    n_of: Mapping[tuple[Any, ...], int] | None = field(default=None, compare=False)


def scans_of(
    table: PageTable, query: Query, requests: Sequence[Counted], sound: Soundness | None = None
) -> list[Scan]:
    """Return the scan of each of ``requests``, in one pass over the table.

    Raises:
        NotPlainError: SQLite itself has to read the table.
        UnsoundRowsError: some rows violate the rule ``sound``.
    """
    bounded = sorted({name for counted in requests for name in counted.sought})
    names_to_read = {*bounded, *(sound.columns if sound else ())}
    names_to_read |= {name for counted in requests for name in counted.columns}
    kinds = kinds_to_decode(table.layout, dict.fromkeys(sorted(names_to_read), ColumnType.INTEGER))
    for counted in requests:
        kinds |= kinds_to_decode(table.layout, {}, counted.where)
    parts = table.map(
        kinds,
        None,
        lambda block, _: (
            _scans_in(block, requests, sound),
            _bounds_in(block, bounded),
            block.odd.size,
        ),
    )
    _remember(table, [bounds for _, bounds, _ in parts])
    if any(n_odd for *_, n_odd in parts):
        leaves = table.leaves()
        if sound is not None:
            names = dict.fromkeys(sound.columns, ColumnType.INTEGER)
            if sound.is_broken(read_pages(table, query, names, leaves)):
                raise UnsoundRowsError(sound.table)
        found = []
        for counted in requests:
            names = dict.fromkeys(counted.columns, ColumnType.INTEGER)
            read = read_pages(table, query, names, leaves, counted.where)
            found.append(
                _scan({name: np.asarray(column) for name, column in read.items()}, counted)
            )
        return found
    scans = []
    for place in range(len(requests)):
        parts_of_scan = [found[place] for found, *_ in parts]
        n_of = Counter[tuple[int, ...]]()
        for scan in parts_of_scan:
            n_of.update(scan.n_of or {})
        scans.append(Scan(reduce(or_, (scan.extent for scan in parts_of_scan)), list(n_of), n_of))
    return scans


def _scans_in(block: RowBlock, requests: Sequence[Counted], sound: Soundness | None) -> list[Scan]:
    """Return the scans of the rows of a block, without the rows that SQLite has to read."""
    if sound is not None:
        columns = {name: block.values[name] for name in sound.columns}
        if len(block.odd):
            columns = {name: np.delete(values, block.odd) for name, values in columns.items()}
        if sound.is_broken(columns):
            raise UnsoundRowsError(sound.table)
    found = []
    for counted in requests:
        columns = {name: block.values[name] for name in counted.columns}
        if counted.where is not None and len(block.ids):
            holds = counted.where.holds(block)
            if not holds.all():
                columns = {name: values[holds] for name, values in columns.items()}
        found.append(_scan(columns, counted))
    return found


def _scan(columns: Mapping[str, Numbers], counted: Counted) -> Scan:
    """Return the scan of rows with these columns."""
    starts = columns[counted.start]
    if not len(starts):
        return Scan(TableExtent(), [], {})
    n_open = 0
    first, last = int(starts.min()), int(starts.max())
    if first == NULL:
        raise NotPlainError("rows without a time")
    if counted.end:
        ends = columns[counted.end]
        last = max(last, int(ends.max()))
        if int(ends.min()) == NULL:
            n_open = int((ends == NULL).sum())
    n_of = Counter[tuple[int, ...]]()
    if counted.number:
        numbers = columns[counted.number]
        # Without its lowest bits NULL would equal other negative numbers.
        bits = counted.number_bits if int(numbers.min()) >= 0 else 0
        devices = columns[counted.device] if counted.device else None
        places, n_rows = owners_of(numbers, bits, devices)
        owners = [counted.processes(numbers[places]).tolist()]
        owners += [devices[places].tolist()] if devices is not None else []
        for owner, n in zip(zip(*owners, strict=True), n_rows.tolist(), strict=True):
            n_of[owner] += n  # different numbers may belong to the same process
    return Scan(TableExtent(len(starts), n_open, first, last), list(n_of), n_of)
