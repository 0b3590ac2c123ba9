"""Cut an nsys export to a time window.

Device work that overlaps the window is kept, and so are all calls that launched it, also those
before the window. Host events are kept if they overlap the window or enclose one of these calls.
Tables about the machine are kept whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from traceprof.formats.nsys import schema
from traceprof.formats.nsys.metrics import GENERIC
from traceprof.formats.nsys.secrets import Redaction, redaction_of
from traceprof.formats.nsys.survey import contains_collectives
from traceprof.formats.nsys.target import physical_devices
from traceprof.formats.sqlite import copying as parts
from traceprof.formats.sqlite.database import NOTE, Database, reading
from traceprof.formats.sqlite.schema import quoted, text_by
from traceprof.model.cutting import REMOVED, CutProgress, CutReport, CutRequest
from traceprof.model.trace import DEVICE_TABLES

_MACHINE_PREFIXES: Final = (
    *("TARGET_INFO_", "META_DATA_", "EXPORT_META_DATA", "DIAGNOSTIC_EVENT", "ANALYSIS_"),
    *("ENUM_", "PROCESSES", "ThreadNames", "ProcessStreams", "StringIds", "UnwindMethodType"),
    *("NVTX_PAYLOAD_", "GENERIC_EVENT_TYPES", "GENERIC_EVENT_SOURCES", "NIC_ID_MAP"),
    *("MPI_RANKS", "MPI_COMMUNICATORS", "TRACEPROF_PROCESSES", "TRACEPROF_ENVIRONMENT"),
    *("TRACEPROF_MANIFEST", "TRACEPROF_CUT"),
)
"""Prefixes of the tables that are copied whole, although some of them have times."""
_EVENT_PREFIXES: Final = re.compile(
    r"CUPTI_|CUDA_|CUDNN_|CUBLAS_|NVTX_EVENTS|OSRT_|MPI_|UCP_|NET_|GPU_|SOC_|FECS_|SCHED_EVENTS"
    r"|COMPOSITE_|SAMPLING_|GENERIC_|PROFILER_|OPENGL_|KHR_DEBUG_|SLI_|DX1|D3D1|VULKAN_|ETW_"
    r"|OPENMP_|WDDM_|NVVIDEO_|DEMOTED_BYTES_|TOTAL_BYTES_|NV_LOAD_|TRACEPROF_"
)


def is_machine_table(name: str) -> bool:
    """Return whether a table describes the machine, the processes, or the file itself."""
    return name.startswith(_MACHINE_PREFIXES)


def is_known(name: str) -> bool:
    """Return whether a table belongs to nsys or to traceprof."""
    return is_machine_table(name) or _EVENT_PREFIXES.match(name) is not None


def _is_cut(name: str) -> bool:
    """Return whether the rows of a table are cut by their times."""
    return not is_machine_table(name) and name not in schema.DETAILS


_TRACE_TABLES: Final = {
    **dict.fromkeys((schema.KERNELS, schema.GRAPHS), ("kernels",)),
    **dict.fromkeys((schema.COPIES, schema.MEMSETS), ("copies",)),
    schema.SYNCS: ("syncs",),
    schema.API_CALLS: ("api_calls",),
    schema.NVTX: ("ranges", "marks", "collectives"),
    **dict.fromkeys(schema.HOST_SOURCES, ("host_ops",)),
    **dict.fromkeys(schema.MPI_SOURCES, ("host_ops", "collectives")),
    schema.OPERATORS: ("host_ops",),
    **dict.fromkeys(schema.OVERHEADS, ("overheads",)),
    schema.COLLECTIVES: ("collectives",),
    schema.SAMPLES: ("samples",),
    schema.FUNCTIONS: ("functions",),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": ("samples",),
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": ("samples",),
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": ("samples",),
}
"""Table of the file → the tables of the Trace that are made from it."""


def model_tables(name: str) -> frozenset[str]:
    """Return the tables of the Trace that are made from a table of the file."""
    if name.startswith(("NET_", "GPU_METRICS", "SOC_", GENERIC)):
        return frozenset({"samples"})
    return frozenset(_TRACE_TABLES.get(re.sub(r"_V\d+$", "", name), ()))


_STRINGS: Final = "StringIds"
_STRING_COLUMNS: Final = frozenset(
    {"nameId", "textId", "demangledName", "shortName", "mangledName", "jsonTextId", "endNameId"}
    | {"symbol", "module", "filenameId", "contentId", "srcFile", "funcName", "varName"}
    | {"kernelName", "objectName", "unresolvedFaultPc", "stringId"}
)
_CONTENT: Final = "contentId"
_EVENT, _MACHINE, _PRINTED = range(3)
_IS_DEFINITION: Final = "eventType IN (33, 39, 75, 76)"
"""SQL for rows of NVTX that are no events: categories, thread names, and domains."""
_DERIVED_TABLES: Final = frozenset({"collectives"})
"""Tables of the Trace that other tables fill only in part: few NVTX ranges are collectives."""
_COLLECTIVE_SOURCES: Final = frozenset({schema.NVTX, "ranges", "collectives", "host_ops"})
_IS_OPEN_RANGE: Final = f"{schema.ARE_RANGES} AND [end] IS NULL"


def cut(source: Path, target: Path, request: CutRequest, progress: CutProgress) -> CutReport:
    """Write the part of an nsys export that ``request`` selects to the empty file ``target``.

    Raises:
        TraceError: the export cannot be read.
        UsageError: ``target`` cannot be written.
    """

    def inspect(database: Database) -> tuple[dict[tuple[int, int], int], bool]:
        """Return the device numbers, and whether the whole file has collectives."""
        wants_collectives = request.is_noted and request.takes(_COLLECTIVE_SOURCES)
        return physical_devices(database), wants_collectives and contains_collectives(database)

    device_numbers, has_collectives = reading(source, inspect, any_encoding=True)
    with parts.copying(source, target, progress) as copy:
        copy.check_names(request.tables)
        return _Cut(copy, request, device_numbers, has_collectives=has_collectives).report()


class _Cut:
    """One cut: device events, then launching calls, enclosing events, other tables, and strings."""

    def __init__(
        self,
        copy: parts.DatabaseCopy,
        request: CutRequest,
        device_numbers: dict[tuple[int, int], int],
        *,
        has_collectives: bool,
    ) -> None:
        self.copy = copy
        self.has_collectives = has_collectives
        self.request = request
        self.device_numbers = device_numbers
        self.reach = request.reach.start_ns
        self.times, self.unknown = parts.timed_tables(copy, _is_cut, is_known, request.span)
        self.redaction: Redaction | None = None
        if not request.keep_environment:
            self.redaction = redaction_of(copy.connection, "source")
            self.redaction.register(copy.connection)

    def report(self) -> CutReport:
        """Write the copy, and return its report."""
        copy, request = self.copy, self.request
        for sql in (
            "launched (process INTEGER, call INTEGER, PRIMARY KEY (process, call)) WITHOUT ROWID",
            "early (thread INTEGER, start INTEGER, PRIMARY KEY (thread, start)) WITHOUT ROWID",
            "early_of (process INTEGER, start INTEGER, PRIMARY KEY (process, start)) WITHOUT ROWID",
        ):
            copy.execute(f"CREATE TEMP TABLE {sql}")
        timed = self._uncopied_timed_tables("globalPid", "correlationId", "deviceId")
        on_devices = [table for table in timed if "CUDA_EVENT" not in table.name]
        n_events = sum(map(self._copy_device_events, on_devices))
        self.first_call, self.last_call = copy.execute(
            "SELECT min(call), max(call) FROM launched"
        ).fetchone()
        n_events += sum(
            map(self._copy_calls, self._uncopied_timed_tables("globalTid", "correlationId", "end"))
        )
        process = schema.process_sql("thread")
        copy.execute(f"INSERT OR IGNORE INTO early_of SELECT {process}, start FROM early")
        ((first_early,),) = copy.execute("SELECT min(start) FROM early")
        if first_early is not None:
            self.reach = int(first_early)
        n_events += sum(map(self._copy_events, self._uncopied_timed_tables()))
        for table in copy.tables.values():
            if table.name not in copy.n_copied and table.name != _STRINGS:
                self._copy_untimed(table)
        if _STRINGS in copy.tables:
            self._copy_strings()
        parts.note_cut(
            copy,
            request,
            request.covered,
            self._recorded_tables(),
            self._active_devices(on_devices),
        )
        copy.make_views()
        return CutReport(n_events, self.unknown, copy.left_out)

    def _recorded_tables(self) -> set[str]:
        """Return the tables of the Trace that have rows in the whole file."""
        found = {"collectives"} if self.has_collectives else set()
        for name in parts.filled_tables(self.copy):
            if self.request.takes(model_tables(name) | {name}):
                derived = frozenset() if name == schema.COLLECTIVES else _DERIVED_TABLES
                found |= model_tables(name) - derived
        return found

    def _active_devices(self, on_devices: Iterable[parts.SourceTable]) -> set[int]:
        """Return the selected devices that have work anywhere in the whole file."""
        found: set[int] = set()
        for table in on_devices:
            if self.request.is_noted and model_tables(table.name) & set(DEVICE_TABLES):
                process = schema.process_sql("globalPid")
                rows = self.copy.execute(
                    f"SELECT DISTINCT {process}, deviceId FROM source.{quoted(table.name)}"
                    f" WHERE typeof(deviceId) = 'integer' AND {self._owner_condition(table)}"
                )
                found |= {self.device_numbers.get(row, row[1]) for row in rows}
        return found

    def _uncopied_timed_tables(self, *columns: str) -> list[parts.SourceTable]:
        """Return the tables with times that have these ``columns`` and are not copied yet."""
        return [
            table
            for name, table in self.copy.tables.items()
            if name in self.times and name not in self.copy.n_copied and table.has(*columns)
        ]

    def _copy_device_events(self, table: parts.SourceTable) -> int:
        """Copy the device events in the window, and add their launches to the table launched."""
        process = schema.process_sql("globalPid")
        n_rows = self._copy(table, self.times[table.name].overlap(self.request.reach))
        self.copy.execute(
            f"INSERT OR IGNORE INTO launched SELECT {process}, correlationId"
            f" FROM main.{quoted(table.name)} WHERE globalPid NOTNULL AND correlationId <> 0"
        )
        return n_rows

    def _copy_calls(self, table: parts.SourceTable) -> int:
        """Copy the calls in the window, and earlier calls that launched copied device events."""
        condition = self.times[table.name].overlap(self.request.reach)
        start, process = self.request.reach.start_ns, schema.process_sql("globalTid")
        launched = f"({process}, correlationId) IN (SELECT process, call FROM launched)"
        if self.first_call is not None:
            condition += (
                f" OR (t.[start] < {start} AND correlationId BETWEEN"
                f" {self.first_call} AND {self.last_call} AND {launched})"
            )
        n_rows = self._copy(table, condition)
        self.copy.execute(
            f"INSERT OR IGNORE INTO early SELECT globalTid, [start] FROM main.{quoted(table.name)}"
            f" WHERE [start] < {start} AND globalTid NOTNULL AND {launched}"
        )
        return n_rows

    def _copy_events(self, table: parts.SourceTable) -> int:
        """Copy the other events in the window, and those that enclose launches before it."""
        times = self.times[table.name]
        conditions = [times.overlap(self.request.reach)]
        is_ranges = table.name == schema.NVTX and table.has("eventType")
        if table.has("globalTid") and times.end:
            conditions += self._enclosing_conditions(is_ranges=is_ranges)
        if table.name.endswith("CUDA_EVENT"):
            conditions.append(self._call_condition(table))
        if table.name == GENERIC and table.has("rawTimestamp"):
            # A sample covers the time since the previous one: keep the samples at both edges.
            window, source = self.request.reach, f"source.{quoted(table.name)}"
            first = (
                f"SELECT max(rawTimestamp) FROM {source} WHERE rawTimestamp <= {window.start_ns}"
            )
            last = f"SELECT min(rawTimestamp) FROM {source} WHERE rawTimestamp >= {window.end_ns}"
            begin, end = f"ifnull(({first}), 0)", f"ifnull(({last}), {window.end_ns})"
            conditions.append(
                f"(timestamp IS NULL AND rawTimestamp >= {begin} AND rawTimestamp <= {end})"
            )
        if is_ranges and times.end:
            conditions += [
                _IS_DEFINITION,
                f"({_IS_OPEN_RANGE} AND [start] < {self.request.reach.end_ns})",
            ]
        return self._copy(table, " OR ".join(conditions))

    def _enclosing_conditions(self, *, is_ranges: bool) -> list[str]:
        """Return SQL conditions for events that enclose a launch before the window."""
        before = f"[start] < {self.request.reach.start_ns} AND [end] >= {self.reach}"
        launch = "e.start BETWEEN t.[start] AND t.[end]"
        found = [
            f"({before} AND EXISTS (SELECT 1 FROM early AS e"
            f" WHERE e.thread = t.globalTid AND {launch}))"
        ]
        if is_ranges:
            process = schema.process_sql("t.globalTid")
            found.append(
                f"({before} AND eventType = {schema.NVTX_START_END} AND EXISTS (SELECT 1 FROM"
                f" early_of AS e WHERE e.process = {process} AND {launch}))"
            )
        return found

    def _call_condition(self, table: parts.SourceTable) -> str:
        """Return the SQL condition for rows that belong to the copied calls."""
        for name in (schema.API_CALLS, f"{schema.API_CALLS}_V2"):
            calls = self.copy.tables.get(name)
            if name in self.copy.n_copied and calls and table.has("globalPid", "correlationId"):
                return (
                    f"({schema.process_sql('globalPid')}, correlationId) IN (SELECT"
                    f" {schema.process_sql('globalTid')}, correlationId FROM main.{name})"
                )
        return "1"

    def _copy(self, table: parts.SourceTable, condition: str) -> int:
        """Copy the events of a table that meet ``condition`` and that the request selects."""
        condition = f"({condition}) AND {self._owner_condition(table)}"
        is_ranges = table.name == schema.NVTX and table.has("eventType")
        if not self.request.takes(model_tables(table.name) | {table.name}):
            condition = _IS_DEFINITION if is_ranges else "0"
        elif is_ranges:
            condition += self._event_type_condition()
        shown = {}
        if self.request.clip:
            first = self.reach if table.has("globalTid") else None
            shown = self.times[table.name].clipped(self.request.reach, first)
            if table.name == schema.NVTX and "end" in shown:
                end = self.request.reach.end_ns
                shown["end"] = f"CASE WHEN {_IS_OPEN_RANGE} THEN {end} ELSE {shown['end']} END"
        return self.copy.copy(table.name, condition, self._masked_texts(table) | shown)

    def _masked_texts(self, table: parts.SourceTable) -> dict[str, str]:
        """Return text column → SQL of its masked value, for texts stored in the table."""
        name = table.name
        if self.redaction is None or name.startswith("ENUM_"):
            return {}
        texts = [column for column, kind in table.types.items() if kind in ("TEXT", "")]
        if name in schema.DETAILS or (name in self.times and is_known(name)):
            return {column: text_by("event_text", quoted(column)) for column in texts}
        return {column: self.redaction.shown(name, column) for column in texts}

    def _event_type_condition(self) -> str:
        """Return the SQL condition for the types of NVTX events that the request selects."""
        if not self.request.takes(frozenset({schema.NVTX, "ranges", "collectives"})):
            return f" AND (eventType = {schema.NVTX_MARK} OR {_IS_DEFINITION})"
        takes_marks = self.request.takes(frozenset({schema.NVTX, "marks"}))
        return "" if takes_marks else f" AND eventType <> {schema.NVTX_MARK}"

    def _owner_condition(self, table: parts.SourceTable) -> str:
        """Return the SQL condition for rows of the selected processes and devices."""
        conditions = ["1"]
        owner = next((column for column in ("globalTid", "globalPid") if table.has(column)), None)
        if self.request.processes is not None and owner is not None:
            process = schema.process_sql(owner)
            processes = _joined(int(process_id) & 0xFFFFFF for process_id in self.request.processes)
            conditions.append(f"({owner} IS NULL OR {process} IN ({processes}))")
        devices = self.request.devices
        if devices is not None and table.has("deviceId"):
            conditions.append(self._device_condition(devices, has_process=table.has("globalPid")))
        return " AND ".join(conditions)

    def _device_condition(self, devices: Collection[int], *, has_process: bool) -> str:
        """Return the SQL condition for rows of ``devices``, which are devices of the machine."""
        is_listed = f"deviceId IN ({_joined(devices)})"
        if not self.device_numbers or not has_process:
            return is_listed
        pair = f"({schema.process_sql('globalPid')}, deviceId)"
        known = ", ".join(f"({process}, {number})" for process, number in self.device_numbers)
        chosen = [
            f"({p}, {n})" for (p, n), device in self.device_numbers.items() if device in devices
        ]
        is_chosen = f"{pair} IN (VALUES {', '.join(chosen)})" if chosen else "0"
        return f"({is_chosen} OR ({is_listed} AND {pair} NOT IN (VALUES {known})))"

    def _copy_untimed(self, table: parts.SourceTable) -> None:
        """Copy a table without times: the details of the copied events, or the whole table."""
        name, condition = table.name, "1"
        if name in schema.DETAILS:
            column, events, reference = schema.DETAILS[name]
            if events in self.copy.n_copied and table.has(column):
                condition = f"{column} IN (SELECT {reference} FROM main.{events})"
        elif name.endswith("CUDA_EVENT"):
            condition = f"({self._call_condition(table)}) AND {self._owner_condition(table)}"
        elif not is_known(name):
            self.unknown[name] = "kept whole"
        self.copy.copy(name, condition, self._masked_texts(table))

    def _copy_strings(self) -> None:
        """Copy the strings that the copied rows refer to."""
        references = [
            (name, column, self._kind_of(name, column))
            for name, table in self.copy.tables.items()
            if name not in (_STRINGS, NOTE)
            for column in parts.string_columns(table, _STRING_COLUMNS, is_known=is_known(name))
        ]
        parts.copy_strings(self.copy, _STRINGS, "id", references, self._shown_string)

    def _kind_of(self, table: str, column: str) -> int:
        """Return what strings a column has: event texts, machine texts, or printed output."""
        if table in self.times or table in schema.DETAILS:
            return _EVENT
        return _PRINTED if column == _CONTENT else _MACHINE

    def _shown_string(self, kind: int) -> str:
        """Return the SQL of the masked value of a string of this ``kind``."""
        if self.redaction is None:
            return "t.value"
        if kind == _PRINTED:
            return f"'{REMOVED}'"
        return text_by("event_text" if kind == _EVENT else "system_text", "t.value")


def _joined(numbers: Iterable[int]) -> str:
    """Return the numbers as a comma-separated list."""
    return ", ".join(str(int(number)) for number in numbers)
