"""The files of a recording: one SQLite file, or a folder with one per rank and a manifest."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import numpy as np

from traceprof.errors import UsageError
from traceprof.files import check_target
from traceprof.formats.nsys.writer import write_nsys
from traceprof.formats.runs.manifest import MANIFEST_KEY
from traceprof.recording.gathering.tables import make_spool_trace
from traceprof.recording.outputs.exports import write_export
from traceprof.recording.outputs.job import Job
from traceprof.recording.outputs.parts import Part, WrittenFile, parts_of, ranks_in
from traceprof.recording.outputs.profiles import first_of_profiles, with_profiles
from traceprof.recording.request import RecordRequest

__all__ = ["check_output", "write_outputs"]


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
    check_target(target, force=request.force)
    folder = target.absolute().parent
    probe = folder / f".traceprof-{os.getpid()}.probe"
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
        files = write_export(job, job.run.database, notes)
    else:
        files = [_write_spool(job, part) for part in parts_of(job)]
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


def _write_spool(job: Job, part: Part) -> WrittenFile:
    """Write a trace of what the hooks captured alone; all files of a node share one clock."""
    captured = job.captured if part.is_whole else job.captured.of(part.processes)
    profiles = [item for item in job.run.profiles if part.holds(item.pid)]
    times = (job.captured.first_ns(), first_of_profiles(job.run.profiles))
    first_ns = min(filter(None, times), default=0)

    def since_first(times: np.ndarray) -> np.ndarray:
        shifted: np.ndarray = times - first_ns
        return shifted

    trace = make_spool_trace(captured, since_first, job.facts, first_ns, with_windows=not profiles)
    if profiles:
        trace = with_profiles(trace, profiles)
    write_nsys(trace, part.path, job.texts())
    return WrittenFile(part.path, ranks_in(trace), is_rest=part.is_rest)


def _write_manifest(job: Job, files: list[WrittenFile]) -> None:
    """Write what this node recorded, in the form that readers of runs know."""
    manifest = {MANIFEST_KEY: 1, **job.manifest()}
    sizes = [one.world_size for one in job.captured.processes if one.world_size is not None]
    if sizes:
        manifest["world_size"] = max(sizes)
    manifest["ranks"] = [_manifest_row(file) for file in files if not file.is_rest]
    others = [file.path.name for file in files if file.is_rest]
    if others:
        manifest["others"] = others
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
