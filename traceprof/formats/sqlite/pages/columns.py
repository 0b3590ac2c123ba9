"""A plain table of a SQLite file, and its columns as SQLite itself would give them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from traceprof.formats.compiled import library
from traceprof.formats.sqlite.columns import (
    NULL_REAL,
    Column,
    ColumnType,
    all_decoded,
    all_null,
    categorical,
    expression,
)
from traceprof.formats.sqlite.conditions import Condition
from traceprof.formats.sqlite.pages import blocks, vectors
from traceprof.formats.sqlite.pages.blocks import BlockRows, Decode, RowBlock, Texts, joined_texts
from traceprof.formats.sqlite.pages.tree import (
    Identity,
    Layout,
    Leaves,
    NotPlainError,
    PageFile,
    Query,
    leaves_of,
    page_bytes_of,
)
from traceprof.formats.sqlite.schema import quoted

_LEAST_ROW_BYTES: Final = 6
_TYPES: Final = {ColumnType.INTEGER: np.int64, ColumnType.REAL: np.float64}


class GapsError(Exception):
    """Row ids have gaps: how many rows there are in a leaf is known when it was decoded."""


class Room:
    """Memory for columns of numbers of a table whose row ids count from 1 on.

    Parts that are put together later are held twice, in pieces that are not given back.
    """

    def __init__(self, first_rows: npt.NDArray[np.int64], columns: Mapping[str, ColumnType]):
        self._first_rows = first_rows
        self._n_rows = 0
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: np.empty(int(first_rows[-1]), _TYPES[kind])
            for name, kind in columns.items()
            if kind in _TYPES
        }

    def holds(self, name: str) -> bool:
        """Return whether there is memory for this column."""
        return name in self._columns

    def rows_of(self, block: RowBlock, first_leaf: int) -> slice:
        """Return where the rows of a block belong.

        Raises:
            GapsError: they are fewer than there is place for before the next.
        """
        last_leaf = first_leaf + len(block.n_rows)
        first = int(self._first_rows[first_leaf])
        is_last = last_leaf == len(self._first_rows) - 1
        if is_last:
            self._n_rows = first + len(block)
        elif first + len(block) != self._first_rows[last_leaf]:
            raise GapsError
        return slice(first, first + len(block))

    def put(self, name: str, rows: slice, values: npt.NDArray[Any]) -> None:
        """Put a part of a column at its place."""
        self._columns[name][rows] = values

    def take(self, name: str) -> npt.NDArray[Any]:
        """Return a column of which every part was put."""
        return self._columns.pop(name)[: self._n_rows]


def room_for(leaves: Leaves, page_bytes: int, columns: Mapping[str, ColumnType]) -> Room | None:
    """Return memory for all rows of these leaves; None where their number cannot be foreseen."""
    most = page_bytes // _LEAST_ROW_BYTES
    if len(leaves) == 1:
        return Room(np.array([0, most]), columns)
    n_rows = leaves.highs[:-1] - np.append(0, leaves.lows[1:-1])
    if int(n_rows.min()) < 1 or int(n_rows.max()) > most:
        return None
    return Room(np.cumsum([0, *n_rows.tolist(), most]), columns)


_BLOCK_BYTES: Final = 2 << 20
_N_THREADS: Final = 2
_PARALLEL_BLOCKS: Final = 3

T = TypeVar("T")


class _Workplace(threading.local):
    """What a thread keeps from block to block."""

    decode: Decode | None = None


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of rows with row ids.

    Args:
        path: its file.
        identity: what the file was when its schema was read.
        layout: where its columns are.
    """

    path: Path
    identity: Identity
    layout: Layout

    @property
    def page_bytes(self) -> int:
        """How many bytes a page has.

        Raises:
            NotPlainError: the file is unusual.
        """
        return page_bytes_of(self.identity)

    def leaves(self) -> Leaves:
        """Return the pages of its rows.

        Raises:
            NotPlainError: they cannot be found.
        """
        with PageFile(self.path, self.identity) as file:
            found = leaves_of(file, self.layout.root)
            file.check_unchanged()
        return found

    def map(
        self, kinds: Mapping[str, ColumnType], leaves: Leaves, made_of: Callable[[RowBlock, int], T]
    ) -> list[T]:
        """Return what ``made_of`` makes of each block of the rows and the number of its first leaf.

        It runs in several threads, and must copy what it keeps of the bytes of a block.

        Args:
            kinds: the columns that are asked for in blocks.
            leaves: the pages with the rows.
            made_of: makes something of the rows of some of these leaves.

        Raises:
            NotPlainError: not every row can be decoded.
        """
        place = _Workplace()
        with PageFile(self.path, self.identity) as file:
            n_leaves = max(_BLOCK_BYTES // file.page_bytes, 1)
            decoder_of = blocks.decoder_of if library.is_there() else vectors.decoder_of

            def run(first: int) -> T:
                if place.decode is None:
                    place.decode = decoder_of(file, self.layout, kinds)
                return made_of(place.decode(leaves.part(first, n_leaves)), first)

            starts = range(0, len(leaves), n_leaves)
            if len(starts) < _PARALLEL_BLOCKS:
                made = [run(first) for first in starts]
            else:
                with ThreadPoolExecutor(_N_THREADS) as pool:
                    made = list(pool.map(run, starts))
            file.check_unchanged()
        return made


_MOST_ODD: Final = 1000
_ODD_SHARE: Final = 50
"""Of rows that SQLite has to read there may be so many, and one of so many: else it reads all."""
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class _Part:
    """Columns of some rows, and which of these SQLite has to read."""

    columns: list[Any]
    n_rows: int
    odd: npt.NDArray[np.int64]
    odd_ids: npt.NDArray[np.int64]


def read_pages(
    table: PageTable,
    query: Query,
    columns: Mapping[str, ColumnType],
    leaves: Leaves,
    where: Condition | None = None,
) -> dict[str, Column]:
    """Return columns of a table as `Database.read_columns` does.

    Args:
        table: which.
        query: runs SQL, for single rows.
        columns: name → how to read it.
        leaves: where the rows are.
        where: which rows are wanted.

    Raises:
        NotPlainError: SQLite itself has to read the table.
    """
    kinds = kinds_to_decode(table.layout, columns, where)
    room = None if where else room_for(leaves, table.page_bytes, columns)
    try:
        parts = _parts(table, leaves, kinds, columns, where, room)
    except GapsError:
        room = None
        parts = _parts(table, leaves, kinds, columns, where, room)
    patch = _Patch(table.layout, query, columns, where, parts)
    result: dict[str, Column] = {}
    for place, (name, kind) in enumerate(columns.items()):
        found = [part.columns[place] for part in parts]
        if room is not None and room.holds(name):
            found = [room.take(name)]
        result[name] = patch.applied(kind, place, found)
        for part in parts:
            part.columns[place] = None  # the memory of one column at a time is held twice
    return result


def _parts(
    table: PageTable,
    leaves: Leaves,
    kinds: Mapping[str, ColumnType],
    columns: Mapping[str, ColumnType],
    where: Condition | None,
    room: Room | None,
) -> list[_Part]:
    """Return the columns of the rows of each block, but for those for which there is room."""

    def part_of(block: RowBlock, first_leaf: int) -> _Part:
        if len(block.odd):
            block.check_row_ids()
        if where is not None and len(block):
            holds = where.of(BlockRows(block, table.layout))
            holds[block.odd] = True
            block = block.only(np.flatnonzero(holds))
        odd = block.odd
        rows = BlockRows(block, table.layout)
        place = room.rows_of(block, first_leaf) if room is not None else slice(0)
        found: list[Any] = []
        for name, kind in columns.items():
            values = _decoded(rows, name, kind)
            if room is not None and room.holds(name):
                room.put(name, place, values)
                values = None
            found.append(values)
        return _Part(found, len(block), odd, block.only(odd).row_ids())

    return table.map(kinds, leaves, part_of)


def kinds_to_decode(
    layout: Layout, columns: Mapping[str, ColumnType], where: Condition | None = None
) -> dict[str, ColumnType]:
    """Return the columns to decode, and how.

    Raises:
        NotPlainError: a column is asked for in two ways, or in one that only SQLite knows.
    """
    kinds = dict(columns)
    for name, kind in (where.kinds() if where else {}).items():
        if kinds.setdefault(name, kind) is not kind:
            raise NotPlainError("a column of two types")
    for name, kind in kinds.items():
        is_alias = name == layout.alias and kind is not ColumnType.INTEGER
        if is_alias or name not in layout.places:
            raise NotPlainError("a column that is not stored")
        if kind is ColumnType.INTEGER and name in layout.as_real:
            raise NotPlainError("whole numbers that become reals")
    return kinds


def _decoded(rows: BlockRows, name: str, kind: ColumnType) -> Any:
    match kind:
        case ColumnType.INTEGER:
            return rows.integers(name)
        case ColumnType.REAL:
            return rows.reals(name)
        case ColumnType.TEXT:
            return rows.texts(name)


class _Patch:
    """What SQLite reads of the rows that could not be decoded, put in their places."""

    def __init__(
        self,
        layout: Layout,
        query: Query,
        columns: Mapping[str, ColumnType],
        where: Condition | None,
        parts: list[_Part],
    ) -> None:
        n_rows = np.cumsum([0, *(part.n_rows for part in parts)])
        nothing = [np.zeros(0, np.int64)]
        places = np.concatenate(
            nothing + [part.odd + first for part, first in zip(parts, n_rows[:-1], strict=True)]
        )
        ids = np.concatenate(nothing + [part.odd_ids for part in parts])
        if len(ids) > max(_MOST_ODD, int(n_rows[-1]) // _ODD_SHARE):
            raise NotPlainError("too many rows that are not plain")
        found = _rows(layout, query, columns, where, ids)
        is_found = np.array([key in found for key in ids.tolist()], np.bool_)
        if where is None and not is_found.all():
            raise NotPlainError("a row that SQLite does not find")
        self._places = places[is_found]
        self._dropped = places[~is_found]
        self._rows = [found[key] for key in ids[is_found].tolist()]

    def applied(self, kind: ColumnType, place: int, parts: list[Any]) -> Column:
        """Return a column of all rows, whose parts were decoded."""
        values = [row[place] for row in self._rows]
        if kind is ColumnType.TEXT:
            return self._texts(parts, values)
        if not parts:
            return all_null(kind, 0)
        whole: npt.NDArray[Any] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if kind is ColumnType.INTEGER:
            if not all(isinstance(value, int) for value in values):
                raise NotPlainError("something else where whole numbers belong")
            whole[self._places] = np.array(values, np.int64)
        else:
            whole[self._places] = np.array(values, np.float64)
            whole[whole == NULL_REAL] = np.nan
        return np.delete(whole, self._dropped) if len(self._dropped) else whole

    def _texts(self, parts: list[Texts], values: list[bytes]) -> Column:
        n_rows = sum(len(part.codes) for part in parts)
        if not n_rows:
            return all_null(ColumnType.TEXT, 0)
        odd = Texts(np.arange(len(values)), values)
        all_texts = joined_texts([*parts, odd])
        codes = all_texts.codes[:n_rows]
        codes[self._places] = all_texts.codes[n_rows:]
        codes = np.delete(codes, self._dropped)
        if not len(codes):
            return all_null(ColumnType.TEXT, 0)
        is_used = np.bincount(codes, minlength=len(all_texts.distinct)) > 0
        distinct = [
            text for text, used in zip(all_texts.distinct, is_used.tolist(), strict=True) if used
        ]
        return categorical((np.cumsum(is_used) - 1)[codes], all_decoded(distinct))


def _rows(
    layout: Layout,
    query: Query,
    columns: Mapping[str, ColumnType],
    where: Condition | None,
    ids: npt.NDArray[np.int64],
) -> dict[int, tuple[Any, ...]]:
    """Return row id → its columns, of those of these rows that are wanted."""
    told = ", ".join(expression(quoted(name), kind) for name, kind in columns.items())
    condition = f" AND ({where.sql()})" if where else ""
    found: dict[int, tuple[Any, ...]] = {}
    for first in range(0, len(ids), _AT_ONCE):
        some = ids[first : first + _AT_ONCE].tolist()
        sql = (
            f"SELECT {layout.row_id}{', ' if told else ''}{told} FROM {quoted(layout.table)} "
            f"WHERE {layout.row_id} IN ({', '.join(map(str, some))}){condition}"
        )
        found |= {int(row[0]): row[1:] for row in query(sql)}
    return found
