"""From a work folder to the files of a recording, and what is said of it at the end."""

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
from traceprof.recording.spool import ProcessEvents, has_records, read_object, without_record
from traceprof.recording.work_folder import Notes
from traceprof.secrets import MASK, secrets_of

_WAYS: Final = (
    *(("forward passes", "every-forward"), ("fetches", "loader")),
    *(("backward passes", "backward"), ("optimizer steps", "optimizer")),
)
_IN_PROGRAM: Final = "--step-from range:NAME or traceprof.step() in the program"
_REGULAR: Final = 0.5
_ORDER: Final = ("fetches", "forward passes", "backward passes", "optimizer steps")
_NAME_THEM: Final = (
    "use traceprof.step() and traceprof.range() in the program to mark steps and ranges, or "
    "record with nsys and `--nsys-arg=--sample=process-tree` to sample its code"
)
_STARTED_AGAIN: Final = (
    "ranks were started more than once; the file contains the attempt with the most events for "
    "each rank (use -o FOLDER/ to keep all attempts)"
)
_WHY_BOUNDED: Final = "the program ended before the capture started"
_CALL_NS: Final = 45_000  # what the recording of a collective takes of the host: measured, 2 cores
_MANY_CALLS: Final = 100
_NOTABLE_SHARE: Final = 0.03


def notes_on_steps(folder: Path, bounds: Bounds, step_from: str) -> list[str]:
    """Return what the user should know of the steps of the processes that imported torch.

    Of several the one that did most speaks: ranks do the same. Nothing where steps were seen,
    those that were asked for among them, and it is plain what a step is.
    """
    each = map(read_object, folder.glob("seen.*.json"))
    found = [seen for seen in each if seen.get("steps") or any(_counts(seen).values())]
    if not found:
        return []
    seen = max(found, key=lambda one: (one.get("steps", 0), sum(_counts(one).values())))
    n_steps = seen.get("steps", 0)
    first = bounds.steps[0] if bounds.steps is not None else 0
    if not n_steps:
        return [_why_none(_counts(seen), step_from)]
    notes = []
    if n_steps <= first:
        notes.append(f"--steps starts at {first}, but the program ran {n_steps} steps (from 0)")
    if not step_from and not seen.get("named"):
        notes += filter(None, (_of_backward(seen), _of_turns(seen)))
    return notes


def _why_none(counts: Mapping[str, int], step_from: str) -> str:
    saw = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    ways = _ways(counts, step_from)
    say = f"--step-from {' or '.join(ways)}, or " if ways else ""
    return f"no steps found in {saw}; define a step with {say}{_IN_PROGRAM}"


def _ways(counts: Mapping[str, int], *but: str) -> list[str]:
    """Return what may be said behind ``--step-from``, with how many steps that would be."""
    ways = [(way, counts.get(what)) for what, way in _WAYS]
    return [f"{way} ({count})" for way, count in ways if count and way not in but]


def _of_backward(seen: Mapping[str, Any]) -> str | None:
    """Say that steps are backward passes, for want of an optimizer."""
    counts = _counts(seen)
    if counts.get("optimizer steps") or not counts.get("backward passes"):
        return None
    n_steps, n_passes = seen["steps"], counts["backward passes"]
    what = "" if n_steps == n_passes else f" ({n_passes} passes in {n_steps} steps)"
    others = " or ".join(_ways(counts, "every-forward", "backward"))
    say = f"--step-from {others}, " if others else ""
    found = f"no torch optimizer found, so traceprof counts backward passes as steps{what}"
    return f"{found}; to define other steps, use {say}{_IN_PROGRAM}"


def _of_turns(seen: Mapping[str, Any]) -> str | None:
    """Say how optimizers that take turns were made into steps, and how else they may be."""
    turns, n_steps = seen.get("turns"), seen["steps"]
    if not isinstance(turns, dict) or len(turns) < 2:
        return None
    is_joined = seen.get("joined", 0) >= _REGULAR * n_steps
    is_mixed = seen.get("changes", 0) >= min(turns.values()) and len(set(turns.values())) > 1
    if not is_joined and not is_mixed:
        return None
    each = ", ".join(f"{count} steps of #{number}" for number, count in turns.items())
    return (
        f"several optimizers alternate ({each}) in {n_steps} steps; use --step-from optimizer to "
        "count every optimizer step, or --step-from optimizer#1 to count those of optimizer 1"
    )


def _counts(seen: Mapping[str, Any]) -> dict[str, int]:
    """Return of what steps may be made."""
    return {what: seen[what] for what in _ORDER if isinstance(seen.get(what), int)}


def note_without_torch(folder: Path) -> str:
    """Return why there are no ranges: the program used no torch, or the hooks were not there."""
    used = sorted({name for path in folder.glob("python.*") for name in path.read_text().split()})
    if any(folder.glob("python.*")):
        what = f" (it used {', '.join(used)})" if used else ""
        return f"no ranges recorded because the program did not import torch{what}; {_NAME_THEM}"
    return (
        "no ranges recorded because no process imported torch under the recorder (early exit, "
        f"python -I/-E/-S, or a replaced environment); if it does not use torch, {_NAME_THEM}"
    )


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


@_collector_paused()
def finish(
    request: RecordRequest, folder: Path, notes: Notes, samples: Sequence[Sample]
) -> Recording:
    """Write the files of what is in ``folder``, as asked for in ``request``.

    Raises:
        UsageError: a file cannot be written.
        RecordingError: what a profiler has left is damaged.
    """
    seen = notes_on_steps(folder, request.bounds, request.step_from)
    if not has_records(folder) and not without_record(folder):
        seen = [note_without_torch(folder)]
    remarks = (*notes.remarks, *seen)
    run = RunRecorded(notes.exit_code, notes=remarks)
    run = recorder_named(notes.recorder).collect(request, folder, run)
    captured = gather(folder, [profile.pid for profile in run.profiles]).with_samples(samples)
    if request.bounds.is_bounded:
        captured = captured.without_samples_outside()
    starts = len(captured.ranks)
    if not request.is_folder:
        captured = captured.with_one_attempt()
        known = sum(one.rank is not None for one in captured.ranks)
        if starts > known > 0 and any(one.run_id for one in captured.processes):
            request.say(_STARTED_AGAIN)
    return _written(Job(request, run, captured, notes), folder)


def _written(job: Job, folder: Path) -> Recording:
    notes = [*job.run.notes, *_notes_on(job.captured), *_notes_on_secrets(job.request.command)]
    exit_code, name = job.run.exit_code, job.recorder_name
    has_profile = job.run.database is not None or bool(job.run.profiles)
    if not has_profile and not job.captured.has_enough_for_a_trace:
        why = _WHY_BOUNDED if job.request.bounds.is_bounded else "nothing was captured"
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
    """Return a warning where the recording of collectives itself took a good part of the time."""
    n_calls = events.n_collectives
    if n_calls < _MANY_CALLS:
        return None
    share = n_calls * _CALL_NS / max((events.last_ns or 0) - (events.first_ns or 0), 1)
    if share < _NOTABLE_SHARE:
        return None
    return (
        f"recording {n_calls} collective calls took about {share:.0%} of the time of process "
        f"{events.pid}; set TRACEPROF_DISABLE=collectives to skip them"
    )


def _notes_on(captured: Captured) -> list[str]:
    notes = [*filter(None, map(_note_on_collectives, captured.events))]
    thinned = sum(sum(part.thinned.values()) for part in captured.events)
    if thinned:
        notes.append(
            f"{thinned} of {thinned + sum(part.n_ranges for part in captured.events)} ranges were "
            "skipped because traceprof samples very frequent range names"
        )
    return [*notes, *merge_similar_warnings(captured.losses())]


def _notes_on_secrets(command: Sequence[str]) -> list[str]:
    n_hidden = sum(len(secret.hidden) for secret in secrets_of(command))
    if not n_hidden:
        return []
    what = "1 secret" if n_hidden == 1 else f"{n_hidden} secrets"
    return [f"traceprof masked {what} of the command line in the trace ({MASK})"]
