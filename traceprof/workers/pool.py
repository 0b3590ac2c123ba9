"""Workers that hold the Traces of some files, asked side by side; and those that are processes."""

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
from typing import Any, ClassVar, Final, TypeAlias

from traceprof.errors import TraceError, TraceprofError
from traceprof.processes import trim, usable_bytes
from traceprof.workers.holder import Holder
from traceprof.workers.remote import Pool, Question
from traceprof.workers.remote_intervals import TimeQuestion, unpacked
from traceprof.workers.spill import folder_on_disk
from traceprof.workers.started import StartedProcess, start

Asked: TypeAlias = Question | TimeQuestion
Report: TypeAlias = Callable[[int, int], None]
"""Is told how many ranks are done, and of how many."""

_MAX_DEATHS: Final = 3
"""A question whose worker died so often is not asked again."""
LOOKS_EVERY_S: Final = 1.0
_MIN_FILE_BYTES: Final = 1 << 16
"""Questions with arrays of so many go by a file: they are not copied on their way."""


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


class WorkerPool(Pool):
    """Workers that answer questions; the questions about one file go to the same one.

    What was asked of one that dies is asked again. Few questions are given to each at a time: to
    one that died those are lost, and whoever passes them on holds them meanwhile.
    """

    n_ahead: ClassVar = 1
    """Questions that a worker is given at a time."""
    deaths: ClassVar[tuple[type[Exception], ...]] = ()
    """What a question ends with whose worker died."""
    died: ClassVar = "{}"
    """What is said then, of how many deaths."""

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
            TraceError: workers die of a question.
        """
        if not questions:
            return []
        try:
            return self._answers(questions)
        except BaseException:
            self.close()  # nobody takes what is half answered
            raise

    @abstractmethod
    def submit(self, worker: Any, question: Asked) -> Any:
        """Return the answer of a worker, as a future."""

    @abstractmethod
    def next_done(self, asked: Mapping[int, Any]) -> int | None:
        """Return the key of one of these futures that is done; None: none was for a while."""

    @abstractmethod
    def workers(self) -> Collection[Any]:
        """Return the workers among which files are shared out."""

    def living(self) -> Collection[Any]:
        """Return those that answer what they were asked."""
        return self.workers()

    def able(self, files: Sequence[str], workers: Collection[Any]) -> Sequence[Collection[Any]]:
        """Return, of each file, the workers that can read it."""
        return [workers] * len(files)

    def close(self) -> None:
        """Give up what is held; the next question begins anew."""
        self._owners = {}
        if self._folder is not None:
            self._folder.cleanup()
        self._folder = None

    def posted(self, question: Asked) -> bytes | Path:
        """Return a question as it goes to a process of this machine: itself, or where it lies."""
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
        except OSError:  # no room: it goes as it is
            return pickle.dumps(question, pickle.HIGHEST_PROTOCOL)
        return file

    def new_file(self) -> Path:
        """Return the name of a file for a question or an answer."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="traceprof-", dir=folder_on_disk())
        return Path(self._folder.name) / str(next(self._numbers))

    def _answers(self, questions: Sequence[Asked]) -> list[Any]:
        asked = _Round(self, questions)
        answers: list[Any] = [None] * len(questions)
        # To and fro: a process has in memory what it was asked about last.
        self._is_backwards = not self._is_backwards
        numbers = range(len(questions))
        asked.begin([*reversed(numbers)] if self._is_backwards else [*numbers])
        self._progress(0, len(questions))
        trim()  # meanwhile: what the last answers were made into is seldom as large
        for n_done in range(1, len(questions) + 1):
            number, text = asked.next_answer()
            answers[number] = unpacked(text, self, questions[number])
            self._progress(n_done, len(questions))
        return answers

    def owners_of(self, files: Sequence[str]) -> Sequence[Any]:
        """Return the worker that looks at each file: of those that can, the one with the fewest."""
        workers = self.workers()
        new = [file for file in dict.fromkeys(files) if self._owners.get(file) not in workers]
        loads = Counter(owner for file, owner in self._owners.items() if file not in new)
        for file, able in zip(new, self.able(new, workers) if new else (), strict=True):
            self._owners[file] = min(able or workers, key=lambda worker: loads[worker])
            loads[self._owners[file]] += 1
        return [self._owners[file] for file in files]


class _Round:
    """Some questions, until all are answered."""

    def __init__(self, pool: WorkerPool, questions: Sequence[Asked]) -> None:
        self._pool, self._questions = pool, questions
        self._waiting: dict[Any, deque[int]] = defaultdict(deque)
        self._asked: dict[int, tuple[Any, int, Any]] = {}
        self._deaths: Counter[int] = Counter()
        self._tickets = count()

    def begin(self, numbers: Sequence[int]) -> None:
        """Ask the first of the questions at ``numbers``; who has none left is asked the next."""
        owners = self._pool.owners_of([self._questions[one].plan.file for one in numbers])
        for number, owner in zip(numbers, owners, strict=True):
            self._waiting[owner].append(number)
        for owner in dict.fromkeys(owners):
            n_asked = sum(other == owner for other, _, _ in self._asked.values())
            for _ in range(self._pool.n_ahead - n_asked):
                self._ask_next(owner)

    def next_answer(self) -> tuple[int, bytes]:
        """Return the number of a question, and its answer as it travels."""
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
        """Return who has died with a question: of some nobody says so."""
        living = self._pool.living()
        return {owner for owner, _, _ in self._asked.values() if owner not in living}

    def _ask_again(self, dead: Collection[Any]) -> None:
        """Ask anew what was asked of workers that died, and what these were still to be asked."""
        numbers: list[int] = []
        for owner in dead:
            tickets = [ticket for ticket, (other, _, _) in self._asked.items() if other == owner]
            lost = [self._asked.pop(ticket)[1] for ticket in tickets]
            self._deaths[lost[0]] += 1  # the others it had not begun with
            if self._deaths[lost[0]] >= _MAX_DEATHS:
                said = self._pool.died.format(_MAX_DEATHS)
                raise TraceError(f"{self._questions[lost[0]].plan.file}: {said}")
            numbers += [*lost, *self._waiting.pop(owner, ())]
        if numbers:
            self.begin(numbers)


class DiedError(Exception):
    """The process that was asked has died."""


class ProcessPool(WorkerPool):
    """Processes of this machine, one question at a time; one that dies is replaced.

    No thread waits for them: where processes are limited, none could be started.
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
        """Return the numbers of the processes, which start when they are asked."""
        return range(self.n_workers)

    def submit(self, worker: int, question: Asked) -> Any:
        """Return the process, whose result is the answer.

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
        with suppress(OSError):  # it has died: so its result says
            process.pipe.send(sent)
        return process

    def next_done(self, asked: Mapping[int, Any]) -> int | None:
        """Return the key of a process that has answered, or died."""
        pipes = {pipe.pipe: key for key, pipe in asked.items()}
        return next((pipes[pipe] for pipe in wait([*pipes], LOOKS_EVERY_S)), None)

    def pids(self) -> list[int]:
        """Return the processes that there are."""
        return [process.process.pid for process in self._processes.values() if process.process.pid]

    def close(self) -> None:
        """End the processes; the next question starts them anew."""
        super().close()
        while self._processes:
            self._processes.popitem()[1].end()


@dataclass(frozen=True, slots=True, eq=False)
class _Process(StartedProcess):
    """A process that answers."""

    def result(self) -> bytes:
        """Return what it answers.

        Raises:
            DiedError: it does not.
        """
        try:
            return self.pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise DiedError from error


def _start(most_bytes: int) -> _Process:
    """Start a process that answers, and keeps so many bytes at most."""
    try:
        started = start(_serve, most_bytes)
    except OSError as error:
        raise TraceprofError(
            f"cannot start a process for --jobs ({error.strerror}); use fewer --jobs or raise the "
            "process limit (ulimit -u)"
        ) from error
    return _Process(started.process, started.pipe)


def _serve(pipe: Connection, most_bytes: int) -> None:
    """Answer until nobody asks any more."""
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
    question: Asked = pickle.loads(text)
    return question
