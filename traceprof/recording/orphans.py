"""Processes that a profiler leaves behind: its own are ended, the program is waited for."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from traceprof.recording.process import Program, exit_code_of, signals_passed_on

__all__ = ["become_subreaper", "end_processes_with", "is_alive", "wait_for_program"]

_PR_SET_CHILD_SUBREAPER: Final = 36
_POLL_S: Final = 0.2


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
        except (OSError, ProcessLookupError):
            continue
    _reap()
    return n_ended


def is_alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"


def wait_for_program(pid: int) -> int | None:
    """Wait until ``pid`` ends, passing signals on to it.

    Returns:
        Its exit code; None where it is not our child, so that nobody tells.
    """
    with signals_passed_on(Program(_Orphan(pid))):
        return _wait(pid)


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


def _wait(pid: int) -> int | None:
    while True:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            if not is_alive(pid):
                return None
        else:
            if ended == pid:
                return exit_code_of(os.waitstatus_to_exitcode(status))
        time.sleep(_POLL_S)


def _reap() -> None:
    """Collect what has become our child and has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
