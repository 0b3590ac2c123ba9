"""Read columns of a plain table from the pages of a SQLite file, as SQLite returns them."""

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
from traceprof.processes import map_in_threads

_BLOCK_BYTES: Final = 2 << 20
_N_THREADS: Final = 2
_MIN_PARALLEL_BLOCKS: Final = 3
_MAX_ODD_ROWS: Final = 1000
_ROWS_PER_ODD_ROW: Final = 50
"""SQLite may read up to `_MAX_ODD_ROWS` rows, or 1 in this many rows; else it reads all of them."""
_IDS_PER_QUERY: Final = 500
_MIN_ROW_BYTES: Final = 6
_MIN_ROWS_ON_DISK: Final = 100_000
"""Columns with fewer rows are kept in memory."""
_NUMBER_DTYPES: Final = {cells.ColumnType.INTEGER: np.int64, cells.ColumnType.REAL: np.float64}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table with row IDs; ``identity`` is that of its file when its schema was read."""

    path: Path
    identity: tree.FileIdentity
    layout: tree.Layout

    def leaves(self) -> tree.Leaves:
        """Return the leaf pages that contain its rows.

        Raises:
            tree.NotPlainError: the pages cannot be found.
        """
        with tree.open_pages(self.path, self.identity) as file:
            return tree.leaves_of(file, self.layout.root)

    def map(
        self,
        kinds: Mapping[str, cells.ColumnType],
        leaves: tree.Leaves | None,
        made_of: Callable[[RowBlock, int], T],
    ) -> list[T]:
        """Return ``made_of(block, number of its first leaf)`` for each block of rows.

        ``made_of`` runs in several threads, and must copy the bytes of a block that it keeps.
        ``kinds`` are the columns that it needs. Without ``leaves`` it gets all rows.

        Raises:
            tree.NotPlainError: not every row can be decoded.
        """
        thread_state = threading.local()  # each thread keeps its decoder from block to block
        with tree.open_pages(self.path, self.identity) as file:
            all_leaves = leaves or tree.leaves_of(file, self.layout.root)
            n_leaves = max(_BLOCK_BYTES // file.page_bytes, 1)

            def run(first: int) -> T:
                if not hasattr(thread_state, "decode"):
                    thread_state.decode = decoder_of(file, self.layout, kinds)
                return made_of(
                    thread_state.decode(all_leaves.only(slice(first, first + n_leaves))), first
                )

            starts = range(0, len(all_leaves.pages), n_leaves)
            if len(starts) < _MIN_PARALLEL_BLOCKS:
                return [run(first) for first in starts]
            return map_in_threads(run, starts, _N_THREADS)


@dataclass(slots=True)
class _Room:
    """Preallocated number columns of a table whose row IDs count from 1, in memory or on disk.

    Concatenating parts would need the memory twice, in pieces that are not returned to the system.
    If row IDs have gaps, the number of rows in a leaf is unknown until the leaf is decoded.
    """

    first_rows: tree.Numbers
    columns: dict[str, npt.NDArray[Any] | DiskArray]
    n_rows: int = 0
    has_gaps: bool = False


def _room_for(
    leaves: tree.Leaves, page_bytes: int, columns: Mapping[str, cells.ColumnType], *, on_disk: bool
) -> _Room | None:
    """Return arrays for all rows of these leaves; None if their number cannot be predicted."""
    max_rows_per_page = page_bytes // _MIN_ROW_BYTES
    n_rows = leaves.highs[:-1] - np.append(0, leaves.lows[1:-1])[: len(leaves.pages) - 1]
    if len(n_rows) and (int(n_rows.min()) < 1 or int(n_rows.max()) > max_rows_per_page):
        return None
    first_rows = np.cumsum([0, *n_rows.tolist(), max_rows_per_page])
    dtypes = {
        name: _NUMBER_DTYPES[kind] for name, kind in columns.items() if kind in _NUMBER_DTYPES
    }
    arrays: dict[str, npt.NDArray[Any] | DiskArray] = {}
    for name, dtype in dtypes.items():
        n_rows = int(first_rows[-1])
        arrays[name] = array = np.empty(n_rows, dtype)
        if on_disk and n_rows >= _MIN_ROWS_ON_DISK and not scratch.stays_in_memory(array):
            arrays[name] = scratch.reserved(n_rows, dtype) or array
    return _Room(first_rows, arrays)


@dataclass(slots=True)
class _Part:
    """Columns of some rows, and which of these rows SQLite has to read."""

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
        parts = _read_parts(table, leaves, kinds, columns, where, room)
    except OSError:  # the disk is full
        room = None if where else _room_for(leaves, page_bytes, columns, on_disk=False)
        parts = _read_parts(table, leaves, kinds, columns, where, room)
    if room is not None and room.has_gaps:
        room = None
        parts = _read_parts(table, leaves, kinds, columns, where, room)
    n_rows = np.cumsum([0, *(part.n_rows for part in parts)])
    odd = [part.odd + first for part, first in zip(parts, n_rows[:-1], strict=True)]
    ids = np.concatenate([part.odd_ids for part in parts])
    if len(ids) > max(_MAX_ODD_ROWS, int(n_rows[-1]) // _ROWS_PER_ODD_ROW):
        raise tree.NotPlainError("too many rows that are not plain")
    places, dropped, rows = ids, ids, list[tuple[Any, ...]]()
    if len(ids):
        is_kept, rows = _read_by_sqlite(table.layout, query, columns, where, ids)
        places = np.concatenate(odd)
        places, dropped = places[is_kept], places[~is_kept]
    result: dict[str, Column | DiskArray] = {}
    for place, (name, kind) in enumerate(columns.items()):
        if room is not None and name in room.columns:
            parts_of_column = [room.columns.pop(name)[: room.n_rows]]
        else:  # only one column at a time is in memory twice
            parts_of_column = [part.columns.pop(name) for part in parts]
        result[name] = _patched(
            kind, parts_of_column, places, dropped, [row[place] for row in rows]
        )
    in_memory = {
        name: column for name, column in result.items() if not isinstance(column, DiskArray)
    }
    return in_memory if len(in_memory) == len(result) else Opened(result)


def _read_parts(
    table: PageTable,
    leaves: tree.Leaves,
    kinds: Mapping[str, cells.ColumnType],
    columns: Mapping[str, cells.ColumnType],
    where: Condition | None,
    room: _Room | None,
) -> list[_Part]:
    """Return the columns of each block of rows, except columns that are written to ``room``."""

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
        tree.NotPlainError: a column is requested in two ways, or in one that only SQLite supports.
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
    """Return a column of all rows: the decoded ``parts``, with ``values`` at some ``places``.

    Rows at the places ``dropped`` are removed.
    """
    if kind is cells.ColumnType.TEXT:
        n_rows = sum(len(part.codes) for part in parts)
        texts = joined_texts([*parts, Texts(np.arange(len(values)), values)])
        codes = texts.codes[:n_rows]
        codes[places] = texts.codes[n_rows:]
        codes = np.delete(codes, dropped)
        if not len(codes):
            return cells.all_null(kind, 0)
        is_used = np.bincount(codes, minlength=len(texts.distinct)) > 0
        distinct = list(compress(texts.distinct, is_used.tolist()))
        used_codes = Packed(np.cumsum(is_used) - 1)[codes]
        if (packed := PackedTexts.of(distinct)) is not None:
            return Names(used_codes, packed)
        return Names.coded(cells.all_decoded(distinct), used_codes, is_sorted=True)
    if isinstance(parts[0], DiskArray):
        disk_values = parts[0].open()
        is_real = kind is cells.ColumnType.REAL
        if (
            not len(places)
            and not len(dropped)
            and not (is_real and (disk_values == cells.NULL_REAL).any())
        ):
            return parts[0]
        parts = [disk_values.copy()]
    column: npt.NDArray[Any] = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if kind is cells.ColumnType.INTEGER:
        if not all(isinstance(value, int) for value in values):
            raise tree.NotPlainError("something else where whole numbers belong")
        column[places] = np.array(values, np.int64)
    else:
        column[places] = np.array(values, np.float64)
        column[column == cells.NULL_REAL] = np.nan
    return np.delete(column, dropped) if len(dropped) else column


def _read_by_sqlite(
    layout: tree.Layout,
    query: Query,
    columns: Mapping[str, cells.ColumnType],
    where: Condition | None,
    ids: tree.Numbers,
) -> tuple[npt.NDArray[np.bool_], list[tuple[Any, ...]]]:
    """Return which of the rows with these IDs satisfy ``where``, and their values from SQLite."""
    expressions = [cells.expression(quoted(name), kind) for name, kind in columns.items()]
    select = f"SELECT {', '.join([layout.row_id, *expressions])} FROM {quoted(layout.table)}"
    condition = f" AND ({where.sql})" if where else ""
    keys: list[int] = ids.tolist()
    found: dict[int, tuple[Any, ...]] = {}
    for first in range(0, len(keys), _IDS_PER_QUERY):
        listed = ", ".join(map(str, keys[first : first + _IDS_PER_QUERY]))
        sql = f"{select} WHERE {layout.row_id} IN ({listed}){condition}"
        found |= {int(row[0]): row[1:] for row in query(sql)}
    is_found = np.array([key in found for key in keys], np.bool_)
    if where is None and not is_found.all():
        raise tree.NotPlainError("a row that SQLite does not find")
    return is_found, [found[key] for key in keys if key in found]
