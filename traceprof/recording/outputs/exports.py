"""The export of a profiler that records all processes of a node, as the files of a recording."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from traceprof.errors import RecordingError, TraceError, UsageError
from traceprof.files import new_file
from traceprof.formats.nsys.split import (
    OwnEvents,
    copy_processes,
    read_own_events,
    remove_lone_overheads,
    remove_own_events,
)
from traceprof.formats.nsys.writer import append_to_nsys
from traceprof.recording.gathering.captured import Captured
from traceprof.recording.gathering.tables import EventTables, event_tables, make_spool_trace
from traceprof.recording.outputs.clock import ProfilerClock
from traceprof.recording.outputs.job import Job
from traceprof.recording.outputs.parts import (
    Part,
    WrittenFile,
    node_part,
    parts_of,
    ranks_in,
    rest_of,
)

__all__ = ["write_export"]

_MOST_AT_ONCE: Final = 8
_IN_EXPORT: Final = ("ranges", "marks")


def write_export(job: Job, database: Path, notes: list[str]) -> list[WrittenFile]:
    """Add what the hooks captured to the profiler's own export, on its clock, and publish it.

    In a folder every rank gets a file. Where they cannot be written one file keeps everything.

    Raises:
        UsageError: nothing can be written.
        RecordingError: the export is damaged.
    """
    own, lost = _read_own_events(job, database, notes)
    export = _Export(job, database, own, lost)
    parts = parts_of(job)
    if len(parts) > 1:
        try:
            return export.write_apart(parts)
        except UsageError as error:
            parts = [node_part(job)]
            notes.append(f"{error}; all ranks are in {parts[0].path.name} instead")
    return [export.write_whole(parts[0])]


def _read_own_events(job: Job, database: Path, notes: list[str]) -> tuple[OwnEvents, list[int]]:
    """Return what the export has of ours, and the processes of which it has not all ranges.

    What it has of theirs is removed: the spool has all of it.
    """
    is_bounded = job.request.bounds.is_bounded  # nsys starts with a range of ours, then
    try:
        remove_lone_overheads(database, job.captured.pids())
        own = read_own_events(database)
        lost = [
            part.pid
            for part in job.captured.events
            if part.n_ranges - is_bounded > own.n_ranges[part.pid]
        ]
        if lost:
            notes.append(
                f"not all ranges of process {', '.join(map(str, lost))} reached the profiler; "
                "those of the spool were taken instead"
            )
            remove_own_events(database, lost)
    except TraceError as error:
        raise RecordingError(str(error)) from error
    return own, lost


class _Export:
    """An export of all processes of a node, and what the hooks captured of them."""

    def __init__(self, job: Job, database: Path, own: OwnEvents, lost: Sequence[int]) -> None:
        self._job = job
        self._database = database
        self._own = own
        self._clock = ProfilerClock(own.epoch_ns, own.clock_marks)
        self._lost = lost

    def write_whole(self, part: Part) -> WrittenFile:
        """Publish the export itself."""
        ranks = self._append(self._job.captured, self._database)
        _publish(self._database, part.path)
        return WrittenFile(part.path, ranks, main=part.main, seen_ns=self._seen_ns(part))

    def write_apart(self, parts: Sequence[Part]) -> list[WrittenFile]:
        """Publish a file per part; none of them appears where one cannot be written."""
        ranked = [part for part in parts if not part.is_rest]
        known = frozenset[int]().union(*(part.processes for part in ranked))
        rest = next((part for part in parts if part.is_rest), rest_of(self._job))
        everything = [*ranked, replace(rest, processes=known)]
        n_threads = min(len(everything), os.cpu_count() or 1, _MOST_AT_ONCE)
        with ExitStack() as unfinished, ThreadPoolExecutor(n_threads) as pool:
            temporary = {
                part.path: unfinished.enter_context(new_file(part.path, force=True))
                for part in everything
            }
            written = pool.map(lambda part: self._write_one(part, temporary[part.path]), everything)
            files = [file for file in written if file is not None]
            for path in temporary.keys() - {file.path for file in files}:
                temporary[path].unlink(missing_ok=True)
        return files

    def _write_one(self, part: Part, path: Path) -> WrittenFile | None:
        """Write one part under its temporary name; None where nothing belongs to no rank."""
        n_events = copy_processes(self._database, path, part.processes, others=part.is_rest)
        if not part.is_rest:
            ranks = self._append(self._job.captured.of(part.processes), path)
            return WrittenFile(part.path, ranks, main=part.main, seen_ns=self._seen_ns(part))
        captured = self._job.captured
        rest = captured.of(frozenset(captured.pids()) - part.processes)
        if not n_events and rest.is_empty:
            return None
        return WrittenFile(part.path, self._append(rest, path), is_rest=True)

    def _seen_ns(self, part: Part) -> int:
        """Return when the profiler saw the rank of a part for the last time, 0 where it did not."""
        at = None if part.main is None else self._own.last_ns.get(part.main)
        return 0 if at is None else self._own.epoch_ns + at

    def _lacking(self, tables: EventTables) -> EventTables:
        """Return what the export lacks: ranges and marks only of processes that it has lost."""
        return {
            name: table[table["process"].isin(self._lost)] if name in _IN_EXPORT else table
            for name, table in tables.items()
        }

    def _append(self, captured: Captured, path: Path) -> tuple[int, ...]:
        """Add what the hooks captured; return the ranks."""
        job = self._job
        trace = make_spool_trace(captured, self._clock, job.facts, self._clock.epoch_ns, job.host)
        samples = trace.samples[trace.samples["start_ns"] >= 0]
        events = map(self._lacking, event_tables(captured, self._clock, job.shown_name))
        append_to_nsys(replace(trace, samples=samples), path, job.texts(), events)
        return ranks_in(trace)


def _publish(database: Path, path: Path) -> None:
    """Move a finished file to its place, which may be on another disk, in one piece."""
    with new_file(path, force=True) as beside:
        shutil.move(database, beside)
