"""Read the tables of a rocpd database: each profiled process has its own set, with its own ids."""

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
    """The tables of one process, by their plain names, for example "kernel_dispatch"."""

    def __init__(self, database: Database, suffix: str) -> None:
        self.database = database
        self.suffix = suffix
        self.left_out = Counter[str]()

    def table(self, name: str) -> str:
        """Return the name of a table in the file."""
        return f"{PREFIX}{name}{self.suffix}"

    def columns(self, name: str) -> frozenset[str]:
        """Return the columns of a table; none if the table does not exist."""
        return self.database.columns(self.table(name))

    def numbers(self, name: str, *columns: str) -> Table:
        """Return whole-number columns of a table; `NULL` for missing values."""
        if self.columns(name).isdisjoint(columns):
            return Table(dict.fromkeys(columns, np.empty(0, np.int64)), 0)
        wanted = dict.fromkeys(columns, ColumnType.INTEGER)
        found = self.database.read_columns(self.table(name), wanted, optional=columns)
        return Table({c: np.asarray(values, np.int64) for c, values in found.items()})

    def spans(self, name: str, *columns: str) -> Table:
        """Return the rows of a table with a valid ``start`` and ``end``; count the others."""
        rows = self.numbers(name, "start", "end", *columns)
        starts, ends = rows["start"], rows["end"]
        is_valid = (starts > -_LATEST_NS) & (starts <= ends) & (ends < _LATEST_NS)
        self.left_out[name] += int((~is_valid).sum())
        return rows if is_valid.all() else rows.take(is_valid)

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a small table; None for missing values and columns."""
        present = self.columns(name)
        if not present:
            return []
        selected = [quoted(column) if column in present else "NULL" for column in columns]
        return self.database.rows(f"SELECT {', '.join(selected)} FROM {quoted(self.table(name))}")

    def texts(self, name: str, *columns: str) -> dict[int, str]:
        """Return id → the first value among ``columns`` that is not empty."""
        found = self.rows(name, "id", *columns)
        return {key: str(next((text for text in texts if text), "")) for key, *texts in found}


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
    """Return the value of each key; `ABSENT` for keys that ``ids`` lacks."""
    if not len(ids):
        return np.full(len(keys), ABSENT)
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[order], keys), len(ids) - 1)
    at = order[place]
    return np.where((ids[at] == keys) & (values[at] != NULL), values[at], ABSENT)


def named(keys: npt.NDArray[np.int64], name: Callable[[int], str]) -> Names:
    """Return the name of each key; ``name`` is called once per distinct key."""
    distinct, codes = np.unique(keys, return_inverse=True)
    return Names.coded([name(int(key)) for key in distinct], codes.ravel())
