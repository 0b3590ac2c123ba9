"""The tables and columns of an open SQLite file, under the names that profilers use.

A table with another name, with names in another case, or with impossible rows is read through a
SELECT: a temporary view for this connection, `Catalogue.source` for others. Impossible rows are
rows without a time or a device, and rows that end before they start. They are excluded from all
sums, and counted. Almost no file has any, so traceprof searches for them in columns that it reads
anyway: the smallest and the largest number usually suffice.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from traceprof.errors import TraceError
from traceprof.formats.sqlite.columns import NULL
from traceprof.formats.sqlite.spare import MistypedColumnError, is_spare

Query: TypeAlias = Callable[..., "list[tuple[Any, ...]]"]
"""Runs SQL with parameters; raises TraceError if SQLite fails."""

_VERSIONED: Final = re.compile(r"(.+)_V([0-9]{1,6})")
_UPPER: Final = (
    *("ANALYSIS_", "CUDA_", "CUPTI_ACTIVITY_KIND_", "DIAGNOSTIC_EVENT", "ENUM_", "EXPORT_META_"),
    *("GPU_METRICS", "META_DATA_", "MPI_", "NET_NIC_METRIC", "NIC_ID_MAP", "NVTX_", "OSRT_API"),
    *("PROCESSES", "PROFILER_OVERHEAD", "TARGET_INFO_", "TRACEPROF_", "UCP_"),
)
"""Prefixes of the table names that profilers write in capitals."""
_MIXED: Final = {
    name.lower(): name for name in ("StringIds", "StringTable", "ThreadNames", "Version")
}
_NAMES_OF_COLUMNS: Final = """
    backend bytes category cbid commHandle contextId copyKind correlationId counterKind
    cudaId demangledName deviceId domain domainId doubleValue dstDeviceId dstId dstKind dtype
    duration end eventType flags floatValue globalId globalPid globalTid gpuId graphId
    graphNodeId groupName groupRank groupSize host id int32Value int64Value jsonText
    jsonTextId localRank memKind memoryKind memoryOperationType metricId metricName
    metricsIdx metricsListId metric name nameId numberOfPageFaults objectId objectKind op
    overheadKind payload payloadKind peer peerRank pid portId processId rank remoteRank
    schemaId sequence shortName size source srcDeviceId srcId srcKind start startTime
    stopTime streamId syncType tag text textId threadId timestamp type typeId uint32Value
    uint64Value utcEpochNs value worldSize
"""
_PLAIN_COLUMNS: Final = {name.lower(): name for name in _NAMES_OF_COLUMNS.split()}
"""Lower-case column name → the name that profilers use."""


def quoted(identifier: str) -> str:
    """Return an identifier quoted for SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def is_of_profiler(name: str) -> bool:
    """Return whether a profiler writes a table of this name, ignoring case."""
    return name.upper().startswith(_UPPER) or name.lower() in _MIXED


def plain_table(name: str) -> str:
    """Return a table name in the spelling of profilers; SQLite ignores case."""
    if name.lower() in _MIXED:
        return _MIXED[name.lower()]
    return name.upper() if name.upper().startswith(_UPPER) else name


def versioned_tables(names: Iterable[str]) -> dict[str, str]:
    """Return plain name → the table of its highest version, if no plain table exists."""
    present = set(names)
    highest: dict[str, tuple[int, str]] = {}
    for name in present:
        found = _VERSIONED.fullmatch(name)
        if found and found.group(1) not in present:
            plain, version = found.group(1), int(found.group(2))
            highest[plain] = max(highest.get(plain, (0, "")), (version, name))
    return {plain: name for plain, (_, name) in highest.items()}


def codec_of(connection: sqlite3.Connection) -> str:
    """Return the Python codec of a database's texts."""
    ((encoding,),) = connection.execute("PRAGMA encoding")
    return {"UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}.get(encoding, "utf-8")


def text_by(function: str, column: str) -> str:
    """Return SQL that applies ``function`` (bytes → bytes) to texts; other values are unchanged."""
    return (
        f"CASE WHEN typeof({column}) = 'text' THEN"
        f" CAST({function}(CAST({column} AS BLOB)) AS TEXT) ELSE {column} END"
    )


def register_text(
    connection: sqlite3.Connection, function: str, shown: Callable[[str], str]
) -> None:
    """Register a SQL ``function`` for `text_by` that applies ``shown`` to each text."""
    codec = codec_of(connection)

    def changed(value: bytes) -> bytes:
        text = value.decode(codec, "surrogateescape")
        after = shown(text)
        return value if after == text else after.encode(codec, "surrogateescape")

    connection.create_function(function, 1, changed, deterministic=True)


LATEST_NS: Final = 1 << 62
"""Limit of valid times: 146 years from 0, so that the difference of two times fits 64 bits."""
MAX_BYTES: Final = 1 << 57
"""Limit of valid sizes: no address space is larger."""

_START_COLUMNS: Final = ("start", "timestamp")
_DAY_NS: Final = 86_400 * 10**9
_DRIVER_PREFIX: Final = "CUPTI_ACTIVITY_KIND_"
_MAY_BE_OPEN: Final = ("NVTX_EVENTS", "MPI_", "UCP_")
_ON_DEVICES: Final = tuple(
    f"CUPTI_ACTIVITY_KIND_{kind}"
    for kind in ("KERNEL", "CONCURRENT_KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMCPY2", "MEMSET")
)
_VALUE_COLUMNS: Final = {
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "bytes",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "numberOfPageFaults",
    "GPU_METRICS": "value",
    "NET_NIC_METRIC": "value",
}
"""Table of samples → the column that contains the sampled value."""


class UnsoundRowsError(Exception):
    """A table has impossible rows and must be read without them."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table


@dataclass(frozen=True, slots=True)
class Soundness:
    """The rule that decides which rows of one table are possible.

    ``end`` is "" for instants. ``needed`` are columns that must not be NULL. ``sizes`` are columns
    that must not be negative or larger than any memory. ``zero_is_lost``: the profiler wrote times
    of 0 for records that it lost. Readers count those records themselves, except instants.
    ``is_since_session``: times count from the start of the recording. A lost record then has two
    times of 0, or a 0 of another clock, which is days before the start. ``columns`` are all columns
    that the rule uses.
    """

    table: str
    start: str
    end: str
    may_be_open: bool
    needed: tuple[str, ...]
    sizes: tuple[str, ...]
    zero_is_lost: bool
    is_since_session: bool
    columns: tuple[str, ...]

    def is_broken(self, columns: Mapping[str, Any]) -> bool:
        """Return whether a row is impossible, judging by the given columns."""
        starts, ends = columns.get(self.start), columns.get(self.end)
        if starts is None or not len(starts):
            return False
        lost: Any = np.bool_(False)
        if self.zero_is_lost and self.end:
            lost = starts <= 0 if ends is None else (starts <= 0) | (ends <= 0)
        if self._has_bad_times(starts, ends, lost):
            return True
        needed = (columns[name] for name in self.needed if name in columns)
        if any(((values == NULL) & ~lost).any() for values in needed):
            return True
        for values in (columns[name] for name in self.sizes if name in columns):
            if int(values.min()) < 0 or int(values.max()) > MAX_BYTES:
                is_bad = ((values < 0) & (values != NULL)) | (values > MAX_BYTES)
                if (is_bad & ~lost).any():
                    return True
        return False

    def _has_bad_times(self, starts: Any, ends: Any, lost: Any) -> bool:
        """Return whether a row that is not ``lost`` has impossible times."""
        is_early = int(starts.min()) <= -LATEST_NS and not (self.zero_is_lost and self.end)
        if is_early or int(starts.max()) >= LATEST_NS:
            return True
        if self.is_since_session and (starts <= -_DAY_NS).any():
            return True
        if ends is None:
            return False
        if int(ends.max()) >= LATEST_NS:
            return True
        if self.is_since_session and ((starts == 0) & (ends == 0)).any():
            return True
        is_before = ends < starts
        if not is_before.any():
            return False
        is_open = self.may_be_open & (ends == NULL)
        return bool((is_before & ~lost & ~is_open).any())

    def faults(self) -> dict[str, str]:
        """Return the possible faults of rows: a description → SQL that is never NULL."""
        start, end = quoted(self.start), quoted(self.end)
        times = [start, end] if self.end else [start]
        lost = " OR ".join(f"coalesce(CAST({time} AS INTEGER), 0) <= 0" for time in times)
        open_end = self.end and self.may_be_open
        required = [time for time in times if not (time == end and open_end)]
        is_missing = " OR ".join(f"{time} IS NULL" for time in required)
        is_out_of_range = " OR ".join(
            f"coalesce({time} <= -{LATEST_NS} OR {time} >= {LATEST_NS}, 0)" for time in times
        )
        found = {"no time": is_missing}
        if self.zero_is_lost:
            found = {} if self.end else {"no time": lost}
        found["time more than 146 years from 0"] = is_out_of_range
        if self.is_since_session:
            found["times lost by the profiler"] = (
                f"coalesce({start} <= -{_DAY_NS} OR {start} = 0 AND {end} = 0, 0)"
            )
        if self.end:
            found["end before start"] = f"coalesce({end} < {start}, 0)"
        for name in self.needed:
            found[f"no {name}"] = f"{quoted(name)} IS NULL"
        for name in self.sizes:
            size = quoted(name)
            found[f"impossible {name}"] = f"coalesce({size} < 0 OR {size} > {MAX_BYTES}, 0)"
        if self.zero_is_lost and self.end:
            found = {words: f"NOT ({lost}) AND ({sql})" for words, sql in found.items()}
        return found

    def sql(self) -> str:
        """Return SQL that is true for the possible rows."""
        return " AND ".join(f"NOT ({fault})" for fault in self.faults().values())

    def sought(self) -> str:
        """Return SQL that is true for rows to inspect: impossible, or without whole numbers."""
        columns = () if self.zero_is_lost else self.columns
        type_checks = [f"typeof({quoted(name)}) NOT IN ('integer', 'null')" for name in columns]
        return " OR ".join([f"NOT ({self.sql()})", *type_checks])


def soundness_of(
    table: str, columns: Collection[str], *, zero_is_lost: bool = False
) -> Soundness | None:
    """Return the rule for the rows of a table; None if its rows have no times."""
    start = next((name for name in _START_COLUMNS if name in columns), "")
    if not start:
        return None
    needed = ["deviceId"] if table in _ON_DEVICES else []
    needed += [_VALUE_COLUMNS[table]] if table in _VALUE_COLUMNS else []
    is_sized = table in _ON_DEVICES or _VALUE_COLUMNS.get(table) == "bytes"
    sizes = ["bytes"] if is_sized or table == "TRACEPROF_COLLECTIVES" else []
    end = "end" if "end" in columns else ""
    needed = [name for name in needed if name in columns]
    sizes = [name for name in sizes if name in columns]
    return Soundness(
        *(table, start, end, table.startswith(_MAY_BE_OPEN), tuple(needed), tuple(sizes)),
        zero_is_lost=zero_is_lost,
        is_since_session=bool(end) and table.startswith(_DRIVER_PREFIX) and not zero_is_lost,
        columns=tuple(filter(None, (start, end, *needed, *sizes))),
    )


_COLUMNS_QUERY: Final = (
    "SELECT tables.name, columns.* FROM sqlite_master AS tables, "
    "pragma_table_xinfo(tables.name) AS columns WHERE tables.type = 'table' AND tables.name IN ({})"
)
_NAMES_PER_QUERY: Final = 500
"""Maximum number of table names in one query: SQLite limits the number of parameters."""
_HIDDEN_COLUMN: Final = 1  # hidden column of a virtual table; 2 and 3 are computed columns


class Catalogue:
    """The tables of one file, their columns, and the rows that are excluded.

    Raises:
        TraceError: a profiler's table is a view, or the file is damaged.
    """

    def __init__(self, path: Path, query: Query) -> None:
        self._path = path
        self._query = query
        found = query(
            "SELECT name, type, rootpage FROM sqlite_master WHERE type IN ('table', 'view')"
        )
        kinds = {name: kind for name, kind, _ in found}
        self._roots = {name: int(root or 0) for name, _, root in found}
        views = sorted(n for n, kind in kinds.items() if kind == "view" and is_of_profiler(n))
        # rocpd files contain views in addition to their tables; traceprof does not read them.
        if views and not any(name.startswith("rocpd_") for name in kinds):
            raise TraceError(
                f"{path}: {views[0]} is a view, expected a table; convert the view to a table "
                "(CREATE TABLE … AS SELECT …), or export the trace again"
            )
        names = [str(name) for name, kind in kinds.items() if kind == "table"]
        self._stored = {plain_table(name): name for name in names}
        self._stored |= {
            plain: self._stored[name] for plain, name in versioned_tables(self._stored).items()
        }
        self.tables = frozenset(self._stored)
        self.left_out: dict[str, dict[str, int]] = {}
        """Table → fault → number of excluded rows; an empty mapping means all rows are possible."""
        self.spared: dict[str, str] = {}
        """Ignored table, or table.column → a sentence that explains why."""
        self.zero_is_lost = False
        self._selects: dict[str, str] = {}
        self._columns: dict[str, frozenset[str]] = {}
        self._described: dict[str, list[tuple[Any, ...]]] = {}

    def show_profiler_names(self) -> None:
        """Make tables and columns of profilers available under the names that readers use."""
        every = [*{name for table, name in self._stored.items() if is_of_profiler(table)}]
        self._described = {name: [] for name in every}
        for first in range(0, len(every), _NAMES_PER_QUERY):
            names = every[first : first + _NAMES_PER_QUERY]
            for name, *row in self._query(
                _COLUMNS_QUERY.format(", ".join("?" * len(names))), names
            ):
                self._described[name].append(tuple(row))
        for table, name in self._stored.items():
            rows, is_known = f"main.{quoted(name)}", is_of_profiler(table)
            found = self._columns_of(name) if is_known else []
            plain = [_PLAIN_COLUMNS.get(column.lower(), column) for column in found]
            if is_known:
                self._columns[table] = frozenset(plain)
            if plain != found:
                pairs = zip(found, plain, strict=True)
                aliases = ", ".join(
                    f"{quoted(stored)} AS {quoted(shown)}" for stored, shown in pairs
                )
                self._show(table, f"SELECT {aliases} FROM {rows}")
            elif table not in self._stored.values() and table.lower() != name.lower():
                self._query(f"CREATE TEMP VIEW {quoted(table)} AS SELECT * FROM {rows}")

    def _columns_of(self, name: str) -> list[str]:
        """Return the names of a stored table's columns."""
        return [str(row[1]) for row in self.described(name)[1] if row[6] != _HIDDEN_COLUMN]

    def described(self, name: str) -> tuple[int, list[tuple[Any, ...]]]:
        """Return the root page of a stored table (0 without one) and its rows of `table_xinfo`."""
        if name not in self._described:
            self._described[name] = self._query(f"PRAGMA table_xinfo({quoted(name)})")
        return self._roots.get(name, 0), self._described[name]

    def columns(self, table: str) -> frozenset[str]:
        """Return the column names of ``table``; empty if the table does not exist."""
        if table not in self._columns:
            found = self._columns_of(self._stored[table]) if table in self.tables else []
            self._columns[table] = frozenset(found)
        return self._columns[table]

    def stored(self, table: str) -> str | None:
        """Return the name of the stored table; None if a SELECT returns the rows."""
        return None if table in self._selects else self._stored.get(table, table)

    def source(self, table: str) -> str:
        """Return the SQL to put after FROM for ``table``, valid in any connection to the file."""
        select = self._selects.get(table)
        return f"({select})" if select else f"main.{quoted(self._stored.get(table, table))}"

    def soundness(self, table: str) -> Soundness | None:
        """Return the rule for the rows of ``table``; None if they need no check any more."""
        if table not in self.tables or table in self.left_out or not is_of_profiler(table):
            return None
        return soundness_of(table, self.columns(table), zero_is_lost=self.zero_is_lost)

    def is_sound(self, table: str) -> None:
        """Record that all rows of ``table`` are possible."""
        self.left_out.setdefault(table, {})

    def leave_out(self, table: str) -> None:
        """Exclude the impossible rows of ``table`` from now on, and count them.

        Raises:
            TraceError: a column that the rule uses does not contain whole numbers.
        """
        sound = self.soundness(table)
        self.left_out[table] = {}
        if sound is None:
            return
        self._check_types(table, sound)
        counts, before = [], "1"
        for sql in sound.faults().values():
            counts.append(f"total({before} AND ({sql}))")
            before += f" AND NOT ({sql})"
        (found,) = self._query(f"SELECT {', '.join(counts)} FROM {self.source(table)}")
        if any(found):
            faults = zip(sound.faults(), map(int, found), strict=True)
            self.left_out[table] = {words: n for words, n in faults if n}
            self._show(table, f"SELECT * FROM {self.source(table)} WHERE {sound.sql()}")

    def spare(self, table: str, column: str) -> None:
        """Ignore a column, or its table, as if the file did not contain it."""
        why = f"column {table}.{column} contains non-integer values"
        if is_spare(table):
            self.tables -= {table}
            self._columns[table] = frozenset()
            self.spared[table] = f"traceprof ignored table {table}: {why}"
        else:
            self._columns[table] = self.columns(table) - {column}
            self.spared[f"{table}.{column}"] = f"traceprof ignored a column: {why}"

    def _check_types(self, table: str, sound: Soundness) -> None:
        """Check that the rule's columns contain numbers: in SQL a text exceeds any number."""
        if sound.zero_is_lost:  # values that are not numbers are read as 0
            return
        for column in sound.columns:
            rows = self._query(
                f"SELECT typeof({quoted(column)}) FROM {self.source(table)} "
                f"WHERE typeof({quoted(column)}) NOT IN ('integer', 'null') LIMIT 1"
            )
            if rows:
                raise MistypedColumnError(self._path, table, column, rows[0][0])

    def _show(self, table: str, select: str) -> None:
        """Replace ``table`` by the rows of ``select`` for all later queries."""
        self._query(f"DROP VIEW IF EXISTS temp.{quoted(table)}")
        self._query(f"CREATE TEMP VIEW {quoted(table)} AS {select}")
        self._selects[table] = select

    def warnings(self) -> list[str]:
        """Return a sentence about each table with excluded rows."""
        sentences = []
        for table, faults in self.left_out.items():
            if faults:
                n_rows = sum(faults.values())
                rows = f"1 row of {table} is" if n_rows == 1 else f"{n_rows} rows of {table} are"
                reasons = ", ".join(f"{words}: {n}" for words, n in faults.items())
                sentences.append(f"{rows} damaged and ignored by traceprof ({reasons})")
        return sentences
