"""What a process costs: wall time, CPU of all its threads and children, peak memory.

Measure from a small process: a child's peak memory starts from its parent's.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    *("CommandError", "Cost", "browser_cpu_s", "cpu_s", "environment_of", "events_of", "measure"),
    "median",
]

_EVERY_S = 0.2
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one command, or the medians of several; ``peak_mb`` is that of all its processes."""

    wall_s: float
    cpu_s: float
    peak_mb: float


class CommandError(Exception):
    """A command that could not be measured; its text is the last line that it wrote."""


def events_of(trace: Path) -> int:
    """Return how many rows the tables of events of an nsys export have."""
    database = sqlite3.connect(f"file:{trace}?mode=ro&immutable=1", uri=True)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    kinds = ("KERNEL", "RUNTIME", "MEMCPY", "MEMSET", "SYNCHRONIZATION")
    events = {f"CUPTI_ACTIVITY_KIND_{kind}" for kind in kinds} | {"NVTX_EVENTS"}
    return sum(
        database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables & events
    )


def environment_of(checkout: Path) -> dict[str, str]:
    """Return the environment in which ``import traceprof`` finds that of ``checkout``.

    Compiled modules are kept, as installing keeps them.
    """
    known = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    return {**known, "PYTHONPATH": str(checkout.resolve()), "COLUMNS": "120"}


def measure(command: Sequence[str | Path], environment: Mapping[str, str]) -> Cost:
    """Return what ``command`` costs.

    Raises:
        CommandError: it exits with an error.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=environment, cwd=folder
        )
        watch = _Watch(process.pid)
        watch.start()
        _, status, used = os.wait4(process.pid, 0)
        watch.has_ended.set()
        watch.join()
        wall_s = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()
            raise CommandError(said[-1] if said else f"exit code {process.returncode}")
    return Cost(wall_s, used.ru_utime + used.ru_stime, max(used.ru_maxrss / 1024, watch.peak_mb))


class _Watch(threading.Thread):
    """Looks again and again how much memory a process and those that it started hold together."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.process, self.peak_mb, self.has_ended = str(process), 0.0, threading.Event()

    def run(self) -> None:
        while not self.has_ended.wait(_EVERY_S):
            self.peak_mb = max(self.peak_mb, self._now_mb())

    def _now_mb(self) -> float:
        children: dict[str, list[str]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended
                parent = stat.read_text().rpartition(")")[2].split()[1]
                children.setdefault(parent, []).append(stat.parent.name)
        n_pages, known = 0, [self.process]
        for process in known:  # it grows
            known += children.get(process, [])
            with suppress(OSError):
                n_pages += int(Path("/proc", process, "statm").read_text().split()[1])
        return n_pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def median(costs: Iterable[Cost]) -> Cost:
    """Return the medians of several measurements, each by itself."""
    known = list(costs)
    return Cost(
        *(
            statistics.median(getattr(cost, name) for cost in known)
            for name in ("wall_s", "cpu_s", "peak_mb")
        )
    )


TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(of: Callable[[str], bool], root: int) -> float:
    """Return the CPU seconds of the processes below ``root``, and itself, whose names fit."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        name = text.partition("(")[2].partition(")")[0]
        used[pid] = sum(map(int, fields[11:13])) * TICK_S if of(name) else 0.0
    total, queue = 0.0, [root]
    while queue:
        pid = queue.pop()
        total += used.get(pid, 0.0)
        queue += children.get(pid, [])
    return total


def browser_cpu_s() -> float:
    return cpu_s(lambda name: "chrom" in name, os.getpid())
