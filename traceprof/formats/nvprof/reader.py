"""SQLite files of nvprof and the Visual Profiler, versions 8 to 16 and later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

import pandas as pd

from traceprof.formats.base import Outline, ReadOptions
from traceprof.formats.nvprof.device import (
    has_kernel_shapes,
    read_copies,
    read_kernel_shapes,
    read_kernels,
    read_syncs,
)
from traceprof.formats.nvprof.file import open_nvprof
from traceprof.formats.nvprof.format import FORMAT
from traceprof.formats.nvprof.host import Markers, read_api_calls, read_markers, read_overheads
from traceprof.formats.nvprof.sources import count_annotations, last_ns, survey_of
from traceprof.formats.nvprof.target import (
    read_devices,
    read_environment,
    read_info,
    read_processes,
)
from traceprof.formats.shared.collectives import annotated_collectives
from traceprof.formats.shared.narrowing import from_first_launch
from traceprof.formats.sqlite.cut_note import cut_note
from traceprof.formats.sqlite.database import Database, reading
from traceprof.formats.sqlite.survey import SELF_DESCRIPTION, Survey, outline_from
from traceprof.model.tables import empty_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace, make_trace

__all__ = ["outline", "read"]

_ALWAYS_RECORDED: Final = frozenset({"kernels", "copies", "ranges", "marks"})


def read(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in a file of nvprof; time 0 is its first record, of a part or its window."""
    return reading(path, lambda database: _Reading(database, options).trace())


def outline(path: Path) -> Outline:
    """Return what a file of nvprof contains; no row of an event table leaves SQLite."""

    def outlined(database: Database) -> Outline:
        found = _Reading(database, ReadOptions(tables=SELF_DESCRIPTION))
        return outline_from(found.trace(), found.survey)

    return reading(path, outlined)


class _Reading:
    """One reading of a file: every table at most once, and only what ``options`` need."""

    def __init__(self, database: Database, options: ReadOptions) -> None:
        self.file = open_nvprof(database, options.rules)
        self.options = options

    def trace(self) -> Trace:
        """Return what is asked for, and what was read for it."""
        if self.options.known is not None:
            return self.options.known.with_tables(self._events)
        options, survey = self.options, self.survey
        tables = self._events | {
            "devices": read_devices(self.file),
            "environment": read_environment(self.file),
        }
        has_rows = survey.with_rows() | {name for name, frame in tables.items() if len(frame)}
        if has_kernel_shapes(self.file):
            has_rows.add("kernel_shapes")
        if options.wants("processes"):
            tables["processes"] = read_processes(self.file, survey.processes())
        if survey.has_rows_of():
            has_rows.add("processes")
        worked = None
        if options.wants("devices") and not all(map(options.reads_whole, DEVICE_TABLES)):
            worked = survey.worked(lambda _, device: device)
        info = read_info(self.file, FORMAT.name)
        note = cut_note(self.file.database)
        recorded = note.recorded_of(has_rows, _recorded(has_rows | note.recorded))
        trace = make_trace(info, tables, recorded, self._span, worked).with_worked(note.devices)
        return trace.with_warnings(*self._warnings())

    @property
    def _span(self) -> TimeWindow:
        """The time that the file covers: of a part of another file at least its window."""
        window, zero_ns = cut_note(self.file.database).window, self.file.zero_ns
        if window is None:
            return self.survey.span
        return self.survey.span | TimeWindow(window.start_ns - zero_ns, window.end_ns - zero_ns)

    @cached_property
    def survey(self) -> Survey:
        """What the event tables are like, read or not."""
        return survey_of(self.file, self._whole(self._events))

    def _whole(self, tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        return {name: one for name, one in tables.items() if self.options.reads_whole(name)}

    @cached_property
    def _events(self) -> dict[str, pd.DataFrame]:
        """The event tables that are needed."""
        markers: Mapping[str, Callable[[], pd.DataFrame]] = {
            "ranges": lambda: self._markers.ranges,
            "marks": lambda: self._markers.marks,
            "collectives": self._read_collectives,
        }
        needed = {name: read() for name, read in markers.items() if self.options.needs(name)}
        return self._records | needed

    @cached_property
    def _records(self) -> dict[str, pd.DataFrame]:
        """The tables with ends of their own that are needed."""
        file, window = self.file, self.options.window
        readers: Mapping[str, Callable[[], pd.DataFrame]] = {
            "kernels": lambda: self._kernels,
            "kernel_shapes": lambda: read_kernel_shapes(file, window),
            "copies": lambda: self._copies,
            "api_calls": lambda: self._api_calls,
            "syncs": lambda: read_syncs(file, window),
            "overheads": lambda: read_overheads(file),
        }
        return {name: read() for name, read in readers.items() if self.options.needs(name)}

    @cached_property
    def _kernels(self) -> pd.DataFrame:
        return read_kernels(self.file, self.options.window)

    @cached_property
    def _copies(self) -> pd.DataFrame:
        return read_copies(self.file, self.options.window)

    @cached_property
    def _api_calls(self) -> pd.DataFrame:
        window = self.options.window
        if window is None:
            return read_api_calls(self.file)
        before = read_api_calls(self.file, TimeWindow(0, window.start_ns))
        reach = from_first_launch(window, (self._kernels, self._copies), before)
        return read_api_calls(self.file, reach)

    @cached_property
    def _markers(self) -> Markers:
        def latest() -> int:
            return last_ns(survey_of(self.file, self._whole(self._records)))

        return read_markers(self.file, latest)

    def _read_collectives(self) -> pd.DataFrame:
        if not count_annotations(self.file):
            return empty_table("collectives")
        has_kernels, has_calls = map(self.options.reads_whole, ("kernels", "api_calls"))
        kernels = self._kernels if has_kernels else read_kernels(self.file)
        api_calls = self._api_calls if has_calls else read_api_calls(self.file)
        return annotated_collectives(self._markers.ranges, kernels, api_calls)

    def _warnings(self) -> list[str]:
        warnings = self.file.database.catalogue.warnings()
        if self.file.n_lost:
            warnings.append(
                f"{self.file.n_lost} records were lost by the profiler (their times are 0 or "
                "missing) and are left out: record again with a larger nvprof --device-buffer-size"
            )
        n_unclosed = (
            self._markers.n_unclosed
            if self.options.needs("ranges")
            else self.survey.extent("ranges").n_open
        )
        if n_unclosed:
            warnings.append(
                f"{n_unclosed} NVTX ranges were never closed: they end with the capture"
            )
        return warnings


def _recorded(has_rows: set[str]) -> set[str]:
    """Return what nvprof was asked for: device work and NVTX always, API calls unless not."""
    recorded = has_rows | _ALWAYS_RECORDED
    if has_rows.isdisjoint(DEVICE_TABLES):
        recorded.add("api_calls")
    return recorded
