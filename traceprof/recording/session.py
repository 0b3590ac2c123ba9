"""One recording from the request to the finished files."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from traceprof.errors import RecordingError, UsageError
from traceprof.model.masking import MASK, secrets_of
from traceprof.recording.gathering.captured import Captured, gather
from traceprof.recording.gathering.steps_seen import notes_on_steps
from traceprof.recording.machine.environment import read_environment
from traceprof.recording.machine.gpus import why_no_counters
from traceprof.recording.outputs.files import check_output, write_outputs
from traceprof.recording.outputs.job import Job
from traceprof.recording.outputs.places import announced, is_joining
from traceprof.recording.processes.injection import ignores_injection
from traceprof.recording.processes.program import find_program
from traceprof.recording.recorders import choose_recorder
from traceprof.recording.recorders.nsys.recorder import RECORDER as NSYS
from traceprof.recording.request import Recorder, Recording, RecordRequest
from traceprof.recording.sampling.sampler import sampling
from traceprof.recording.spool import ProcessEvents

__all__ = ["record", "record_with"]

_WHY_BOUNDED: Final = "the program ended before the capture was due"
_CALL_NS: Final = 45_000  # what the recording of a collective takes of the host: measured, 2 cores
_MANY_CALLS: Final = 100
_NOTABLE_SHARE: Final = 0.03


def record(request: RecordRequest) -> Recording:
    """Record one program, as asked for in ``request``.

    Raises:
        UsageError: the output cannot be written, there is no such recorder, or something was
            asked for that it cannot do.
        RecordingError: the program could not be started, or the trace not be written.
    """
    check_output(request)
    recorder = choose_recorder(request.recorder)
    _check_options(request, recorder)
    return record_with(recorder, request)


def _check_options(request: RecordRequest, recorder: Recorder) -> None:
    asked = {name: f"--{name}-arg" for name, given in request.profiler_arguments.items() if given}
    if request.gpu_metrics:
        asked[NSYS.name] = "--gpu-metrics"
    for name, option in asked.items():
        if name != recorder.name:
            raise UsageError(
                f"{option} is for {name}, and {recorder.name} would record: add --with {name}"
            )
    reason = why_no_counters()
    if request.gpu_metrics and reason is not None:
        raise UsageError(f"--gpu-metrics: {reason}; traceprof doctor says more")


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
    joins = is_joining(request)
    folder = Path(tempfile.mkdtemp(prefix="traceprof-"))
    keep = False
    try:
        with announced(request):
            job = replace(_run(recorder, request, folder), is_joining=joins)
        keep = True  # if anything goes wrong from here on, what there is can be saved
        recording = _finish(job)
        keep = False
    except UsageError as error:
        raise RecordingError(f"{error}; what was captured is in {folder}") from error
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return recording


def _run(recorder: Recorder, request: RecordRequest, folder: Path) -> Job:
    facts = read_environment(request.command)
    started_s = time.time()
    with sampling(folder) as sampler:
        run = recorder.run(request, folder)
    ended_s = time.time()
    profiled = [profile.pid for profile in run.profiles]
    captured = replace(gather(folder, profiled), samples=sampler.samples)
    if request.bounds.is_bounded:
        captured = captured.without_samples_outside()
    starts = len(captured.ranks)
    if not request.is_folder:
        captured = captured.with_one_life()
        _say_of_starts(request, starts, captured)
    return Job(
        request=request,
        recorder=recorder,
        run=replace(
            run,
            notes=(
                *run.notes,
                *sampler.notes,
                *notes_on_steps(folder, request.bounds, request.step_from),
            ),
        ),
        captured=captured,
        facts=facts | captured.software(),
        started_s=started_s,
        ended_s=ended_s,
    )


def _say_of_starts(request: RecordRequest, starts: int, captured: Captured) -> None:
    """Say where the starts of ranks cannot be told apart in one file."""
    known = sum(one.rank is not None for one in captured.ranks)
    if starts > known > 0 and any(one.run_id for one in captured.processes):
        request.say(
            "ranks were started more than once: of each the start with most events is that rank "
            "in the file; -o FOLDER/ keeps all of them apart"
        )


def _finish(job: Job) -> Recording:
    notes = [*job.run.notes, *_notes_on(job.captured), *_notes_on_secrets(job.request.command)]
    exit_code, name = job.run.exit_code, job.recorder_name
    if job.run.database is None and not job.run.profiles and job.captured.is_empty:
        why = _WHY_BOUNDED if job.request.bounds.is_bounded else "nothing was captured"
        notes.append(f"{why}; no trace was written")
        return Recording(exit_code, name, None, notes=tuple(notes))
    files = write_outputs(job, notes)
    return Recording(
        exit_code=exit_code,
        recorder=name,
        output=job.request.output,
        n_processes=len(job.captured.events),
        n_ranges=sum(len(part.ranges) for part in job.captured.events),
        ranks=tuple(sorted({rank for file in files for rank in file.ranks})),
        notes=tuple(notes),
    )


def _note_on_collectives(events: ProcessEvents) -> str | None:
    """Return a warning where the recording of collectives itself took a good part of the time."""
    calls = events.collectives
    if len(calls) < _MANY_CALLS:
        return None
    lasted_ns = max(row[1] for row in calls) - min(row[0] for row in calls)
    share = len(calls) * _CALL_NS / max(lasted_ns, 1)
    if share < _NOTABLE_SHARE:
        return None
    return (
        f"process {events.pid} made {len(calls)} collective calls: recording them took about "
        f"{share:.0%} of its time; TRACEPROF_DISABLE=collectives leaves them out"
    )


def _notes_on(captured: Captured) -> list[str]:
    notes = []
    if not captured.processes:
        notes.append(
            "no process imported torch under the recorder: no ranges (it ended before, python "
            "-I/-E/-S, or an environment that was replaced); a program without torch names its own "
            "by traceprof.step() and traceprof.range(), and --with nsys samples what runs "
            "(--nsys-arg=--sample=process-tree)"
        )
    notes += filter(None, map(_note_on_collectives, captured.events))
    cut = [str(part.pid) for part in captured.events if part.is_cut]
    if cut:
        notes.append(f"process {', '.join(cut)} was killed: its last second may be missing")
    return notes


def _notes_on_secrets(command: Sequence[str]) -> list[str]:
    n_hidden = sum(len(secret.hidden) for secret in secrets_of(command))
    if not n_hidden:
        return []
    what = "1 secret" if n_hidden == 1 else f"{n_hidden} secrets"
    return [f"{what} in the command line: masked in what was written ({MASK})"]
