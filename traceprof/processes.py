"""Processes and threads of traceprof: number, start, memory, and progress."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final, TypeVar

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
_CPU_QUOTA_FILE: Final = Path("/sys/fs/cgroup/cpu.max")

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
_M_ARENA_MAX: Final = -8
_MAX_FREE_BYTES: Final = 1 << 30
"""The C library returns freed memory to the system beyond this limit."""
_MAX_THREADS: Final = 2
"""Threads of `run_in_threads`. Each has its own buffers, and only one at a time runs Python code.
"""
_DEFAULT_MEMORY_BYTES: Final = 8_000_000_000
"""Assumed physical memory where the system does not report it."""
_MAX_MEMORY_RATIO: Final = 0.5
"""Share of the memory limit for kept data. The rest is for the current query and other programs."""
_MEMORY_LIMIT_FILES: Final = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
_STATM_FILE: Final = Path("/proc/self/statm")


def n_processors() -> int:
    """Return the number of processors that this process may use."""
    allowed = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    return int(max(1, min(allowed, _quota())))


def _quota() -> float:
    """Return the CPU quota of the container in processors; infinity if there is none."""
    try:
        quota, period = map(float, _CPU_QUOTA_FILE.read_text().split())
        return quota / period
    except (OSError, ValueError, ZeroDivisionError):  # "max" (no limit), or no cgroup
        return math.inf


def run_traceprof(arguments: Sequence[str], patience_s: float) -> bytes | None:
    """Return the standard output of traceprof run in a separate process.

    Return None if the command fails or takes longer than ``patience_s`` seconds.
    """
    import subprocess  # noqa: PLC0415 (most commands start no process)

    completes = "_TRACEPROF_COMPLETE"  # it would make the process complete a command line
    try:
        return subprocess.run(
            [sys.executable, "-m", "traceprof", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=patience_s,
            check=True,
            env={name: text for name, text in os.environ.items() if name != completes},
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


@contextmanager
def isolated_start() -> Iterator[None]:
    """Keep a process that starts here from importing the main program and from receiving Ctrl-C."""
    main = sys.modules["__main__"]
    is_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main_thread else None
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if is_main_thread:
            signal.signal(signal.SIGINT, before or signal.default_int_handler)


def keep_freed_memory() -> None:
    """Let the C library (glibc) keep freed memory for later allocations.

    By default, glibc maps each large array separately and unmaps it when it is freed, so that the
    kernel fills every page with zeros again. For one file with 24 M events that took 35 of 89 s of
    CPU time. With this setting it takes 13 of 68 s, at 5% more memory.
    """
    with suppress(AttributeError, OSError, TypeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_MAX, 0)
        set_option(_M_ARENA_MAX, 1)  # all threads share freed memory
        set_option(_M_TRIM_THRESHOLD, _MAX_FREE_BYTES)


def run_in_threads(tasks: Sequence[Callable[[], object]]) -> None:
    """Run ``tasks`` in order, each on the next free thread; the calling thread takes part.

    After the first exception no further task starts; the exception is raised here once the running
    tasks have finished. Ctrl-C is raised immediately: the other thread starts nothing more and does
    not delay the exit of the program.
    """
    _run_in_threads(tasks, min(_MAX_THREADS, n_processors()))


def map_in_threads(
    make: Callable[[_Item], _Made], items: Iterable[_Item], n_threads: int
) -> list[_Made]:
    """Return ``make(item)`` for each of ``items``, in order, computed by ``n_threads`` threads."""
    inputs = list(items)
    made: dict[int, _Made] = {}

    def task(number: int) -> Callable[[], object]:
        return lambda: made.__setitem__(number, make(inputs[number]))

    _run_in_threads([task(number) for number in range(len(inputs))], n_threads)
    return [made[number] for number in range(len(inputs))]


def start_thread(run: Callable[[], object]) -> threading.Thread | None:
    """Start a daemon thread; return None if the system allows no more threads."""
    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # ulimit -u
        return None
    return thread


def _run_in_threads(tasks: Sequence[Callable[[], object]], n_threads: int) -> None:
    """Run ``tasks`` on ``n_threads`` threads, this one included; raise the first exception."""
    queue = _TaskQueue(tasks)
    others = [start_thread(queue.work) for _ in range(min(n_threads, len(tasks)) - 1)]
    try:
        queue.work()
        for thread in filter(None, others):
            thread.join()
    finally:
        queue.stop()
    if queue.error is not None:
        raise queue.error


class _TaskQueue:
    """Tasks that have not started, and the first exception of a task."""

    def __init__(self, tasks: Sequence[Callable[[], object]]) -> None:
        self.error: BaseException | None = None
        self._tasks: Iterator[Callable[[], object]] = iter(tasks)
        self._lock = threading.Lock()

    def work(self) -> None:
        """Run tasks until none is left."""
        while (task := self._next()) is not None:
            try:
                task()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 (`_run_in_threads` raises it)
                self.error = self.error or error
                self.stop()

    def stop(self) -> None:
        """Drop the tasks that have not started."""
        with self._lock:
            self._tasks = iter(())

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            return next(self._tasks, None)


def usable_bytes(n_processes: int) -> int:
    """Return how much memory each of ``n_processes`` processes on this machine may keep."""
    return share_of(_limit_bytes() // max(1, n_processes))


def share_of(n_bytes: int) -> int:
    """Return how much data a process with a limit of ``n_bytes`` may keep."""
    return int(_MAX_MEMORY_RATIO * n_bytes)


def used_memory_bytes() -> int | None:
    """Return the memory of this process that is not backed by a file; None if unknown."""
    try:
        _, resident, of_files, *_ = map(int, _STATM_FILE.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Collect garbage and let the C library return free memory to the system, where possible.

    A trace and its facts refer to each other, so that only the garbage collector frees them. glibc
    keeps freed blocks of several megabytes.
    """
    gc.collect()
    trim()


def trim() -> None:
    """Let the C library return free memory to the system, where possible."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _physical_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return _DEFAULT_MEMORY_BYTES


def _limit_bytes() -> int:
    """Return the memory limit of all processes: physical memory, or less in a container."""
    known = [_physical_bytes()]
    for path in _MEMORY_LIMIT_FILES:
        with suppress(OSError, ValueError):  # "max": no limit
            known.append(int(Path(path).read_text(encoding="ascii")))
    return min(known)


@dataclass
class PartsDone:
    """Progress: ``done`` of ``total`` parts. Parts are analyses, and rules of the findings.

    ``has_progress_line``: other code already reports progress on its own line.
    """

    done: int = 0
    total: int = 0
    has_progress_line: bool = False


PROGRESS: Final = PartsDone()
"""Progress of this process."""
