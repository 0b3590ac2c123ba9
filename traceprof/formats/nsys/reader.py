"""Read SQLite exports of Nsight Systems, 2019 to 2026, and recordings of traceprof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from traceprof.formats.contract import Outline, ReadOptions, from_first_launch
from traceprof.formats.nsys import communication, device, host, target
from traceprof.formats.nsys.format import FORMAT
from traceprof.formats.nsys.metrics import read_metrics
from traceprof.formats.nsys.mpi import read_mpi_collectives
from traceprof.formats.nsys.schema import (
    COLLECTIVES,
    FUNCTIONS,
    HOST_SOURCES,
    KERNELS,
    MANIFEST,
    MPI_SOURCES,
    OPERATORS,
    OVERHEADS,
    PYTHON_SAMPLER,
    SYNCS,
)
from traceprof.formats.nsys.sidecar import read_losses, read_traceprof_table
from traceprof.formats.nsys.survey import (
    read_diagnostics,
    recorded_tables,
    survey_of,
    unrecorded_graphs,
)
from traceprof.formats.shared import collectives
from traceprof.formats.shared.cupti import Annotations
from traceprof.formats.sqlite.database import Database, cut_note, reading
from traceprof.formats.sqlite.spare import without_ignored_tables
from traceprof.formats.sqlite.survey import EVENT_TABLES, SELF_DESCRIPTION, Survey, outline_from
from traceprof.model.table import Table
from traceprof.model.tables import empty_table, stack
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace, make_trace
from traceprof.processes import run_in_threads

_FILE_TABLES: Final = {
    "kernel_shapes": (f"{KERNELS}.gridX", f"{KERNELS}.blockX"),
    "syncs": (SYNCS,),
    "threads": ("ThreadNames",),
    "overheads": OVERHEADS,
    "host_ops": (*HOST_SOURCES, *MPI_SOURCES, OPERATORS),
}
"""Table of the Trace that others do not need → the tables, or columns, of the file behind it."""
_MIN_THREADED_BYTES: Final = 32 << 20
_MAX_THREADED_BYTES: Final = 800_000_000
"""Files of at least this size are read one table at a time, to save memory."""


def read(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in an nsys export."""
    return reading(path, lambda database: _Reading(database, options).trace())


def outline(path: Path) -> Outline:
    """Return the outline of an nsys export; no row of an event table leaves SQLite."""

    def outlined(database: Database) -> Outline:
        found = _Reading(database, ReadOptions(tables=SELF_DESCRIPTION))
        return outline_from(found.trace(), found.survey, found.device_of)

    return reading(path, outlined)


class _Reading:
    """One reading of an export: every table at most once, and only tables that ``options`` need."""

    def __init__(self, database: Database, options: ReadOptions) -> None:
        self.database = database
        self.options = options
        self._has_recorded_collectives = COLLECTIVES in database.tables
        # Event times start at 0, so the duration of the capture is its end.
        self.capture_end = target.first_number(database, "ANALYSIS_DETAILS", "duration")
        device_tables = ("kernels", "kernel_shapes", "copies", "syncs")
        needs_devices = options.known is None or any(map(options.needs, device_tables))
        self.device_numbers = target.physical_devices(database) if needs_devices else {}

    def trace(self) -> Trace:
        """Return the Trace with the wanted tables, and with other tables that had to be read."""
        catalogue = self.database.catalogue
        if self.options.known is not None:
            trace = self.options.known.with_tables(self.events)
            return (
                without_ignored_tables(trace, catalogue.spared, _FILE_TABLES)
                if catalogue.spared
                else trace
            )
        options, survey = self.options, self.survey
        tables = self.events | {
            "devices": target.read_devices(self.database),
            "environment": target.read_environment(self.database),
        }
        has_rows = survey.with_rows() | {name for name, rows in tables.items() if len(rows)}
        if options.wants("processes", "threads"):
            used = survey.processes
            tables["processes"] = target.read_processes(self.database, used, self._communicators)
            tables["threads"] = target.read_threads(self.database, used)
            has_rows |= {name for name in ("processes", "threads") if len(tables[name])}
        elif len(survey.processes):
            has_rows.add("processes")
            if target.named_processes(self.database) & set(survey.processes.tolist()):
                has_rows.add("threads")
        worked = None
        if options.wants("devices") and not all(map(options.reads_whole, DEVICE_TABLES)):
            worked = survey.worked(self.device_of)
        note = cut_note(self.database)
        recorded = note.recorded_of(
            has_rows, recorded_tables(self.database, has_rows | note.recorded)
        )
        # A cut file covers at least the window of the cut.
        span = survey.span if note.window is None else survey.span | note.window
        losses = read_losses(self.database) if MANIFEST in self.database.tables else []
        info = replace(
            target.read_info(self.database, FORMAT.name),
            is_part=note.window is not None,
            has_some_devices_only=note.has_some_devices_only,
            warnings=(*self._warnings(), *losses, *read_diagnostics(self.database)),
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
        whole = {name: rows for name, rows in self.events.items() if self.options.reads_whole(name)}
        return survey_of(self.database, whole, self.capture_end)

    def device_of(self, process: int, ordinal: int) -> int:
        """Return the device of the machine for a CUDA ordinal of a process."""
        return self.device_numbers.get((process, ordinal), ordinal)

    @cached_property
    def events(self) -> dict[str, Table]:
        """The event tables that ``options`` need."""
        database, window = self.database, self.options.window
        if window is not None and self.options.known is None:
            whole = (name for name in EVENT_TABLES if self.options.reads_whole(name))
            survey_of(database, {name: empty_table(name) for name in whole}, None).look()
        readers: Mapping[str, Callable[[], Table]] = {
            "kernels": lambda: self._kernels_and_shapes[0],
            "kernel_shapes": lambda: self._kernels_and_shapes[1],
            "copies": lambda: self._copies,
            "api_calls": lambda: self._api_calls,
            "ranges": lambda: self._annotations.ranges,
            "marks": lambda: self._annotations.marks,
            "host_ops": lambda: host.read_host_ops(database, self._reach),
            "functions": lambda: read_traceprof_table(database, "functions", self._reach),
            "syncs": lambda: device.read_syncs(database, window),
            "collectives": self._read_collectives,
            "samples": lambda: stack(
                "samples",
                [read_traceprof_table(database, "samples", window), read_metrics(database, window)],
            ),
            "overheads": lambda: host.read_overheads(database, window),
        }
        self._read_side_by_side()
        tables = {name: read() for name, read in readers.items() if self.options.needs(name)}
        found = tables.copy()
        for (process, ordinal), number in self.device_numbers.items():
            for name in {"kernels", "kernel_shapes", "copies", "syncs"} & found.keys():
                rows = (found[name]["process"] == process) & (found[name]["device"] == ordinal)
                moved = np.where(rows, number, tables[name]["device"])
                tables[name] = tables[name].assign(device=moved)
        return tables

    def _read_side_by_side(self) -> None:
        """Read the largest tables of a large file in two threads, the slowest first.

        The largest files are read one table at a time, with two threads that decode pages, because
        that takes less memory.
        """
        is_suitable = _MIN_THREADED_BYTES <= self.database.n_bytes < _MAX_THREADED_BYTES
        if self.options.window is not None or not is_suitable:
            return
        tasks: Mapping[Callable[[], object], tuple[str, ...]] = {
            lambda: self._annotations: ("ranges", "marks"),
            lambda: self._kernels_and_shapes: ("kernels", "kernel_shapes"),
            lambda: self._api_calls: ("api_calls",),
            lambda: self._nccl_calls: () if self._has_recorded_collectives else ("collectives",),
            lambda: self._copies: ("copies",),
        }
        run_in_threads(
            [task for task, names in tasks.items() if any(map(self.options.needs, names))]
        )

    @cached_property
    def _kernels_and_shapes(self) -> tuple[Table, Table]:
        options, with_shapes = self.options, self.options.needs("kernel_shapes")
        return device.read_kernels(
            self.database, options.rules, options.window, with_shapes=with_shapes
        )

    @cached_property
    def _copies(self) -> Table:
        return device.read_copies(self.database, self.options.window)

    @cached_property
    def _api_calls(self) -> Table:
        return host.read_api_calls(self.database, self._reach)

    @cached_property
    def _annotations(self) -> Annotations:
        """The NVTX ranges and marks; only possible steps and passes if these are enough."""
        if self.options.only_steps and not self.options.wants("marks", "collectives"):
            found = host.read_annotations(self.database, self.capture_end, only_steps=True)
            if not found.n_unclosed:  # an unclosed range ends with the last event of the file
                return found
        return host.read_annotations(self.database, self.capture_end)

    @cached_property
    def _reach(self) -> TimeWindow | None:
        """The window, extended back to the first launch of its device work."""
        window = self.options.window
        if window is None:
            return None
        work = (self._kernels_and_shapes[0], self._copies)
        return from_first_launch(
            window, work, host.read_launches(self.database, window.start_ns, work)
        )

    def _read_collectives(self) -> Table:
        """Return the collectives that traceprof recorded; otherwise those of NCCL and MPI ranges.

        If there are none, PyTorch annotations become collectives.
        """
        if self._has_recorded_collectives:
            found = self._recorded_collectives()
        else:
            found = read_mpi_collectives(self.database)
            if len(self._nccl_calls.rows):
                by_nccl = communication.make_nccl_collectives(
                    self._nccl_calls, *self._communication_kernels
                )
                found = stack("collectives", [by_nccl, found])
        if found.empty and communication.count_communication(self.database).n_annotations:
            return collectives.annotated_collectives(
                self._annotations.ranges, *self._communication_kernels
            )
        return found

    @cached_property
    def _nccl_calls(self) -> communication.NcclCalls:
        return communication.read_nccl_calls(self.database)

    def _communicators(self) -> list[communication.Communicator]:
        """Return the communicators that the processes joined."""
        if self.options.needs("collectives") and not self._has_recorded_collectives:
            return communication.communicators(self._nccl_calls)
        return communication.communicators(
            communication.read_nccl_calls(self.database, only_inits=True)
        )

    def _recorded_collectives(self) -> Table:
        """Return the collectives that traceprof recorded, linked to batched launches."""
        recorded = read_traceprof_table(self.database, "collectives")
        if recorded.empty:
            return recorded
        by_launch = collectives.link_by_launch(recorded, *self._communication_kernels)
        batched = collectives.link_to_batches(by_launch, *self._communication_kernels)
        by_batch = batched["correlation"]
        # Only launches of batches are stored. Launches inside a call are found by time when they
        # are needed, because calls may enclose one another.
        is_batched = by_batch != by_launch["correlation"]
        return recorded.assign(correlation=np.where(is_batched, by_batch, recorded["correlation"]))

    @cached_property
    def _communication_kernels(self) -> tuple[Table, Table]:
        """The possible collective kernels of the whole file, and their launching API calls."""
        has_kernels, has_calls = map(self.options.reads_whole, ("kernels", "api_calls"))
        if has_kernels and has_calls:
            return self._kernels_and_shapes[0], self._api_calls
        where = device.communication_kernels(self.database, self.options.rules)
        if not where:
            return empty_table("kernels"), empty_table("api_calls")
        launched = f"SELECT correlationId FROM {self.database.stored_name(KERNELS)} WHERE {where}"
        linked = f"correlationId IN ({launched})"
        return (
            self._kernels_and_shapes[0]
            if has_kernels
            else device.read_kernels(self.database, self.options.rules, None, where)[0],
            self._api_calls if has_calls else host.read_api_calls(self.database, where=linked),
        )

    def _warnings(self) -> list[str]:
        """Return the warnings about this file."""
        warnings = self.database.catalogue.warnings()
        n_lost, n_launches = unrecorded_graphs(self.database)
        if n_lost:
            which = "" if n_lost == n_launches else f" of {n_launches}"
            warnings.append(
                f"the GPU activity of {n_lost}{which} launched CUDA graphs is not in the file, so "
                "the GPUs look idle; record with nsys --cuda-graph-trace=node"
            )
        sampled = "SELECT 1 FROM StringIds WHERE value = ?"
        if (
            "StringIds" in self.database.tables
            and FUNCTIONS not in self.database.tables
            and self.database.rows(sampled, (PYTHON_SAMPLER,))
        ):
            warnings.append(
                "Python stacks were sampled, but the file does not contain them as traceprof reads "
                "them; if it is an export of nsys, give the .nsys-rep file (nsys must be installed)"
            )
        is_whole = self.options.reads_whole("ranges")
        warnings += self.survey.unclosed(self._annotations.n_unclosed if is_whole else None)
        capture_end = self.capture_end
        ends = [self.survey.extent(name).end_ns or 0 for name in DEVICE_TABLES]
        if capture_end and max(ends) > capture_end:
            n_late = sum(
                self.survey.count(
                    name, lambda rows: f"{rows.start} > {capture_end} OR {rows.end} > {capture_end}"
                )
                for name in DEVICE_TABLES
            )
            if n_late:
                warnings.append(
                    f"{n_late} kernels and copies end after the end of the capture; their times "
                    "may be wrong"
                )
        return warnings
