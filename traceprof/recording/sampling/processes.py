"""Processor time and memory of the recorded processes."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from traceprof.recording.spool import recorded_pids

__all__ = ["open_processes"]

_PERIOD_S: Final = 0.5
_PROFILERS: Final = ("nsys", "nvprof", "nsight")

Reading = Iterator[tuple[str, str, float]]


def open_processes(folder: Path) -> tuple[float, Callable[[], Reading]] | None:
    """Return (period in seconds, read), None where psutil is not installed."""
    if importlib.util.find_spec("psutil") is None:
        return None
    psutil = importlib.import_module("psutil")
    known: dict[int, Any] = {}

    def read() -> Reading:
        for pid in recorded_pids(folder) or _program(psutil):
            try:
                process = known.get(pid) or known.setdefault(pid, psutil.Process(pid))
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info()
            except psutil.Error:  # it has ended
                continue
            if not memory.rss:  # it has ended, and its parent has not looked yet
                continue
            yield f"process:{pid}", "cpu_seconds", times.user + times.system
            yield f"process:{pid}", "memory_bytes", float(memory.rss)

    return _PERIOD_S, read


def _program(psutil: Any) -> list[int]:
    """Return what this process has started: where no process has hooks, that is the program."""
    try:
        started = psutil.Process().children(recursive=True)
        return [one.pid for one in started if not one.name().startswith(_PROFILERS)]
    except psutil.Error:  # one of them has ended
        return []
