"""Ask the processes of a running program to record their next steps, and write the trace."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from traceprof.errors import RecordingError, TraceError, UsageError
from traceprof.files import write_file
from traceprof.recording.finishing import finish
from traceprof.recording.live.status import LiveRun, Process
from traceprof.recording.request import Recording, writing
from traceprof.recording.work_folder import Notes, has_captured, read_notes, write_notes

REQUEST: Final = "request.json"
MAX_STEPS: Final = 10_000
_NOTICE_S: Final = 2.0
"""Processes read a request, and this process their status, within this time."""
_POLL_S: Final = 0.2
GONE: Final = ("finished", "failed", "killed", "lost")
_MAX_CAPTURES: Final = 10_000


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """A request to capture ``n_steps`` steps from step ``first`` of some ranks (None: all).

    ``folder`` is the work folder of the captured data.
    """

    number: int
    folder: Path
    first: int
    n_steps: int
    ranks: frozenset[int] | None = None
    recorder: str = "torch"

    def state_of(self, process: Process) -> str:
        """Return the state of this capture in a process ("waiting", "done" …; "": not received)."""
        capture = process.header.capture
        return str(capture.get("state", "")) if capture.get("id") == self.number else ""


def send_request(
    run: LiveRun,
    n_steps: int,
    ranks: Collection[int] | None = None,
    recorder: str = "torch",
    max_bytes: int = 0,
) -> CaptureRequest:
    """Ask the running processes of ``run`` to capture their next steps with "torch" or "cupti".

    All ranks begin at the same step, which is about 2 s in the future. ``max_bytes`` limits the
    events of each process, and its operators (0: no limit).

    Raises:
        UsageError: no process (of these ranks) runs, or the folder is not writable.
    """
    if not 0 < n_steps <= MAX_STEPS:
        raise UsageError(f"--steps {n_steps}: expected 1 to {MAX_STEPS}")
    found = run.refresh()
    processes = [process for process in found if process.state not in GONE]
    known = {process.header.rank for process in processes}
    unknown = sorted(set(ranks or ()) - known)
    if unknown:
        listed = ", ".join(map(str, sorted(rank for rank in known if rank is not None)))
        raise UsageError(
            f"--ranks {','.join(map(str, unknown))}: not running; running ranks: {listed or 'none'}"
        )
    if not processes:
        state = "no process runs" if found else "no process has begun a step yet"
        raise UsageError(f"{run.folder}: {state}; a capture needs a running program")
    if any(process.header.is_always for process in processes):
        raise UsageError(
            f"{run.folder}: a run of `record --always` cannot capture steps; start it with --live"
        )
    number, folder = _new_folder(run.live)
    chosen = None if ranks is None else frozenset(ranks)
    request = CaptureRequest(number, folder, _first_step(processes), n_steps, chosen, recorder)
    document = {
        "id": number,
        "first": request.first,
        "steps": n_steps,
        "ranks": None if ranks is None else sorted(ranks),
        "with": recorder,
    } | ({"max_bytes": max_bytes} if max_bytes else {})
    with writing(run.live / REQUEST):
        write_file(run.live / REQUEST, json.dumps(document), force=True)
    return request


def _new_folder(live: Path) -> tuple[int, Path]:
    """Create the work folder of the next capture; two requests never share a number.

    Raises:
        UsageError: the folder cannot be created.
    """
    used = [_number_of(path) for path in live.parent.glob("capture-*")]
    used += [_number_of(path) for path in live.glob("capture-*")]
    for number in range(max(used, default=0) + 1, _MAX_CAPTURES):
        folder = live / f"capture-{number}"
        with writing(folder, "created"), suppress(FileExistsError):
            folder.mkdir()
            return number, folder
    raise UsageError(f"{live}: has {_MAX_CAPTURES} captures; remove some of them")


def _number_of(path: Path) -> int:
    text = path.name.rpartition("-")[2]
    return int(text) if text.isdecimal() and len(text) < 6 else 0


def _first_step(processes: Sequence[Process]) -> int:
    """Return a step that all processes will begin after they have read the request."""
    trained = [process for process in processes if len(process.steps)]
    last = max((int(process.steps[-1, 1]) for process in trained), default=-1)
    durations = [float(np.median(process.column("duration_ns"))) for process in trained]
    step_s = max(min(durations, default=math.inf), 1.0) / 1e9
    return last + 2 + math.ceil(_NOTICE_S / step_s)


def wait_for(
    run: LiveRun,
    request: CaptureRequest,
    timeout_s: float,
    say: Callable[[str], None] = lambda _line: None,
) -> list[str]:
    """Wait until the processes have captured their steps; return sentences about problems.

    Raises:
        RecordingError: no process has captured steps within ``timeout_s``.
    """
    deadline_s = time.monotonic() + timeout_s
    is_announced = False
    while True:
        wanted = _wanted(run.refresh(), request)
        states = [request.state_of(process) for process in wanted]
        is_open = [
            state not in ("done", "failed") and process.state not in GONE
            for state, process in zip(states, wanted, strict=True)
        ]
        if not any(is_open):
            return _problems(wanted, request)
        if not is_announced and "recording" in states:
            is_announced = True
            say(f"recording {request.n_steps} steps from step {request.first}")
        if time.monotonic() > deadline_s:
            break
        time.sleep(_POLL_S)
    if "done" not in states:
        raise RecordingError(
            f"no process ended {request.n_steps} steps within {timeout_s:g} s; run `traceprof "
            "watch` to see whether it is stalled, or use a larger --timeout"
        )
    return _problems(wanted, request)


def _wanted(processes: Sequence[Process], request: CaptureRequest) -> list[Process]:
    """Return the processes that a request is for: the last attempt of each rank."""
    last = {
        process.path.name if process.header.rank is None else process.header.rank: process
        for process in processes
    }
    return [
        process
        for process in last.values()
        if (request.ranks is None or process.header.rank in request.ranks)
        and (process.state not in GONE or request.state_of(process))
    ]


def _problems(wanted: Sequence[Process], request: CaptureRequest) -> list[str]:
    """Return one sentence for each process that did not capture all steps."""
    problems = []
    for process in wanted:
        state, error = request.state_of(process), process.header.capture.get("error")
        who = f"process {process.header.pid}"
        if process.header.rank is not None:
            who = f"rank {process.header.rank}"
        if error:
            problems.append(f"{who}: {str(error)[:200]}")
        elif state != "done":
            problems.append(f"{who} did not capture all steps ({process.state})")
    return problems


def write_capture(run: LiveRun, request: CaptureRequest) -> Recording:
    """Write the trace of a capture to the folder ``capture-N`` of the run; remove the raw data.

    Raises:
        RecordingError: no process has left data.
        UsageError: the trace cannot be written.
    """
    folder, output = request.folder, run.live.parent / request.folder.name
    if not has_captured(folder):
        shutil.rmtree(folder, ignore_errors=True)
        raise RecordingError("no process captured any step before it ended")
    notes = write_notes(folder, _notes_of(run.live, output), recorder=request.recorder)
    record_request = replace(notes.request(), force=True)
    output.mkdir(exist_ok=True)
    recording = finish(record_request, folder, notes, ())
    if recording.output is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return recording


def _notes_of(live: Path, output: Path) -> Notes:
    """Return the notes of a capture: those of its run, with another output."""
    notes = read_notes(live)
    return replace(notes, output=str(output.absolute()), is_folder=True, is_joining=False)


def capture(
    run: LiveRun,
    n_steps: int,
    ranks: Collection[int] | None,
    timeout_s: float,
    say: Callable[[str], None],
    recorder: str = "torch",
) -> Recording:
    """Capture the next steps of a running program, and write their trace.

    Raises:
        UsageError, RecordingError: see `send_request`, `wait_for`, and `write_capture`.
        TraceError: the folder has no description of its recording.
    """
    request = send_request(run, n_steps, ranks, recorder)
    say(f"capture {request.number} begins at step {request.first}")
    try:
        for problem in wait_for(run, request, timeout_s, say):
            say(problem)
        return write_capture(run, request)
    except KeyboardInterrupt:
        raise RecordingError(f"interrupted; the captured data is in {request.folder}") from None
    except TraceError as error:
        raise RecordingError(f"{error}; the captured data is in {request.folder}") from error
