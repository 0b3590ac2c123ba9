"""Processes that a profiler leaves behind: its own are ended, the program is waited for."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from traceprof.recording.processes.program import Program, exit_code_of, signals_passed_on

__all__ = ["become_subreaper", "end_processes_with", "is_alive", "wait_for_program"]

_PR_SET_CHILD_SUBREAPER: Final = 36
_POLL_S: Final = 0.2
_LAUNCHER_S: Final = 5


def become_subreaper() -> None:
    """Have orphans in our tree become our children, so that their exit codes reach us (Linux)."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        return  # they go to init, and their exit codes are lost


def end_processes_with(argument: str) -> int:
    """Kill the processes of this user that have ``argument`` on their command line; count them.

    ``argument`` must be unique to what traceprof started, such as the name of its session.
    """
    n_ended = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            if argument.encode() in command and int(folder.name) != os.getpid():
                os.kill(int(folder.name), signal.SIGKILL)
                n_ended += 1
                os.waitpid(int(folder.name), 0)  # no zombie where it is our child
        except OSError:
            continue
    return n_ended


def is_alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"


def wait_for_program(pid: int, program: Program) -> int | None:
    """Wait until ``pid`` ends, passing signals on to it; ``program`` knows those that came before.

    Returns:
        Its exit code, or that of what started it and became our child; None where neither is
        known.
    """
    ours = _child_above(pid)
    program.attach(_Orphan(pid))
    with signals_passed_on(program):
        code = _wait(pid)
    if code is None and ours != pid:
        code = _wait(ours, _LAUNCHER_S)
    return code


def _child_above(pid: int) -> int:
    """Return the ancestor of ``pid``, or itself, that is a child of this process."""
    parent = _parent_of(pid)
    while parent not in (0, 1, os.getpid()):
        pid, parent = parent, _parent_of(parent)
    return pid


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


@dataclass(frozen=True, slots=True)
class _Orphan:
    pid: int

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _wait(pid: int, patience_s: float = math.inf) -> int | None:
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
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
