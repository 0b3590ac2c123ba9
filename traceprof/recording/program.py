"""Run the program to be recorded: its environment, its start, and the signals passed on to it."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol

import traceprof.annotate
from traceprof.errors import RecordingError
from traceprof.recording.clock import clock_variables
from traceprof.recording.request import RecordRequest

_WRITING_MESSAGE: Final = (
    "the program has ended; traceprof is writing the trace (interrupt again to stop)"
)
_SIGNAL_NAMES: Final = ("SIGINT", "SIGTERM", "SIGHUP")
INJECT_FOLDER: Final = Path(traceprof.annotate.__file__).resolve().parent / "inject"
"""The first entry of PYTHONPATH. Its sitecustomize loads the hooks when torch is imported."""
_POLL_S = 0.5


def child_environment(folder: Path, request: RecordRequest, windows: str = "") -> dict[str, str]:
    """Return the environment of this process plus the variables that the hooks need.

    ``windows`` is "skip,active,every" in steps; "" for no windows of torch.profiler.
    """
    environment = dict(os.environ)
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(INJECT_FOLDER), inherited)))
    environment["TRACEPROF_DIR"] = str(folder)
    environment |= clock_variables()
    environment["TRACEPROF_LAYERS"] = str(request.layer_depth)
    environment["TRACEPROF_WINDOWS"] = windows
    environment["TRACEPROF_STEP_FROM"] = request.step_from
    if request.counts_flops:
        environment["TRACEPROF_FLOPS"] = "1"
    if request.memory_steps is not None:
        environment["TRACEPROF_MEMORY"] = "..".join(map(str, request.memory_steps))
    return environment | request.bounds.environment()


def ignores_injection(command: Sequence[str]) -> str | None:
    """Return the option of ``python`` in ``command`` that disables the hooks, None for none."""
    if not Path(command[0]).name.startswith(("python", "pypy")):
        return None
    for argument in command[1:]:
        if not argument.startswith("-") or argument in ("-c", "-m", "-"):
            return None
        if not argument.startswith("--") and set(argument[1:]) & set("IES"):
            return argument
    return None


class Signalled(Protocol):
    """A process that can receive signals."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal to the process."""


@dataclass(slots=True)
class Program:
    """A program, and the signals passed on to it; signals before its start wait for the start.

    ``grace_s`` is how long the program may run after SIGTERM or SIGHUP. After that the recorder no
    longer waits, and ``left`` contains the process that still runs. ``is_apart``: the program is in
    another process group, so Ctrl-C in a terminal does not reach it. If the program is a profiler,
    ``recorded`` returns the id of the recorded process, 0 for none; signals go to that process, so
    that the profiler records its end. ``is_over`` returns whether the recorded process has ended:
    the profiler then writes its data, and signals are not passed on. ``was_profiler_signaled``: a
    signal went to the profiler itself.
    """

    process: Signalled | None = None
    grace_s: float = math.inf
    say: Callable[[str], None] = field(default=lambda _line: None)
    n_interrupts: int = 0
    signal_passed: int = 0
    left: tuple[int, ...] = ()
    killed_by: int = 0
    is_stopped: bool = False
    is_apart: bool = False
    was_profiler_signaled: bool = False
    recorded: Callable[[], int] = field(default=lambda: 0)
    is_over: Callable[[], bool] = field(default=lambda: False)
    _n_signals_after_end: int = 0
    _grace_end_s: float = math.inf
    _pending: list[int] = field(default_factory=list)

    @property
    def signal_sent(self) -> int:
        """The last signal that this recorder sent to the program, 0 for none."""
        if self.n_interrupts > 2:
            return signal.SIGKILL
        return signal.SIGTERM if self.n_interrupts == 2 else self.signal_passed

    def attach(self, process: Signalled) -> None:
        """Set the started process, and pass on the signals that arrived before its start."""
        self.process = process
        pending, self._pending = self._pending, []
        for number in pending:
            self.on_signal(number, None)

    def send(self, number: int) -> None:
        """Send a signal of the recorder itself, if the program has started."""
        if self.process is not None:
            self.is_stopped = True
            self._deliver(number)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Pass a signal on. Ctrl-C becomes SIGINT, the second time SIGTERM, then SIGKILL.

        Raises:
            KeyboardInterrupt: at the second signal while a profiler writes its data.
        """
        if self.is_over():
            self._n_signals_after_end += 1
            if self._n_signals_after_end > 1:
                raise KeyboardInterrupt
            self.say(_WRITING_MESSAGE)
            return
        if self.process is None:
            self._pending.append(number)
            return
        self.signal_passed = number
        if number != signal.SIGINT:
            self._deliver(number)
            self._begin_grace(number)
            return
        self.n_interrupts += 1
        # A terminal has already sent the first SIGINT to the program.
        if self.n_interrupts > 1 or self.is_apart or not sys.stdin.isatty():
            self._deliver(self.signal_sent)

    def _deliver(self, number: int) -> None:
        """Send a signal to the program; SIGINT to its process group, as a terminal does."""
        pid = self.recorded()
        if not pid:
            self.was_profiler_signaled = True
            if self.process is not None:
                self.process.send_signal(number)
            return
        with suppress(ProcessLookupError):
            has_group = number == signal.SIGINT and os.getpgid(pid) == pid
            (os.killpg if has_group else os.kill)(pid, number)

    def stop_profiler(self, patience_s: float) -> None:
        """Stop a profiler whose program still runs, and wait until it has written its data."""
        if isinstance(self.process, subprocess.Popen):
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)

    def _begin_grace(self, number: int) -> None:
        """Start the grace period after the first SIGTERM or SIGHUP."""
        if self._grace_end_s == math.inf and self.grace_s != math.inf:
            self._grace_end_s = time.monotonic() + self.grace_s
            self.say(
                f"{signal.Signals(number).name} passed to the program; if it still runs after "
                f"{self.grace_s:g} s (--grace), traceprof writes the trace and kills it"
            )

    def is_overdue(self, pid: int) -> bool:
        """Return whether the grace period of the running process ``pid`` is over.

        If it is, set ``left``.
        """
        if time.monotonic() < self._grace_end_s:
            return False
        self.left = (self.recorded() or pid,)
        self.say("the program still runs; traceprof writes the trace recorded so far")
        return True


def run_recorded(
    command: Sequence[str],
    environment: Mapping[str, str],
    watch: Callable[[Program], None] | None = None,
    *,
    is_profiler: bool = False,
    program: Program | None = None,
    **streams: Any,
) -> int:
    """Run ``command`` until it ends; return its exit code as a shell does (128 + signal).

    Meanwhile SIGINT, SIGTERM, and SIGHUP are passed on to it, and ``watch`` is called about twice a
    second. ``program`` stores the signals for the caller, and contains the grace period after
    SIGTERM. ``is_profiler``: exit code 0 of a profiler does not count after it received a signal,
    because only the program itself may have handled the signal.

    Raises:
        RecordingError: the command cannot be started.
    """
    program = program or Program()
    with signals_passed_on(program):
        try:
            process = subprocess.Popen(command, env=dict(environment), **streams)
        except OSError as error:
            raise RecordingError(f"{command[0]}: cannot be started ({error.strerror})") from error
        program.attach(process)
        while True:
            try:
                code = process.wait(_POLL_S)
                break
            except subprocess.TimeoutExpired:
                if watch is not None:
                    watch(program)
                if program.is_overdue(process.pid):
                    return 128 + program.signal_passed
    program.killed_by = max(0, -code)
    if code == 0 and program.signal_passed and is_profiler and program.was_profiler_signaled:
        return 128 + program.signal_passed  # some profilers hide that a signal ended them
    return exit_code_of(code)


def exit_code_of(code: int) -> int:
    """Convert an exit code of subprocess to the exit code that a shell shows."""
    return 128 - code if code < 0 else code


def find_program(command: Sequence[str]) -> str:
    """Return the path of the program in ``command``.

    Raises:
        RecordingError: the command is empty, or the program is missing or not executable.
    """
    if not command:
        raise RecordingError("no program to record; add one after --, such as -- python train.py")
    path = shutil.which(command[0])
    if path is None:
        what = "not executable" if Path(command[0]).exists() else "program not found"
        raise RecordingError(f"{command[0]}: {what}; nothing was run")
    return path


def read_output_log(log: Path) -> str:
    """Return the text that a program printed to the file ``log``, "" for none."""
    return log.read_text("utf-8", "replace") if log.exists() else ""


def last_line(output: str) -> str:
    """Return the last non-empty line of the output of a program."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


@contextmanager
def signals_passed_on(program: Program) -> Iterator[None]:
    """Pass SIGINT, SIGTERM, and SIGHUP on to ``program`` while the block runs."""
    numbers = [getattr(signal, name) for name in _SIGNAL_NAMES if hasattr(signal, name)]
    before = {number: signal.signal(number, program.on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def undisturbed(say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Ignore the first SIGINT, SIGTERM, or SIGHUP, and say that the trace is being written.

    Raises:
        KeyboardInterrupt: from within the block, at the second signal.
    """
    return signals_passed_on(Program(say=say, is_over=lambda: True))
