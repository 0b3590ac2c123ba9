"""The request for a recording (program, captured part, options) and its result."""

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
    """The captured part of a run. A field is None or 0 where the run is not bounded.

    ``steps`` are the first and the last captured step, both included. ``delay_ns`` counts from the
    start of the training process, ``duration_ns`` from the end of the delay. ``max_bytes`` limits
    the events of one process.
    """

    steps: tuple[int, int] | None = None
    delay_ns: int = 0
    duration_ns: int = 0
    max_bytes: int = 0

    @property
    def is_bounded(self) -> bool:
        """Whether only a part of the run is captured."""
        return bool(self.steps or self.delay_ns or self.duration_ns)

    def environment(self) -> dict[str, str]:
        """Return the environment variables that pass the bounds to the hooks."""
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
    """Parse the bounds of a recording ("20..30", "10s", "1min", "500MB").

    Raises:
        UsageError: a text is not valid, or both steps and times are given.
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
    """Parse a grace period ("30s"); return it in seconds.

    Raises:
        UsageError: the text is not a valid time.
    """
    return _parse_time(text) / NS_PER_S


def parse_step_from(text: str | None) -> str:
    """Return the definition of a step in the form that the hooks read; "" (detect) for None.

    The choices are: a batch of a DataLoader ("loader"), a call of an optimizer's step
    ("optimizer"), a call of the second optimizer that was created ("optimizer#2"), a backward pass
    ("backward"), each forward pass ("every-forward"), and a range by name ("range:NAME").

    Raises:
        UsageError: the text is none of these.
    """
    if text is None:
        return ""
    if text in STEP_SOURCES or re.fullmatch(r"range:.+|optimizer#[1-9]\d*", text):
        return text
    known = ", ".join(STEP_SOURCES)
    raise UsageError(f"--step-from {text!r}: choose {known}, optimizer#N or range:NAME")


def parse_steps(text: str, option: str = "--steps") -> tuple[int, int]:
    """Parse a range of steps ("20..30", "20"); return the first and the last step.

    Raises:
        UsageError: the text is not valid, or the last step is before the first.
    """
    match = _STEPS.fullmatch(text)
    if match is None:
        raise UsageError(f"{option} {text!r}: expected the first and last step, for example 20..30")
    first, last = int(match.group(1)), int(match.group(2) or match.group(1))
    if last < first:
        raise UsageError(f"{option} {text!r}: the last step is before the first step")
    return first, last


def _parse_time(text: str) -> int:
    """Parse a time; return ns.

    Raises:
        UsageError: the text is not a time, or the time is negative.
    """
    ns = parse_duration(text)
    if ns < 0 or text.lstrip().startswith("-"):  # also a negative time that rounds to 0
        raise UsageError(f"{text!r}: the time must not be negative")
    return ns


def _parse_size(text: str) -> int:
    """Parse a size; return bytes.

    Raises:
        UsageError: the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"--max-size {text!r}: expected a size, for example 500MB")
    return int(float(match.group(1)) * _SIZE_FACTORS[match.group(2).lower()])


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """A request for one recording.

    ``output`` is a file, or with ``is_folder`` a folder for one file per rank and a manifest.
    ``recorder`` is the name of a recorder, or "auto". ``layer_depth`` is the module depth down to
    which modules get ranges (0: none). ``step_from`` defines a step (see
    `traceprof.recording.request.parse_step_from`; "": detected). ``profiler_arguments`` (name of a
    recorder → arguments) are passed to that profiler unchanged. ``gpu_metrics`` requests the
    hardware counters of the GPUs. ``memory_steps`` requests a snapshot of the allocator for these
    steps. ``counts_flops`` requests the FLOPs of one step as counted by torch. ``grace_s`` is how
    long the program may run after SIGTERM before the trace is written and the remaining processes
    are killed. ``say`` prints a message that the user needs immediately, ``detail`` a message for
    troubleshooting.
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
    """The trace of one process, from a profiler that writes a file per process."""

    pid: int
    trace: Trace


@dataclass(frozen=True, slots=True)
class RunRecorded:
    """The result of a recorder: how the program ended and, if there is one, its database.

    ``exit_code`` is None if nobody observed the end of the program. ``left`` are processes that
    still run after SIGTERM; they are killed after the trace is written. ``database`` is the SQLite
    export of the profiler, to which the spool is added. None means that all data comes from the
    spool and the windows in the work folder, and from ``profiles`` if there are any. ``recorder``
    is set if another recorder replaced the requested one.
    """

    exit_code: int | None
    database: Path | None = None
    profiles: tuple[ProcessProfile, ...] = ()
    recorder: str = ""
    notes: tuple[str, ...] = ()
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """A finished recording. ``output`` is None if nothing was captured.

    ``exit_code`` is None if nobody observed the end of the program. ``has_only_samples``: no
    process left an event. ``device_bytes`` is the size of CUPTI's records of GPU activity.
    ``files`` are the traces.
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
        """The lines printed at the end: the notes, and a summary of what was recorded."""
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


def _counted(count: int, singular: str, plural: str) -> str:
    """Format a count with its noun in the right number."""
    return f"{count} {singular if count == 1 else plural}"


@dataclass(frozen=True)
class Recorder:
    """A recorder: runs a program under one profiler.

    To add a recorder, add a module and its entry in ``RECORDERS``. ``name`` is its name in
    ``--with``. ``run`` runs the program of a request; the folder receives the spool and temporary
    files. It raises `RecordingError` if the program cannot be started. ``missing`` returns why the
    recorder cannot be used on this machine, None if it can. ``collect`` returns a run with the data
    that the profiler left in the folder. It is called after the program ends, or by `traceprof
    recover` if this process did not observe the end.
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
    """Convert an OSError in the block to an error of ``kind`` that names ``path``."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path}: cannot be {what} ({error.strerror})") from error


@contextmanager
def handling_recorded() -> Iterator[None]:
    """Convert a TraceError on the damaged data of a profiler to a RecordingError."""
    try:
        yield
    except TraceError as error:
        raise RecordingError(str(error)) from error
