"""What is asked of a recorder: the program, what part of it is captured; and what comes back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from traceprof.errors import RecordingError, TraceError, TraceprofError, UsageError, WritingError
from traceprof.model.trace import Trace
from traceprof.units import NS_PER_S, format_bytes, parse_duration

STEP_SOURCES: Final = ("optimizer", "backward", "loader", "every-forward")
_STEPS: Final = re.compile(r"\s*(\d+)\s*(?:\.\.\s*(\d+)\s*)?")
_SIZE: Final = re.compile(r"\s*+(\d+(?:\.\d+)?)\s*+([kMGT]?)B?\s*+", re.IGNORECASE)
_SIZE_FACTORS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The part of a run that is captured; each None or 0 where it is not bounded.

    ``steps`` are the first and the last step, both captured. ``delay_ns`` counts from the start
    of the training process, ``duration_ns`` from the end of the delay. ``max_bytes`` bounds the
    events of one process.
    """

    steps: tuple[int, int] | None = None
    delay_ns: int = 0
    duration_ns: int = 0
    max_bytes: int = 0

    @property
    def is_bounded(self) -> bool:
        """Whether less than the whole run is captured."""
        return bool(self.steps or self.delay_ns or self.duration_ns)

    def environment(self) -> dict[str, str]:
        """Return the variables that tell the hooks."""
        variables = {
            "TRACEPROF_DELAY_S": f"{self.delay_ns / NS_PER_S:.9f}",
            "TRACEPROF_DURATION_S": f"{self.duration_ns / NS_PER_S:.9f}",
            "TRACEPROF_MAX_BYTES": str(self.max_bytes),
        }
        if self.steps is not None:
            variables["TRACEPROF_STEPS"] = f"{self.steps[0]}..{self.steps[1]}"
        return variables


def parse_bounds(
    steps: str | None, delay: str | None, duration: str | None, max_size: str | None
) -> Bounds:
    """Return the bounds that these texts mean ("20..30", "10s", "1min", "500MB").

    Raises:
        UsageError: one of them means nothing, or both steps and times are given.
    """
    if steps is not None and (delay is not None or duration is not None):
        raise UsageError("--steps cannot be combined with --delay or --duration; choose one")
    return Bounds(
        parse_steps(steps) if steps is not None else None,
        _parse_time(delay) if delay is not None else 0,
        _parse_time(duration) if duration is not None else 0,
        _parse_size(max_size) if max_size is not None else 0,
    )


def parse_grace(text: str) -> float:
    """Return the seconds that ``text`` means ("30s").

    Raises:
        UsageError: it means nothing.
    """
    return _parse_time(text) / NS_PER_S


def parse_step_from(text: str | None) -> str:
    """Return what a step is to be, as the hooks are told; "" for None: they find it.

    A batch of a DataLoader ("loader"), a call of an optimizer's step ("optimizer"), of the second
    that was made ("optimizer#2"), a backward
    pass ("backward"), each forward pass ("every-forward"), or a range of that name
    ("range:NAME").

    Raises:
        UsageError: it is none of these.
    """
    if text is None:
        return ""
    if text in STEP_SOURCES or re.fullmatch(r"range:.+|optimizer#[1-9]\d*", text):
        return text
    known = ", ".join(STEP_SOURCES)
    raise UsageError(f"--step-from {text!r}: choose {known}, optimizer#N or range:NAME")


def parse_steps(text: str, option: str = "--steps") -> tuple[int, int]:
    """Return the first and the last step that ``text`` means ("20..30", "20").

    Raises:
        UsageError: it means nothing.
    """
    match = _STEPS.fullmatch(text)
    if match is None:
        raise UsageError(f"{option} {text!r}: expected the first and last step, for example 20..30")
    first, last = int(match.group(1)), int(match.group(2) or match.group(1))
    if last < first:
        raise UsageError(f"{option} {text!r}: the last step is before the first step")
    return first, last


def _parse_time(text: str) -> int:
    ns = parse_duration(text)
    if ns < 0 or text.lstrip().startswith("-"):  # also what rounds to no time at all
        raise UsageError(f"{text!r}: the time must not be negative")
    return ns


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"--max-size {text!r}: expected a size, for example 500MB")
    return int(float(match.group(1)) * _SIZE_FACTORS[match.group(2).lower()])


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """One recording to be made.

    ``output`` is a file, or with ``is_folder`` a folder that gets one file per rank and a
    manifest. ``recorder`` is the name of a recorder, or "auto". ``layer_depth`` is how deep modules
    get ranges of their own (0: not at all). ``step_from`` is what a step is (see
    `traceprof.recording.request.parse_step_from`; "": as found). ``profiler_arguments`` (name of a
    recorder → arguments) go to that profiler as they are. ``gpu_metrics`` asks for the counters
    inside GPUs, ``memory_steps`` for a snapshot of the allocator over these steps, ``counts_flops``
    for the FLOPs of one step as torch counts them. ``grace_s`` is how long the program may go on
    after SIGTERM before the trace is written and what still runs is killed. ``say`` is told what
    the user should know at once, ``detail`` what helps to find faults.
    """

    command: Sequence[str]
    output: Path
    is_folder: bool = False
    recorder: str = "auto"
    force: bool = False
    layer_depth: int = 0
    bounds: Bounds = Bounds()
    step_from: str = ""
    keep_report: bool = False
    keep_environment: bool = False
    profiler_arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    gpu_metrics: bool = False
    memory_steps: tuple[int, int] | None = None
    counts_flops: bool = False
    grace_s: float = 10.0
    say: Callable[[str], None] = field(default=lambda _line: None)
    detail: Callable[[str], None] = field(default=lambda _line: None)


class ProcessProfile(NamedTuple):
    """What a profiler that keeps processes apart recorded of one of them."""

    pid: int
    trace: Trace


@dataclass(frozen=True, slots=True)
class RunRecorded:
    """What a recorder leaves: how the program ended and, if there is one, its database.

    ``exit_code`` is None where nobody saw the program end. ``left`` are processes that it started
    and that still run, after SIGTERM: they are ended when the trace has been written.
    ``database`` is the profiler's own SQLite export, to which the spool is added; None means that
    everything comes from the spool and the windows in the work folder, together with ``profiles``
    where there are any. ``recorder`` is set where another one had to step in.
    """

    exit_code: int | None
    database: Path | None = None
    profiles: tuple[ProcessProfile, ...] = ()
    recorder: str = ""
    notes: tuple[str, ...] = ()
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """A finished recording. ``output`` is None where nothing was captured.

    ``exit_code`` is None where nobody saw the program end. ``has_only_samples``: no process left
    any event. ``device_bytes`` is what CUPTI's own records of the devices take, ``files`` are the
    traces.
    """

    exit_code: int | None
    recorder: str
    output: Path | None
    has_only_samples: bool = False
    n_processes: int = 0
    n_ranges: int = 0
    device_bytes: int = 0
    ranks: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """What people are told when it has ended: what is odd, and what was recorded."""
        if self.output is None:
            return self.notes
        ranks = f", ranks {', '.join(map(str, self.ranks))}" if self.ranks else ""
        n_bytes = self.device_bytes
        devices = f"and {format_bytes(n_bytes)} of GPU records " if n_bytes else ""
        what = (
            f"{_counted(self.n_ranges, 'range', 'ranges')} {devices}"
            f"of {_counted(self.n_processes, 'process', 'processes')}{ranks}"
        )
        if self.has_only_samples:
            what = "only machine samples"
        code = self.exit_code
        ended = f" (the program ended with exit code {code})" if code else ""
        return (*self.notes, f"recorded {what} with {self.recorder}: {self.output}{ended}")


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


@dataclass(frozen=True)
class Recorder:
    """Runs a program under one profiler. To add one: a module, and its line in ``RECORDERS``.

    ``name`` is what ``--with`` calls it. ``run`` runs the program of a request, with a folder where
    the spool goes and temporary files may; it raises `RecordingError` where the program could not
    be started. ``missing`` returns why the recorder cannot be used here, None if it can.
    ``collect`` returns a run with what the profiler has left in the folder: it is called when the
    program has ended, or by `traceprof recover` when this process has not seen it.
    """

    name: str
    run: Callable[[RecordRequest, Path], RunRecorded]
    missing: Callable[[], str | None] = lambda: None
    collect: Callable[[RecordRequest, Path, RunRecorded], RunRecorded] = (
        lambda _request, _folder, run: run
    )


@contextmanager
def writing(
    path: Path, what: str = "written", kind: type[TraceprofError] = WritingError
) -> Iterator[None]:
    """Say, as an error of ``kind``, where ``path`` cannot be written."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path}: cannot be {what} ({error.strerror})") from error


@contextmanager
def handling_recorded() -> Iterator[None]:
    """Say of what a profiler has left, where it is damaged, that the recording failed."""
    try:
        yield
    except TraceError as error:
        raise RecordingError(str(error)) from error
