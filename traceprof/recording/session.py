"""Make one recording from request to finished files, or recover an interrupted one."""

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
    """Yield the work folders of interrupted recordings on this machine, oldest first."""
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
    """Write the trace of an interrupted recording from its work folder; remove the folder.

    The folder stays if a process of the recording still runs, or with ``keep``. ``output`` is a
    file, or a folder if it ends in "/". The default is the output of the recording. ``say`` prints
    a message that the user needs immediately.

    Raises:
        TraceError: ``folder`` is not a work folder.
        UsageError: the folder is in use, or the output cannot be written.
        RecordingError: the data of a profiler is damaged.
    """
    notes = work_folder.read_notes(folder)
    if work_folder.is_locked(folder / LOCK):
        raise UsageError(f"{folder}: its recorder still runs; wait for it or stop it first")
    is_folder = (output or "").endswith("/")
    request = notes.request(Path(output) if output else None, is_folder=is_folder)
    request = replace(request, force=force, say=say)
    # Other launchers may have written to the run folder meanwhile, so add to it.
    notes = replace(notes, is_joining=request.is_folder and not force)
    check_output(request, is_joining=notes.is_joining)
    alive = [pid for pid, command in processes_of(folder).items() if not is_of_nsys(command)]
    if alive:
        say(f"process {', '.join(map(str, alive))} still runs; trace ends now, {folder} is kept")
    try:
        with work_folder.hold_lock(folder / LOCK), undisturbed(say):
            recording = finish(request, folder, notes, read_samples(folder))
    except KeyboardInterrupt:
        raise RecordingError(f"interrupted before writing the trace; {folder} is kept") from None
    if recording.output is not None and not alive and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return recording


def record(request: RecordRequest) -> Recording:
    """Record one program as ``request`` specifies.

    Raises:
        UsageError: the output cannot be written, the recorder does not exist, or the recorder does
            not support a requested option.
        RecordingError: the program could not be started, or the trace could not be written.
    """
    check_output(request)
    recorder, request = chosen_recorder(request)
    options = {name: f"--{name}-arg" for name, given in request.profiler_arguments.items() if given}
    if request.gpu_metrics:
        options[NSYS.name] = "--gpu-metrics"
    for name, option in options.items():
        if name != recorder.name:
            explanation = f"but the recorder is {recorder.name}; add --with {name}"
            raise UsageError(f"{option} is an option of {name}, {explanation}")
    reason = why_no_counters()
    if request.gpu_metrics and reason is not None:
        raise UsageError(f"--gpu-metrics: {reason}; run traceprof doctor for details")
    return record_with(recorder, request)


def record_with(recorder: Recorder, request: RecordRequest) -> Recording:
    """Record one program with ``recorder`` as ``request`` specifies.

    Raises:
        RecordingError: the program was not started, or the trace could not be written. In the
            second case the message names the folder with the captured data.
    """
    find_program(request.command)
    option = ignores_injection(request.command)
    if option is not None:
        request.say(f"python {option} ignores PYTHONPATH; traceprof cannot record steps")
    with ExitStack() as stack, recorded_with(recorder.name, request) as ongoing:
        ongoing.run = recorder.run(request, ongoing.folder)
        stack.enter_context(undisturbed(request.say))
    return ongoing.recording


@dataclass(slots=True)
class OngoingRecording:
    """A recording in progress. Whoever records sets ``run`` to the result of the program.

    ``recording`` is set after the trace is written.
    """

    folder: Path
    run: RunRecorded = field(default_factory=lambda: RunRecorded(None))
    recording: Recording = field(init=False)


@contextmanager
def recorded_with(recorder: str, request: RecordRequest) -> Iterator[OngoingRecording]:
    """Capture data in a work folder while the block runs, and write the trace at its end.

    Raises:
        RecordingError: the trace could not be written. The message names the folder with the
            captured data.
    """
    with ExitStack() as stack:
        is_joining = stack.enter_context(announced(request))
        notes = work_folder.notes_of(
            request,
            recorder,
            read_environment(request.command),
            is_joining=is_joining,
            label=label_of(request),
            job=job_of(request.command),
        )
        folder = stack.enter_context(work_folder.new_work_folder(notes))
        stack.enter_context(_kept_on_failure(folder))
        request.detail(f"the captured data is in {folder} until the trace is written")
        ongoing = OngoingRecording(folder)
        with sampling(folder) as sampler:
            yield ongoing
        final_notes = work_folder.write_notes(
            folder,
            notes,
            recorder=ongoing.run.recorder or notes.recorder,
            exit_code=ongoing.run.exit_code,
            ended_s=now_ns() / NS_PER_S,
            remarks=(*ongoing.run.notes, *sampler.notes),
        )
        ongoing.recording = finish(request, folder, final_notes, sampler.samples)
        # A program that outlives its grace period is killed after its trace is written.
        if n_killed := kill_with_children(ongoing.run.left):
            request.say(f"traceprof killed {n_killed} processes that did not exit")
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _kept_on_failure(folder: Path) -> Iterator[None]:
    """Keep the captured data if the block fails, and name the folder in the error.

    The folder is removed if it contains no data.
    """
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
