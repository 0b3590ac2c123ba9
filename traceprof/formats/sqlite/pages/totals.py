"""What the rows of a table are like as a whole: how many, from when to when, and whose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.compiled import library
from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.conditions import Condition
from traceprof.formats.sqlite.pages import compiled
from traceprof.formats.sqlite.pages.block import Block
from traceprof.formats.sqlite.pages.bounds import Bounds, joined, of_block, remember
from traceprof.formats.sqlite.pages.columns import kinds_to_decode, read_pages
from traceprof.formats.sqlite.pages.file import NotPlainError
from traceprof.formats.sqlite.pages.layout import Query
from traceprof.formats.sqlite.pages.rows import BlockRows
from traceprof.formats.sqlite.pages.table import PageTable
from traceprof.formats.sqlite.soundness import Soundness, UnsoundRowsError
from traceprof.values import dataclass

__all__ = ["Counted", "Totals", "totals_of"]

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

    def of(block: Block, _first: int) -> tuple[list[Totals], Bounds, bool]:
        told = _sound_columns(table, block, sound)
        found = [_totals_of_rows(_columns(table, block, one, told), one) for one in asked]
        return found, of_block(BlockRows(block, table.layout), sought), bool(len(block.odd))

    leaves = table.leaves()
    parts = table.map(kinds, leaves, of)
    remember(table, joined([bounds for _, bounds, _ in parts]))
    if any(has_odd for *_, has_odd in parts):
        if sound is not None:
            names = dict.fromkeys(sound.columns, ColumnType.INTEGER)
            if sound.is_broken(read_pages(table, query, names, leaves)):
                raise UnsoundRowsError(sound.table)
        return [_read(table, query, one) for one in asked]
    return [_sum([found[place] for found, *_ in parts]) for place in range(len(asked))]


def _sound_columns(table: PageTable, block: Block, sound: Soundness | None) -> Columns:
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


def _columns(table: PageTable, block: Block, asked: Counted, told: Columns) -> Columns:
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
    found = compiled.owners(numbers, bits, devices) if library.is_there() else None
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
