"""A crew on a Dask cluster: a scheduler somewhere, or one that is started on this machine."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from traceprof.cluster.memory import share_of, trim, usable_bytes
from traceprof.cluster.progress import Report, no_progress
from traceprof.cluster.travelling import Asked, is_written, laid_down, picked_up
from traceprof.cluster.worker import Holder
from traceprof.errors import TraceError, UsageError
from traceprof.model.intervals_elsewhere import unpacked

try:
    import dask
    from distributed import Client, KilledWorker, LocalCluster, as_completed, get_worker
except ImportError as error:
    raise UsageError(
        "--cluster needs Dask, which is not installed: pip install 'traceprof[cluster]' "
        "(--jobs N needs nothing)"
    ) from error

__all__ = ["DaskCrew"]

_WAITS_FOR_SCHEDULER: Final = "10s"
_WAITS_FOR_WORKERS_S: Final = 10
_AHEAD: Final = 2
"""Questions that a worker is given at a time: one to answer, one to go on with."""
_OF_LOCAL: Final = {
    # Who takes over a question from another reads its file first.
    "distributed.scheduler.work-stealing": False,
    # Dask's own has the C library give back each array that is freed: twice the processor time.
    "distributed.nanny.pre-spawn-environ": {"OMP_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1},
}
_BRIEF: Final = {"distributed.admin.low-level-log-length": 0}
"""Else each end of a connection keeps the last thousand messages, with the questions in them."""
_UNTOLD: Final = {"distributed.admin.large-graph-warning-threshold": "1TB"}
"""A question may hold sets of instants that all ranks share: Dask would warn of each."""


class DaskCrew:
    """Dask's workers that answer questions; those about one file go to a worker that can read it.

    ``address`` is that of the scheduler; "" starts one here, with ``n_processes`` workers.
    """

    def __init__(self, address: str, n_processes: int, progress: Report = no_progress) -> None:
        self._address = address
        self._n_processes = self._n_expected = n_processes
        self._progress = progress
        self._owners: dict[str, str] = {}
        self._is_backwards = True
        self._numbers = count()

    def ask(self, questions: Sequence[Asked]) -> list[Any]:
        """Return the answers in the order of the questions (see `Crew`).

        Raises:
            TraceError: workers die of a question.
            UsageError: there is no scheduler, or it has no workers.
        """
        workers = self._workers()
        self._choose_owners([question.recipe.file for question in questions], workers)
        # To and fro: a process has in memory what it was asked about last.
        self._is_backwards = not self._is_backwards
        order = range(len(questions))
        waiting: dict[str, deque[int]] = defaultdict(deque)
        for number in reversed(order) if self._is_backwards else order:
            waiting[self._owners[questions[number].recipe.file]].append(number)
        answers: list[Any] = [None] * len(questions)
        self._progress(0, len(questions))
        for n_done, (number, text) in enumerate(
            self._answered(questions, waiting, len(workers)), 1
        ):
            answers[number] = unpacked(text, self, questions[number])
            self._progress(n_done, len(questions))
        return answers

    def _answered(
        self,
        questions: Sequence[Asked],
        waiting: Mapping[str, deque[int]],
        n_workers: int,
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the number of each question and its answer; ``waiting`` are those of each worker.

        Few are asked at a time: a scheduler keeps what it was asked and the answers that nobody
        has taken, and one that was started here does so in this process.
        """
        asked: dict[Any, tuple[str, int, Asked | Path, Path | None]] = {}

        def ask_next(owner: str) -> Any:
            number = waiting[owner].popleft()
            question, answer = self._as_sent(questions[number])
            with dask.config.set(_UNTOLD):
                future = self._client.submit(
                    _answer,
                    question,
                    answer,
                    n_workers,
                    workers=[owner],
                    allow_other_workers=True,
                    pure=False,
                )
            asked[future] = owner, number, question, answer
            return future

        first = [
            ask_next(owner) for owner, own in waiting.items() for _ in range(min(_AHEAD, len(own)))
        ]
        trim()  # meanwhile: what the last answers were made into is seldom as large
        done = as_completed(first, loop=self._client.loop)
        for future in done:
            owner, number, question, answer = asked.pop(future)
            try:
                text = future.result()
            except KilledWorker as error:
                raise TraceError(
                    f"{questions[number].recipe.file}: the workers that read it died "
                    "(not enough memory?)"
                ) from error
            future.release()
            if isinstance(question, Path):
                question.unlink(missing_ok=True)
            if answer is not None and text is None:
                text = answer.read_bytes()
                answer.unlink()
            if waiting[owner]:
                done.add(ask_next(owner))
            yield number, text

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if "_client" in self.__dict__:
            self._client.close()
        if "_local" in self.__dict__:
            self._local.close(timeout=_WAITS_FOR_WORKERS_S)
        if "_folder" in self.__dict__:
            self._folder.cleanup()

    def _as_sent(self, question: Asked) -> tuple[Asked | Path, Path | None]:
        """Return a question, and where a large answer may lie, where all write to this disk.

        Of a large question it is the file that it lies in: a scheduler in this process would hold
        it six times over on its way.
        """
        if self._address:
            return question, None
        number = next(self._numbers)
        file, answer = (Path(self._folder.name) / f"{number}.{what}" for what in ("q", "a"))
        return file if laid_down(question, file) else question, answer

    @cached_property
    def _folder(self) -> TemporaryDirectory[str]:
        return TemporaryDirectory(prefix="traceprof-")

    @cached_property
    def _local(self) -> Any:
        with dask.config.set(_OF_LOCAL | _BRIEF):
            return LocalCluster(
                n_workers=self._n_processes,
                threads_per_worker=1,
                memory_limit=None,  # Dask would count mapped files, and stop a worker for them
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
            )

    @cached_property
    def _client(self) -> Any:
        where = self._address or self._local
        try:
            with dask.config.set(_BRIEF):
                return Client(where, timeout=_WAITS_FOR_SCHEDULER, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--cluster {self._address}: no scheduler of Dask answers there: {error}"
            ) from error

    def _workers(self) -> list[str]:
        """Return those that there are; who has just died on this machine is soon replaced."""
        found = self._seen_workers()
        wanted = 1 if self._address else self._n_expected
        if len(found) < wanted:
            with suppress(TimeoutError):
                self._client.wait_for_workers(wanted, timeout=_WAITS_FOR_WORKERS_S)
            found = self._seen_workers()
            self._n_expected = max(1, len(found))
        if not found:
            where = self._address or "local"
            raise UsageError(f"--cluster {where}: the scheduler has no workers")
        return found

    def _seen_workers(self) -> list[str]:
        return [*self._client.scheduler_info(n_workers=-1)["workers"]]

    def _choose_owners(self, files: Sequence[str], workers: Sequence[str]) -> None:
        """Choose a worker for every file: of those that have it the one with the fewest."""
        known = set(workers)
        new = [file for file in dict.fromkeys(files) if self._owners.get(file, "") not in known]
        if not new:
            return
        found = self._client.run(_which_are_there, new)
        loads = Counter(owner for file, owner in self._owners.items() if file not in new)
        for place, file in enumerate(new):
            able = [worker for worker in workers if found.get(worker, [False] * len(new))[place]]
            owner = min(able or workers, key=lambda worker: loads[worker])
            self._owners[file] = owner
            loads[owner] += 1


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
