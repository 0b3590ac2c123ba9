"""Where the columns of a table stand in its rows, as the schema tells it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from traceprof.formats.sqlite.pages.file import NotPlainError
from traceprof.formats.sqlite.table_names import quoted
from traceprof.values import dataclass

__all__ = ["Layout", "Query", "layout_of"]

Query: TypeAlias = Callable[..., "list[tuple[Any, ...]]"]
"""Runs SQL with parameters."""

_ROW_IDS: Final = ("rowid", "_rowid_", "oid")
_IS_REAL: Final = re.compile("REAL|FLOA|DOUB")
_IS_OTHER: Final = re.compile("INT|CHAR|CLOB|TEXT|BLOB")


@dataclass(frozen=True, slots=True)
class Layout:
    """A table of rows with row ids: its root page, and where each column stands.

    ``row_id`` is a name that means the row id; ``alias`` the column that is the row id itself,
    ``as_real`` those in which SQLite makes reals of whole numbers, ``n_bytes`` how many bytes the
    type of each column takes in the header of most rows.
    """

    table: str
    root: int
    places: dict[str, int]
    n_bytes: tuple[int, ...]
    as_real: frozenset[str]
    alias: str | None
    row_id: str


def layout_of(query: Query, table: str) -> Layout:
    """Return the layout of ``table``.

    Raises:
        NotPlainError: a view, a virtual table, or one with columns that are computed.
    """
    found = query("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
    columns = query(f"PRAGMA table_xinfo({quoted(table)})")
    if len(found) != 1 or not found[0][0] or not columns:
        raise NotPlainError("not a table with rows")
    if any(hidden for *_, hidden in columns):
        raise NotPlainError("columns that are computed")
    names = {str(column[1]) for column in columns}
    taken = {name.lower() for name in names}
    free = [name for name in _ROW_IDS if name not in taken]
    if not free:
        raise NotPlainError("a column in the place of the row id")
    types = [str(column[2]).upper() for column in columns]
    return Layout(
        table,
        int(found[0][0]),
        {str(column[1]): place for place, column in enumerate(columns)},
        tuple(1 if "INT" in kind or _is_real(kind) else 2 for kind in types),
        frozenset(
            str(column[1]) for column, kind in zip(columns, types, strict=True) if _is_real(kind)
        ),
        _alias(query, table, columns),
        free[0],
    )


def _is_real(declared: str) -> bool:
    return bool(_IS_REAL.search(declared)) and not _IS_OTHER.search(declared)


def _alias(query: Query, table: str, columns: Sequence[tuple[Any, ...]]) -> str | None:
    """Return the column that is the row id: a primary key for which there is no index."""
    keys = [column for column in columns if column[5]]
    if len(keys) != 1 or str(keys[0][2]).upper() != "INTEGER":
        return None
    indexes = query(f"PRAGMA index_list({quoted(table)})")
    return None if any(index[3] == "pk" for index in indexes) else str(keys[0][1])
