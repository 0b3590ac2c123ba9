"""Work side by side in threads: numpy, and our compiled code, let others run while they compute."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from traceprof.processes import n_processors

__all__ = ["do_side_by_side"]

_N_THREADS: Final = 2
"""Each holds working space of its own, and Python lets only one of them run Python."""


def do_side_by_side(tasks: Sequence[Callable[[], object]]) -> None:
    """Do all ``tasks``, in their order, each in the next thread that is free; this is one of them.

    The first exception ends it, after what the other thread is at; it is raised here. Ctrl-C is
    raised at once: the other thread begins nothing more, and holds up no end of the program.
    """
    n_others = min(_N_THREADS, n_processors(), len(tasks)) - 1
    waiting = _Waiting(tasks)
    others = [threading.Thread(target=waiting.work, daemon=True) for _ in range(n_others)]
    for one in others:
        one.start()
    try:
        waiting.work()
        for one in others:
            one.join()
    finally:
        waiting.stop()
    if waiting.error is not None:
        raise waiting.error


class _Waiting:
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
