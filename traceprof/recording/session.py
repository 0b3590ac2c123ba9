"""One recording from the request to the finished files, or recovered after it was broken off."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from traceprof.errors import RecordingError, TraceError, TraceprofError, UsageError
from traceprof.formats.runs.manifest import LOCK
from traceprof.recording import work_folder
from traceprof.recording.clock import now_ns
from traceprof.recording.finishing import finish
from traceprof.recording.job import announced, job_of, label_of
from traceprof.recording.machine import read_environment, why_no_counters
from traceprof.recording.orphans import kill_with_children, processes_of
from traceprof.recording.outputs import check_output
from traceprof.recording.program import find_program, ignores_injection, undisturbed
from traceprof.recording.recorders.nsys.recorder import RECORDER as NSYS
from traceprof.recording.recorders.nsys.report import is_of_nsys
from traceprof.recording.request import Recorder, Recording, RecordRequest, RunRecorded
from traceprof.recording.sampling.sampler import read_samples, sampling
from traceprof.recording.trial import chosen_recorder
from traceprof.units import NS_PER_S


def recoverable() -> Iterator[tuple[Path, work_folder.Notes]]:
    """Yield the work folders that broken-off recordings have left here, the oldest first."""
    for folder in work_folder.work_folders():
        with suppress(TraceError):
            yield folder, work_folder.read_notes(folder)


def recover(
    folder: Path,
    output: str | None = None,
    *,
    force: bool = False,
    keep: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> Recording:
    """Write the trace of what a recording has left in its work folder, and remove the folder.

    It stays where a process of the recording still runs, and to ``keep``. ``output`` is a file, or
    with "/" at its end a folder; else where the recording was to go. ``say`` is told what the user
    should know at once.

    Raises:
        TraceError: it is no work folder.
        UsageError: it is in use, or the output cannot be written.
        RecordingError: what a profiler has left is damaged.
    """
    notes = work_folder.read_notes(folder)
    if work_folder.is_held(folder / LOCK):
        raise UsageError(f"{folder}: its recorder still runs; wait for it or stop it first")
    is_folder = (output or "").endswith("/")
    request = notes.request(Path(output) if output else None, is_folder=is_folder)
    request = replace(request, force=force, say=say)
    # Other launchers of the run may have written to its folder meanwhile: it is added to.
    notes = replace(notes, is_joining=request.is_folder and not force)
    check_output(request, is_joining=notes.is_joining)
    alive = [pid for pid, command in processes_of(folder).items() if not is_of_nsys(command)]
    if alive:
        say(f"process {', '.join(map(str, alive))} still runs; trace ends now, {folder} is kept")
    try:
        with work_folder.held(folder / LOCK), undisturbed(say):
            recording = finish(request, folder, notes, read_samples(folder))
    except KeyboardInterrupt:
        raise RecordingError(f"interrupted before writing the trace; {folder} is kept") from None
    if recording.output is not None and not alive and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return recording


def record(request: RecordRequest) -> Recording:
    """Record one program, as asked for in ``request``.

    Raises:
        UsageError: the output cannot be written, there is no such recorder, or something was
            asked for that it cannot do.
        RecordingError: the program could not be started, or the trace not be written.
    """
    check_output(request)
    recorder, request = chosen_recorder(request)
    asked = {name: f"--{name}-arg" for name, given in request.profiler_arguments.items() if given}
    if request.gpu_metrics:
        asked[NSYS.name] = "--gpu-metrics"
    for name, option in asked.items():
        if name != recorder.name:
            used = f"but the recorder is {recorder.name}; add --with {name}"
            raise UsageError(f"{option} is an option of {name}, {used}")
    reason = why_no_counters()
    if request.gpu_metrics and reason is not None:
        raise UsageError(f"--gpu-metrics: {reason}; run traceprof doctor for details")
    return record_with(recorder, request)


def record_with(recorder: Recorder, request: RecordRequest) -> Recording:
    """Record one program with ``recorder``, as asked for in ``request``.

    Raises:
        RecordingError: the program was not started, or the trace could not be written; then
            the message names the folder with what was captured.
    """
    find_program(request.command)
    option = ignores_injection(request.command)
    if option is not None:
        request.say(f"python {option} ignores PYTHONPATH; traceprof cannot record steps")
    with ExitStack() as stack, recorded_with(recorder.name, request) as begun:
        begun.run = recorder.run(request, begun.folder)
        stack.enter_context(undisturbed(request.say))
    return begun.recording


@dataclass(slots=True)
class Begun:
    """A recording that goes on: who records says in ``run`` how it ended.

    ``recording`` is there once it has been written.
    """

    folder: Path
    run: RunRecorded = field(default_factory=lambda: RunRecorded(None))
    recording: Recording = field(init=False)


@contextmanager
def recorded_with(recorder: str, request: RecordRequest) -> Iterator[Begun]:
    """Keep what is captured while the block runs, and write the trace at its end.

    Raises:
        RecordingError: the trace could not be written; the message names the folder with what was
            captured.
    """
    with ExitStack() as stack:
        joins = stack.enter_context(announced(request))
        notes = work_folder.notes_of(
            request,
            recorder,
            read_environment(request.command),
            is_joining=joins,
            label=label_of(request),
            job=job_of(request.command),
        )
        folder = stack.enter_context(work_folder.new_work_folder(notes))
        stack.enter_context(_kept_on_failure(folder))
        request.detail(f"the captured data is in {folder} until the trace is written")
        begun = Begun(folder)
        with sampling(folder) as sampler:
            yield begun
        ended = work_folder.write_notes(
            folder,
            notes,
            recorder=begun.run.recorder or notes.recorder,
            exit_code=begun.run.exit_code,
            ended_s=now_ns() / NS_PER_S,
            remarks=(*begun.run.notes, *sampler.notes),
        )
        begun.recording = finish(request, folder, ended, sampler.samples)
        # A program that goes on after SIGTERM and its grace is killed once its trace is written.
        if n_killed := kill_with_children(begun.run.left):
            request.say(f"traceprof killed {n_killed} processes that did not exit")
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _kept_on_failure(folder: Path) -> Iterator[None]:
    """Keep what was captured, if there is anything, whatever goes wrong, and say where it is."""
    try:
        yield
    except BaseException as error:
        if not work_folder.has_captured(folder):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        where = f"run traceprof recover {folder} to write the trace of the captured data"
        if isinstance(error, KeyboardInterrupt):
            raise RecordingError(f"interrupted before writing the trace; {where}") from None
        if isinstance(error, TraceprofError | OSError | MemoryError):
            raise RecordingError(f"{str(error) or type(error).__name__}; {where}") from error
        raise RecordingError(f"{type(error).__name__}: {error}; {where}") from error
