"""A plain table of a SQLite file, and its columns as SQLite itself would give them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from traceprof.cache import scratch
from traceprof.cache.scratch import DiskArray
from traceprof.formats.sqlite import columns as cells
from traceprof.formats.sqlite.conditions import Condition
from traceprof.formats.sqlite.pages import tree
from traceprof.formats.sqlite.pages.blocks import RowBlock, Texts, decoder_of, joined_texts
from traceprof.formats.sqlite.schema import Query, quoted
from traceprof.model.names import PackedTexts
from traceprof.model.packed import Packed
from traceprof.model.table import Column, Names, Opened
from traceprof.processes import made_side_by_side

_BLOCK_BYTES: Final = 2 << 20
_N_THREADS: Final = 2
_PARALLEL_BLOCKS: Final = 3
_MOST_ODD: Final = 1000
_ODD_SHARE: Final = 50
"""Of rows that SQLite has to read there may be so many, and one of so many: else it reads all."""
_AT_ONCE: Final = 500
_LEAST_ROW_BYTES: Final = 6
_MANY_ROWS: Final = 100_000
"""Columns of fewer lie in memory."""
_IN_PLACE: Final = {cells.ColumnType.INTEGER: np.int64, cells.ColumnType.REAL: np.float64}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of rows with row ids; ``identity`` is what its file was when its schema was read."""

    path: Path
    identity: tree.FileIdentity
    layout: tree.Layout

    def leaves(self) -> tree.Leaves:
        """Return the pages of its rows.

        Raises:
            tree.NotPlainError: they cannot be found.
        """
        with tree.open_pages(self.path, self.identity) as file:
            return tree.leaves_of(file, self.layout.root)

    def map(
        self,
        kinds: Mapping[str, cells.ColumnType],
        leaves: tree.Leaves | None,
        made_of: Callable[[RowBlock, int], T],
    ) -> list[T]:
        """Return what ``made_of`` makes of each block of the rows and the number of its first leaf.

        It runs in several threads, and must copy what it keeps of the bytes of a block. ``kinds``
        are the columns that it asks for; without ``leaves`` it is given all rows.

        Raises:
            tree.NotPlainError: not every row can be decoded.
        """
        place = threading.local()  # what a thread keeps from block to block
        with tree.open_pages(self.path, self.identity) as file:
            every = leaves or tree.leaves_of(file, self.layout.root)
            n_leaves = max(_BLOCK_BYTES // file.page_bytes, 1)

            def run(first: int) -> T:
                if not hasattr(place, "decode"):
                    place.decode = decoder_of(file, self.layout, kinds)
                return made_of(place.decode(every.only(slice(first, first + n_leaves))), first)

            starts = range(0, len(every.pages), n_leaves)
            if len(starts) < _PARALLEL_BLOCKS:
                return [run(first) for first in starts]
            return made_side_by_side(run, starts, _N_THREADS)


@dataclass(slots=True)
class _Room:
    """Room for columns of numbers of a table whose row ids count from 1 on, in memory or on disk.

    Parts that are put together later are held twice, in pieces that are not given back. Where row
    ids have gaps, how many rows there are in a leaf is known when it was decoded.
    """

    first_rows: tree.Numbers
    columns: dict[str, npt.NDArray[Any] | DiskArray]
    n_rows: int = 0
    has_gaps: bool = False


def _room_for(
    leaves: tree.Leaves, page_bytes: int, columns: Mapping[str, cells.ColumnType], *, on_disk: bool
) -> _Room | None:
    """Return room for all rows of these leaves; None where their number cannot be foreseen."""
    most = page_bytes // _LEAST_ROW_BYTES
    n_rows = leaves.highs[:-1] - np.append(0, leaves.lows[1:-1])[: len(leaves.pages) - 1]
    if len(n_rows) and (int(n_rows.min()) < 1 or int(n_rows.max()) > most):
        return None
    first_rows = np.cumsum([0, *n_rows.tolist(), most])
    in_place = {name: _IN_PLACE[kind] for name, kind in columns.items() if kind in _IN_PLACE}
    room: dict[str, npt.NDArray[Any] | DiskArray] = {}
    for name, dtype in in_place.items():
        n_rows = int(first_rows[-1])
        aside = scratch.reserved(n_rows, dtype) if on_disk and n_rows >= _MANY_ROWS else None
        room[name] = np.empty(n_rows, dtype) if aside is None else aside
    return _Room(first_rows, room)


@dataclass(slots=True)
class _Part:
    """Columns of some rows, and which of these SQLite has to read."""

    n_rows: int
    odd: tree.Numbers
    odd_ids: tree.Numbers
    columns: dict[str, Any] = field(default_factory=dict)


def read_pages(
    table: PageTable,
    query: Query,
    columns: Mapping[str, cells.ColumnType],
    leaves: tree.Leaves,
    where: Condition | None = None,
) -> Mapping[str, Column]:
    """Return columns of a table as `Database.read_columns` does; ``query`` reads single rows.

    Raises:
        tree.NotPlainError: SQLite itself has to read the table.
    """
    kinds = kinds_to_decode(table.layout, columns, where)
    if not len(leaves.pages):
        return {name: cells.all_null(kind, 0) for name, kind in columns.items()}
    page_bytes = table.identity.page_bytes
    room = None if where else _room_for(leaves, page_bytes, columns, on_disk=True)
    try:
        parts = _parts(table, leaves, kinds, columns, where, room)
    except OSError:  # the disk is full
        room = None if where else _room_for(leaves, page_bytes, columns, on_disk=False)
        parts = _parts(table, leaves, kinds, columns, where, room)
    if room is not None and room.has_gaps:
        room = None
        parts = _parts(table, leaves, kinds, columns, where, room)
    n_rows = np.cumsum([0, *(part.n_rows for part in parts)])
    odd = [part.odd + first for part, first in zip(parts, n_rows[:-1], strict=True)]
    ids = np.concatenate([part.odd_ids for part in parts])
    if len(ids) > max(_MOST_ODD, int(n_rows[-1]) // _ODD_SHARE):
        raise tree.NotPlainError("too many rows that are not plain")
    places, dropped, rows = ids, ids, list[tuple[Any, ...]]()
    if len(ids):
        known, rows = _read_by_sqlite(table.layout, query, columns, where, ids)
        places = np.concatenate(odd)
        places, dropped = places[known], places[~known]
    result: dict[str, Column | DiskArray] = {}
    for place, (name, kind) in enumerate(columns.items()):
        if room is not None and name in room.columns:
            found = [room.columns.pop(name)[: room.n_rows]]
        else:  # the memory of one column at a time is held twice
            found = [part.columns.pop(name) for part in parts]
        result[name] = _patched(kind, found, places, dropped, [row[place] for row in rows])
    here = {name: own for name, own in result.items() if not isinstance(own, DiskArray)}
    return here if len(here) == len(result) else Opened(result)


def _parts(
    table: PageTable,
    leaves: tree.Leaves,
    kinds: Mapping[str, cells.ColumnType],
    columns: Mapping[str, cells.ColumnType],
    where: Condition | None,
    room: _Room | None,
) -> list[_Part]:
    """Return the columns of the rows of each block, but for those for which there is room."""

    def part_of(block: RowBlock, first_leaf: int) -> _Part:
        if where is not None and len(block.ids):
            holds = where.holds(block)
            holds[block.odd] = True
            block = block.only(np.flatnonzero(holds))
        first = int(room.first_rows[first_leaf]) if room is not None else 0
        end, last_leaf = first + len(block.ids), first_leaf + len(block.n_rows)
        if room is not None and last_leaf == len(room.first_rows) - 1:
            room.n_rows = end
        elif room is not None and end != room.first_rows[last_leaf]:
            room.has_gaps = True
            return _Part(0, block.odd, block.odd)
        part = _Part(len(block.ids), block.odd, block.ids[block.odd])
        for name, kind in columns.items():
            values = block.column(name, kind)
            if room is not None and name in room.columns:
                room.columns[name][first:end] = values
            else:
                part.columns[name] = values
        return part

    return table.map(kinds, leaves, part_of)


def kinds_to_decode(
    layout: tree.Layout, columns: Mapping[str, cells.ColumnType], where: Condition | None = None
) -> dict[str, cells.ColumnType]:
    """Return the columns to decode, and how.

    Raises:
        tree.NotPlainError: a column is asked for in two ways, or in one that only SQLite knows.
    """
    kinds = dict(columns)
    for name, kind in (where.kinds if where else {}).items():
        if kinds.setdefault(name, kind) is not kind:
            raise tree.NotPlainError("a column of two types")
    for name, kind in kinds.items():
        is_alias = name == layout.alias and kind is not cells.ColumnType.INTEGER
        if is_alias or name not in layout.places:
            raise tree.NotPlainError("a column that is not stored")
        if kind is cells.ColumnType.INTEGER and name in layout.as_real:
            raise tree.NotPlainError("whole numbers that become reals")
    return kinds


def _patched(
    kind: cells.ColumnType,
    parts: list[Any],
    places: tree.Numbers,
    dropped: tree.Numbers,
    values: list[Any],
) -> Column | DiskArray:
    """Return a column of all rows, whose parts were decoded, with ``values`` at some ``places``.

    Rows at the places ``dropped`` are not wanted after all.
    """
    if kind is cells.ColumnType.TEXT:
        n_rows = sum(len(part.codes) for part in parts)
        every = joined_texts([*parts, Texts(np.arange(len(values)), values)])
        codes = every.codes[:n_rows]
        codes[places] = every.codes[n_rows:]
        codes = np.delete(codes, dropped)
        if not len(codes):
            return cells.all_null(kind, 0)
        is_used = np.bincount(codes, minlength=len(every.distinct)) > 0
        distinct = list(compress(every.distinct, is_used.tolist()))
        used_codes = Packed(np.cumsum(is_used) - 1)[codes]
        if (packed := PackedTexts.of(distinct)) is not None:
            return Names(used_codes, packed)
        return Names.coded(cells.all_decoded(distinct), used_codes, is_sorted=True)
    if isinstance(parts[0], DiskArray):
        own = parts[0].open()
        is_real = kind is cells.ColumnType.REAL
        if (
            not len(places)
            and not len(dropped)
            and not (is_real and (own == cells.NULL_REAL).any())
        ):
            return parts[0]
        parts = [own.copy()]
    whole: npt.NDArray[Any] = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if kind is cells.ColumnType.INTEGER:
        if not all(isinstance(value, int) for value in values):
            raise tree.NotPlainError("something else where whole numbers belong")
        whole[places] = np.array(values, np.int64)
    else:
        whole[places] = np.array(values, np.float64)
        whole[whole == cells.NULL_REAL] = np.nan
    return np.delete(whole, dropped) if len(dropped) else whole


def _read_by_sqlite(
    layout: tree.Layout,
    query: Query,
    columns: Mapping[str, cells.ColumnType],
    where: Condition | None,
    ids: tree.Numbers,
) -> tuple[npt.NDArray[np.bool_], list[tuple[Any, ...]]]:
    """Return which of the rows with these ids are wanted, and what SQLite reads of those."""
    told = [cells.expression(quoted(name), kind) for name, kind in columns.items()]
    select = f"SELECT {', '.join([layout.row_id, *told])} FROM {quoted(layout.table)}"
    condition = f" AND ({where.sql})" if where else ""
    keys: list[int] = ids.tolist()
    found: dict[int, tuple[Any, ...]] = {}
    for first in range(0, len(keys), _AT_ONCE):
        some = ", ".join(map(str, keys[first : first + _AT_ONCE]))
        sql = f"{select} WHERE {layout.row_id} IN ({some}){condition}"
        found |= {int(row[0]): row[1:] for row in query(sql)}
    is_found = np.array([key in found for key in keys], np.bool_)
    if where is None and not is_found.all():
        raise tree.NotPlainError("a row that SQLite does not find")
    return is_found, [found[key] for key in keys if key in found]
