"""One recording from the request to the finished file."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

import traceprof
from traceprof.errors import RecordingError, UsageError
from traceprof.formats.nsys_writer import append_to_nsys, write_nsys
from traceprof.model.trace import Trace
from traceprof.recording.child import ignores_injection
from traceprof.recording.clock import read_profiler_clock, remove_our_events
from traceprof.recording.environment import read_environment
from traceprof.recording.gather import Captured, gather, make_spool_trace
from traceprof.recording.process import find_program
from traceprof.recording.request import Recorder, Recording, RecordRequest, RunRecorded
from traceprof.recording.spool_files import ProcessEvents

__all__ = ["record_with"]


def record_with(recorder: Recorder, request: RecordRequest) -> Recording:
    """Record one program with ``recorder``, as asked for in ``request``.

    Raises:
        RecordingError: the program was not started, or the trace could not be written; then
            the message names the folder with what was captured.
    """
    find_program(request.command)
    option = ignores_injection(request.command)
    if option is not None:
        request.say(f"python {option} ignores PYTHONPATH: the program is not instrumented")
    facts = read_environment(request.command)
    folder = Path(tempfile.mkdtemp(prefix="traceprof-"))
    keep = False
    try:
        run = recorder.run(request, folder)
        recording = _finish(_Job(request, recorder, run, facts), gather(folder))
    except UsageError as error:
        keep = True  # the output cannot be written: leave what there is to be saved
        raise RecordingError(f"{error}; what was captured is in {folder}") from error
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return recording


_WHY_BOUNDED: Final = "the program ended before the capture was due"


@dataclass(frozen=True, slots=True)
class _Job:
    request: RecordRequest
    recorder: Recorder
    run: RunRecorded
    facts: Mapping[str, str]

    def manifest(self) -> dict[str, str]:
        return {
            "traceprof": traceprof.__version__,
            "recorder": self.recorder.name,
            "exit_code": str(self.run.exit_code),
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }


def _finish(job: _Job, captured: Captured) -> Recording:
    notes = [*job.run.notes, *_notes_on(captured)]
    if job.run.database is not None:
        trace = _merge_into_export(job, captured, job.run.database, notes)
        shutil.move(job.run.database, job.request.output)
    elif captured.is_empty:
        why = _WHY_BOUNDED if job.request.bounds.is_bounded else "nothing was captured"
        notes.append(f"{why}; no trace was written")
        return Recording(job.run.exit_code, job.recorder.name, None, notes=tuple(notes))
    else:
        trace = _write_spool(job, captured)
    return Recording(
        exit_code=job.run.exit_code,
        recorder=job.recorder.name,
        output=job.request.output,
        n_processes=len(captured.events),
        n_ranges=sum(len(part.ranges) for part in captured.events),
        ranks=tuple(sorted(int(rank) for rank in trace.processes["rank"] if rank >= 0)),
        notes=tuple(notes),
    )


def _notes_on(captured: Captured) -> list[str]:
    notes = []
    if not captured.cards:
        notes.append(
            "no process imported torch under the recorder: no ranges "
            "(not a torch program, python -I/-E/-S, or an environment that was replaced)"
        )
    cut = [str(part.pid) for part in captured.events if part.is_cut]
    if cut:
        notes.append(f"process {', '.join(cut)} was killed: its last second may be missing")
    return notes


def _write_spool(job: _Job, captured: Captured) -> Trace:
    """Write a trace of what the hooks captured alone."""
    first_ns = captured.first_ns()

    def since_first(times: np.ndarray) -> np.ndarray:
        shifted: np.ndarray = times - first_ns
        return shifted

    trace = make_spool_trace(captured, since_first, job.facts, first_ns, with_windows=True)
    write_nsys(trace, job.request.output, job.manifest())
    return trace


def _merge_into_export(job: _Job, captured: Captured, database: Path, notes: list[str]) -> Trace:
    """Add what the hooks captured to the profiler's own export, on its clock."""
    clock, n_arrived = read_profiler_clock(database)
    trace = make_spool_trace(captured, clock, job.facts, clock.epoch_ns)
    lost = [part.pid for part in captured.events if _n_expected(part) > n_arrived[part.pid]]
    if lost:
        notes.append(
            f"not all ranges of process {', '.join(map(str, lost))} reached the profiler; "
            "those of the spool were taken instead"
        )
        remove_our_events(database, lost)
    append_to_nsys(_with_ranges_of(trace, lost), database, job.manifest())
    return trace


def _n_expected(part: ProcessEvents) -> int:
    """Return how many ranges must be in the export: all but that with which it starts."""
    return sum(row[2] != "traceprof.capture" for row in part.ranges)


def _with_ranges_of(trace: Trace, processes: list[int]) -> Trace:
    """Return ``trace`` with the ranges and marks of these processes only."""
    ranges = trace.ranges[trace.ranges["process"].isin(processes)]
    marks = trace.marks[trace.marks["process"].isin(processes)]
    return replace(trace, ranges=ranges, marks=marks)
