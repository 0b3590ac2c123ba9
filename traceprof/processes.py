"""Processes and threads of ours: how many, how they start, their memory, how far they are."""

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

_Item = TypeVar("_Asked")
_Made = TypeVar("_Made")
_CPU_QUOTA_FILE: Final = Path("/sys/fs/cgroup/cpu.max")

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
_M_ARENA_MAX: Final = -8
_MAX_FREE_BYTES: Final = 1 << 30
"""More than so much free memory goes back to the system."""
_MAX_THREADS: Final = 2
"""Each holds working space of its own, and Python lets only one of them run Python."""
_DEFAULT_MEMORY_BYTES: Final = 8_000_000_000
_MAX_MEMORY_RATIO: Final = 0.5
"""The other half is for what one question takes meanwhile, and for others."""
_MEMORY_LIMIT_FILES: Final = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
_STATM_FILE: Final = Path("/proc/self/statm")


def n_processors() -> int:
    """Return how many processors this process may use."""
    allowed = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    return int(max(1, min(allowed, _quota())))


def _quota() -> float:
    """Return of how many processors a container may use the time."""
    try:
        quota, period = map(float, _CPU_QUOTA_FILE.read_text().split())
        return quota / period
    except (OSError, ValueError, ZeroDivisionError):  # "max", or no such group
        return math.inf


def told_apart(arguments: Sequence[str], patience_s: float) -> bytes | None:
    """Return what traceprof prints in a process of its own; None where it fails or takes longer."""
    import subprocess  # noqa: PLC0415 (commands ask nobody)

    completes = "_TRACEPROF_COMPLETE"  # it would complete, too
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
    """Keep a new process from running the program that we are part of, and from Ctrl-C."""
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
    """Let the C library keep freed memory for what comes next, where it is glibc.

    By default it maps every large array anew and gives it back when it is freed, so that the kernel
    fills each page with zeros again: for one file of 24 M events that took 35 of 89 s of processor
    time (13 of 68 with it), at 5 % more memory.
    """
    with suppress(AttributeError, OSError, TypeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_MAX, 0)
        set_option(_M_ARENA_MAX, 1)  # what one thread frees is there for the others
        set_option(_M_TRIM_THRESHOLD, _MAX_FREE_BYTES)


def do_side_by_side(tasks: Sequence[Callable[[], object]]) -> None:
    """Do all ``tasks``, in their order, each in the next thread that is free; this is one of them.

    The first exception ends it, after what the other thread is at; it is raised here. Ctrl-C is
    raised at once: the other thread begins nothing more, and holds up no end of the program.
    """
    _run_in_threads(tasks, min(_MAX_THREADS, n_processors()))


def made_side_by_side(
    make: Callable[[_Item], _Made], items: Iterable[_Item], n_threads: int
) -> list[_Made]:
    """Return what ``make`` makes of each of ``items``, in their order, by so many threads."""
    inputs = list(items)
    made: dict[int, _Made] = {}

    def task(number: int) -> Callable[[], object]:
        return lambda: made.__setitem__(number, make(inputs[number]))

    _run_in_threads([task(number) for number in range(len(inputs))], n_threads)
    return [made[number] for number in range(len(inputs))]


def start_thread(run: Callable[[], object]) -> threading.Thread | None:
    """Start a thread that holds up no end of the program; None where no more are allowed."""
    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # ulimit -u
        return None
    return thread


def _run_in_threads(tasks: Sequence[Callable[[], object]], n_threads: int) -> None:
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
    """Tasks that nobody has begun, and the first exception of one."""

    def __init__(self, tasks: Sequence[Callable[[], object]]) -> None:
        self.error: BaseException | None = None
        self._tasks: Iterator[Callable[[], object]] = iter(tasks)
        self._lock = threading.Lock()

    def work(self) -> None:
        """Do one task after the other."""
        while (task := self._next()) is not None:
            try:
                task()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 (it is raised where all was asked for)
                self.error = self.error or error
                self.stop()

    def stop(self) -> None:
        """Begin nothing more."""
        with self._lock:
            self._tasks = iter(())

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            return next(self._tasks, None)


def usable_bytes(n_processes: int) -> int:
    """Return how much one of so many processes on this machine may keep."""
    return share_of(_limit_bytes() // max(1, n_processes))


def share_of(n_bytes: int) -> int:
    """Return how much a process may keep that may take ``n_bytes``."""
    return int(_MAX_MEMORY_RATIO * n_bytes)


def taken_bytes() -> int | None:
    """Return how much memory this process has that no file holds; None where no one tells."""
    try:
        _, resident, of_files, *_ = map(int, _STATM_FILE.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Free what nobody refers to, and let the C library return it, where it can be asked to.

    A trace and its facts refer to each other; glibc keeps freed pieces of some megabytes.
    """
    gc.collect()
    trim()


def trim() -> None:
    """Let the C library return what is free, where it can be asked to."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _physical_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return _DEFAULT_MEMORY_BYTES


def _limit_bytes() -> int:
    """Return what all processes may take: a container less than there is."""
    known = [_physical_bytes()]
    for path in _MEMORY_LIMIT_FILES:
        with suppress(OSError, ValueError):  # "max" where there is none
            known.append(int(Path(path).read_text(encoding="ascii")))
    return min(known)


@dataclass
class PartsDone:
    """So many parts of so many: analyses, and the rules of the findings.

    ``is_told``: others tell how far they are, on a line of their own.
    """

    done: int = 0
    total: int = 0
    is_told: bool = False


PROGRESS: Final = PartsDone()
"""That of this process."""
