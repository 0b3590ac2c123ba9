"""Processes that parse runs of items of a JSON array, beside the one that reads the file.

They help where Python parses: what is compiled parses faster than they could be fed.

A run goes to a process through a temporary file, and what it is parsed to comes back there: what
goes through pipes is short, so that nobody waits for another who is in the middle of it.
Whoever is free parses: a process, or we ourselves. So it costs little where a process is slow to
start, and a process that fails or stops is only missed.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Generic, Self, TypeVar

from traceprof.processes import alone, n_processors

__all__ = ["Parsers", "Run", "n_parsers"]

_Batch = TypeVar("_Batch")

_MOST: Final = 4
"""So many are fed by one that reads; more would wait for it."""
_WORTH_BYTES: Final = 1 << 27
"""Smaller documents are parsed before a process has imported what it needs."""
_AT_ONCE: Final = 2
"""So many runs has a process: one that it parses, one that it goes on with."""
_WAITING: Final = 12
"""So many runs for each process are read ahead of the first that is not parsed yet."""
_PATIENCE_S: Final = 10.0
_READY: Final = -1
_NOT_WRITTEN: Final = -2
_SLOT_BYTES: Final = 1 << 23
"""Of the file, for a run and then for what it is parsed to."""
_NOT_STARTED: Final = (
    OSError,
    ValueError,
    RuntimeError,
    AttributeError,
    TypeError,
    ImportError,
    pickle.PicklingError,
)


def n_parsers(n_bytes: int) -> int:
    """Return how many processes are worth starting for a document of about so many bytes.

    None where we are ourselves one of several, or a thread.
    """
    is_first = multiprocessing.parent_process() is None
    is_alone = threading.current_thread() is threading.main_thread()
    if n_bytes < _WORTH_BYTES or not is_first or not is_alone:
        return 0
    return min(_MOST, n_processors() - 1)


@dataclass(eq=False, slots=True)
class Run(Generic[_Batch]):
    """Text of some items; ``batch`` is what they are parsed to, once ``is_parsed``."""

    text: bytes
    is_parsed: bool = False
    batch: _Batch | None = None


@dataclass(eq=False, slots=True)
class _Process:
    process: Any
    connection: Connection
    slots: list[int]
    """Where in the file it may be given more."""
    given: deque[tuple[Run[Any], int]] = field(default_factory=deque)
    is_ready: bool = False


class Parsers(Generic[_Batch]):
    """Parses runs in ``n_processes``, and where none is free at once.

    Processes that cannot be started are none. A context, at the end of which they are ended.
    """

    def __init__(self, parse: Callable[[bytes], _Batch | None], n_processes: int) -> None:
        self._parse = parse
        self._n_processes = n_processes
        self._processes: list[_Process] = []
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def n_waiting(self) -> int:
        """How many runs may be given before the first of them is asked for."""
        return _WAITING * (1 + len(self._processes))

    def start(self) -> None:
        """Start the processes, unless they were."""
        n_processes, self._n_processes = self._n_processes, 0
        if not n_processes:
            return
        try:
            parse = pickle.dumps(self._parse)
            descriptor, name = tempfile.mkstemp(prefix="traceprof-")
            self._file = os.fdopen(descriptor, "w+b", buffering=0)
            self._path = Path(name)
            for number in range(n_processes):
                slots = [number * _AT_ONCE + slot for slot in range(_AT_ONCE)]
                self._processes.append(self._started(parse, slots))
        except _NOT_STARTED:
            self.close()

    def _started(self, parse: bytes, slots: list[int]) -> _Process:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self._path, parse), daemon=True)
        try:
            with alone():
                process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return _Process(process, ours, slots)

    def give(self, run: Run[_Batch]) -> None:
        """Have a run parsed, by whoever is free."""
        self._collect()
        free = [one for one in self._processes if one.is_ready and one.slots]
        chosen = min(free, key=lambda one: len(one.given), default=None)
        if chosen is None or not self._hand_over(run, chosen):
            self._parse_here(run)

    def take(self, run: Run[_Batch]) -> _Batch | None:
        """Return what a run is parsed to; None where it is no array."""
        while not run.is_parsed:
            owner = self._owner(run)
            if owner is None:
                self._parse_here(run)
            elif _has_answered(owner, _PATIENCE_S):
                self._receive(owner)
            else:
                self._end(owner)
        return run.batch

    def is_parsed(self, run: Run[_Batch]) -> bool:
        """Return whether `take` would return at once."""
        if not run.is_parsed:
            self._collect()
        return run.is_parsed

    def close(self) -> None:
        """End the processes."""
        while self._processes:
            self._end(self._processes[-1])
        file, self._file = self._file, None
        if file is not None:
            file.close()
            self._path.unlink(missing_ok=True)

    def _parse_here(self, run: Run[_Batch]) -> None:
        run.batch, run.is_parsed = self._parse(run.text), True

    def _owner(self, run: Run[_Batch]) -> _Process | None:
        given = ((one, given) for one in self._processes for given, _ in one.given)
        return next((one for one, given in given if given is run), None)

    def _hand_over(self, run: Run[_Batch], one: _Process) -> bool:
        start = one.slots[-1] * _SLOT_BYTES
        if len(run.text) > _SLOT_BYTES:
            return False
        try:
            if not _is_written(run.text, self._at(start)):
                return False
            one.connection.send((start, len(run.text)))
        except OSError:
            self._end(one)
            return False
        one.given.append((run, one.slots.pop()))
        return True

    def _at(self, start: int) -> BinaryIO:
        assert self._file is not None
        self._file.seek(start)
        return self._file

    def _collect(self) -> None:
        for one in list(self._processes):
            while one in self._processes and _has_answered(one, 0.0):
                self._receive(one)

    def _receive(self, one: _Process) -> None:
        try:
            n_bytes = one.connection.recv()
            if n_bytes == _READY:
                one.is_ready = True
                return
            run, slot = one.given[0]
            if n_bytes == _NOT_WRITTEN:
                self._parse_here(run)
            else:
                answer = self._at(slot * _SLOT_BYTES).read(n_bytes)
                run.batch, run.is_parsed = pickle.loads(answer), True
        except (EOFError, OSError, pickle.UnpicklingError):
            self._end(one)
            return
        one.given.popleft()
        one.slots.append(slot)

    def _end(self, one: _Process) -> None:
        self._processes.remove(one)
        one.connection.close()
        one.process.kill()
        one.process.join()


def _has_answered(one: _Process, seconds: float) -> bool:
    """Return whether there is something to receive: its end, too."""
    try:
        return one.connection.poll(seconds)
    except OSError:
        return True


def _is_written(text: bytes, file: BinaryIO) -> bool:
    return file.write(text) == len(text)


def _work(connection: Connection, path: Path, parse: bytes) -> None:
    """Parse what is asked for until nobody asks any more; Ctrl-C is for who asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parsed = pickle.loads(parse)
    try:
        with path.open("r+b", buffering=0) as file:
            connection.send(_READY)
            while True:
                start, n_bytes = connection.recv()
                file.seek(start)
                answer = pickle.dumps(parsed(file.read(n_bytes)), pickle.HIGHEST_PROTOCOL)
                file.seek(start)
                is_there = len(answer) <= _SLOT_BYTES and _is_written(answer, file)
                connection.send(len(answer) if is_there else _NOT_WRITTEN)
    except (EOFError, OSError):
        path.unlink(missing_ok=True)  # who asked may have been killed
