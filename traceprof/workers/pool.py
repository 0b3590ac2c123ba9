"""Pools of workers that hold the Traces of files and answer questions; pools of local processes."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final, TypeAlias, cast

from traceprof.errors import TraceError, TraceprofError
from traceprof.processes import trim, usable_bytes
from traceprof.workers.holder import Holder
from traceprof.workers.remote import Pool, Question
from traceprof.workers.remote_intervals import TimeQuestion, unpacked
from traceprof.workers.spill import folder_on_disk
from traceprof.workers.started import StartedProcess, start

Asked: TypeAlias = Question | TimeQuestion
Report: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished ranks and the total."""

_MAX_DEATHS: Final = 3
"""A question is given up after this many of its workers died."""
POLL_INTERVAL_S: Final = 1.0
_MIN_FILE_BYTES: Final = 1 << 16
"""Questions with an array of this size are passed in a file, to avoid copies in transit."""


def no_progress(done: int, total: int) -> None:
    """Report no progress."""


class WorkerPool(Pool):
    """Workers that answer questions. Questions about one file go to the same worker.

    Questions to a worker that dies are asked again. Each worker gets few questions at a time,
    because they are lost with the worker, and because messages in transit take memory.
    """

    n_ahead: ClassVar = 1
    """Number of questions that a worker has at a time."""
    deaths: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions of questions whose worker died."""
    died: ClassVar = "{}"
    """Error message for a question that was given up, with a placeholder for the number of deaths.
    """

    def __init__(self, n_workers: int, progress: Report = no_progress) -> None:
        self.n_workers = max(1, n_workers)
        self._progress = progress
        self._owners: dict[str, Any] = {}
        self._is_backwards = True
        self._numbers = count()
        self._folder: TemporaryDirectory[str] | None = None

    def ask(self, questions: Sequence[Asked]) -> list[Any]:
        """Return the answers in the order of the questions (see `Pool`).

        Raises:
            TraceError: workers die from a question.
        """
        if not questions:
            return []
        try:
            return self._answers(questions)
        except BaseException:
            self.close()  # discard partial answers
            raise

    @abstractmethod
    def submit(self, worker: Any, question: Asked) -> Any:
        """Send a question to a worker; return the future of its answer."""

    @abstractmethod
    def next_done(self, asked: Mapping[int, Any]) -> int | None:
        """Return the key of a finished future; None if none finished for a while."""

    @abstractmethod
    def workers(self) -> Collection[Any]:
        """Return the workers to which files are assigned."""

    def living(self) -> Collection[Any]:
        """Return the workers that still answer."""
        return self.workers()

    def able(self, files: Sequence[str], workers: Collection[Any]) -> Sequence[Collection[Any]]:
        """Return, for each file, the workers that can read it."""
        return [workers] * len(files)

    def close(self) -> None:
        """Drop all held data; the next question starts again."""
        self._owners = {}
        if self._folder is not None:
            self._folder.cleanup()
        self._folder = None

    def posted(self, question: Asked) -> bytes | Path:
        """Return a question pickled for a local process, or the path of a file with it."""
        large: list[pickle.PickleBuffer] = []

        def is_small(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes >= _MIN_FILE_BYTES:
                large.append(buffer)
            return not large

        text = pickle.dumps(question, pickle.HIGHEST_PROTOCOL, buffer_callback=is_small)
        if not large:
            return text
        try:
            file = self.new_file()
            with file.open("wb") as out:
                pickle.dump(question, out, pickle.HIGHEST_PROTOCOL)
        except OSError:  # no room: send it directly
            return pickle.dumps(question, pickle.HIGHEST_PROTOCOL)
        return file

    def new_file(self) -> Path:
        """Return the path of a new file for a question or an answer."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="traceprof-", dir=folder_on_disk())
        return Path(self._folder.name) / str(next(self._numbers))

    def _answers(self, questions: Sequence[Asked]) -> list[Any]:
        asked = _Round(self, questions)
        answers: list[Any] = [None] * len(questions)
        # Alternate the direction: a process still has the file of its last question in memory.
        self._is_backwards = not self._is_backwards
        numbers = range(len(questions))
        asked.begin([*reversed(numbers)] if self._is_backwards else [*numbers])
        self._progress(0, len(questions))
        trim()  # while waiting: memory of the last answers is rarely needed again
        for n_done in range(1, len(questions) + 1):
            number, text = asked.next_answer()
            answers[number] = unpacked(text, self, questions[number])
            self._progress(n_done, len(questions))
        return answers

    def owners_of(self, files: Sequence[str]) -> Sequence[Any]:
        """Return the worker of each file; a new file goes to the able worker with the fewest."""
        workers = self.workers()
        new = [file for file in dict.fromkeys(files) if self._owners.get(file) not in workers]
        loads = Counter(owner for file, owner in self._owners.items() if file not in new)
        for file, able in zip(new, self.able(new, workers) if new else (), strict=True):
            self._owners[file] = min(able or workers, key=lambda worker: loads[worker])
            loads[self._owners[file]] += 1
        return [self._owners[file] for file in files]


class _Round:
    """A set of questions until all are answered."""

    def __init__(self, pool: WorkerPool, questions: Sequence[Asked]) -> None:
        self._pool, self._questions = pool, questions
        self._waiting: dict[Any, deque[int]] = defaultdict(deque)
        self._asked: dict[int, tuple[Any, int, Any]] = {}
        self._deaths: Counter[int] = Counter()
        self._tickets = count()

    def begin(self, numbers: Sequence[int]) -> None:
        """Assign the questions ``numbers`` to workers, and send each worker its first questions."""
        owners = self._pool.owners_of([self._questions[n].plan.file for n in numbers])
        for number, owner in zip(numbers, owners, strict=True):
            self._waiting[owner].append(number)
        for owner in dict.fromkeys(owners):
            n_asked = sum(other == owner for other, _, _ in self._asked.values())
            for _ in range(self._pool.n_ahead - n_asked):
                self._ask_next(owner)

    def next_answer(self) -> tuple[int, bytes]:
        """Return the number of an answered question, and its pickled answer."""
        while True:
            asked = {ticket: future for ticket, (_, _, future) in self._asked.items()}
            ticket = self._pool.next_done(asked)
            if ticket is None:
                self._ask_again(self._dead())
                continue
            owner, number, future = self._asked[ticket]
            try:
                text: bytes = future.result()
            except self._pool.deaths:
                self._ask_again({owner})
                continue
            del self._asked[ticket]
            self._ask_next(owner)
            return number, text

    def _ask_next(self, owner: Any) -> None:
        if self._waiting[owner]:
            number, ticket = self._waiting[owner].popleft(), next(self._tickets)
            self._asked[ticket] = owner, number, self._pool.submit(owner, self._questions[number])

    def _dead(self) -> set[Any]:
        """Return the workers that died with a question. Some pools do not report a death."""
        living = self._pool.living()
        return {owner for owner, _, _ in self._asked.values() if owner not in living}

    def _ask_again(self, dead: Collection[Any]) -> None:
        """Ask again all questions that dead workers had received or were still to receive.

        Raises:
            TraceError: too many workers died from a question.
        """
        numbers: list[int] = []
        for owner in dead:
            tickets = [ticket for ticket, (other, _, _) in self._asked.items() if other == owner]
            lost = [self._asked.pop(ticket)[1] for ticket in tickets]
            self._deaths[lost[0]] += 1  # it had not started the others
            if self._deaths[lost[0]] >= _MAX_DEATHS:
                message = self._pool.died.format(_MAX_DEATHS)
                raise TraceError(f"{self._questions[lost[0]].plan.file}: {message}")
            numbers += [*lost, *self._waiting.pop(owner, ())]
        if numbers:
            self.begin(numbers)


class DiedError(Exception):
    """The process that was asked has died."""


class ProcessPool(WorkerPool):
    """Processes on this machine, with one question each at a time. A dead process is replaced.

    No threads wait for them: where processes are limited, no thread could be started.
    """

    deaths = (DiedError,)
    died = (
        "the process reading this file died {} times (out of memory?); use fewer --jobs, so that "
        "each process has more memory"
    )

    def __init__(self, n_workers: int, progress: Report = no_progress) -> None:
        super().__init__(n_workers, progress)
        self._processes: dict[int, _Process] = {}

    def workers(self) -> Collection[int]:
        """Return the numbers of the processes; a process starts with its first question."""
        return range(self.n_workers)

    def submit(self, worker: int, question: Asked) -> Any:
        """Send a question; return the process, whose result is the answer.

        Raises:
            TraceprofError: no process can be started.
        """
        sent = self.posted(question)
        if worker in self._processes:
            try:
                self._processes[worker].pipe.send(sent)
            except OSError:
                self._processes.pop(worker).end()
            else:
                return self._processes[worker]
        self._processes[worker] = process = _start(usable_bytes(self.n_workers))
        with suppress(OSError):  # it has died; `result` reports that
            process.pipe.send(sent)
        return process

    def next_done(self, asked: Mapping[int, Any]) -> int | None:
        """Return the key of a process that answered or died."""
        pipes = {pipe.pipe: key for key, pipe in asked.items()}
        return next((pipes[pipe] for pipe in wait([*pipes], POLL_INTERVAL_S)), None)

    def pids(self) -> list[int]:
        """Return the IDs of the running processes."""
        return [process.process.pid for process in self._processes.values() if process.process.pid]

    def close(self) -> None:
        """End the processes; the next question starts new ones."""
        super().close()
        while self._processes:
            self._processes.popitem()[1].end()


@dataclass(frozen=True, slots=True, eq=False)
class _Process(StartedProcess):
    """A process that answers questions."""

    def result(self) -> bytes:
        """Return the answer.

        Raises:
            DiedError: the process died.
        """
        try:
            return self.pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise DiedError from error


def _start(most_bytes: int) -> _Process:
    """Start a process that answers questions and keeps at most ``most_bytes``.

    Raises:
        TraceprofError: the system refuses to start a process.
    """
    try:
        started = start(_serve, most_bytes)
    except OSError as error:
        raise TraceprofError(
            f"cannot start a process for --jobs ({error.strerror}); use fewer --jobs or raise the "
            "process limit (ulimit -u)"
        ) from error
    return _Process(started.process, started.pipe)


def _serve(pipe: Connection, most_bytes: int) -> None:
    """Answer questions until the pipe is closed."""
    holder = Holder(most_bytes)
    while True:
        try:
            posted = pipe.recv()
        except EOFError:
            return
        question = picked_up(posted)
        if isinstance(posted, Path):
            posted.unlink(missing_ok=True)
        pipe.send_bytes(holder.answer(question))


def picked_up(posted: bytes | Path) -> Asked:
    """Return a question that was posted."""
    text = posted if isinstance(posted, bytes) else posted.read_bytes()
    return cast("Asked", pickle.loads(text))
