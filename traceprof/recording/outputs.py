"""Write the files of a recording: one SQLite file, or a folder with one per rank and a manifest."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import TraceError, UsageError
from traceprof.files import check_target, check_trace_name, new_file
from traceprof.formats.nsys import split
from traceprof.formats.nsys.sidecar import LOSSES
from traceprof.formats.nsys.split import TraceprofEvents
from traceprof.formats.nsys.writer import append_to_nsys, write_nsys
from traceprof.formats.runs.manifest import BESIDE, MANIFEST_KEY, read_manifest
from traceprof.formats.shared.redaction import renamed
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, TABLES, stack
from traceprof.model.trace import Trace, make_trace
from traceprof.processes import map_in_threads
from traceprof.recording import job as jobs
from traceprof.recording.captured import Captured
from traceprof.recording.captured_trace import EventTables, event_tables, make_spool_trace
from traceprof.recording.identities import files_by_process, numbers_in
from traceprof.recording.job import Job, OutputFile
from traceprof.recording.request import ProcessProfile, RecordRequest, handling_recorded, writing

Times = npt.NDArray[np.int64]
_TRACEPROF_TABLES: Final = ("collectives", "samples", "processes", "environment")
_SHARED_TABLE: Final = "devices"
"""This table is taken once: all processes of a machine have the same devices."""
_MAX_THREADS: Final = 8
_EXPORTED_TABLES: Final = ("ranges", "marks")


class ProfilerClock:
    """Convert ns since 1970 to the clock of the export.

    The two clocks drift by a few µs per second. ``marks`` are pairs (time on the clock of the
    export, ns since 1970), taken every second; the offset is interpolated between them. Without
    marks, ``epoch_ns``, the start of the session, is the only pair.
    """

    def __init__(self, epoch_ns: int, marks: Sequence[tuple[int, int]] = ()) -> None:
        self.epoch_ns = epoch_ns
        pairs = np.array(marks or [(0, epoch_ns)], np.int64)
        # Counted from the session start, the offsets are small enough for floating point.
        self._at = pairs[:, 1] - epoch_ns
        self._offset = pairs[:, 0] - self._at

    def __call__(self, epoch_times: Times) -> Times:
        """Return ``epoch_times`` (ns since 1970) on the clock of the export."""
        since = np.asarray(epoch_times, np.int64) - self.epoch_ns
        offset = np.interp(since, self._at, self._offset)
        shifted: Times = since + np.rint(offset).astype(np.int64)
        return shifted


def first_of_profiles(profiles: Sequence[ProcessProfile]) -> int | None:
    """Return the earliest time 0 of the profiles in ns since 1970; None without profiles."""
    return min((profile.trace.info.utc_epoch_ns or 0 for profile in profiles), default=None)


def with_profiles(trace: Trace, profiles: Sequence[ProcessProfile]) -> Trace:
    """Return ``trace`` (from the hooks) with the tables of ``profiles`` on its clock.

    If NVTX reached the profiler, both contain the ranges of the traceprof domain. The ranges of the
    hooks are used.
    """
    epoch_ns = trace.info.utc_epoch_ns or 0
    shifted = [_shift_profile(profile, epoch_ns) for profile in profiles]
    tables: dict[str, Table] = {}
    for name in TABLES:
        parts = [part.table(name) for part in shifted] if name not in _TRACEPROF_TABLES else []
        if name == _SHARED_TABLE:
            parts = parts[:1]
        elif name in ("ranges", "marks"):
            parts = [part.take(part["domain"] != "traceprof") for part in parts]
        tables[name] = stack(name, [trace.table(name), *parts])
    recorded = trace.recorded.union(*(part.recorded for part in shifted))
    info = replace(
        trace.info, profiler=shifted[0].info.profiler if shifted else trace.info.profiler
    )
    return make_trace(info, tables, recorded)


def _shift_profile(profile: ProcessProfile, epoch_ns: int) -> Trace:
    """Return the trace of a profile with ``epoch_ns`` at time 0 and missing processes filled in."""
    trace = profile.trace
    shift = (trace.info.utc_epoch_ns or 0) - epoch_ns
    tables: dict[str, Table] = {}
    for name in TABLES:
        rows = trace.table(name)
        columns = {key: rows[key] + shift for key in ("start_ns", "end_ns") if key in rows}
        if "process" in rows:
            pids = rows["process"]
            columns["process"] = np.where(pids == ABSENT, profile.pid, pids)
        tables[name] = rows.assign(**columns)
    return make_trace(trace.info, tables, trace.recorded)


def write_export(job: Job, database: Path, notes: list[str]) -> list[OutputFile]:
    """Add the data of the hooks to the export of the profiler, on its clock, and publish it.

    In a folder, each rank gets a file. If these cannot be written, one file contains all ranks.

    Raises:
        UsageError: no file can be written.
        RecordingError: the export is damaged.
    """
    exported, lossy_pids = _read_traceprof_events(job, database, notes)
    export = _Export(job, database, exported, lossy_pids)
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
    """Return traceprof's events in the export, and the processes with missing ranges.

    The ranges and marks of these processes are removed from the export, because the spool has all
    of them.
    """
    is_bounded = job.request.bounds.is_bounded  # then nsys starts at a range of the hooks
    with handling_recorded():
        split.remove_lone_overheads(database, job.captured.pids())
        exported = split.read_traceprof_events(database)
        lossy_pids = [
            part.pid
            for part in job.captured.events
            if part.n_ranges - is_bounded > exported.n_ranges[part.pid]
        ]
        if lossy_pids:
            notes.append(
                "the profiler did not record all ranges of process "
                f"{', '.join(map(str, lossy_pids))}; traceprof added them from its own recording"
            )
            split.remove_traceprof_events(database, lossy_pids)
    return exported, lossy_pids


class _Export:
    """The export of all processes of a node, together with the data of the hooks."""

    def __init__(
        self, job: Job, database: Path, exported: TraceprofEvents, lossy_pids: Sequence[int]
    ) -> None:
        self._job = job
        self._database = database
        self._exported = exported
        self._clock = ProfilerClock(exported.epoch_ns, exported.clock_marks)
        self._lossy_pids = lossy_pids

    def write_whole(self, part: OutputFile) -> OutputFile:
        """Publish the export as one file."""
        ranks = self._append(self._job.captured, self._database)
        with new_file(part.path, force=True) as temporary:  # may be on another disk
            shutil.move(self._database, temporary)
        return replace(part, ranks=ranks, seen_ns=self._seen_ns(part))

    def write_apart(self, parts: Sequence[OutputFile]) -> list[OutputFile]:
        """Publish one file per part. If one cannot be written, none is published."""
        ranked = [part for part in parts if not part.is_rest]
        ranked_pids = frozenset[int]().union(*(part.processes for part in ranked))
        rest = next((part for part in parts if part.is_rest), jobs.file_of_rest(self._job))
        planned = [*ranked, replace(rest, processes=ranked_pids)]
        n_threads = min(len(planned), os.cpu_count() or 1, _MAX_THREADS)
        with ExitStack() as stack:
            temporary = {
                part.path: stack.enter_context(new_file(part.path, force=True)) for part in planned
            }
            written = map_in_threads(
                lambda part: self._write_one(part, temporary[part.path]), planned, n_threads
            )
            files = [file for file in written if file is not None]
            for path in temporary.keys() - {file.path for file in files}:
                temporary[path].unlink(missing_ok=True)
        return files

    def _write_one(self, part: OutputFile, path: Path) -> OutputFile | None:
        """Write one part to ``path``; None for a rest file without data."""
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
        """Return the time of the rank's last event in the export, in ns since 1970, 0 for none."""
        last_ns = None if part.main is None else self._exported.last_ns.get(part.main)
        return 0 if last_ns is None else self._exported.epoch_ns + last_ns

    def _tables_to_add(self, tables: EventTables) -> EventTables:
        """Return the rows that the export lacks.

        Ranges and marks are added only for the processes that lack them in the export.
        """
        return {
            name: rows.take(np.isin(rows["process"], self._lossy_pids))
            if name in _EXPORTED_TABLES
            else rows
            for name, rows in tables.items()
        }

    def _append(self, captured: Captured, path: Path) -> tuple[int, ...]:
        """Append the data of the hooks to the file ``path``; return its ranks."""
        job, clock = self._job, self._clock
        trace = make_spool_trace(captured, clock, job.facts, clock.epoch_ns, job.notes.host)
        samples = trace.samples.take(trace.samples["start_ns"] >= 0)
        events = map(self._tables_to_add, event_tables(captured, clock, job.shown_name))
        append_to_nsys(replace(trace, samples=samples), path, _file_texts(job, captured), events)
        return jobs.ranks_in(trace)


def check_output(request: RecordRequest, *, is_joining: bool | None = None) -> None:
    """Check that the recording can be written to its output.

    ``is_joining``: the recording adds files to a run that other launchers write (default:
    detected).

    Raises:
        UsageError: the output exists and ``force`` is off, its folder is missing or read-only, or
            its name is that of another format.
    """
    target = request.output
    if request.is_folder:
        target /= f"manifest-{socket.gethostname()}.json"
        with writing(request.output, "created"):
            request.output.mkdir(parents=True, exist_ok=True)
    elif target.is_dir():
        raise UsageError(f"{target}: is a folder; add / to the name to record into it")
    else:
        check_trace_name(target, is_json=False)
    if is_joining is None:
        is_joining = jobs.is_joining(request)
    check_target(target, force=request.force or is_joining)
    folder = target.absolute().parent
    probe = folder / f".traceprof-{os.getpid()}.probe"
    with writing(folder, "written to"):
        probe.touch()
        probe.unlink()


def write_outputs(job: Job, notes: list[str]) -> list[OutputFile]:
    """Write the files of a recording and return them; append problems to ``notes``.

    Raises:
        UsageError: a file cannot be written.
    """
    try:
        if job.run.database is not None:
            files = write_export(job, job.run.database, notes)
        else:
            files = [_write_spool_trace(job, part) for part in jobs.planned_files(job)]
        if job.request.is_folder:
            _write_manifest(job, files)
    finally:
        job.places.give_back()
    return files


def keep_snapshots(job: Job, folder: Path, files: Sequence[OutputFile]) -> list[str]:
    """Copy the memory snapshots of a work folder next to the traces; return notes for the user.

    A snapshot has the name of its trace. If the trace contains several processes, the process id is
    appended.
    """
    found = files_by_process(folder, "memory.*.pickle")
    if job.request.memory_steps is not None and not found:
        return ["no memory snapshot, because torch did not use a GPU in the steps of --memory"]
    notes, numbers = [], numbers_in(folder)
    for identity, snapshot in found:
        pid = numbers.of(identity)
        file = next((file for file in files if file.holds(pid)), files[0])
        ending = BESIDE if len(found) == 1 or file.main == pid else f".{pid}{BESIDE}"
        path = file.path.with_suffix(ending)
        try:
            with new_file(path, force=job.request.force) as temporary:
                shutil.copyfile(snapshot, temporary)
            notes.append(f"memory snapshot written; run traceprof memory {shlex.quote(str(path))}")
        except (UsageError, OSError) as error:  # the trace itself is complete
            notes.append(f"the memory snapshot was lost: {error}")
    return notes


def _write_spool_trace(job: Job, part: OutputFile) -> OutputFile:
    """Write a trace of the data of the hooks only. All files of a node share one clock."""
    captured = job.captured if part.is_whole else job.captured.of(part.processes)
    profiles = [item for item in job.run.profiles if part.holds(item.pid)]
    times = (job.captured.first_ns(), first_of_profiles(job.run.profiles))
    first_ns = min(filter(None, times), default=0)
    clock = ProfilerClock(first_ns)
    trace = make_spool_trace(
        captured, clock, job.facts, first_ns, job.notes.host, with_windows=not profiles
    )
    names = renamed(trace.host_ops["name"], job.shown_name)
    trace = trace.with_tables({"host_ops": trace.host_ops.assign(name=names)})
    if profiles:
        trace = with_profiles(trace, profiles)
    write_nsys(
        trace,
        part.path,
        _file_texts(job, captured),
        event_tables(captured, clock, job.shown_name),
    )
    return replace(part, ranks=jobs.ranks_in(trace))


def _file_texts(job: Job, captured: Captured) -> dict[str, str]:
    """Return the metadata of a file: the recording, and the losses in ``captured``."""
    losses = captured.losses()
    return job.texts() | ({LOSSES: json.dumps(losses)} if losses else {})


def _write_manifest(job: Job, files: list[OutputFile]) -> None:
    """Write the manifest of this launcher, which readers of run folders combine."""
    manifest = {MANIFEST_KEY: 1, **job.manifest()}
    sizes = [
        record.world_size for record in job.captured.processes if record.world_size is not None
    ]
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
            _remove_replaced(job, {path.name, *(file.path.name for file in files)})


def _remove_replaced(job: Job, kept: Collection[str]) -> None:
    """Remove the older manifests of this host, and the traces that they list, except ``kept``."""
    folder = job.request.output
    for manifest in jobs.manifests_of_host(folder):
        if manifest.name in kept or manifest.stat().st_mtime >= job.notes.started_s:
            continue
        with suppress(TraceError):  # a damaged manifest lists nothing
            listed = read_manifest(manifest)
            for path in (*listed.files, *listed.others) if listed is not None else ():
                if path.parent == folder and path.name not in kept:
                    path.unlink(missing_ok=True)
        manifest.unlink(missing_ok=True)


def _are_attempts(job: Job, files: Sequence[OutputFile]) -> bool:
    """Return whether the processes without rank are restarts of one program, one after another."""
    attempts = [
        job.captured.attempt_of(file.main, file.seen_ns) for file in files if file.main is not None
    ]
    if len(attempts) < 2 or len(attempts) < len(files) or any(file.ranks for file in files):
        return False
    attempts.sort(key=lambda attempt: int(attempt.get("started_ns", 0)))
    pairs = pairwise(attempts)
    are_in_sequence = (
        attempt.get("ended_ns", inf) < following.get("started_ns", 0)
        for attempt, following in pairs
    )
    pids = {attempt["pid"] for attempt in attempts}
    commands = {attempt.command for attempt in job.captured.processes if attempt.pid in pids}
    return len(commands) == 1 and all(are_in_sequence)


def _manifest_row(job: Job, file: OutputFile) -> dict[str, object]:
    """Return the manifest entry of one file."""
    row: dict[str, object] = {"file": file.path.name, "host": job.notes.host}
    if len(file.ranks) == 1:
        row["rank"] = file.ranks[0]
    elif file.ranks:
        row["ranks"] = list(file.ranks)
    return row if file.main is None else row | job.captured.attempt_of(file.main, file.seen_ns)
