"""Run a program with a live status, and capture steps when a condition is met."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import TraceprofError, UsageError
from traceprof.formats.runs.manifest import NOTES
from traceprof.recording import work_folder
from traceprof.recording.cupti.spool import LIBRARY
from traceprof.recording.finishing import note_without_torch
from traceprof.recording.job import announced, job_of, label_of
from traceprof.recording.live.capture import (
    GONE,
    CaptureRequest,
    send_request,
    wait_for,
    write_capture,
)
from traceprof.recording.live.node import MetricsFile, NodeStatus
from traceprof.recording.live.status import LIVE, Header, LiveRun, Process
from traceprof.recording.live.trigger import MAX_VALUES, Conditions, Trigger, Values, in_phase
from traceprof.recording.live.view import OTHER, PHASES, RunView, view_of
from traceprof.recording.machine import read_environment
from traceprof.recording.program import (
    Program,
    child_environment,
    find_program,
    ignores_injection,
    run_recorded,
)
from traceprof.recording.request import Bounds, RecordRequest, writing
from traceprof.units import SENTENCE_DIGITS, format_bytes

CAPTURES: Final = "captures.jsonl"
"""The file in the folder of the live status that lists the automatic captures and their reasons."""
_CHECK_S: Final = 0.5
_MAX_CAPTURES: Final = 3
_CAPTURED_STEPS: Final = 6
"""Of an automatic capture. The first step shows the size of a step, and is not analyzed."""
_MAX_CAPTURED_STEPS: Final = 64
_RECURRING_FACTOR, _MIN_RECURRING = 1.5, 3
_TIMES: Final = ("duration_ns", *(f"{name}_ns" for name in PHASES))
_MAX_WAIT_RATIO: Final = 0.9
"""The system counts waiting when it ends, which may be in another check: the rest is unknown."""
_CAPTURE_TIMEOUT_S: Final = 120.0
_MAX_BYTES: Final = 1_000_000_000
_MIN_RANK_BYTES: Final = 32_000_000
"""An automatic capture leaves out ranks if the share of each rank would be smaller."""
_OLD_S: Final = 5.0


@dataclass(slots=True)
class Monitor:
    """What the launcher of a live run does while the program runs: node status and captures."""

    live: Path
    conditions: Conditions | None
    say: Callable[[str], None]
    is_always: bool = False
    max_bytes: int = _MAX_BYTES
    _metrics: MetricsFile = field(init=False)
    _run: LiveRun = field(init=False)
    _trigger: Trigger = field(init=False)
    _node: NodeStatus = field(init=False)
    _next_check_s: float = 0.0
    _seen: dict[str, Header] = field(default_factory=dict)
    _phases: deque[Values] = field(default_factory=lambda: deque(maxlen=MAX_VALUES))
    _n_captures: int = 0
    _n_bytes: int = 0
    _open: tuple[CaptureRequest, str, float] | None = None

    def __post_init__(self) -> None:
        self._run = LiveRun(self.live.parent, self.live)
        self._trigger = Trigger(self.conditions or Conditions())
        self._node = NodeStatus(self.live)
        self._metrics = MetricsFile(self.live)

    def tick(self, _program: Program | None = None) -> None:
        """Write the node status and check the conditions, if they are due."""
        now_s = time.monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + _CHECK_S
        self._node.write()
        if self.is_always:
            self._metrics.write(self._run)
        if self.conditions is None:
            return
        try:
            self._check()
        except TraceprofError as error:
            self.say(f"no automatic capture: {error}")
            self._open = None

    def close(self) -> None:
        """Write the trace of a capture that the end of the program interrupted."""
        if self._open is not None:
            with suppress(TraceprofError):
                self._run.refresh()
                self._finish_open()

    def _check(self) -> None:
        processes = self._run.refresh()
        if self._open is not None:
            request, _, deadline_s = self._open
            states = {request.state_of(process) for process in processes}
            is_over = states & {"done", "failed"} and not states & {"waiting", "recording"}
            if is_over or time.monotonic() > deadline_s:
                self._finish_open()
            return
        steps_ns = self._new_steps_ns(processes)
        if self._n_captures >= _MAX_CAPTURES or not self._is_leader(processes):
            return
        view = view_of(processes)
        reason = self._trigger.check(view, steps_ns)
        if reason:
            is_rare = self._trigger.is_rise_of_mean
            if "step time rose" in reason:
                reason += in_phase(_place_of_rise(self._phases, self._trigger.n_slow_checks))
                self._phases.clear()
            self._request(reason, view, _n_recurring(processes) if is_rare else _CAPTURED_STEPS)

    def _request(self, reason: str, view: RunView, n_steps: int) -> None:
        """Ask for a capture, unless the captures of this run have used the total size."""
        running = [rank for rank in view.ranks if rank.state not in GONE]
        left_bytes = self.max_bytes - self._n_bytes
        n_ranks = min(len(running), left_bytes // _MIN_RANK_BYTES)
        if n_ranks < 1:
            self._n_captures = _MAX_CAPTURES
            sizes = (self._n_bytes, self.max_bytes)
            used, most = (format_bytes(size, SENTENCE_DIGITS) for size in sizes)
            self.say(
                f"{reason}: not captured, because the captures use {used} of {most} (--max-size); "
                "no more captures"
            )
            return
        self._n_captures += 1
        ranks = _choose_ranks(view, n_ranks)
        # Half of it is for the events, half for the operators.
        share_bytes = left_bytes // (2 * (len(running) if ranks is None else len(ranks)))
        request = send_request(self._run, n_steps, ranks, max_bytes=share_bytes)
        self._open = (request, reason, time.monotonic() + _CAPTURE_TIMEOUT_S)
        of_ranks = f" of {len(ranks)} of {len(running)} ranks (--max-size)" if ranks else ""
        self.say(f"{reason}: capturing {request.n_steps} steps{of_ranks}")

    def _is_leader(self, processes: Sequence[Process]) -> bool:
        """Return whether the lowest rank runs on this host: one launcher decides for all."""
        first = next(iter(processes), None)
        return first is not None and first.header.host == socket.gethostname()

    def _new_steps_ns(self, processes: Sequence[Process]) -> Values:
        """Return the durations of the steps since the last check, in the order of their numbers.

        They are reduced by the time in which other programs kept the training thread from a core.
        The steps of a capture are left out: they include the work of the recorder.
        """
        steps, wait_ratios = [], [0.0]
        for process in processes:
            header, before = process.header, self._seen.get(process.path.name)
            is_new = process.column("index") >= (before.n_steps if before is not None else 0)
            if is_new.any():
                self._seen[process.path.name] = header
                wait_ratios.append(core_wait_ratio(header, before))
            columns = [process.column(name) for name in ("number", *_TIMES)]
            steps.append(np.column_stack(columns)[is_new & ~_is_captured(process)])
        wait_ratio = max(wait_ratios)  # a rank also waits for the ranks that wait for a core
        if not steps or wait_ratio > _MAX_WAIT_RATIO:
            return np.empty(0)
        joined = np.concatenate(steps).astype(np.float64)
        joined[:, 1:] *= 1 - wait_ratio
        if len(joined):
            self._phases.append(joined[:, 1:].mean(axis=0))
        ordered: Values = joined[np.argsort(joined[:, 0], kind="stable"), 1]
        return ordered

    def _finish_open(self) -> None:
        if self._open is None:
            return
        request, reason, _ = self._open
        self._open = None
        for problem in wait_for(self._run, request, 0.0):
            self.say(problem)
        try:
            recording = write_capture(self._run, request)
        finally:  # a trace that cannot be written leaves the raw data
            n_bytes = sum(map(bytes_of, (self.live.parent / request.folder.name, request.folder)))
            self._n_bytes += n_bytes
        size = format_bytes(n_bytes, SENTENCE_DIGITS)
        self.say(f"captured because {reason}: {recording.output} ({size})")
        line = {
            "capture": request.folder.name,
            "time_s": time.time(),
            "reason": reason,
            "size_bytes": n_bytes,
        }
        with suppress(OSError), (self.live / CAPTURES).open("a") as file:
            file.write(json.dumps(line) + "\n")


def core_wait_ratio(header: Header, before: Header | None) -> float:
    """Return the share of the time since ``before`` in which the training thread waited for a core.

    ``before`` None is the start of the process. The share is 0 where it is unknown.
    """
    begin_ns = before.now_ns if before is not None else header.started_ns - header.offset_ns
    wait_ns = before.core_wait_ns if before is not None else 0
    if header.core_wait_ns is None or wait_ns is None or header.now_ns <= begin_ns:
        return 0.0
    return min(max((header.core_wait_ns - wait_ns) / (header.now_ns - begin_ns), 0.0), 1.0)


def _is_captured(process: Process) -> npt.NDArray[np.bool_]:
    """Return which steps belong to the last capture, or follow it directly."""
    steps, numbers = process.header.capture.get("steps"), process.column("number")
    if not isinstance(steps, list) or [type(number) for number in steps] != [int, int]:
        return np.zeros(len(numbers), np.bool_)
    is_captured: npt.NDArray[np.bool_] = (steps[0] <= numbers) & (numbers <= steps[1] + 1)
    return is_captured


def _place_of_rise(checks: Sequence[Values], n_slow: int) -> str:
    """Return the phase in which at least half of the additional time of slow steps is; "": none.

    ``checks`` are the mean step times and times of the `PHASES`; the last ``n_slow`` are slow.
    """
    before, after = list(checks)[:-n_slow], list(checks)[-n_slow:]
    if not before:
        return ""
    rise_ns, *more_ns = np.median(after, axis=0) - np.median(before, axis=0)
    places = dict(zip((*PHASES, OTHER), (*more_ns, rise_ns - sum(more_ns)), strict=True))
    place = max(places, key=places.__getitem__)
    return place if places[place] >= rise_ns / 2 > 0 else ""


def _n_recurring(processes: Sequence[Process]) -> int:
    """Return how many steps to capture so that slow steps that recur are among them."""
    n_steps = _CAPTURED_STEPS
    for process in processes:
        durations = process.column("duration_ns")
        slow = np.flatnonzero(durations > _RECURRING_FACTOR * np.median(durations))
        if len(slow) >= _MIN_RECURRING:
            n_steps = max(n_steps, 2 * int(np.median(np.diff(slow))) + 1)
    return min(n_steps, _MAX_CAPTURED_STEPS)


def bytes_of(folder: Path) -> int:
    """Return the size of the files in a folder; 0 if there is none."""
    with suppress(OSError):
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return 0


def _choose_ranks(view: RunView, n_ranks: int) -> frozenset[int] | None:
    """Return ``n_ranks`` running ranks, with the straggler; None if processes have no ranks."""
    running = (rank.rank for rank in view.ranks if rank.state not in GONE)
    known = sorted(rank for rank in running if rank is not None)
    if len(known) <= n_ranks:
        return None
    places = np.linspace(0, len(known) - 1, n_ranks).round().astype(int)
    chosen = [known[place] for place in places]
    if view.straggler is not None and view.straggler.rank not in chosen:
        chosen[-1] = view.straggler.rank
    return frozenset(chosen)


def live_environment(live: Path, request: RecordRequest, *, is_always: bool) -> Mapping[str, str]:
    """Return the environment of a program with a live status in the folder ``live``.

    ``is_always``: with the few hooks of ``record --always``.
    """
    environment = child_environment(live.absolute(), request)
    environment |= {"TRACEPROF_LIVE": "1", "TRACEPROF_ALWAYS": "1" if is_always else ""}
    if LIBRARY.exists():  # for `traceprof capture --with cupti`
        environment["TRACEPROF_CUPTI_RECORDER"] = str(LIBRARY)
    disabled = os.environ.get("TRACEPROF_DISABLE", "")
    environment["TRACEPROF_DISABLE"] = ",".join(filter(None, (disabled, "sizes")))
    return environment


def record_live(
    request: RecordRequest, conditions: Conditions | None = None, *, is_always: bool = False
) -> int:
    """Run a program with a live status in ``request.output``; return its exit code.

    Raises:
        UsageError: the folder has the live status of another run, or options exclude each other.
        RecordingError: the program cannot be started.
    """
    _check_options(request)
    find_program(request.command)
    option = ignores_injection(request.command)
    if option is not None:
        request.say(f"python {option} ignores PYTHONPATH; traceprof cannot record steps")
    live = request.output / LIVE
    with writing(live, "created"):
        live.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        is_joining = stack.enter_context(announced(request))
        _check_folder(live, request, is_joining=is_joining)
        notes = work_folder.notes_of(
            request,
            "torch",
            read_environment(request.command),
            label=label_of(request),
            job=job_of(request.command),
        )
        work_folder.write_notes(live, notes)
        request.say(f"watch the program with `traceprof watch {request.output}`")
        max_bytes = request.bounds.max_bytes or _MAX_BYTES
        monitor = Monitor(live, conditions, request.say, is_always, max_bytes)
        stack.callback(monitor.close)
        program = Program(grace_s=request.grace_s, say=request.say)
        code = run_recorded(
            request.command,
            live_environment(live, request, is_always=is_always),
            monitor.tick,
            program=program,
        )
        if not any(live.glob("status.*")):
            request.say(note_without_torch(live) or "no steps found; use traceprof.step()")
        return code


def _check_options(request: RecordRequest) -> None:
    """Check that no option is set that applies only to a recording of the whole run.

    Raises:
        UsageError: such an option is set.
    """
    if not request.is_folder:
        raise UsageError(
            f"--live and --always need a folder: add / to the name, as in -o {request.output}/"
        )
    if request.recorder not in ("auto", "torch"):
        raise UsageError(
            f"--live and --always do not support --with {request.recorder}; use torch or auto"
        )
    is_bounded = replace(request.bounds, max_bytes=0) != Bounds()
    if is_bounded or request.memory_steps or request.gpu_metrics or request.counts_flops:
        raise UsageError(
            "--live and --always cannot be combined with --steps, --delay, --duration, --memory, "
            "--flops, or --gpu-metrics; capture steps with `traceprof capture`"
        )


def _is_same_job(live: Path, request: RecordRequest) -> bool:
    """Return whether another launcher of this job has written to the folder ``live``.

    The user or the scheduler names the job: `TRACEPROF_RUN`, the rendezvous, or the Slurm job.
    """
    try:
        earlier = work_folder.read_notes(live)
    except TraceprofError:
        return False
    job, label = job_of(request.command), label_of(request)
    is_named = label != request.output.absolute().name
    return bool(job and job == earlier.job) or (is_named and label == earlier.label)


def _check_folder(live: Path, request: RecordRequest, *, is_joining: bool) -> None:
    """Check that the folder is new, belongs to this job, or may be replaced.

    Raises:
        UsageError: the folder has the live status of another run.
    """
    old = [path for path in live.iterdir() if path.is_file()]
    if not old or is_joining or _is_same_job(live, request):
        return
    if not request.force:
        raise UsageError(
            f"{live}: has the live status of another run; choose another folder, or use --force "
            "(several nodes of one job: set TRACEPROF_RUN to the same name)"
        )
    for path in old:  # another node of this job may have begun
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _OLD_S or path.name == NOTES:
                path.unlink()
