"""Read SQLite files of nvprof and the Visual Profiler, versions 8 to 16 and later.

For tables that are not read, SQL counts the rows that their readers would return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

from traceprof.formats.contract import Outline, ReadOptions, from_first_launch
from traceprof.formats.nvprof import events
from traceprof.formats.nvprof.events import END, MARK, MIGRATIONS, START
from traceprof.formats.nvprof.file import (
    NvprofFile,
    integer_sql,
    object_ids,
    open_nvprof,
    read_devices,
    read_environment,
    read_info,
    read_processes,
)
from traceprof.formats.nvprof.format import FORMAT, PREFIX
from traceprof.formats.shared.collectives import annotated_collectives, is_annotated
from traceprof.formats.shared.cupti import Annotations
from traceprof.formats.sqlite.database import Database, cut_note, reading
from traceprof.formats.sqlite.pages.totals import TableExtent
from traceprof.formats.sqlite.spare import without_ignored_tables
from traceprof.formats.sqlite.survey import SELF_DESCRIPTION, RowSource, Survey, outline_from
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, empty_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace, make_trace

_KERNELS: Final = (f"{PREFIX}KERNEL", f"{PREFIX}CONCURRENT_KERNEL")
_FILE_TABLES: Final = {
    "kernel_shapes": [f"{table}.{axis}" for table in _KERNELS for axis in ("gridX", "blockX")],
    "syncs": (f"{PREFIX}SYNCHRONIZATION",),
}
"""Table of the Trace that others do not need → the tables, or columns, of the file behind it."""
_RECORD_TABLES: Final = ("kernels", "copies", "api_calls", "syncs", "overheads")
_IS_KEPT: Final = f"{integer_sql('start')} > 0 AND {integer_sql('end')} > 0"
"""SQL for records that the profiler did not lose; the times of lost records are 0 or NULL."""
_DEVICE: Final = f"coalesce(deviceId, {ABSENT})"


def survey_of(file: NvprofFile, tables: Mapping[str, Table]) -> Survey:
    """Return the extents of all event tables; ``tables`` are those that were read whole."""
    corrections: dict[str, Callable[[TableExtent], TableExtent]] = {
        "collectives": lambda _: TableExtent(count_annotations(file))
    }
    survey = Survey(file.database, _sources(file), tables, corrections, file.zero_ns)
    corrections["ranges"] = lambda _: _range_extent(file, survey)
    return survey


def last_ns(survey: Survey) -> int:
    """Return the end of the last record that is no marker."""
    return max(survey.extent(name).end_ns or 0 for name in _RECORD_TABLES)


def count_annotations(file: NvprofFile) -> int:
    """Return the number of ranges that are PyTorch annotations and become collectives."""
    if not file.has("MARKER"):
        return 0
    rows = file.database.rows(
        f"SELECT {integer_sql('name')}, count(*) FROM {PREFIX}MARKER "
        f"WHERE {integer_sql('flags')} & {START} GROUP BY 1"
    )
    return sum(n_rows for key, n_rows in rows if is_annotated(file.strings.get(key, "")))


def _range_extent(file: NvprofFile, survey: Survey) -> TableExtent:
    """Return the extent of the ranges: starts, joined with the ends of same id and ordinal."""
    if not file.has("MARKER"):
        return TableExtent()
    flags, time = integer_sql("flags"), integer_sql("timestamp")
    ((n_rows, n_ended, first, last, last_end),) = file.database.rows(
        f"WITH turns AS (SELECT {integer_sql('id')} AS id, {flags} & {START | END} AS kind, "
        f"{time} AS time, row_number() OVER (PARTITION BY {integer_sql('id')}, "
        f"{flags} & {START | END} ORDER BY {time}, _id_) AS turn FROM {PREFIX}MARKER) "
        "SELECT count(*), count(b.time), min(a.time), max(a.time), max(b.time) FROM turns a "
        f"LEFT JOIN turns b ON b.kind & {END} AND b.id = a.id AND b.turn = a.turn "
        f"WHERE a.kind & {START}"
    )
    if not n_rows:
        return TableExtent()
    ends = [last - file.zero_ns]
    ends += [last_end - file.zero_ns] if n_ended else []
    ends += [max(last_ns(survey), 0)] if n_ended < n_rows else []
    return TableExtent(n_rows, n_rows - n_ended, first - file.zero_ns, max(ends))


def _sources(file: NvprofFile) -> dict[str, list[RowSource]]:
    """Return the row sources of each table of the Trace."""
    process, owner = str(file.process), "hex(objectId)"
    migrated = f"coalesce(CASE WHEN counterKind = 2 THEN srcId ELSE dstId END, {ABSENT})"
    is_migration = f"{_IS_KEPT} AND counterKind IN ({', '.join(map(str, MIGRATIONS))})"
    markers = RowSource(
        f"{PREFIX}MARKER", integer_sql("timestamp"), "", owner, process_of=_process_of
    )
    copies = [
        *_spans(process, "MEMCPY", "MEMCPY2", "MEMSET", device=_DEVICE),
        *_spans(process, "UNIFIED_MEMORY_COUNTER", device=migrated, where=is_migration),
    ]
    all_sources = {
        "kernels": _spans(process, "CONCURRENT_KERNEL", "KERNEL", "GRAPH_TRACE", device=_DEVICE),
        "copies": copies,
        "syncs": _spans(process, "SYNCHRONIZATION"),
        "api_calls": _spans(integer_sql("processId"), "RUNTIME", "DRIVER"),
        "overheads": [replace(span, process_of=_process_of) for span in _spans(owner, "OVERHEAD")],
        **{
            name: [replace(markers, where=f"{integer_sql('flags')} & {flag}")]
            for name, flag in (("ranges", START), ("marks", MARK))
        },
    }
    return {
        name: [source for source in sources if source.table in file.database.tables]
        for name, sources in all_sources.items()
    }


def _spans(process: str, *tables: str, device: str = "", where: str = _IS_KEPT) -> list[RowSource]:
    """Return the row sources for ``tables`` with start and end."""
    times = integer_sql("start"), integer_sql("end")
    return [RowSource(PREFIX + table, *times, process, device, where) for table in tables]


def _process_of(digits: str) -> int:
    """Return the process in a hexadecimal object id."""
    return int(object_ids([digits])[0][0])


def read(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in a file of nvprof.

    Time 0 is the first record; in a cut file, the start of its window if that is earlier.
    """
    return reading(path, lambda database: _Reading(database, options).trace())


def outline(path: Path) -> Outline:
    """Return the outline of a file of nvprof; no row of an event table leaves SQLite."""

    def outlined(database: Database) -> Outline:
        found = _Reading(database, ReadOptions(tables=SELF_DESCRIPTION))
        return outline_from(found.trace(), found.survey)

    return reading(path, outlined)


class _Reading:
    """One reading of a file: every table at most once, and only tables that ``options`` need."""

    def __init__(self, database: Database, options: ReadOptions) -> None:
        self.file = open_nvprof(database, options.rules)
        self.options = options

    def trace(self) -> Trace:
        """Return the Trace with the wanted tables, and with other tables that had to be read."""
        catalogue = self.file.database.catalogue
        if self.options.known is not None:
            trace = self.options.known.with_tables(self._events)
            return (
                without_ignored_tables(trace, catalogue.spared, _FILE_TABLES)
                if catalogue.spared
                else trace
            )
        options, survey = self.options, self.survey
        tables = self._events | {
            "devices": read_devices(self.file),
            "environment": read_environment(self.file),
        }
        has_rows = survey.with_rows() | {name for name, rows in tables.items() if len(rows)}
        if events.has_kernel_shapes(self.file):
            has_rows.add("kernel_shapes")
        if options.wants("processes"):
            tables["processes"] = read_processes(self.file, survey.processes)
        if len(survey.processes):
            has_rows.add("processes")
        worked = None
        if options.wants("devices") and not all(map(options.reads_whole, DEVICE_TABLES)):
            worked = survey.worked(lambda _, device: device)
        note = cut_note(self.file.database)
        recorded = note.recorded_of(has_rows, _recorded_tables(has_rows | note.recorded))
        # A cut file covers at least the window of the cut.
        span = survey.span
        if note.window is not None:
            span |= note.window.moved(-self.file.zero_ns)
        info = replace(
            read_info(self.file, FORMAT.name),
            is_part=note.window is not None,
            has_some_devices_only=note.has_some_devices_only,
            warnings=tuple(self._warnings()),
        )
        trace = make_trace(info, tables, recorded, span, worked).with_worked(note.devices)
        return (
            without_ignored_tables(trace, catalogue.spared, _FILE_TABLES)
            if catalogue.spared
            else trace
        )

    @cached_property
    def survey(self) -> Survey:
        """The extents of all event tables, whether they are read or not."""
        return survey_of(self.file, self._whole(self._events))

    def _whole(self, tables: Mapping[str, Table]) -> dict[str, Table]:
        """Return the tables that were read with all their rows."""
        return {name: rows for name, rows in tables.items() if self.options.reads_whole(name)}

    @cached_property
    def _events(self) -> dict[str, Table]:
        """The event tables that ``options`` need."""
        markers: Mapping[str, Callable[[], Table]] = {
            "ranges": lambda: self._markers.ranges,
            "marks": lambda: self._markers.marks,
            "collectives": self._read_collectives,
        }
        needed = {name: read() for name, read in markers.items() if self.options.needs(name)}
        return self._records | needed

    @cached_property
    def _records(self) -> dict[str, Table]:
        """The needed tables whose rows have start and end: all but markers and collectives."""
        file, window = self.file, self.options.window
        readers: Mapping[str, Callable[[], Table]] = {
            "kernels": lambda: self._kernels_and_shapes[0],
            "kernel_shapes": lambda: self._kernels_and_shapes[1],
            "copies": lambda: self._copies,
            "api_calls": lambda: self._api_calls,
            "syncs": lambda: events.read_syncs(file, window),
            "overheads": lambda: events.read_overheads(file),
        }
        return {name: read() for name, read in readers.items() if self.options.needs(name)}

    @cached_property
    def _kernels_and_shapes(self) -> tuple[Table, Table]:
        with_shapes = self.options.needs("kernel_shapes")
        return events.read_kernels(self.file, self.options.window, with_shapes=with_shapes)

    @cached_property
    def _copies(self) -> Table:
        return events.read_copies(self.file, self.options.window)

    @cached_property
    def _api_calls(self) -> Table:
        """The API calls, in a window from the first launch of its device work."""
        window = self.options.window
        if window is None:
            return events.read_api_calls(self.file)
        before = events.read_api_calls(self.file, TimeWindow(0, window.start_ns))
        reach = from_first_launch(window, (self._kernels_and_shapes[0], self._copies), before)
        return events.read_api_calls(self.file, reach)

    @cached_property
    def _markers(self) -> Annotations:
        return events.read_markers(
            self.file, lambda: last_ns(survey_of(self.file, self._whole(self._records)))
        )

    def _read_collectives(self) -> Table:
        """Return the PyTorch annotations that are collectives, linked to their kernels."""
        if not count_annotations(self.file):
            return empty_table("collectives")
        has_kernels, has_calls = map(self.options.reads_whole, ("kernels", "api_calls"))
        kernels = self._kernels_and_shapes[0] if has_kernels else events.read_kernels(self.file)[0]
        api_calls = self._api_calls if has_calls else events.read_api_calls(self.file)
        return annotated_collectives(self._markers.ranges, kernels, api_calls)

    def _warnings(self) -> list[str]:
        """Return the warnings about this file."""
        warnings = self.file.database.catalogue.warnings()
        if self.file.n_lost:
            warnings.append(
                f"the profiler lost {self.file.n_lost} records (their times are 0 or missing); "
                "record again with a larger nvprof --device-buffer-size"
            )
        is_read = self.options.needs("ranges")
        return warnings + self.survey.unclosed(self._markers.n_unclosed if is_read else None)


def _recorded_tables(has_rows: set[str]) -> set[str]:
    """Return the recorded tables: always device work and NVTX.

    API calls were recorded unless there is device work but no call.
    """
    traced = {"api_calls"} if has_rows.isdisjoint(DEVICE_TABLES) else set()
    return has_rows | {"kernels", "copies", "ranges", "marks"} | traced
