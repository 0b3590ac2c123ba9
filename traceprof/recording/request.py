"""What is asked of a recorder, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Protocol

from traceprof.model.trace import Trace
from traceprof.recording.bounds import EVERYTHING, Bounds
from traceprof.values import dataclass

__all__ = ["ProcessProfile", "RecordRequest", "Recorder", "Recording", "RunRecorded"]


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """One recording to be made.

    ``output`` is a file, or with ``is_folder`` a folder that gets one file per rank and a
    manifest. ``recorder`` is the name of a recorder, or "auto". ``layer_depth`` is how deep
    modules get ranges of their own (0: not at all). ``step_from`` is what a step is (see
    `traceprof.recording.bounds.parse_step_from`; "": as found). ``profiler_arguments`` (name of a
    recorder → arguments) go to that profiler as they are. ``gpu_metrics`` asks for the counters
    inside GPUs.
    ``grace_s`` is how long the program may go on after SIGTERM before the trace is written
    and what still runs is killed.
    ``say`` is told what the user should know at once, ``detail`` what helps to find faults.
    """

    command: Sequence[str]
    output: Path
    is_folder: bool = False
    recorder: str = "auto"
    force: bool = False
    layer_depth: int = 0
    bounds: Bounds = EVERYTHING
    step_from: str = ""
    keep_report: bool = False
    keep_environment: bool = False
    profiler_arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    gpu_metrics: bool = False
    grace_s: float = 10.0
    say: Callable[[str], None] = field(default=lambda _line: None)
    detail: Callable[[str], None] = field(default=lambda _line: None)


@dataclass(frozen=True, slots=True)
class ProcessProfile:
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
    any event.
    """

    exit_code: int | None
    recorder: str
    output: Path | None
    has_only_samples: bool = False
    n_processes: int = 0
    n_ranges: int = 0
    ranks: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


class Recorder(Protocol):
    """Runs a program under one profiler. To add one: a module, and its line in ``RECORDERS``."""

    @property
    def name(self) -> str:
        """What ``--with`` calls it."""
        ...

    def missing(self) -> str | None:
        """Return why this recorder cannot be used here, None if it can."""
        ...

    def run(self, request: RecordRequest, folder: Path) -> RunRecorded:
        """Run the program; ``folder`` is where the spool goes and temporary files may.

        Raises:
            RecordingError: the program could not be started.
        """
        ...

    def collect(self, request: RecordRequest, folder: Path, run: RunRecorded) -> RunRecorded:
        """Return ``run`` with what the profiler has left in ``folder``.

        It is called when the program has ended, or by `traceprof recover` when this process has
        not seen it.
        """
        ...
