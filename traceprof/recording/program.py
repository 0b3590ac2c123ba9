"""Running the program to be recorded: how it is started, and signals passed on."""

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

_WRITING: Final = "the program has ended; traceprof is writing the trace (interrupt again to stop)"
_NUMBERS: Final = ("SIGINT", "SIGTERM", "SIGHUP")
INJECT_FOLDER: Final = Path(traceprof.annotate.__file__).resolve().parent / "inject"
"""Put first on PYTHONPATH: its sitecustomize waits for torch."""
_POLL_S = 0.5


def child_environment(folder: Path, request: RecordRequest, windows: str = "") -> dict[str, str]:
    """Return the environment of this process with what the hooks need.

    ``windows`` is "skip,active,every" in steps, empty for no windows of the profiler.
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
    """Return the option of ``python`` in ``command`` that switches instrumentation off."""
    if not Path(command[0]).name.startswith(("python", "pypy")):
        return None
    for argument in command[1:]:
        if not argument.startswith("-") or argument in ("-c", "-m", "-"):
            return None
        if not argument.startswith("--") and set(argument[1:]) & set("IES"):
            return argument
    return None


class Signalled(Protocol):
    """A process that signals can be sent to."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal."""


@dataclass(slots=True)
class Program:
    """A program, and the signals that have been passed on to it, or wait until it is started.

    ``grace_s`` is how long it may go on after SIGTERM or SIGHUP; then it is no longer waited for,
    and what still runs of it is in ``left``. ``is_apart``: a terminal's Ctrl-C does not reach it.
    Of a profiler ``recorded`` returns the process that it records, 0 where there is none: that one
    is sent the signals, so that the profiler records its end, too. ``is_over`` tells that it has
    ended: the profiler writes then, and no signal is passed on. ``is_told`` is whether the profiler
    itself had to be sent one.
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
    is_told: bool = False
    recorded: Callable[[], int] = field(default=lambda: 0)
    is_over: Callable[[], bool] = field(default=lambda: False)
    _n_late: int = 0
    _until_s: float = math.inf
    _early: list[int] = field(default_factory=list)

    @property
    def signal_sent(self) -> int:
        """The last signal that the program got from us, 0 for none."""
        if self.n_interrupts > 2:
            return signal.SIGKILL
        return signal.SIGTERM if self.n_interrupts == 2 else self.signal_passed

    def attach(self, process: Signalled) -> None:
        """Take the started process, and pass on what came before it was there."""
        self.process = process
        early, self._early = self._early, []
        for number in early:
            self.on_signal(number, None)

    def send(self, number: int) -> None:
        """Send a signal of our own, if the program has been started."""
        if self.process is not None:
            self.is_stopped = True
            self._tell(number)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Pass a signal on: the first Ctrl-C, then SIGTERM, then SIGKILL.

        Raises:
            KeyboardInterrupt: at the second one while a profiler writes what it has recorded.
        """
        if self.is_over():
            self._n_late += 1
            if self._n_late > 1:
                raise KeyboardInterrupt
            self.say(_WRITING)
            return
        if self.process is None:
            self._early.append(number)
            return
        self.signal_passed = number
        if number != signal.SIGINT:
            self._tell(number)
            self._begin_grace(number)
            return
        self.n_interrupts += 1
        # A terminal has sent the first one to the program already.
        if self.n_interrupts > 1 or self.is_apart or not sys.stdin.isatty():
            self._tell(self.signal_sent)

    def _tell(self, number: int) -> None:
        """Send a signal to the program; an interrupt to its whole group, as a terminal does."""
        pid = self.recorded()
        if not pid:
            self.is_told = True
            if self.process is not None:
                self.process.send_signal(number)
            return
        with suppress(ProcessLookupError):
            has_group = number == signal.SIGINT and os.getpgid(pid) == pid
            (os.killpg if has_group else os.kill)(pid, number)

    def stop_profiler(self, patience_s: float) -> None:
        """Have a profiler write what it has of a program that goes on, and wait for it."""
        if isinstance(self.process, subprocess.Popen):
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)

    def _begin_grace(self, number: int) -> None:
        if self._until_s == math.inf and self.grace_s != math.inf:
            self._until_s = time.monotonic() + self.grace_s
            self.say(
                f"{signal.Signals(number).name} passed to the program; if it still runs after "
                f"{self.grace_s:g} s (--grace), traceprof writes the trace and kills it"
            )

    def is_overdue(self, pid: int) -> bool:
        """Return whether ``pid``, which still runs, has had its grace; it is then left alone."""
        if time.monotonic() < self._until_s:
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
    """Run ``command`` to its end and return its exit code as a shell would (128 + signal).

    While it runs SIGINT, SIGTERM and SIGHUP are passed on to it, and ``watch`` is called about
    twice a second. ``program`` remembers the signals, for what comes after, and says how long the
    program may go on after SIGTERM. A profiler (``is_profiler``) that ends with 0 after it was sent
    a signal is not believed: only the program itself may have handled it.

    Raises:
        RecordingError: it cannot be started.
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
    if code == 0 and program.signal_passed and is_profiler and program.is_told:
        return 128 + program.signal_passed  # some hide, now and then, that they were told to stop
    return exit_code_of(code)


def exit_code_of(code: int) -> int:
    """Return the exit code that a shell shows for subprocess's ``code``."""
    return 128 - code if code < 0 else code


def find_program(command: Sequence[str]) -> str:
    """Return the path of the program in ``command``.

    Raises:
        RecordingError: there is none.
    """
    if not command:
        raise RecordingError("no program to record; add one after --, such as -- python train.py")
    path = shutil.which(command[0])
    if path is None:
        what = "not executable" if Path(command[0]).exists() else "program not found"
        raise RecordingError(f"{command[0]}: {what}; nothing was run")
    return path


def read_output_log(log: Path) -> str:
    """Return what a program printed into ``log``, "" where it printed nothing."""
    return log.read_text("utf-8", "replace") if log.exists() else ""


def last_line(said: str) -> str:
    """Return the last line of what a program printed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


@contextmanager
def signals_passed_on(program: Program) -> Iterator[None]:
    """Pass SIGINT, SIGTERM and SIGHUP on to ``program`` for a while."""
    numbers = [getattr(signal, name) for name in _NUMBERS if hasattr(signal, name)]
    before = {number: signal.signal(number, program.on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def undisturbed(say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Have the first SIGINT, SIGTERM or SIGHUP only say that the trace is being written.

    Raises:
        KeyboardInterrupt: from within the block, at the second one.
    """
    return signals_passed_on(Program(say=say, is_over=lambda: True))
