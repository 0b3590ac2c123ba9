"""The files of a recording: one SQLite file, or a folder with one per rank and a manifest."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import UsageError
from traceprof.files import check_target, new_file
from traceprof.formats.nsys import split
from traceprof.formats.nsys.sidecar import LOSSES
from traceprof.formats.nsys.split import TraceprofEvents
from traceprof.formats.nsys.writer import append_to_nsys, write_nsys
from traceprof.formats.runs.manifest import BESIDE, MANIFEST_KEY
from traceprof.formats.shared.redaction import renamed
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, TABLES, stack
from traceprof.model.trace import Trace, make_trace
from traceprof.processes import map_in_threads
from traceprof.recording import job as jobs
from traceprof.recording.captured import Captured
from traceprof.recording.captured_trace import EventTables, event_tables, make_spool_trace
from traceprof.recording.identities import left_in, numbers_in
from traceprof.recording.job import Job, OutputFile
from traceprof.recording.request import ProcessProfile, RecordRequest, handling_recorded, writing

Times = npt.NDArray[np.int64]
_OURS: Final = ("collectives", "samples", "processes", "environment")
_ONCE: Final = "devices"
"""All processes of a machine see the same devices."""
_MOST_AT_ONCE: Final = 8
_IN_EXPORT: Final = ("ranges", "marks")


class ProfilerClock:
    """Turns ns since 1970 into the clock of the export.

    The two drift by some µs a second: ``marks`` are pairs (time on the export's clock, ns since
    1970) that were taken every second; between them the offset is interpolated. Without marks
    the start of the session, ``epoch_ns``, has to do.
    """

    def __init__(self, epoch_ns: int, marks: Sequence[tuple[int, int]] = ()) -> None:
        self.epoch_ns = epoch_ns
        pairs = np.array(marks or [(0, epoch_ns)], np.int64)
        # Counted from the session start, the offsets are small enough for floating point.
        self._at = pairs[:, 1] - epoch_ns
        self._offset = pairs[:, 0] - self._at

    def __call__(self, epoch_times: Times) -> Times:
        """Return the times on the clock of the export."""
        since = np.asarray(epoch_times, np.int64) - self.epoch_ns
        offset = np.interp(since, self._at, self._offset)
        shifted: Times = since + np.rint(offset).astype(np.int64)
        return shifted


def first_of_profiles(profiles: Sequence[ProcessProfile]) -> int | None:
    """Return the earliest time 0 of the profiles in ns since 1970; None where there are none."""
    return min((profile.trace.info.utc_epoch_ns or 0 for profile in profiles), default=None)


def with_profiles(trace: Trace, profiles: Sequence[ProcessProfile]) -> Trace:
    """Return ``trace`` (from the hooks) with the tables of ``profiles`` on its clock.

    Ranges of our own domain are in both where NVTX reached the profiler: the hooks' are taken.
    """
    epoch_ns = trace.info.utc_epoch_ns or 0
    moved = [_moved(profile, epoch_ns) for profile in profiles]
    tables: dict[str, Table] = {}
    for name in TABLES:
        parts = [part.table(name) for part in moved] if name not in _OURS else []
        if name == _ONCE:
            parts = parts[:1]
        elif name in ("ranges", "marks"):
            parts = [part.take(part["domain"] != "traceprof") for part in parts]
        tables[name] = stack(name, [trace.table(name), *parts])
    recorded = trace.recorded.union(*(part.recorded for part in moved))
    info = replace(trace.info, profiler=moved[0].info.profiler if moved else trace.info.profiler)
    return make_trace(info, tables, recorded)


def _moved(profile: ProcessProfile, epoch_ns: int) -> Trace:
    """Return a profile's trace on the clock with ``epoch_ns`` at 0, its process filled in."""
    trace = profile.trace
    shift = (trace.info.utc_epoch_ns or 0) - epoch_ns
    changed: dict[str, Table] = {}
    for name in TABLES:
        rows = trace.table(name)
        columns = {key: rows[key] + shift for key in ("start_ns", "end_ns") if key in rows}
        if "process" in rows:
            pids = rows["process"]
            columns["process"] = np.where(pids == ABSENT, profile.pid, pids)
        changed[name] = rows.assign(**columns)
    return make_trace(trace.info, changed, trace.recorded)


def write_export(job: Job, database: Path, notes: list[str]) -> list[OutputFile]:
    """Add what the hooks captured to the profiler's own export, on its clock, and publish it.

    In a folder every rank gets a file. Where they cannot be written one file keeps everything.

    Raises:
        UsageError: nothing can be written.
        RecordingError: the export is damaged.
    """
    own, lost = _read_traceprof_events(job, database, notes)
    export = _Export(job, database, own, lost)
    parts = jobs.planned_files(job)
    if len(parts) > 1:
        try:
            return export.write_apart(parts)
        except UsageError as error:
            parts = [jobs.file_of_node(job)]
            notes.append(f"{error}; traceprof wrote all ranks to {parts[0].path.name} instead")
    return [export.write_whole(parts[0])]


def _read_traceprof_events(
    job: Job, database: Path, notes: list[str]
) -> tuple[TraceprofEvents, list[int]]:
    """Return what the export has of ours, and the processes of which it has not all ranges.

    What it has of theirs is removed: the spool has all of it.
    """
    is_bounded = job.request.bounds.is_bounded  # nsys starts with a range of ours, then
    with handling_recorded():
        split.remove_lone_overheads(database, job.captured.pids())
        own = split.read_traceprof_events(database)
        lost = [
            part.pid
            for part in job.captured.events
            if part.n_ranges - is_bounded > own.n_ranges[part.pid]
        ]
        if lost:
            which = ", ".join(map(str, lost))
            why = f"the profiler did not record all ranges of process {which}"
            notes.append(f"{why}; traceprof added them from its own recording")
            split.remove_traceprof_events(database, lost)
    return own, lost


class _Export:
    """An export of all processes of a node, and what the hooks captured of them."""

    def __init__(self, job: Job, database: Path, own: TraceprofEvents, lost: Sequence[int]) -> None:
        self._job = job
        self._database = database
        self._own = own
        self._clock = ProfilerClock(own.epoch_ns, own.clock_marks)
        self._lost = lost

    def write_whole(self, part: OutputFile) -> OutputFile:
        """Publish the export itself."""
        ranks = self._append(self._job.captured, self._database)
        with new_file(part.path, force=True) as beside:  # perhaps on another disk
            shutil.move(self._database, beside)
        return replace(part, ranks=ranks, seen_ns=self._seen_ns(part))

    def write_apart(self, parts: Sequence[OutputFile]) -> list[OutputFile]:
        """Publish a file per part; none of them appears where one cannot be written."""
        ranked = [part for part in parts if not part.is_rest]
        known = frozenset[int]().union(*(part.processes for part in ranked))
        rest = next((part for part in parts if part.is_rest), jobs.file_of_rest(self._job))
        everything = [*ranked, replace(rest, processes=known)]
        n_threads = min(len(everything), os.cpu_count() or 1, _MOST_AT_ONCE)
        with ExitStack() as unfinished:
            temporary = {
                part.path: unfinished.enter_context(new_file(part.path, force=True))
                for part in everything
            }
            written = map_in_threads(
                lambda part: self._write_one(part, temporary[part.path]), everything, n_threads
            )
            files = [file for file in written if file is not None]
            for path in temporary.keys() - {file.path for file in files}:
                temporary[path].unlink(missing_ok=True)
        return files

    def _write_one(self, part: OutputFile, path: Path) -> OutputFile | None:
        """Write one part under its temporary name; None where nothing belongs to no rank."""
        n_events = split.copy_processes(self._database, path, part.processes, others=part.is_rest)
        if not part.is_rest:
            ranks = self._append(self._job.captured.of(part.processes), path)
            return replace(part, ranks=ranks, seen_ns=self._seen_ns(part))
        captured = self._job.captured
        rest = captured.of(frozenset(captured.pids()) - part.processes)
        if not n_events and rest.is_empty:
            return None
        return replace(part, ranks=self._append(rest, path))

    def _seen_ns(self, part: OutputFile) -> int:
        """Return when the profiler saw the rank of a part for the last time, 0 where it did not."""
        at = None if part.main is None else self._own.last_ns.get(part.main)
        return 0 if at is None else self._own.epoch_ns + at

    def _lacking(self, tables: EventTables) -> EventTables:
        """Return what the export lacks: ranges and marks only of processes that it has lost."""
        return {
            name: rows.take(np.isin(rows["process"], self._lost)) if name in _IN_EXPORT else rows
            for name, rows in tables.items()
        }

    def _append(self, captured: Captured, path: Path) -> tuple[int, ...]:
        """Add what the hooks captured; return the ranks."""
        job, clock = self._job, self._clock
        trace = make_spool_trace(captured, clock, job.facts, clock.epoch_ns, job.notes.host)
        samples = trace.samples.take(trace.samples["start_ns"] >= 0)
        events = map(self._lacking, event_tables(captured, clock, job.shown_name))
        append_to_nsys(replace(trace, samples=samples), path, _texts(job, captured), events)
        return jobs.ranks_in(trace)


def check_output(request: RecordRequest, *, is_joining: bool | None = None) -> None:
    """Check that a recording can be written where it is asked for.

    ``is_joining`` says whether it adds to a run that others write, too; by default it is found out.

    Raises:
        UsageError: it exists and ``force`` is off, or its folder is missing or read-only.
    """
    target = request.output
    if request.is_folder:
        target /= f"manifest-{socket.gethostname()}.json"
        with writing(request.output, "created"):
            request.output.mkdir(parents=True, exist_ok=True)
    elif target.is_dir():
        raise UsageError(f"{target}: is a folder; add / to the name to record into it")
    if is_joining is None:
        is_joining = jobs.is_joining(request)
    check_target(target, force=request.force or is_joining)
    folder = target.absolute().parent
    probe = folder / f".traceprof-{os.getpid()}.probe"
    with writing(folder, "written to"):
        probe.touch()
        probe.unlink()


def write_outputs(job: Job, notes: list[str]) -> list[OutputFile]:
    """Write the files of a recording and return them; ``notes`` gets what is odd.

    Raises:
        UsageError: a file cannot be written.
    """
    try:
        if job.run.database is not None:
            files = write_export(job, job.run.database, notes)
        else:
            files = [_write_spool(job, part) for part in jobs.planned_files(job)]
        if job.request.is_folder:
            _write_manifest(job, files)
    finally:
        job.places.give_back()
    return files


def keep_snapshots(job: Job, folder: Path, files: Sequence[OutputFile]) -> list[str]:
    """Put the snapshots of memory in a work folder beside the traces; return what to say of them.

    That of a trace of one process is called as the trace, of several by the process, too.
    """
    found = left_in(folder, "memory.*.pickle")
    if job.request.memory_steps is not None and not found:
        return ["no memory snapshot, because torch did not use a GPU in the steps of --memory"]
    notes, numbers = [], numbers_in(folder)
    for identity, snapshot in found:
        pid = numbers.of(identity)
        file = next((one for one in files if one.holds(pid)), files[0])
        ending = BESIDE if len(found) == 1 or file.main == pid else f".{pid}{BESIDE}"
        path = file.path.with_suffix(ending)
        try:
            with new_file(path, force=job.request.force) as temporary:
                shutil.copyfile(snapshot, temporary)
            notes.append(f"memory snapshot written; run traceprof memory {shlex.quote(str(path))}")
        except (UsageError, OSError) as error:  # the trace is written
            notes.append(f"the memory snapshot was lost: {error}")
    return notes


def _write_spool(job: Job, part: OutputFile) -> OutputFile:
    """Write a trace of what the hooks captured alone; all files of a node share one clock."""
    captured = job.captured if part.is_whole else job.captured.of(part.processes)
    profiles = [item for item in job.run.profiles if part.holds(item.pid)]
    times = (job.captured.first_ns(), first_of_profiles(job.run.profiles))
    first_ns = min(filter(None, times), default=0)
    clock = ProfilerClock(first_ns)
    of = (captured, clock, job.facts, first_ns, job.notes.host)
    trace = make_spool_trace(*of, with_windows=not profiles)
    names = renamed(trace.host_ops["name"], job.shown_name)
    trace = trace.with_tables({"host_ops": trace.host_ops.assign(name=names)})
    if profiles:
        trace = with_profiles(trace, profiles)
    events = event_tables(captured, clock, job.shown_name)
    write_nsys(trace, part.path, _texts(job, captured), events)
    return replace(part, ranks=jobs.ranks_in(trace))


def _texts(job: Job, captured: Captured) -> dict[str, str]:
    """Return what a file with ``captured`` in it says of the recording, and of what it lost."""
    losses = captured.losses()
    return job.texts() | ({LOSSES: json.dumps(losses)} if losses else {})


def _write_manifest(job: Job, files: list[OutputFile]) -> None:
    """Write what this launcher recorded, in the form that readers of runs know."""
    manifest = {MANIFEST_KEY: 1, **job.manifest()}
    sizes = [one.world_size for one in job.captured.processes if one.world_size is not None]
    if sizes:
        manifest["world_size"] = max(sizes)
    rows = [_manifest_row(job, file) for file in files if not file.is_rest]
    manifest["ranks"] = [{**row, "rank": 0} for row in rows] if _are_attempts(job, files) else rows
    others = [file.path.name for file in files if file.is_rest]
    if others:
        manifest["others"] = others
    if job.captured.agent_events:
        manifest["agents"] = list(job.captured.agent_events)
    path = job.places.take(f"manifest-{job.notes.host}", ".json")
    with writing(path):
        path.write_text(json.dumps(manifest, indent=1) + "\n")
        if job.request.force and not job.notes.is_joining:
            # Those of the recording that this one replaces list other files.
            for older in jobs.manifests_of_host(job.request.output):
                if older != path and older.stat().st_mtime < job.notes.started_s:
                    older.unlink(missing_ok=True)


def _are_attempts(job: Job, files: Sequence[OutputFile]) -> bool:
    """Return whether processes of no rank are one program that was started again and again."""
    attempts = [
        job.captured.attempt_of(file.main, file.seen_ns) for file in files if file.main is not None
    ]
    if len(attempts) < 2 or len(attempts) < len(files) or any(file.ranks for file in files):
        return False
    attempts.sort(key=lambda one: int(one.get("started_ns", 0)))
    pairs = pairwise(attempts)
    follow = (one.get("ended_ns", inf) < later.get("started_ns", 0) for one, later in pairs)
    pids = {one["pid"] for one in attempts}
    commands = {one.command for one in job.captured.processes if one.pid in pids}
    return len(commands) == 1 and all(follow)


def _manifest_row(job: Job, file: OutputFile) -> dict[str, object]:
    row: dict[str, object] = {"file": file.path.name, "host": job.notes.host}
    if len(file.ranks) == 1:
        row["rank"] = file.ranks[0]
    elif file.ranks:
        row["ranks"] = list(file.ranks)
    return row if file.main is None else row | job.captured.attempt_of(file.main, file.seen_ns)
