"""The files of a recording: one SQLite file, or a folder with one per rank and a manifest."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np

from traceprof.errors import UsageError
from traceprof.files import check_target
from traceprof.formats.nsys.writer import write_nsys
from traceprof.formats.runs.manifest import MANIFEST_KEY
from traceprof.formats.shared.redaction import renamed_categories
from traceprof.recording.gathering.tables import event_tables, make_spool_trace
from traceprof.recording.outputs.exports import write_export
from traceprof.recording.outputs.job import Job
from traceprof.recording.outputs.parts import Part, WrittenFile, parts_of, ranks_in
from traceprof.recording.outputs.places import is_joining as joins_others
from traceprof.recording.outputs.places import manifests_of_host
from traceprof.recording.outputs.profiles import first_of_profiles, with_profiles
from traceprof.recording.request import RecordRequest

__all__ = ["check_output", "write_outputs"]


def check_output(request: RecordRequest, *, is_joining: bool | None = None) -> None:
    """Check that a recording can be written where it is asked for.

    ``is_joining`` says whether it adds to a run that others write, too; by default it is found out.

    Raises:
        UsageError: it exists and ``force`` is off, or its folder is missing or read-only.
    """
    target = request.output / f"{_manifest_name()}.json" if request.is_folder else request.output
    if request.is_folder:
        _make_folder(request.output)
    elif target.is_dir():
        raise UsageError(f"{target}: is a folder; end the name with / to record into it")
    if is_joining is None:
        is_joining = joins_others(request)
    check_target(target, force=request.force or is_joining)
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
    try:
        if job.run.database is not None:
            files = write_export(job, job.run.database, notes)
        else:
            files = [_write_spool(job, part) for part in parts_of(job)]
        if job.request.is_folder:
            _write_manifest(job, files)
    finally:
        job.places.give_back()
    return files


def _manifest_name() -> str:
    return f"manifest-{socket.gethostname()}"


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

    trace = make_spool_trace(
        captured,
        since_first,
        job.facts,
        first_ns,
        host=job.host,
        with_windows=not profiles,
    )
    operators = trace.host_ops
    names = renamed_categories(operators["name"].array, job.shown_name)
    trace = trace.with_tables({"host_ops": operators.assign(name=names)})
    if profiles:
        trace = with_profiles(trace, profiles)
    write_nsys(trace, part.path, job.texts(), event_tables(captured, since_first, job.shown_name))
    return WrittenFile(part.path, ranks_in(trace), is_rest=part.is_rest, main=part.main)


def _write_manifest(job: Job, files: list[WrittenFile]) -> None:
    """Write what this launcher recorded, in the form that readers of runs know."""
    manifest = {MANIFEST_KEY: 1, **job.manifest()}
    sizes = [one.world_size for one in job.captured.processes if one.world_size is not None]
    if sizes:
        manifest["world_size"] = max(sizes)
    rows = [_manifest_row(job, file) for file in files if not file.is_rest]
    manifest["ranks"] = [{**row, "rank": 0} for row in rows] if _are_starts(job, files) else rows
    others = [file.path.name for file in files if file.is_rest]
    if others:
        manifest["others"] = others
    if job.captured.agent_events:
        manifest["agents"] = list(job.captured.agent_events)
    path = job.places.take(f"manifest-{job.host}", ".json")
    try:
        path.write_text(json.dumps(manifest, indent=1) + "\n")
        if job.request.force and not job.is_joining:
            _remove_older(job, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error


def _are_starts(job: Job, files: Sequence[WrittenFile]) -> bool:
    """Return whether processes of no rank are one program that was started again and again."""
    lives = [
        job.captured.life_of(file.main, file.seen_ns) for file in files if file.main is not None
    ]
    if len(lives) < 2 or len(lives) < len(files) or any(file.ranks for file in files):
        return False
    lives.sort(key=lambda life: int(life.get("started_ns", 0)))
    follow = (
        one.get("ended_ns", inf) < other.get("started_ns", 0) for one, other in pairwise(lives)
    )
    pids = {life["pid"] for life in lives}
    commands = {one.command for one in job.captured.processes if one.pid in pids}
    return len(commands) == 1 and all(follow)


def _remove_older(job: Job, own: Path) -> None:
    """Remove the manifests of the recording that this one replaces: they list other files."""
    for path in manifests_of_host(job.request.output):
        if path != own and path.stat().st_mtime < job.started_s:
            path.unlink(missing_ok=True)


def _manifest_row(job: Job, file: WrittenFile) -> dict[str, object]:
    row: dict[str, object] = {"file": file.path.name, "host": job.host}
    if len(file.ranks) == 1:
        row["rank"] = file.ranks[0]
    elif file.ranks:
        row["ranks"] = list(file.ranks)
    return row if file.main is None else row | job.captured.life_of(file.main, file.seen_ns)
