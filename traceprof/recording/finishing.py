"""From a work folder to the files of a recording: at the end of the program, or later."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from traceprof.recording.gathering.captured import Captured, gather
from traceprof.recording.gathering.steps_seen import notes_on_steps
from traceprof.recording.gathering.without_torch import note_without_torch
from traceprof.recording.outputs.files import write_outputs
from traceprof.recording.outputs.job import Job
from traceprof.recording.recorders import recorder_named
from traceprof.recording.request import Recording, RecordRequest, RunRecorded
from traceprof.recording.sampling.sampler import Sample
from traceprof.recording.spool import ProcessEvents, recorded_pids
from traceprof.recording.work_folder import Notes
from traceprof.secrets import MASK, secrets_of

__all__ = ["finish"]

_WHY_BOUNDED: Final = "the program ended before the capture was due"
_CALL_NS: Final = 45_000  # what the recording of a collective takes of the host: measured, 2 cores
_MANY_CALLS: Final = 100
_NOTABLE_SHARE: Final = 0.03


def finish(
    request: RecordRequest, folder: Path, notes: Notes, samples: Sequence[Sample]
) -> Recording:
    """Write the files of what is in ``folder``, as asked for in ``request``.

    Raises:
        UsageError: a file cannot be written.
        RecordingError: what a profiler has left is damaged.
    """
    with _collector_paused():
        return _finish(request, folder, notes, samples)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Leave cycles alone: millions of rows have none, and to look takes half the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _finish(
    request: RecordRequest, folder: Path, notes: Notes, samples: Sequence[Sample]
) -> Recording:
    recorder = recorder_named(notes.recorder)
    seen = notes_on_steps(folder, request.bounds, request.step_from)
    if not recorded_pids(folder):
        seen = [note_without_torch(folder)]
    remarks = (*notes.remarks, *seen)
    run = recorder.collect(request, folder, RunRecorded(notes.exit_code, notes=remarks))
    captured = gather(folder, [profile.pid for profile in run.profiles]).with_samples(samples)
    if request.bounds.is_bounded:
        captured = captured.without_samples_outside()
    starts = len(captured.ranks)
    if not request.is_folder:
        captured = captured.with_one_life()
        _say_of_starts(request, starts, captured)
    job = Job(
        request=request,
        recorder=recorder,
        run=run,
        captured=captured,
        facts={**notes.facts, **captured.software()},
        started_s=notes.started_s,
        ended_s=notes.ended_s or captured.last_ns() / 1e9 or time.time(),
        is_joining=notes.is_joining,
        label=notes.label,
        name=notes.job,
        host=notes.host,
    )
    return _written(job)


def _say_of_starts(request: RecordRequest, starts: int, captured: Captured) -> None:
    """Say where the starts of ranks cannot be told apart in one file."""
    known = sum(one.rank is not None for one in captured.ranks)
    if starts > known > 0 and any(one.run_id for one in captured.processes):
        request.say(
            "ranks were started more than once: of each the start with most events is that rank "
            "in the file; -o FOLDER/ keeps all of them apart"
        )


def _written(job: Job) -> Recording:
    notes = [*job.run.notes, *_notes_on(job.captured), *_notes_on_secrets(job.request.command)]
    exit_code, name = job.run.exit_code, job.recorder_name
    has_profile = job.run.database is not None or bool(job.run.profiles)
    if not has_profile and not job.captured.is_worth_a_trace:
        why = _WHY_BOUNDED if job.request.bounds.is_bounded else "nothing was captured"
        notes.append(f"{why}; no trace was written")
        return Recording(exit_code, name, None, notes=tuple(notes))
    files = write_outputs(job, notes)
    return Recording(
        exit_code=exit_code,
        recorder=name,
        output=job.request.output,
        has_only_samples=not has_profile and job.captured.is_empty,
        n_processes=len(job.captured.events),
        n_ranges=sum(part.n_ranges for part in job.captured.events),
        ranks=tuple(sorted({rank for file in files for rank in file.ranks})),
        notes=tuple(notes),
    )


def _note_on_collectives(events: ProcessEvents) -> str | None:
    """Return a warning where the recording of collectives itself took a good part of the time."""
    n_calls = events.n_collectives
    if n_calls < _MANY_CALLS:
        return None
    share = n_calls * _CALL_NS / max((events.last_ns or 0) - (events.first_ns or 0), 1)
    if share < _NOTABLE_SHARE:
        return None
    return (
        f"process {events.pid} made {n_calls} collective calls: recording them took about "
        f"{share:.0%} of its time; TRACEPROF_DISABLE=collectives leaves them out"
    )


def _notes_on(captured: Captured) -> list[str]:
    notes: list[str] = []
    notes += filter(None, map(_note_on_collectives, captured.events))
    thinned = sum(sum(part.thinned.values()) for part in captured.events)
    if thinned:
        notes.append(
            f"{thinned} of {thinned + sum(part.n_ranges for part in captured.events)} ranges were "
            "not kept: of a name that a process used very often only every so many"
        )
    alive = captured.alive()
    cut = [str(part.pid) for part in captured.events if part.is_cut and part.pid not in alive]
    if cut:
        notes.append(f"process {', '.join(cut)} was killed: its last second may be missing")
    return notes


def _notes_on_secrets(command: Sequence[str]) -> list[str]:
    n_hidden = sum(len(secret.hidden) for secret in secrets_of(command))
    if not n_hidden:
        return []
    what = "1 secret" if n_hidden == 1 else f"{n_hidden} secrets"
    return [f"{what} in the command line: masked in what was written ({MASK})"]
