"""The tables of a rocpd database: a set for each process that was profiled, with its own ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.rocpd.format import PREFIX
from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.schema import quoted
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT

_LATEST_NS: Final = 1 << 62
_PROCESSES: Final = f"{PREFIX}info_process"


class ProfiledProcess:
    """The tables of one process, by their plain names: "kernel_dispatch" and the like."""

    def __init__(self, database: Database, suffix: str) -> None:
        self.database = database
        self.suffix = suffix
        self.left_out = Counter[str]()

    def table(self, name: str) -> str:
        """Return what a table is called in the file."""
        return f"{PREFIX}{name}{self.suffix}"

    def columns(self, name: str) -> frozenset[str]:
        """Return the columns of a table; none of one that is not there."""
        return self.database.columns(self.table(name))

    def numbers(self, name: str, *columns: str) -> Table:
        """Return columns of whole numbers of a table; `NULL` where one is not told."""
        present = self.columns(name)
        if not present:
            return Table(dict.fromkeys(columns, np.empty(0, np.int64)), 0)
        wanted = dict.fromkeys(columns, ColumnType.INTEGER)
        told = [column for column in columns if column in present]
        if not told:
            return Table({c: np.full(0, NULL, np.int64) for c in columns}, 0)
        found = self.database.read_columns(self.table(name), wanted, optional=columns)
        return Table({c: np.asarray(values, np.int64) for c, values in found.items()})

    def spans(self, name: str, *columns: str) -> Table:
        """Return the rows of a table that can be, with ``start`` and ``end``."""
        rows = self.numbers(name, "start", "end", *columns)
        starts, ends = rows["start"], rows["end"]
        can_be = (starts > -_LATEST_NS) & (starts <= ends) & (ends < _LATEST_NS)
        self.left_out[name] += int((~can_be).sum())
        return rows if can_be.all() else rows.take(can_be)

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a small table, None where one is not told or not there."""
        present = self.columns(name)
        if not present:
            return []
        told = [quoted(column) if column in present else "NULL" for column in columns]
        return self.database.rows(f"SELECT {', '.join(told)} FROM {quoted(self.table(name))}")

    def texts(self, name: str, *columns: str) -> dict[int, str]:
        """Return id → the first of ``columns`` that a row of a table tells."""
        found = self.rows(name, "id", *columns)
        return {key: str(next((one for one in own if one), "")) for key, *own in found}


def profiled_processes(database: Database) -> list[ProfiledProcess]:
    """Return the processes whose tables are in the file."""
    suffixes = [
        name.removeprefix(_PROCESSES)
        for name in sorted(database.tables)
        if name.startswith(_PROCESSES)
    ]
    return [ProfiledProcess(database, suffix) for suffix in suffixes]


def is_id(value: object) -> bool:
    """Return whether a value can be an id: a whole number of 64 bits."""
    return isinstance(value, int) and -(1 << 63) <= value < 1 << 63


def looked_up(
    keys: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], values: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the value of each key; `ABSENT` of one that is not among ``ids``."""
    if not len(ids):
        return np.full(len(keys), ABSENT)
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[order], keys), len(ids) - 1)
    at = order[place]
    return np.where((ids[at] == keys) & (values[at] != NULL), values[at], ABSENT)


def named(keys: npt.NDArray[np.int64], name: Callable[[int], str]) -> Names:
    """Return what ``name`` calls each key; each distinct one is asked for once."""
    distinct, codes = np.unique(keys, return_inverse=True)
    return Names.coded([name(int(key)) for key in distinct], codes.ravel())
