"""Write the files of a recording from its work folder, and compose the notes for the user."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from traceprof.model.trace import merge_similar_warnings
from traceprof.recording.captured import Captured, gather
from traceprof.recording.job import Job
from traceprof.recording.outputs import keep_snapshots, write_outputs
from traceprof.recording.recorders import recorder_named
from traceprof.recording.request import Bounds, Recording, RecordRequest, RunRecorded
from traceprof.recording.sampling.sampler import Sample
from traceprof.recording.spool import ProcessEvents, has_records, pids_without_record, read_object
from traceprof.recording.work_folder import Notes
from traceprof.secrets import MASK, secrets_of

_SOURCE_OF_EVENT: Final = (
    *(("forward passes", "every-forward"), ("fetches", "loader")),
    *(("backward passes", "backward"), ("optimizer steps", "optimizer")),
)
_IN_PROGRAM_ADVICE: Final = "--step-from range:NAME or traceprof.step() in the program"
_MIN_JOINED_RATIO: Final = 0.5
_EVENT_KINDS: Final = ("fetches", "forward passes", "backward passes", "optimizer steps")
_MARKING_ADVICE: Final = (
    "use traceprof.step() and traceprof.range() in the program to mark steps and ranges, or "
    "record with nsys and `--nsys-arg=--sample=process-tree` to sample its code"
)
_ATTEMPTS_NOTE: Final = (
    "ranks were started more than once; the file contains the attempt with the most events for "
    "each rank (use -o FOLDER/ to keep all attempts)"
)
_BOUNDED_REASON: Final = "the program ended before the capture started"
_COLLECTIVE_OVERHEAD_NS: Final = 45_000  # CPU time to record one collective, measured on 2 cores
_MIN_NOTED_CALLS: Final = 100
_MIN_NOTED_RATIO: Final = 0.03
_MIN_ROUNDS: Final = 2


def notes_on_steps(folder: Path, bounds: Bounds, step_from: str) -> list[str]:
    """Return notes for the user about the steps of the processes that imported torch.

    The process with the most steps is evaluated, because ranks do the same work. The list is empty
    if steps were found, the requested steps are among them, and the definition of a step is clear.
    """
    summaries = map(read_object, folder.glob("seen.*.json"))
    found = [seen for seen in summaries if seen.get("steps") or any(_event_counts(seen).values())]
    if not found:
        return []
    seen = max(
        found, key=lambda summary: (summary.get("steps", 0), sum(_event_counts(summary).values()))
    )
    n_steps = seen.get("steps", 0)
    first_step, last_step = bounds.steps or (0, 0)
    if not n_steps:
        return [_note_without_steps(_event_counts(seen), step_from)]
    notes = []
    if n_steps <= last_step:
        end = "starts" if n_steps <= first_step else "ends"
        step = first_step if n_steps <= first_step else last_step
        notes.append(f"--steps {end} at {step}, but the program ran {n_steps} steps (from 0)")
    if not step_from and not seen.get("named"):
        notes += filter(None, (_note_on_backward(seen), _note_on_alternation(seen)))
    return notes


def _note_without_steps(counts: Mapping[str, int], step_from: str) -> str:
    """Return the note that no steps were found, with the ways to define a step."""
    saw = ", ".join(f"{count} {event}" for event, count in counts.items() if count)
    choices = _step_from_choices(counts, step_from)
    choice = f"--step-from {' or '.join(choices)}, or " if choices else ""
    if counts.get("forward passes", 0) >= _MIN_ROUNDS and not step_from and not _trains(counts):
        kind = "batch" if counts.get("fetches") else "forward pass"
        return (
            f"no training found in {saw}, so each {kind} is a step; to define other steps, use "
            f"{choice}{_IN_PROGRAM_ADVICE}"
        )
    return f"no steps found in {saw}; define a step with {choice}{_IN_PROGRAM_ADVICE}"


def _trains(counts: Mapping[str, int]) -> bool:
    """Return whether a process ran a backward pass or an optimizer."""
    return bool(counts.get("backward passes") or counts.get("optimizer steps"))


def _step_from_choices(counts: Mapping[str, int], *excluded: str) -> list[str]:
    """Return the possible values of ``--step-from``, each with its number of steps."""
    choices = [(source, counts.get(event)) for event, source in _SOURCE_OF_EVENT]
    return [f"{source} ({count})" for source, count in choices if count and source not in excluded]


def _note_on_backward(seen: Mapping[str, Any]) -> str | None:
    """Return a note if steps are backward passes because there is no optimizer."""
    counts = _event_counts(seen)
    if counts.get("optimizer steps") or not counts.get("backward passes"):
        return None
    n_steps, n_passes = seen["steps"], counts["backward passes"]
    what = "" if n_steps == n_passes else f" ({n_passes} passes in {n_steps} steps)"
    others = " or ".join(_step_from_choices(counts, "every-forward", "backward"))
    choice = f"--step-from {others}, " if others else ""
    found = f"no torch optimizer found, so traceprof counts backward passes as steps{what}"
    return f"{found}; to define other steps, use {choice}{_IN_PROGRAM_ADVICE}"


def _note_on_alternation(seen: Mapping[str, Any]) -> str | None:
    """Return a note on how the steps of alternating optimizers were combined.

    The note names the alternatives. None if a single optimizer runs, or the combination is clear.
    """
    turns, n_steps = seen.get("turns"), seen["steps"]
    if not isinstance(turns, dict) or len(turns) < 2:
        return None
    is_joined = seen.get("joined", 0) >= _MIN_JOINED_RATIO * n_steps
    is_mixed = seen.get("changes", 0) >= min(turns.values()) and len(set(turns.values())) > 1
    if not is_joined and not is_mixed:
        return None
    listed = ", ".join(f"{count} steps of #{number}" for number, count in turns.items())
    return (
        f"several optimizers alternate ({listed}) in {n_steps} steps; use --step-from optimizer to "
        "count every optimizer step, or --step-from optimizer#1 to count those of optimizer 1"
    )


def _event_counts(seen: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts of the events that can define a step."""
    return {kind: seen[kind] for kind in _EVENT_KINDS if isinstance(seen.get(kind), int)}


def note_without_torch(folder: Path) -> str:
    """Return why there are no ranges: the program used no torch, or the hooks did not load."""
    used = sorted({name for path in folder.glob("python.*") for name in path.read_text().split()})
    if any(folder.glob("python.*")):
        what = f" (it used {', '.join(used)})" if used else ""
        return (
            f"no ranges recorded because the program did not import torch{what}; {_MARKING_ADVICE}"
        )
    return (
        "no ranges recorded because no process imported torch under the recorder (early exit, "
        f"python -I/-E/-S, or a replaced environment); if it does not use torch, {_MARKING_ADVICE}"
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector while the block runs.

    Millions of rows contain no reference cycles, and searching for cycles takes half the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_collector_paused()
def finish(
    request: RecordRequest, folder: Path, notes: Notes, samples: Sequence[Sample]
) -> Recording:
    """Write the files of the recording in ``folder``, as ``request`` specifies.

    Raises:
        UsageError: a file cannot be written.
        RecordingError: the data of a profiler is damaged.
    """
    step_notes = notes_on_steps(folder, request.bounds, request.step_from)
    if not has_records(folder) and not pids_without_record(folder):
        step_notes = [note_without_torch(folder)]
    run = RunRecorded(notes.exit_code, notes=(*notes.remarks, *step_notes))
    run = recorder_named(notes.recorder).collect(request, folder, run)
    captured = gather(folder, [profile.pid for profile in run.profiles]).with_samples(samples)
    if request.bounds.is_bounded:
        captured = captured.without_samples_outside()
    n_starts = len(captured.ranks)
    if not request.is_folder:
        captured = captured.with_one_attempt()
        n_known = sum(item.rank is not None for item in captured.ranks)
        if n_starts > n_known > 0 and any(item.run_id for item in captured.processes):
            request.say(_ATTEMPTS_NOTE)
    return _write_trace(Job(request, run, captured, notes), folder)


def _write_trace(job: Job, folder: Path) -> Recording:
    """Write the trace files of ``job``. The recording has output None if there is no data."""
    notes = [
        *job.run.notes,
        *_notes_on_capture(job.captured),
        *_notes_on_secrets(job.request.command),
    ]
    exit_code, name = job.run.exit_code, job.recorder_name
    has_profile = job.run.database is not None or bool(job.run.profiles)
    if not has_profile and not job.captured.has_enough_data:
        why = _BOUNDED_REASON if job.request.bounds.is_bounded else "nothing was captured"
        notes.append(f"{why}; no trace was written")
        return Recording(exit_code, name, None, notes=tuple(notes))
    files = write_outputs(job, notes)
    notes += keep_snapshots(job, folder, files)
    return Recording(
        exit_code=exit_code,
        recorder=name,
        output=job.request.output,
        has_only_samples=not has_profile and job.captured.is_empty,
        n_processes=len(job.captured.pids()),
        n_ranges=sum(part.n_ranges for part in job.captured.events),
        device_bytes=sum(part.record_bytes for part in job.captured.activities),
        ranks=tuple(sorted({rank for file in files for rank in file.ranks})),
        notes=tuple(notes),
        files=tuple(file.path for file in files),
    )


def _note_on_collectives(events: ProcessEvents) -> str | None:
    """Return a warning if recording the collectives took at least 3% of the time of a process."""
    n_calls = events.n_collectives
    if n_calls < _MIN_NOTED_CALLS:
        return None
    share = (
        n_calls * _COLLECTIVE_OVERHEAD_NS / max((events.last_ns or 0) - (events.first_ns or 0), 1)
    )
    if share < _MIN_NOTED_RATIO:
        return None
    return (
        f"recording {n_calls} collective calls took about {share:.0%} of the time of process "
        f"{events.pid}; set TRACEPROF_DISABLE=collectives to skip them"
    )


def _notes_on_capture(captured: Captured) -> list[str]:
    """Return notes on recording overhead, skipped ranges, and lost data."""
    notes = [*filter(None, map(_note_on_collectives, captured.events))]
    thinned = sum(sum(part.thinned.values()) for part in captured.events)
    if thinned:
        notes.append(
            f"{thinned} of {thinned + sum(part.n_ranges for part in captured.events)} ranges were "
            "skipped because traceprof samples very frequent range names"
        )
    return [*notes, *merge_similar_warnings(captured.losses())]


def _notes_on_secrets(command: Sequence[str]) -> list[str]:
    """Return a note if secrets of the command line were masked."""
    n_hidden = sum(len(secret.hidden) for secret in secrets_of(command))
    if not n_hidden:
        return []
    what = "1 secret" if n_hidden == 1 else f"{n_hidden} secrets"
    return [f"traceprof masked {what} of the command line in the trace ({MASK})"]
