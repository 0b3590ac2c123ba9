"""Recordings that were broken off: what their work folders hold, as a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from traceprof.errors import RecordingError, TraceError, UsageError
from traceprof.recording.finishing import finish
from traceprof.recording.outputs.files import check_output
from traceprof.recording.processes.orphans import processes_of
from traceprof.recording.processes.signals import undisturbed
from traceprof.recording.recorders.nsys.collect import is_of_nsys
from traceprof.recording.request import Recording
from traceprof.recording.sampling.sampler import read_samples
from traceprof.recording.work_folder import (
    is_in_use,
    locked,
    read_notes,
    remove_work_folder,
    work_folders,
)
from traceprof.values import dataclass

__all__ = ["Recovery", "recover", "recoverable"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What can be recovered: the work folder, the masked command, when it began, its output."""

    folder: Path
    command: str
    started_s: float
    output: str


def recoverable() -> list[Recovery]:
    """Return the work folders that broken-off recordings have left here, the oldest first."""
    found = []
    for folder in work_folders():
        try:
            notes = read_notes(folder)
        except TraceError:
            continue
        found.append(Recovery(folder, " ".join(notes.command), notes.started_s, notes.output))
    return found


def recover(
    folder: Path,
    output: str | None = None,
    *,
    force: bool = False,
    keep: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> Recording:
    """Write the trace of what a recording has left in its work folder, and remove the folder.

    Args:
        folder: the work folder. It stays where a process of the recording still runs.
        output: a file, or with "/" at its end a folder; else where the recording was to go.
        force: whether a file that is there is overwritten.
        keep: whether the work folder stays in any case.
        say: is told what the user should know at once.

    Raises:
        TraceError: it is no work folder.
        UsageError: it is in use, or the output cannot be written.
        RecordingError: what a profiler has left is damaged.
    """
    notes = read_notes(folder)
    if is_in_use(folder):
        raise UsageError(f"{folder}: is in use by its recorder: wait for it, or end it first")
    request = replace(
        notes.request(Path(output) if output else None, is_folder=(output or "").endswith("/")),
        force=force,
        say=say,
    )
    # Other launchers of the run may have written to its folder meanwhile: it is added to.
    notes = replace(notes, is_joining=request.is_folder and not force)
    check_output(request, is_joining=notes.is_joining)
    alive = [pid for pid, command in processes_of(folder).items() if not is_of_nsys(command)]
    if alive:
        say(f"process {', '.join(map(str, alive))} still runs: the trace ends now, {folder} stays")
    try:
        with locked(folder), undisturbed(say):
            recording = finish(request, folder, notes, read_samples(folder))
    except KeyboardInterrupt:
        raise RecordingError(f"interrupted before the trace was written; {folder} stays") from None
    if recording.output is not None and not alive and not keep:
        remove_work_folder(folder)
    return recording
