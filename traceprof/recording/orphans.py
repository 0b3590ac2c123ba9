"""Processes that a profiler leaves behind, and profilers that hang: ended, or waited for."""

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
from traceprof.recording.spool import has_said_its_end, recorded_pids

_PR_SET_CHILD_SUBREAPER: Final = 36
_POLL_S: Final = 0.2
_LAUNCHER_S: Final = 20  # for its last instructions, on a busy machine
_PATIENCE_S: Final = 5
_SHORT_POLL_S: Final = 0.05
_START: Final = 19  # its place in /proc/PID/stat, counted from behind the name of the process
STARTED: Final = "started"
PATIENCE_S: Final = float(os.environ.get("TRACEPROF_WATCHDOG_S", "60"))
STARTING_S: Final = float(os.environ.get("TRACEPROF_START_S", "60"))
_AFTER_SIGNAL_S: Final = 5.0


def become_subreaper() -> None:
    """Have orphans in our tree become our children, so that their exit codes reach us (Linux)."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        return  # they go to init, and their exit codes are lost


def end_processes_with(argument: str, patience_s: float = _PATIENCE_S) -> int:
    """End the processes of this user that have ``argument`` on their command line; count them.

    They are told to (SIGTERM) and killed ``patience_s`` seconds later: an agent of nsys that is
    killed while it changes what all of them share leaves that broken. ``argument`` must be unique
    to what traceprof started, such as the name of its session.
    """
    pids = [pid for pid, folder in _others() if argument.encode() in _read(folder / "cmdline")]
    end_processes(pids, patience_s)
    return len(pids)


def kill_with_children(roots: Iterable[int]) -> int:
    """Kill those of the processes that still run, with all that they started; count them."""
    left = sorted(_with_descendants(pid for pid in roots if not _has_ended(pid)))
    _kill(left)
    return len(left)


def _with_descendants(roots: Iterable[int]) -> set[int]:
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found and is_alive(pid):
            found.add(pid)
            with contextlib.suppress(OSError):
                waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def processes_of(folder: Path) -> dict[int, bytes]:
    """Return process → command line of what was started with ``folder`` as its work folder."""
    variable = f"TRACEPROF_DIR={folder.absolute()}".encode()
    return {
        pid: _read(one / "cmdline")
        for pid, one in _others()
        if variable in _read(one / "environ").split(b"\0") and is_alive(pid)
    }


def _others() -> Iterator[tuple[int, Path]]:
    """Yield the processes of this machine but this one, with what the system says of each."""
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) != os.getpid():
            yield int(folder.name), folder


def _read(path: Path) -> bytes:
    """Return what is in a file; nothing where it is gone, or somebody else's."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def end_processes(pids: Iterable[int], patience_s: float = _PATIENCE_S) -> None:
    """Tell processes to end (SIGTERM), and kill them ``patience_s`` seconds later."""
    pids = list(pids)
    _send(pids, signal.SIGTERM)
    until = time.monotonic() + patience_s
    while (left := [pid for pid in pids if not _has_ended(pid)]) and time.monotonic() < until:
        time.sleep(_SHORT_POLL_S)
    _kill(left)


def _kill(pids: Sequence[int]) -> None:
    _send(pids, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(OSError):
            os.waitpid(pid, 0)  # no zombie where it is our child


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _has_ended(pid: int) -> bool:
    with contextlib.suppress(OSError):
        os.waitpid(pid, os.WNOHANG)
    return not is_alive(pid)


def is_alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"


def is_running(identity: ProcessIdentity) -> bool:
    """Return whether a process runs, in whatever PID namespace it is."""
    if identity.is_local:
        is_it = identity.start in (0, _start_of(identity.pid))  # else another one has its id
        return is_it and is_alive(identity.pid)
    namespace = f"pid:[{identity.namespace}]"
    return any(
        _namespace_of(folder) == namespace and _inner_id(folder) == identity.pid and is_alive(pid)
        for pid, folder in _others()
    )


def _start_of(pid: int) -> int | None:
    words = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
    return int(words[_START]) if len(words) > _START else None


def _namespace_of(folder: Path) -> str:
    try:
        return str((folder / "ns" / "pid").readlink())
    except OSError:
        return ""  # it is gone, or somebody else's


def _inner_id(folder: Path) -> int:
    """Return the id of a process in its own PID namespace."""
    lines = _read(folder / "status").splitlines()
    words = next((line.split() for line in lines if line.startswith(b"NSpid:")), [b"0"])
    return int(words[-1])


def code_left_by(pid: int, launcher: int, program: Program, folder: Path) -> int | None:
    """Return the exit code of ``pid``, which has ended, as it became our child.

    If not, of the process that started it, ``launcher``. None where neither has: then what started
    them knows.
    """
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    ours = {int(number) for one in children for number in one.read_text().split()}
    for child in (pid, launcher):
        if child in ours:
            code = _wait(child, _LAUNCHER_S)
            if code is None or child == pid:
                return code
            return code_behind(code, pid, program, folder)
    return None


def wait_for_program(pid: int, launcher: int, program: Program, folder: Path) -> int | None:
    """Wait until ``pid`` ends, passing signals on to it; ``program`` knows those that came before.

    It may have ended already. ``folder`` is the work folder.

    Returns:
        Its exit code, or that of the process that started it, ``launcher``, which became our
        child; None where neither is known.
    """
    program.attach(_Orphan(pid))
    with signals_passed_on(program):
        if program.is_told and program.signal_sent not in (0, signal.SIGINT):
            program.send(program.signal_sent)  # the profiler may have ended before it passed it on
        code = _wait(pid, program=program)
    if program.left:
        return 128 + program.signal_passed
    return code_left_by(pid, launcher, program, folder) if code is None else code


def code_behind(code: int, pid: int, program: Program, folder: Path) -> int:
    """Return the exit code of ``pid``, where what started it ended with ``code``.

    nsys and its launcher say 1 of a program that was killed, too.
    """
    if code == 1 and program.signal_sent and not has_said_its_end(folder, pid):
        return 128 + program.signal_sent
    return code


class _Orphan(NamedTuple):
    pid: int

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def _wait(pid: int, patience_s: float = math.inf, program: Program | None = None) -> int | None:
    until = time.monotonic() + patience_s
    while time.monotonic() < until and not (program and program.is_overdue(pid)):
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
    """Return the program's process, and the one that started it, of a work folder; 0 for none."""
    marker = folder / STARTED
    words = marker.read_text().split() if marker.exists() else []
    return (int(words[0]), int(words[1])) if words else (0, 0)


@dataclass(slots=True)
class StartLimit:
    """Ends a profiler that has not started the program (the file ``marker``) for too long.

    It is told to end after ``patience_s``, or soon after it was passed a signal, and killed when
    it still has not. ``is_exceeded`` says that it was.
    """

    marker: Path
    patience_s: float = STARTING_S
    clock: Callable[[], float] = time.monotonic
    is_exceeded: bool = field(default=False, init=False)
    _end_at: float | None = field(default=None, init=False)
    _is_signalled: bool = field(default=False, init=False)

    def __call__(self, program: Program) -> None:
        """Look once."""
        if self.marker.exists():
            return
        now = self.clock()
        if self._end_at is None:
            self._end_at = now + self.patience_s
        if program.signal_passed and not self._is_signalled:
            self._is_signalled = True
            self._end_at = min(self._end_at, now + _AFTER_SIGNAL_S)
        if now <= self._end_at:
            return
        program.send(signal.SIGKILL if self.is_exceeded else signal.SIGTERM)
        self.is_exceeded = True
        self._end_at = now + _AFTER_SIGNAL_S


@dataclass(slots=True)
class Watchdog:
    """Looks at the processes that left a record in ``folder``, and at the program itself.

    The program's id is in the file ``started`` there, where the recorder knows it. When all of
    them are gone and the profiler is still there ``patience_s`` seconds later, it is
    interrupted; after as long again it is killed.
    """

    folder: Path
    say: Callable[[str], None]
    patience_s: float = PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    _gone_since: float | None = field(default=None, init=False)
    _n_signals: int = field(default=0, init=False)

    def __call__(self, program: Program) -> None:
        """Look once."""
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
