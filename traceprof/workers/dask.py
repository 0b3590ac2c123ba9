"""Workers on a Dask cluster: a scheduler somewhere, or one that is started on this machine."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol, TypeAlias

from traceprof.errors import TraceError, UsageError
from traceprof.processes import share_of, trim, usable_bytes
from traceprof.workers.holder import Holder
from traceprof.workers.pool import Asked, Report, is_written, laid_down, no_progress, picked_up
from traceprof.workers.remote_intervals import unpacked

DIED: Final = (
    "the workers that read it died (not enough memory?): fewer workers leave more memory to each"
)
_MOST_DEATHS: Final = 3
"""A question whose worker died so often is not asked again."""
_AHEAD: Final = 2
"""Questions that a worker is given at a time: one to answer, one to go on with."""
_LOOKS_EVERY_S: Final = 1.0


class Sent(Protocol):
    """A question that a worker was sent."""

    def text(self, most_s: float) -> bytes:
        """Return the answer, which is there.

        Raises:
            TimeoutError: it does not come; it may have been lost with who had it.
        """
        ...

    def drop(self) -> None:
        """Forget the question and its answer."""
        ...


_Tell: TypeAlias = Callable[[], None]


class Workers(Protocol):
    """The workers that answer questions."""

    def living(self) -> Collection[str]:
        """Return the workers that there are now."""
        ...

    def owners_of(self, files: Sequence[str]) -> Sequence[str]:
        """Return the worker that looks at each of ``files``; of one that died it is another."""
        ...

    def send(self, question: Asked, owner: str, tell: _Tell) -> Sent:
        """Send a question to a worker; ``tell`` is called from any thread once it is answered."""
        ...


class Round:
    """Some questions, until all are answered.

    Few are asked at a time: a scheduler keeps what it was asked and the answers that nobody has
    taken, and one that was started here does so in this process. Who has died is looked for every
    second, since nobody says so: a scheduler holds what was meant for a worker that is no more.
    """

    def __init__(self, cluster: Workers, questions: Sequence[Asked]) -> None:
        self._cluster, self._questions = cluster, questions
        self._waiting: dict[str, deque[int]] = defaultdict(deque)
        self._asked: dict[int, tuple[str, int, Sent]] = {}
        self._answered: SimpleQueue[int] = SimpleQueue()
        self._deaths: Counter[int] = Counter()
        self._tickets = count()
        self._looked_s = time.monotonic()

    def begin(self, order: Iterable[int]) -> None:
        """Ask the first of the questions, whose numbers are given in the ``order`` to ask them."""
        self._share_out([*order])

    def answers(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of each question and its answer as it travels.

        Raises:
            TraceError: workers die of a question.
        """
        while self._asked:
            if time.monotonic() - self._looked_s >= _LOOKS_EVERY_S:
                self._look_for_deaths()
            try:
                ticket = self._answered.get(timeout=_LOOKS_EVERY_S)
            except Empty:
                continue
            if ticket not in self._asked:
                continue  # it was asked again meanwhile
            owner, number, sent = self._asked[ticket]
            text = self._text(owner, sent)
            if text is None:
                self._ask_again({owner})
                continue
            del self._asked[ticket]
            sent.drop()
            self._ask_next(owner)
            yield number, text

    def _text(self, owner: str, sent: Sent) -> bytes | None:
        """Return an answer; None: it was lost with the worker that had it."""
        most_s = _LOOKS_EVERY_S
        while True:
            try:
                return sent.text(most_s)
            except TimeoutError:
                if owner not in self._cluster.living():
                    return None
            most_s *= 2  # a large one takes as long as it takes

    def _look_for_deaths(self) -> None:
        living = self._cluster.living()
        busy = {owner for owner, _, _ in self._asked.values()}
        dead = {owner for owner in busy if owner not in living}
        if dead:
            self._ask_again(dead)
        self._looked_s = time.monotonic()

    def _ask_again(self, dead: Collection[str]) -> None:
        """Ask others what was asked of workers that died, and what these were still to be asked."""
        numbers: list[int] = []
        for owner in dead:
            tickets = [ticket for ticket, (own, _, _) in self._asked.items() if own == owner]
            lost = [self._asked.pop(ticket) for ticket in tickets]
            for _, number, sent in lost:
                sent.drop()
                numbers.append(number)
            self._count_death(lost[0][1])  # the others it had not begun with
            numbers.extend(self._waiting.pop(owner, ()))
        self._share_out(numbers)

    def _count_death(self, number: int) -> None:
        self._deaths[number] += 1
        if self._deaths[number] >= _MOST_DEATHS:
            raise TraceError(f"{self._questions[number].recipe.file}: {DIED}")

    def _share_out(self, numbers: Sequence[int]) -> None:
        owners = self._cluster.owners_of([self._questions[one].recipe.file for one in numbers])
        for number, owner in zip(numbers, owners, strict=True):
            self._waiting[owner].append(number)
        for owner in dict.fromkeys(owners):
            n_asked = sum(own == owner for own, _, _ in self._asked.values())
            for _ in range(_AHEAD - n_asked):
                self._ask_next(owner)

    def _ask_next(self, owner: str) -> None:
        if not self._waiting[owner]:
            return
        number, ticket = self._waiting[owner].popleft(), next(self._tickets)
        sent = self._cluster.send(
            self._questions[number], owner, lambda: self._answered.put(ticket)
        )
        self._asked[ticket] = owner, number, sent


try:
    import dask
    from distributed import Client, KilledWorker, LocalCluster, get_worker
except ImportError as error:
    raise UsageError(
        "--cluster needs Dask, which is not installed: pip install 'traceprof[cluster]' "
        "(--jobs N needs nothing)"
    ) from error

_WAITS_FOR_SCHEDULER: Final = "10s"
_WAITS_FOR_WORKERS_S: Final = 10
_WAITS_FOR_NEXT_S: Final = 60
"""For who comes in the place of a worker of this machine: a start takes some, more under load."""
_OF_LOCAL: Final = {
    # Who takes over a question from another reads its file first.
    "distributed.scheduler.work-stealing": False,
    # It looks a hundred times a second where each process is, and keeps that.
    "distributed.worker.profile.enabled": False,
    # Dask's own has the C library give back each array that is freed: twice the processor time.
    "distributed.nanny.pre-spawn-environ": {"OMP_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1},
}
_BRIEF: Final = {"distributed.admin.low-level-log-length": 0}
"""Else each end of a connection keeps the last thousand messages, with the questions in them.

It is read whenever a connection begins: also that to a worker that replaces one.
"""
_UNTOLD: Final = {"distributed.admin.large-graph-warning-threshold": "1TB"}
"""A question may hold sets of instants that all ranks share: Dask would warn of each."""


class DaskCrew:
    """Dask's workers that answer questions; those about one file go to a worker that can read it.

    ``address`` is that of the scheduler; "" starts one here, with ``n_processes`` workers.
    """

    def __init__(self, address: str, n_processes: int, progress: Report = no_progress) -> None:
        self._address = address
        self._n_processes = self._n_expected = self._n_workers = n_processes
        self._progress = progress
        self._owners: dict[str, str] = {}
        self._is_backwards = True
        self._numbers = count()
        self._settings = ExitStack()

    def ask(self, questions: Sequence[Asked]) -> list[Any]:
        """Return the answers in the order of the questions (see `Crew`).

        Raises:
            TraceError: workers die of a question.
            UsageError: there is no scheduler, or it has no workers.
        """
        answers: list[Any] = [None] * len(questions)
        # To and fro: a process has in memory what it was asked about last.
        self._is_backwards = not self._is_backwards
        order = range(len(questions))
        asked = Round(self, questions)
        asked.begin(reversed(order) if self._is_backwards else order)
        self._progress(0, len(questions))
        trim()  # meanwhile: what the last answers were made into is seldom as large
        for n_done, (number, text) in enumerate(asked.answers(), 1):
            answers[number] = unpacked(text, self, questions[number])
            self._progress(n_done, len(questions))
        return answers

    def living(self) -> Collection[str]:
        """Return the workers that there are now."""
        return [*self._client.scheduler_info(n_workers=-1)["workers"]]

    def owners_of(self, files: Sequence[str]) -> Sequence[str]:
        """Return the worker that looks at each file: of those that have it that with the fewest."""
        workers = self._workers()
        self._n_workers = len(workers)
        new = [file for file in dict.fromkeys(files) if self._owners.get(file) not in workers]
        if new:
            self._choose_owners(new, workers)
        return [self._owners[file] for file in files]

    def send(self, question: Asked, owner: str, tell: Callable[[], None]) -> Sent:
        """Send a question to a worker, and tell when it is answered.

        On this machine to no other: who takes over a question reads its file first. Elsewhere one
        may be stopped for its memory, and others take over.
        """
        file, answer = self._files_for(question)
        with dask.config.set(_UNTOLD):
            future = self._client.submit(
                _answer,
                file or question,
                answer,
                self._n_workers,
                workers=[owner],
                allow_other_workers=bool(self._address),
                pure=False,
            )
        future.add_done_callback(lambda _: tell())
        return _Sent(question.recipe.file, future, file, answer)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if "_client" in self.__dict__:
            self._client.close()
        if "_local" in self.__dict__:
            self._local.close(timeout=_WAITS_FOR_WORKERS_S)
        if "_folder" in self.__dict__:
            self._folder.cleanup()
        self._settings.close()

    def _files_for(self, question: Asked) -> tuple[Path | None, Path | None]:
        """Return where a question lies, and where its answer may, where all write to this disk.

        A scheduler in this process would hold them six times over on their way, and an answer would
        be lost with who gave it.
        """
        if self._address:
            return None, None
        number = next(self._numbers)
        file, answer = (Path(self._folder.name) / f"{number}.{what}" for what in ("q", "a"))
        return file if laid_down(question, file) else None, answer

    @cached_property
    def _folder(self) -> TemporaryDirectory[str]:
        return TemporaryDirectory(prefix="traceprof-")

    @cached_property
    def _local(self) -> Any:
        with dask.config.set(_OF_LOCAL):
            return LocalCluster(
                n_workers=self._n_processes,
                threads_per_worker=1,
                memory_limit=None,  # Dask would count mapped files, and stop a worker for them
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
            )

    @cached_property
    def _client(self) -> Any:
        self._settings.enter_context(dask.config.set(_BRIEF))
        where = self._address or self._local
        try:
            return Client(where, timeout=_WAITS_FOR_SCHEDULER, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--cluster {self._address}: no scheduler of Dask answers there: {error}"
            ) from error

    def _workers(self) -> Collection[str]:
        """Return those that there are; who has just died on this machine is soon replaced."""
        found = self.living()
        wanted = 1 if self._address else self._n_expected
        if len(found) < wanted:
            most_s = _WAITS_FOR_WORKERS_S if self._address else _WAITS_FOR_NEXT_S
            with suppress(TimeoutError):
                self._client.wait_for_workers(wanted, timeout=most_s)
            found = self.living()
            self._n_expected = max(1, len(found))
        if not found:
            where = self._address or "local"
            raise UsageError(f"--cluster {where}: the scheduler has no workers")
        return found

    def _choose_owners(self, new: Sequence[str], workers: Collection[str]) -> None:
        # Workers of this machine see the same files; who dies while it is asked says nothing.
        found = self._client.run(_which_are_there, new, on_error="ignore") if self._address else {}
        loads = Counter(owner for file, owner in self._owners.items() if file not in new)
        for place, file in enumerate(new):
            able = [worker for worker in workers if found.get(worker, [False] * len(new))[place]]
            owner = min(able or workers, key=lambda worker: loads[worker])
            self._owners[file] = owner
            loads[owner] += 1


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """A question that a worker was sent, and the files that it and its answer may lie in."""

    about: str
    future: Any
    question: Path | None
    answer: Path | None

    def text(self, most_s: float) -> bytes:
        if self.answer is not None and self.future.status == "finished" and self.answer.exists():
            return self.answer.read_bytes()
        try:
            found: bytes = self.future.result(timeout=most_s)
        except KilledWorker as error:
            raise TraceError(f"{self.about}: {DIED}") from error
        return found

    def drop(self) -> None:
        self.future.release()
        for file in filter(None, (self.question, self.answer)):
            file.unlink(missing_ok=True)


_holders: dict[int, Holder] = {}


def _answer(asked: Asked | Path, file: Path | None, n_workers: int) -> bytes | None:
    """Answer a question in a worker, which keeps what it has made; None: it lies in ``file``."""
    question = picked_up(asked) if isinstance(asked, Path) else asked
    limit = get_worker().memory_manager.memory_limit
    most_bytes = share_of(limit) if limit else usable_bytes(n_workers)
    text = _holders.setdefault(0, Holder(most_bytes)).answer(question)
    return None if file is not None and is_written(text, file) else text


def _which_are_there(files: Sequence[str]) -> list[bool]:
    return [Path(file).is_file() for file in files]
