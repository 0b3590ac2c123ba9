"""Cut a file of nvprof to a time window.

Device work that overlaps the window is kept, and so are all calls that launched it, also those
before the window. Marks in the window are kept, and ranges that overlap it or enclose one of these
calls, with both ends. Tables about the machine are kept whole. nvprof stores no environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from traceprof.formats.nvprof.events import END, START
from traceprof.formats.nvprof.file import open_nvprof
from traceprof.formats.nvprof.format import PREFIX
from traceprof.formats.nvprof.reader import count_annotations
from traceprof.formats.sqlite import copying as parts
from traceprof.formats.sqlite.database import NOTE, Database, reading
from traceprof.formats.sqlite.schema import quoted, register_text, text_by
from traceprof.model.cutting import CutProgress, CutReport, CutRequest
from traceprof.model.trace import DEVICE_TABLES
from traceprof.secrets import masked_text

_STRINGS: Final = "StringTable"
_STRING_COLUMNS: Final = frozenset(
    {"name", "domain", "fileName", "srcFile", "funcName", "varName", "kernelName"}
)
_EVENT, _MACHINE = range(2)
"""The kinds of strings: names of events, and texts about the machine."""
_MARKER: Final = PREFIX + "MARKER"
_MARKER_DATA: Final = PREFIX + "MARKER_DATA"
_TRACE_TABLES: Final = {
    **dict.fromkeys(("CONCURRENT_KERNEL", "KERNEL", "CDP_KERNEL", "GRAPH_TRACE"), "kernels"),
    **dict.fromkeys(("MEMCPY", "MEMCPY2", "MEMSET", "UNIFIED_MEMORY_COUNTER"), "copies"),
    **dict.fromkeys(("RUNTIME", "DRIVER"), "api_calls"),
    "SYNCHRONIZATION": "syncs",
    "OVERHEAD": "overheads",
}
"""Kind of activity → the table of the Trace that is made from it."""
_DEVICE_TABLES: Final = frozenset(
    PREFIX + kind for kind, table in _TRACE_TABLES.items() if table in DEVICE_TABLES
) - {PREFIX + "UNIFIED_MEMORY_COUNTER"}
_CALLS: Final = (PREFIX + "RUNTIME", PREFIX + "DRIVER")
_COLLECTIVE_SOURCES: Final = frozenset({_MARKER, "ranges", "collectives"})
_MACHINE_TABLES: Final = frozenset(
    {"Version", *(PREFIX + name for name in ("DEVICE", "DEVICE_ATTRIBUTE", "CONTEXT", "NAME"))}
    | {PREFIX + name for name in ("STREAM", "PCIE", "NVLINK", "FUNCTION", "MODULE")}
    | {PREFIX + name for name in ("SOURCE_LOCATOR", "INSTRUCTION_CORRELATION")}
)
_THREAD_SQL: Final = (
    "printf('%02X%02X%02X%02X', {0} & 255, {0} >> 8 & 255, {0} >> 16 & 255, {0} >> 24 & 255)"
)
"""SQL of a thread id as it is in an object id: hexadecimal, 32 bits, lowest byte first."""


def cut(source: Path, target: Path, request: CutRequest, progress: CutProgress) -> CutReport:
    """Write the part of a file of nvprof that ``request`` selects to the empty file ``target``.

    Raises:
        TraceError: the file cannot be read.
        UsageError: ``target`` cannot be written.
    """

    def inspect(database: Database) -> tuple[int, bool]:
        """Return time 0 of the whole file, and whether the file has collectives."""
        file = open_nvprof(database, ())
        wants_collectives = request.is_noted and request.takes(_COLLECTIVE_SOURCES)
        zero_ns = file.zero_ns if request.zero_ns is None else request.zero_ns
        return zero_ns, wants_collectives and bool(count_annotations(file))

    zero_ns, has_collectives = reading(source, inspect)
    with parts.copying(source, target, progress) as copy:
        copy.check_names(request.tables)
        return _Cut(copy, request, zero_ns, has_collectives=has_collectives).report()


def _is_cut(name: str) -> bool:
    """Return whether the rows of a table are cut by their times, apart from markers."""
    return name not in (NOTE, _STRINGS, _MARKER) and name not in _MACHINE_TABLES


class _Cut:
    """One cut: device events, then launching calls, markers, other tables, and strings."""

    def __init__(
        self, copy: parts.DatabaseCopy, request: CutRequest, zero_ns: int, *, has_collectives: bool
    ) -> None:
        self.copy = copy
        self.has_collectives = has_collectives
        self.request = request
        self.zero_ns = zero_ns
        self.window = request.reach.moved(zero_ns)
        self.reach = self.window.start_ns
        span = request.span and request.span.moved(zero_ns)
        tables = parts.timed_tables(copy, _is_cut, lambda name: name.startswith(PREFIX), span)
        self.times, self.unknown = tables
        register_text(copy.connection, "machine_text", masked_text)

    def report(self) -> CutReport:
        """Write the copy, and return its report."""
        copy, tables = self.copy, self.copy.tables
        copy.execute("CREATE TEMP TABLE launched (call INTEGER PRIMARY KEY)")
        copy.execute("CREATE TEMP TABLE early (thread TEXT, start INTEGER)")
        on_devices = [tables[n] for n in tables if n in _DEVICE_TABLES and n in self.times]
        n_events = sum(map(self._copy_device_events, on_devices))
        n_events += sum(self._copy_calls(tables[n]) for n in _CALLS if n in tables)
        ((first,),) = copy.execute("SELECT min(start) FROM early")
        self.reach = self.window.start_ns if first is None else int(first)
        if _MARKER in tables:
            n_events += self._copy_markers(tables[_MARKER])
        for name in self.times:
            if name not in copy.n_copied:
                n_events += self._copy(tables[name], self.times[name].overlap(self.window))
        for name, table in tables.items():
            if name not in copy.n_copied and name != _STRINGS:
                self._copy_untimed(table)
        self._copy_strings()
        window = self.request.covered.moved(self.zero_ns)
        parts.note_cut(copy, self.request, window, self._recorded_tables(), self._active_devices())
        copy.make_views()
        return CutReport(n_events, self.unknown, copy.left_out, self.zero_ns)

    def _recorded_tables(self) -> set[str]:
        """Return the tables of the Trace that have rows in the whole file."""
        found = set()
        for name in parts.filled_tables(self.copy):
            table = _TRACE_TABLES.get(name.removeprefix(PREFIX))
            if table is not None and self.request.takes(frozenset({name, table})):
                found.add(table)
        return found | ({"collectives"} if self.has_collectives else set())

    def _active_devices(self) -> set[int]:
        """Return the selected devices that have work anywhere in the whole file."""
        found: set[int] = set()
        for name in _DEVICE_TABLES & self.copy.tables.keys():
            if self.request.is_noted and self.copy.tables[name].has("deviceId"):
                rows = self.copy.execute(
                    f"SELECT DISTINCT deviceId FROM source.{quoted(name)}"
                    f" WHERE typeof(deviceId) = 'integer' AND [start] > 0"
                )
                found |= {device for (device,) in rows}
        chosen = self.request.devices
        return found if chosen is None else found & chosen

    def _masked_texts(self, table: parts.SourceTable) -> dict[str, str]:
        """Return text column → SQL of its masked value, for tables that traceprof does not know."""
        if self.request.keep_environment or table.name.startswith(PREFIX):
            return {}
        texts = [column for column, kind in table.types.items() if kind in ("TEXT", "")]
        return {column: text_by("machine_text", quoted(column)) for column in texts}

    def _copy_device_events(self, table: parts.SourceTable) -> int:
        """Copy the device events in the window, and add their launches to the table launched."""
        condition = self.times[table.name].overlap(self.window)
        devices = self.request.devices
        if devices is not None and table.has("deviceId"):
            condition += f" AND deviceId IN ({', '.join(str(int(device)) for device in devices)})"
        n_rows = self._copy(table, condition)
        for column in ("correlationId", "runtimeCorrelationId"):
            if table.has(column):
                self.copy.execute(
                    f"INSERT OR IGNORE INTO launched SELECT {column}"
                    f" FROM main.{quoted(table.name)} WHERE {column} > 0"
                )
        return n_rows

    def _copy_calls(self, table: parts.SourceTable) -> int:
        """Copy the calls in the window, and earlier calls that launched copied device events."""
        start = self.window.start_ns
        condition = self.times[table.name].overlap(self.window)
        launched = "correlationId IN (SELECT call FROM launched)"
        n_rows = self._copy(table, f"{condition} OR (t.[start] < {start} AND {launched})")
        self.copy.execute(
            f"INSERT INTO early SELECT {_THREAD_SQL.format('threadId')}, [start]"
            f" FROM main.{quoted(table.name)} WHERE [start] < {start} AND {launched}"
        )
        return n_rows

    def _copy_markers(self, table: parts.SourceTable) -> int:
        """Copy marks in the window, and both ends of ranges that overlap it or enclose a launch."""
        copy, start_ns, end_ns = self.copy, self.window.start_ns, self.window.end_ns
        copy.execute("CREATE INDEX temp.early_by_thread ON early (thread, start)")
        ordinal = "row_number() OVER (PARTITION BY id ORDER BY timestamp, _id_)"
        rows = (
            f"SELECT _id_ AS row, id, timestamp, hex(substr(objectId, 5, 4)) AS thread, {ordinal}"
        )
        copy.execute(
            "CREATE TEMP TABLE kept_marker AS WITH"
            f" first AS ({rows} AS turn FROM source.{_MARKER} WHERE flags & {START}),"
            f" last AS ({rows} AS turn FROM source.{_MARKER} WHERE flags & {END})"
            " SELECT first.row AS opened, last.row AS closed"
            " FROM first LEFT JOIN last USING (id, turn)"
            f" WHERE first.timestamp < {end_ns} AND (first.timestamp >= {start_ns}"
            f" OR last.timestamp IS NULL OR last.timestamp > {start_ns}"
            f" OR (last.timestamp >= {self.reach} AND EXISTS (SELECT 1 FROM early AS e WHERE"
            " e.start BETWEEN first.timestamp AND last.timestamp"
            " AND (e.thread = first.thread OR first.thread IN ('', '00000000')))))"
        )
        inside = f"timestamp >= {start_ns} AND timestamp < {end_ns}"
        paired = " OR ".join(
            f"_id_ IN (SELECT {side} FROM kept_marker)" for side in ("opened", "closed")
        )
        shown = {}
        if self.request.clip:
            shown = {
                "timestamp": f"CASE WHEN flags & {START} THEN max(timestamp, {self.reach})"
                f" WHEN flags & {END} THEN min(timestamp, {end_ns}) ELSE timestamp END"
            }
        kinds = [f"(NOT (flags & {START | END}) AND {inside})", f"({paired})"]
        if not self.request.takes(frozenset({_MARKER, "marks"})):
            kinds[0] = "0"
        if not self.request.takes(frozenset({_MARKER, "ranges", "collectives"})):
            kinds[1] = "0"
        return copy.copy(table.name, " OR ".join(kinds), shown)

    def _copy(self, table: parts.SourceTable, condition: str) -> int:
        """Copy the rows of a table that meet ``condition``, if the request selects the table."""
        plain = table.name.removeprefix(PREFIX)
        if not self.request.takes(frozenset({table.name, _TRACE_TABLES.get(plain, table.name)})):
            condition = "0"
        shown = {}
        if self.request.clip:
            first = None if table.name in _DEVICE_TABLES else self.reach
            shown = self.times[table.name].clipped(self.window, first)
        return self.copy.copy(table.name, condition, self._masked_texts(table) | shown)

    def _copy_untimed(self, table: parts.SourceTable) -> None:
        """Copy a table without times: the details of the copied events, or the whole table."""
        name, condition = table.name, "1"
        if name == _MARKER_DATA and _MARKER in self.copy.n_copied:
            condition = f"id IN (SELECT id FROM main.{_MARKER})"
        elif not name.startswith(PREFIX) and name not in (*_MACHINE_TABLES, NOTE):
            self.unknown[name] = "kept whole"
        elif table.has("correlationId") and name not in _MACHINE_TABLES:
            calls = [f"SELECT correlationId FROM main.{n}" for n in _CALLS if n in self.copy.tables]
            kept = " UNION ".join(["SELECT call FROM launched", *calls])
            condition = f"correlationId IN ({kept})"
        self.copy.copy(name, condition, self._masked_texts(table))

    def _copy_strings(self) -> None:
        """Copy the strings that the copied rows refer to."""
        references = [
            (name, column, _MACHINE if name in _MACHINE_TABLES else _EVENT)
            for name, table in self.copy.tables.items()
            if name not in (_STRINGS, NOTE)
            for column in parts.string_columns(
                table, _STRING_COLUMNS, is_known=name.startswith(PREFIX) or name in _MACHINE_TABLES
            )
        ]

        def shown(kind: int) -> str:
            is_plain = kind == _EVENT or self.request.keep_environment
            return "t.value" if is_plain else text_by("machine_text", "t.value")

        parts.copy_strings(self.copy, _STRINGS, "_id_", references, shown)
