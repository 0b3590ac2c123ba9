"""What is in an open SQLite file: its tables by the names that profilers give them.

What stands under another name, in another case, or with rows that cannot be is read through a
SELECT of its own: temporary views show it to this connection, `Catalogue.source` to others. Rows
that cannot be (without a time, or on no device; those that end before they start) are left out of
every sum, and counted. Nearly no file has any, so that they are looked for in columns that are read
anyway: a smallest and a greatest number tell most.
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
"""Runs SQL with parameters; raises TraceError where SQLite cannot."""

_VERSIONED: Final = re.compile(r"(.+)_V([0-9]{1,6})")
_UPPER: Final = (
    *("ANALYSIS_", "CUDA_", "CUPTI_ACTIVITY_KIND_", "DIAGNOSTIC_EVENT", "ENUM_", "EXPORT_META_"),
    *("GPU_METRICS", "META_DATA_", "MPI_", "NET_NIC_METRIC", "NIC_ID_MAP", "NVTX_", "OSRT_API"),
    *("PROCESSES", "PROFILER_OVERHEAD", "TARGET_INFO_", "TRACEPROF_", "UCP_"),
)
"""How names of tables begin that profilers write in capitals."""
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
"""Lower-case name of a column → the name that profilers write."""


def quoted(identifier: str) -> str:
    """Return a name as SQL takes it, whatever is in it."""
    return '"' + identifier.replace('"', '""') + '"'


def is_of_profiler(name: str) -> bool:
    """Return whether a table of this name, in whatever case, is one that a profiler writes."""
    return name.upper().startswith(_UPPER) or name.lower() in _MIXED


def plain_table(name: str) -> str:
    """Return the name of a table as profilers write it: to SQLite case is all one."""
    if name.lower() in _MIXED:
        return _MIXED[name.lower()]
    return name.upper() if name.upper().startswith(_UPPER) else name


def versioned_tables(names: Iterable[str]) -> dict[str, str]:
    """Return plain name → the table of its highest version, where there is no plain table."""
    present = set(names)
    highest: dict[str, tuple[int, str]] = {}
    for name in present:
        found = _VERSIONED.fullmatch(name)
        if found and found.group(1) not in present:
            plain, version = found.group(1), int(found.group(2))
            highest[plain] = max(highest.get(plain, (0, "")), (version, name))
    return {plain: name for plain, (_, name) in highest.items()}


def codec_of(connection: sqlite3.Connection) -> str:
    """Return how a database writes texts, as Python calls it."""
    ((encoding,),) = connection.execute("PRAGMA encoding")
    return {"UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}.get(encoding, "utf-8")


def text_by(function: str, column: str) -> str:
    """Return the SQL of a text that a ``function`` of and to bytes changes; others stay."""
    return (
        f"CASE WHEN typeof({column}) = 'text' THEN"
        f" CAST({function}(CAST({column} AS BLOB)) AS TEXT) ELSE {column} END"
    )


def register_text(
    connection: sqlite3.Connection, function: str, shown: Callable[[str], str]
) -> None:
    """Give SQL a ``function`` for `text_by`: of and to bytes, with texts as ``shown`` has them."""
    codec = codec_of(connection)

    def changed(value: bytes) -> bytes:
        text = value.decode(codec, "surrogateescape")
        after = shown(text)
        return value if after == text else after.encode(codec, "surrogateescape")

    connection.create_function(function, 1, changed, deterministic=True)


LATEST_NS: Final = 1 << 62
"""Times are nearer to 0 than this, 146 years: no difference of two leaves 64 bits."""
MOST_BYTES: Final = 1 << 57
"""No address space holds more."""

_START_COLUMNS: Final = ("start", "timestamp")
_DAY_NS: Final = 86_400 * 10**9
_BY_DRIVER: Final = "CUPTI_ACTIVITY_KIND_"
_MAY_BE_OPEN: Final = ("NVTX_EVENTS", "MPI_", "UCP_")
_ON_DEVICES: Final = tuple(
    f"CUPTI_ACTIVITY_KIND_{kind}"
    for kind in ("KERNEL", "CONCURRENT_KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMCPY2", "MEMSET")
)
_COUNTING: Final = {
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "bytes",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "numberOfPageFaults",
    "GPU_METRICS": "value",
    "NET_NIC_METRIC": "value",
}
"""Of samples the column without which they say nothing."""


class UnsoundRowsError(Exception):
    """A table has rows that cannot be: it is to be read without them."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table


@dataclass(frozen=True, slots=True)
class Soundness:
    """Which rows of one table can be.

    ``end`` is "" for instants. ``needed`` are columns that must be known, ``sizes`` those that
    are neither negative nor more than any memory. ``zero_is_lost``: the profiler wrote times of 0
    where it lost a record, which readers count by themselves, but for instants.
    ``is_since_session``: times count from the beginning of the recording, and a record that was
    lost has two of 0, or one of 0 on another clock, which is days before that. ``columns`` are all
    that tell.
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
        """Return whether a row is unsound, as far as those of its columns tell that are given."""
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
            if int(values.min()) < 0 or int(values.max()) > MOST_BYTES:
                is_bad = ((values < 0) & (values != NULL)) | (values > MOST_BYTES)
                if (is_bad & ~lost).any():
                    return True
        return False

    def _has_bad_times(self, starts: Any, ends: Any, lost: Any) -> bool:
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
        """Return what can be wrong with rows: in words, and as SQL that is never NULL."""
        start, end = quoted(self.start), quoted(self.end)
        times = [start, end] if self.end else [start]
        lost = " OR ".join(f"coalesce(CAST({one} AS INTEGER), 0) <= 0" for one in times)
        open_end = self.end and self.may_be_open
        known = [one for one in times if not (one == end and open_end)]
        nothing = " OR ".join(f"{one} IS NULL" for one in known)
        beyond = " OR ".join(
            f"coalesce({one} <= -{LATEST_NS} OR {one} >= {LATEST_NS}, 0)" for one in times
        )
        found = {"no time": nothing}
        if self.zero_is_lost:
            found = {} if self.end else {"no time": lost}
        found["time more than 146 years from 0"] = beyond
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
            found[f"impossible {name}"] = f"coalesce({size} < 0 OR {size} > {MOST_BYTES}, 0)"
        if self.zero_is_lost and self.end:
            found = {words: f"NOT ({lost}) AND ({sql})" for words, sql in found.items()}
        return found

    def sql(self) -> str:
        """Return SQL that holds for the sound rows."""
        return " AND ".join(f"NOT ({fault})" for fault in self.faults().values())

    def sought(self) -> str:
        """Return SQL that holds for rows that need a look: unsound, or with no whole numbers."""
        columns = () if self.zero_is_lost else self.columns
        told = [f"typeof({quoted(one)}) NOT IN ('integer', 'null')" for one in columns]
        return " OR ".join([f"NOT ({self.sql()})", *told])


def soundness_of(
    table: str, columns: Collection[str], *, zero_is_lost: bool = False
) -> Soundness | None:
    """Return which rows of a table can be; None of one whose rows have no times."""
    start = next((name for name in _START_COLUMNS if name in columns), "")
    if not start:
        return None
    needed = ["deviceId"] if table in _ON_DEVICES else []
    needed += [_COUNTING[table]] if table in _COUNTING else []
    is_sized = table in _ON_DEVICES or _COUNTING.get(table) == "bytes"
    sizes = ["bytes"] if is_sized or table == "TRACEPROF_COLLECTIVES" else []
    end = "end" if "end" in columns else ""
    needed = [name for name in needed if name in columns]
    sizes = [name for name in sizes if name in columns]
    return Soundness(
        *(table, start, end, table.startswith(_MAY_BE_OPEN), tuple(needed), tuple(sizes)),
        zero_is_lost=zero_is_lost,
        is_since_session=bool(end) and table.startswith(_BY_DRIVER) and not zero_is_lost,
        columns=tuple(filter(None, (start, end, *needed, *sizes))),
    )


_ROW_IDS: Final = ("_rowid_", "rowid", "oid")
_DESCRIBED: Final = (
    "SELECT tables.name, columns.* FROM sqlite_master AS tables, "
    "pragma_table_xinfo(tables.name) AS columns WHERE tables.type = 'table' AND tables.name IN ({})"
)
_AT_ONCE: Final = 500
"""Of so many tables columns are asked for: SQLite takes no more than some values at a time."""
_HIDDEN: Final = 1  # a column of a virtual table that is no column; 2 and 3 are computed


class Catalogue:
    """The tables of one file, their columns, and the rows that are left out of them.

    Raises:
        TraceError: a view stands where a profiler's table is expected, or the file is damaged.
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
        # Those of rocpd stand beside its own tables, and are not asked for.
        if views and not any(name.startswith("rocpd_") for name in kinds):
            raise TraceError(
                f"{path}: {views[0]} is a view, expected a table; convert the view to a table "
                "(CREATE TABLE … AS SELECT …), or export the trace again"
            )
        names = [str(name) for name, kind in kinds.items() if kind == "table"]
        self._stored = {plain_table(name): name for name in names}
        versioned = versioned_tables(self._stored)
        self._stored |= {plain: self._stored[name] for plain, name in versioned.items()}
        self.tables = frozenset(self._stored)
        self.left_out: dict[str, dict[str, int]] = {}
        """Table → what is wrong with rows that are left out → how many; none: it was looked for."""
        self.spared: dict[str, str] = {}
        """Table, or table.column, that is left out since it cannot be read → a sentence of that."""
        self.zero_is_lost = False
        self._selects: dict[str, str] = {}
        self._columns: dict[str, frozenset[str]] = {}
        self._described: dict[str, list[tuple[Any, ...]]] = {}

    def show_as_asked(self) -> None:
        """Show tables and columns of profilers under the names that are asked for."""
        asked = [*{name for table, name in self._stored.items() if is_of_profiler(table)}]
        self._described = {name: [] for name in asked}
        for names in (asked[at : at + _AT_ONCE] for at in range(0, len(asked), _AT_ONCE)):
            for name, *row in self._query(_DESCRIBED.format(", ".join("?" * len(names))), names):
                self._described[name].append(tuple(row))
        for table, name in self._stored.items():
            rows, is_known = f"main.{quoted(name)}", is_of_profiler(table)
            found = self._columns_of(name) if is_known else []
            plain = [_PLAIN_COLUMNS.get(column.lower(), column) for column in found]
            if is_known:
                self._columns[table] = frozenset(plain)
            if plain != found:
                pairs = zip(found, plain, strict=True)
                told = ", ".join(f"{quoted(one)} AS {quoted(asked)}" for one, asked in pairs)
                self._show(table, f"SELECT {told} FROM {rows}")
            elif table not in self._stored.values() and table.lower() != name.lower():
                self._query(f"CREATE TEMP VIEW {quoted(table)} AS SELECT * FROM {rows}")

    def _columns_of(self, name: str) -> list[str]:
        return [str(row[1]) for row in self.described(name)[1] if row[6] != _HIDDEN]

    def described(self, name: str) -> tuple[int, list[tuple[Any, ...]]]:
        """Return the root page of a stored table, 0 without one, and its rows of `table_xinfo`."""
        if name not in self._described:
            self._described[name] = self._query(f"PRAGMA table_xinfo({quoted(name)})")
        return self._roots.get(name, 0), self._described[name]

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of the columns of ``table``; none where there is no such table."""
        if table not in self._columns:
            found = self._columns_of(self._stored[table]) if table in self.tables else []
            self._columns[table] = frozenset(found)
        return self._columns[table]

    def stored(self, table: str) -> str | None:
        """Return the name of the table that holds the rows; None where a SELECT gives them."""
        return None if table in self._selects else self._stored.get(table, table)

    def source(self, table: str) -> str:
        """Return what stands behind FROM for ``table``, in any connection to the file."""
        select = self._selects.get(table)
        return f"({select})" if select else f"main.{quoted(self._stored.get(table, table))}"

    def row_id(self, table: str) -> str | None:
        """Return a name of the row id; None where there is none, or every one is a column's."""
        name = self.stored(table)
        taken = {one.lower() for one in self.columns(table)}
        free = next((one for one in _ROW_IDS if one not in taken), None)
        if name is None or free is None:
            return None
        try:
            self._query(f"SELECT {free} FROM main.{quoted(name)} LIMIT 0")
        except TraceError:  # a table without row ids
            return None
        return free

    def soundness(self, table: str) -> Soundness | None:
        """Return which rows of ``table`` can be; None where that needs no look (any more)."""
        if table not in self.tables or table in self.left_out or not is_of_profiler(table):
            return None
        return soundness_of(table, self.columns(table), zero_is_lost=self.zero_is_lost)

    def is_sound(self, table: str) -> None:
        """Take note that all rows of ``table`` can be."""
        self.left_out.setdefault(table, {})

    def leave_out(self, table: str) -> None:
        """Leave the rows that cannot be out of ``table`` from now on, and count them.

        Raises:
            TraceError: its times are no whole numbers at all.
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
        """Leave a column, or its table, out: to who reads on, the file does not have it."""
        why = f"column {table}.{column} contains non-integer values"
        if is_spare(table):
            self.tables -= {table}
            self._columns[table] = frozenset()
            self.spared[table] = f"traceprof ignored table {table}: {why}"
        else:
            self._columns[table] = self.columns(table) - {column}
            self.spared[f"{table}.{column}"] = f"traceprof ignored a column: {why}"

    def _check_types(self, table: str, sound: Soundness) -> None:
        """Check that what tells of rows is numbers: a text is greater than all of them."""
        if sound.zero_is_lost:  # and what is no number is read as 0
            return
        for column in sound.columns:
            rows = self._query(
                f"SELECT typeof({quoted(column)}) FROM {self.source(table)} "
                f"WHERE typeof({quoted(column)}) NOT IN ('integer', 'null') LIMIT 1"
            )
            if rows:
                raise MistypedColumnError(self._path, table, column, rows[0][0])

    def _show(self, table: str, select: str) -> None:
        self._query(f"DROP VIEW IF EXISTS temp.{quoted(table)}")
        self._query(f"CREATE TEMP VIEW {quoted(table)} AS {select}")
        self._selects[table] = select

    def warnings(self) -> list[str]:
        """Return a sentence about each table of which rows are left out."""
        told = []
        for table, faults in self.left_out.items():
            if faults:
                n_rows = sum(faults.values())
                rows = f"1 row of {table} is" if n_rows == 1 else f"{n_rows} rows of {table} are"
                reasons = ", ".join(f"{words}: {n}" for words, n in faults.items())
                told.append(f"{rows} damaged and ignored by traceprof ({reasons})")
        return told
