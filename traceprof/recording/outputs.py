"""The files of a recording: one SQLite file, or a folder with one per rank and a manifest."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from traceprof.errors import UsageError
from traceprof.formats.nsys.writer import append_to_nsys, write_nsys
from traceprof.formats.runs.manifest import MANIFEST_KEY
from traceprof.model.trace import Trace
from traceprof.recording.clock import read_profiler_clock, remove_our_events
from traceprof.recording.gather import Captured, make_spool_trace
from traceprof.recording.job import Job
from traceprof.recording.profiles import first_of_profiles, with_profiles
from traceprof.recording.request import RecordRequest
from traceprof.recording.spool_files import ProcessEvents

__all__ = ["WrittenFile", "check_output", "write_outputs"]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One file of a recording, and the ranks that are in it."""

    path: Path
    ranks: tuple[int, ...]


def check_output(request: RecordRequest) -> None:
    """Check that a recording can be written where it is asked for.

    Raises:
        UsageError: it exists and ``force`` is off, or its folder is missing or read-only.
    """
    target = request.output / _manifest_name() if request.is_folder else request.output
    if request.is_folder:
        _make_folder(request.output)
    elif target.is_dir():
        raise UsageError(f"{target}: is a folder; end the name with / to record into it")
    if target.exists() and not request.force:
        raise UsageError(f"{target}: exists; choose another name or use --force")
    folder = target.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; create it first")
    probe = folder / f".{target.name}.{os.getpid()}.probe"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written to ({error.strerror})") from error


def write_outputs(job: Job, notes: list[str]) -> list[WrittenFile]:
    """Write the files of a recording and return them; ``notes`` gets what is odd.

    Raises:
        UsageError: a file cannot be written.
    """
    if job.run.database is not None:
        files = [_write_export(job, job.run.database, notes)]
    else:
        files = [_write_spool(job, part, path) for part, path in _parts(job)]
    if job.request.is_folder:
        _write_manifest(job, files)
    return files


def _manifest_name() -> str:
    return f"manifest-{socket.gethostname()}.json"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be created ({error.strerror})") from error


def _parts(job: Job) -> Iterator[tuple[Captured, Path]]:
    """Yield what goes into each file: all of it, or one rank's in a folder."""
    if not job.request.is_folder:
        yield job.captured, job.request.output
        return
    ranks = job.captured.ranks()
    for pid in job.captured.pids():
        rank = ranks.get(pid)
        is_only = len(job.captured.pids()) == 1
        name = f"process{pid}" if rank is None and not is_only else f"rank{rank or 0}"
        yield job.captured.of(pid), job.request.output / f"{name}.sqlite"


def _write_spool(job: Job, part: Captured, path: Path) -> WrittenFile:
    """Write a trace of what the hooks captured alone; all files of a node share one clock."""
    profiles = [
        item for item in job.run.profiles if part is job.captured or item.pid in part.pids()
    ]
    times = (job.captured.first_ns(), first_of_profiles(job.run.profiles))
    first_ns = min(filter(None, times), default=0)

    def since_first(times: np.ndarray) -> np.ndarray:
        shifted: np.ndarray = times - first_ns
        return shifted

    trace = make_spool_trace(part, since_first, job.facts, first_ns, with_windows=not profiles)
    if profiles:
        trace = with_profiles(trace, profiles)
    write_nsys(trace, path, _texts(job))
    return WrittenFile(path, _ranks_in(trace))


def _write_export(job: Job, database: Path, notes: list[str]) -> WrittenFile:
    """Add what the hooks captured to the profiler's own export, on its clock, and publish it."""
    clock, n_arrived = read_profiler_clock(database)
    trace = make_spool_trace(job.captured, clock, job.facts, clock.epoch_ns)
    trace = replace(trace, samples=trace.samples[trace.samples["start_ns"] >= 0])
    lost = [part.pid for part in job.captured.events if _n_expected(part) > n_arrived[part.pid]]
    if lost:
        notes.append(
            f"not all ranges of process {', '.join(map(str, lost))} reached the profiler; "
            "those of the spool were taken instead"
        )
        remove_our_events(database, lost)
    append_to_nsys(_with_ranges_of(trace, lost), database, _texts(job))
    path = job.request.output
    if job.request.is_folder:
        path = path / f"node-{socket.gethostname()}.sqlite"
    _publish(database, path)
    return WrittenFile(path, _ranks_in(trace))


def _n_expected(part: ProcessEvents) -> int:
    """Return how many ranges must be in the export: all but that with which it starts."""
    return sum(row[2] != "traceprof.capture" for row in part.ranges)


def _with_ranges_of(trace: Trace, processes: list[int]) -> Trace:
    """Return ``trace`` with the ranges and marks of these processes only."""
    ranges = trace.ranges[trace.ranges["process"].isin(processes)]
    marks = trace.marks[trace.marks["process"].isin(processes)]
    return replace(trace, ranges=ranges, marks=marks)


def _ranks_in(trace: Trace) -> tuple[int, ...]:
    return tuple(sorted(int(rank) for rank in trace.processes["rank"] if rank >= 0))


def _texts(job: Job) -> dict[str, str]:
    return {name: str(value) for name, value in job.manifest().items()}


def _publish(database: Path, path: Path) -> None:
    """Move a finished file to its place, which may be on another disk, in one piece."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        shutil.move(database, beside)
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        beside.unlink(missing_ok=True)


def _write_manifest(job: Job, files: list[WrittenFile]) -> None:
    """Write what this node recorded, in the form that readers of runs know."""
    manifest = {MANIFEST_KEY: 1, **job.manifest()}
    sizes = [card.world_size for card in job.captured.cards if card.world_size is not None]
    if sizes:
        manifest["world_size"] = max(sizes)
    manifest["ranks"] = [_manifest_row(file) for file in files]
    path = job.request.output / _manifest_name()
    try:
        path.write_text(json.dumps(manifest, indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error


def _manifest_row(file: WrittenFile) -> dict[str, object]:
    row: dict[str, object] = {"file": file.path.name, "host": socket.gethostname()}
    if len(file.ranks) == 1:
        row["rank"] = file.ranks[0]
    elif file.ranks:
        row["ranks"] = list(file.ranks)
    return row
