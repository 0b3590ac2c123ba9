"""End or await processes that outlive their profiler, and profilers that hang."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from traceprof.recording.identities import ProcessIdentity
from traceprof.recording.program import Program, exit_code_of, signals_passed_on
from traceprof.recording.spool import has_ended_normally, recorded_pids

_PR_SET_CHILD_SUBREAPER: Final = 36
_POLL_S: Final = 0.2
_LAUNCHER_PATIENCE_S: Final = 20  # the launcher only has to exit, on a busy machine
_TERM_PATIENCE_S: Final = 5
_SHORT_POLL_S: Final = 0.05
_START_TIME_FIELD: Final = 19  # index in /proc/PID/stat, counted after the name of the process
STARTED: Final = "started"
PATIENCE_S: Final = float(os.environ.get("TRACEPROF_WATCHDOG_S", "60"))
STARTING_S: Final = float(os.environ.get("TRACEPROF_START_S", "60"))
_AFTER_SIGNAL_S: Final = 5.0


def become_subreaper() -> None:
    """Make orphaned descendants children of this process, to get their exit codes (Linux)."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        return  # init adopts orphans, and their exit codes are lost


def end_processes_with(argument: str, patience_s: float = _TERM_PATIENCE_S) -> int:
    """End this user's processes with ``argument`` on their command line; return their number.

    The processes get SIGTERM, and SIGKILL ``patience_s`` seconds later. The delay is necessary: an
    nsys agent that is killed while it changes memory shared by all agents corrupts that memory.
    ``argument`` must be unique to processes that traceprof started, for example a session name.
    """
    pids = [
        pid
        for pid, folder in _other_processes()
        if argument.encode() in _read_bytes(folder / "cmdline")
    ]
    end_processes(pids, patience_s)
    return len(pids)


def kill_with_children(roots: Iterable[int]) -> int:
    """Kill the processes that still run, with all descendants; return the number killed."""
    running = sorted(_with_descendants(pid for pid in roots if not _has_ended(pid)))
    _kill(running)
    return len(running)


def _with_descendants(roots: Iterable[int]) -> set[int]:
    """Return the running processes among ``roots``, with all their descendants."""
    found: set[int] = set()
    pending = list(roots)
    while pending:
        pid = pending.pop()
        if pid not in found and is_alive(pid):
            found.add(pid)
            with contextlib.suppress(OSError):
                pending += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def processes_of(folder: Path) -> dict[int, bytes]:
    """Return process → command line of the processes whose work folder is ``folder``."""
    variable = f"TRACEPROF_DIR={folder.absolute()}".encode()
    return {
        pid: _read_bytes(process / "cmdline")
        for pid, process in _other_processes()
        if variable in _read_bytes(process / "environ").split(b"\0") and is_alive(pid)
    }


def _other_processes() -> Iterator[tuple[int, Path]]:
    """Yield (pid, folder in /proc) of all processes of this machine except this one."""
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) != os.getpid():
            yield int(folder.name), folder


def _read_bytes(path: Path) -> bytes:
    """Return the content of a file, b"" where the file is missing or not readable."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def end_processes(pids: Iterable[int], patience_s: float = _TERM_PATIENCE_S) -> None:
    """Send SIGTERM to processes, and SIGKILL ``patience_s`` seconds later."""
    pids = list(pids)
    _send_signal(pids, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while (left := [pid for pid in pids if not _has_ended(pid)]) and time.monotonic() < deadline:
        time.sleep(_SHORT_POLL_S)
    _kill(left)


def _kill(pids: Sequence[int]) -> None:
    _send_signal(pids, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(OSError):
            os.waitpid(pid, 0)  # reap it if it is a child of this process


def _send_signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _has_ended(pid: int) -> bool:
    """Return whether a process has ended; reap it if it is a child of this process."""
    with contextlib.suppress(OSError):
        os.waitpid(pid, os.WNOHANG)
    return not is_alive(pid)


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"


def is_running(identity: ProcessIdentity) -> bool:
    """Return whether a process runs, in any PID namespace."""
    if identity.is_local:
        is_same = identity.start in (0, _start_of(identity.pid))  # another start: the id was reused
        return is_same and is_alive(identity.pid)
    namespace = f"pid:[{identity.namespace}]"
    return any(
        _namespace_of(folder) == namespace
        and _id_in_namespace(folder) == identity.pid
        and is_alive(pid)
        for pid, folder in _other_processes()
    )


def _start_of(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot, None where it is unknown."""
    words = _read_bytes(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
    return int(words[_START_TIME_FIELD]) if len(words) > _START_TIME_FIELD else None


def _namespace_of(folder: Path) -> str:
    try:
        return str((folder / "ns" / "pid").readlink())
    except OSError:
        return ""  # it has ended, or belongs to another user


def _id_in_namespace(folder: Path) -> int:
    """Return the id of a process in its innermost PID namespace, 0 where it is unknown."""
    lines = _read_bytes(folder / "status").splitlines()
    words = next((line.split() for line in lines if line.startswith(b"NSpid:")), [b"0"])
    return int(words[-1])


def exit_code_of_orphan(pid: int, launcher: int, program: Program, folder: Path) -> int | None:
    """Return the exit code of the ended process ``pid`` if it became a child of this process.

    Otherwise return the exit code of ``launcher``, the process that started ``pid``. None if
    neither is a child of this process: then only the process that started them has the exit code.
    """
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    ours = {int(number) for path in children for number in path.read_text().split()}
    for child in (pid, launcher):
        if child in ours:
            code = _wait_for_exit(child, _LAUNCHER_PATIENCE_S)
            if code is None or child == pid:
                return code
            return corrected_exit_code(code, pid, program, folder)
    return None


def wait_for_program(pid: int, launcher: int, program: Program, folder: Path) -> int | None:
    """Wait until ``pid`` ends, and pass signals on to it.

    ``program`` contains the signals received before. ``pid`` may have ended already. ``folder`` is
    the work folder.

    Returns:
        The exit code of ``pid``, or that of ``launcher``, the process that started it and that
            became a child of this process; None where both are unknown.
    """
    program.attach(_Orphan(pid))
    with signals_passed_on(program):
        if program.was_profiler_signaled and program.signal_sent not in (0, signal.SIGINT):
            program.send(program.signal_sent)  # the profiler may not have passed it on
        code = _wait_for_exit(pid, program=program)
    if program.left:
        return 128 + program.signal_passed
    return exit_code_of_orphan(pid, launcher, program, folder) if code is None else code


def corrected_exit_code(code: int, pid: int, program: Program, folder: Path) -> int:
    """Return the exit code of ``pid``, given the exit code of the process that started it.

    nsys and its launcher return 1 even for a program that was killed by a signal.
    """
    if code == 1 and program.signal_sent and not has_ended_normally(folder, pid):
        return 128 + program.signal_sent
    return code


class _Orphan(NamedTuple):
    pid: int

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def _wait_for_exit(
    pid: int, patience_s: float = math.inf, program: Program | None = None
) -> int | None:
    """Wait for a process to end; return its exit code, None where it is unknown or overdue."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and not (program and program.is_overdue(pid)):
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            if not is_alive(pid):
                return None
        else:
            if ended == pid:
                return exit_code_of(os.waitstatus_to_exitcode(status))
        time.sleep(_POLL_S)
    return None


def started_in(folder: Path) -> tuple[int, int]:
    """Return the ids of the program and of its launcher in a work folder; (0, 0) for none."""
    marker = folder / STARTED
    words = marker.read_text().split() if marker.exists() else []
    return (int(words[0]), int(words[1])) if words else (0, 0)


@dataclass(slots=True)
class StartLimit:
    """End a profiler that does not start the program (the file ``marker``) in time.

    The profiler gets SIGTERM after ``patience_s``, or soon after it was passed a signal, and
    SIGKILL if it still runs after that. ``is_exceeded`` is true once it got a signal.
    """

    marker: Path
    patience_s: float = STARTING_S
    clock: Callable[[], float] = time.monotonic
    is_exceeded: bool = field(default=False, init=False)
    _end_at: float | None = field(default=None, init=False)
    _is_signaled: bool = field(default=False, init=False)

    def __call__(self, program: Program) -> None:
        """Check once, and send a signal if one is due."""
        if self.marker.exists():
            return
        now = self.clock()
        if self._end_at is None:
            self._end_at = now + self.patience_s
        if program.signal_passed and not self._is_signaled:
            self._is_signaled = True
            self._end_at = min(self._end_at, now + _AFTER_SIGNAL_S)
        if now <= self._end_at:
            return
        program.send(signal.SIGKILL if self.is_exceeded else signal.SIGTERM)
        self.is_exceeded = True
        self._end_at = now + _AFTER_SIGNAL_S


@dataclass(slots=True)
class Watchdog:
    """Watch the processes that left a record in ``folder``, and the program itself.

    The file ``started`` in the folder contains the id of the program, if the recorder knows it. If
    all these processes have ended and the profiler still runs ``patience_s`` seconds later, the
    profiler gets SIGINT. After the same time again it gets SIGKILL.
    """

    folder: Path
    say: Callable[[str], None]
    patience_s: float = PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    _gone_since: float | None = field(default=None, init=False)
    _n_signals: int = field(default=0, init=False)

    def __call__(self, program: Program) -> None:
        """Check once, and send a signal if one is due."""
        pids = [*recorded_pids(self.folder), *filter(None, started_in(self.folder)[:1])]
        if not pids or any(map(is_alive, pids)):
            self._gone_since = None
            return
        if self._gone_since is None:
            self._gone_since = self.clock()
        if self.clock() - self._gone_since <= self.patience_s * (self._n_signals + 1):
            return
        self._n_signals += 1
        if self._n_signals == 1:
            self.say("the program has ended, but the profiler hangs; traceprof interrupts it")
            program.send(signal.SIGINT)
        else:
            self.say("the profiler still hangs; traceprof kills it (the exit code may be lost)")
            program.send(signal.SIGKILL)
