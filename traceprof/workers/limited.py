"""Process untrusted input in a process with limited time and memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeAlias

from traceprof.errors import TraceprofError
from traceprof.workers.started import start

Work: TypeAlias = Callable[..., Iterator[Any]]
"""``work(parts, *args)``: takes the parts that the parent sends, and yields the answers."""

_STATM: Final = Path("/proc/self/statm")


class OutOfTimeError(Exception):
    """The process exceeded its time and was killed."""


class ProcessDiedError(Exception):
    """The process died without an answer: of a signal, or out of memory."""


class Limited(AbstractContextManager["Limited"]):
    """A process that runs ``work``, and is killed when the caller leaves the context.

    The work may hang in C code or exhaust memory without harm to this process. ``most_bytes``
    limits the memory of the work beyond its libraries, on Linux; None: no limit.

    Raises:
        TraceprofError: the system refuses to start another process.
    """

    def __init__(self, work: Work, *args: Any, most_bytes: int | None = None) -> None:
        try:
            self._started = start(_serve, work, args, most_bytes)
        except OSError as error:
            raise TraceprofError(
                f"cannot start a process for untrusted input ({error.strerror}); raise the "
                "process limit (ulimit -u)"
            ) from error

    def __exit__(self, *_error: object) -> None:
        self._started.end()

    def send(self, part: Any) -> None:
        """Send a part to the work; the next answer reports a failure."""
        with suppress(OSError):  # the process has ended: `answer` raises why
            self._started.pipe.send((part,))

    def finish(self) -> None:
        """Signal that there are no more parts."""
        with suppress(OSError):
            self._started.pipe.send(())

    def answer(self, most_s: float | None = None) -> Any:
        """Return the next answer of the work, within ``most_s`` seconds.

        Raises:
            OutOfTimeError: there was no answer in time; the process was killed.
            ProcessDiedError: the process died.
            Exception: the error that the work raised.
        """
        pipe = self._started.pipe
        if not pipe.poll(most_s):
            self._started.process.kill()
            raise OutOfTimeError
        try:
            answer, error = pipe.recv()
        except (EOFError, OSError) as died:
            raise ProcessDiedError from died
        if error is not None:
            raise error
        return answer


def _serve(pipe: Connection, work: Work, args: tuple[Any, ...], most_bytes: int | None) -> None:
    try:
        if most_bytes is not None:
            _limit_memory(most_bytes)
        for answer in work(_parts(pipe), *args):
            pipe.send((answer, None))
    except Exception as error:  # noqa: BLE001 - the caller of `answer` gets it
        pipe.send((None, error))


def _parts(pipe: Connection) -> Iterator[Any]:
    while part := pipe.recv():
        yield part[0]


def _limit_memory(most_bytes: int) -> None:
    """Limit the memory that this process may still allocate, where the system supports it."""
    if sys.platform != "linux":
        return
    import resource  # noqa: PLC0415 - only Unix has it

    pages = int(_STATM.read_text("ascii").split()[0])
    known = [
        limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit != resource.RLIM_INFINITY
    ]
    bound = min(pages * resource.getpagesize() + most_bytes, *known, sys.maxsize)
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
