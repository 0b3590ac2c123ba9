"""Ending a profiler that hangs: before it starts the program, or after the program has ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Final

from traceprof.recording.processes.orphans import is_alive
from traceprof.recording.processes.program import Program
from traceprof.recording.spool import recorded_pids
from traceprof.values import dataclass

__all__ = ["PATIENCE_S", "STARTED", "STARTING_S", "StartLimit", "Watchdog", "started_in"]

STARTED: Final = "started"

PATIENCE_S: Final = float(os.environ.get("TRACEPROF_WATCHDOG_S", "60"))
STARTING_S: Final = float(os.environ.get("TRACEPROF_START_S", "60"))
_AFTER_SIGNAL_S: Final = 5.0


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
        pids = self._known()
        if not pids or any(map(is_alive, pids)):
            self._gone_since = None
            return
        if self._gone_since is None:
            self._gone_since = self.clock()
        if self.clock() - self._gone_since <= self.patience_s * (self._n_signals + 1):
            return
        self._n_signals += 1
        if self._n_signals == 1:
            self.say("the program has ended but the profiler hangs; interrupting the profiler")
            program.send(signal.SIGINT)
        else:
            self.say("the profiler still hangs; killing it: the program's exit code may be lost")
            program.send(signal.SIGKILL)

    def _known(self) -> list[int]:
        pid, _ = started_in(self.folder)
        return [*recorded_pids(self.folder), *([pid] if pid else [])]
