"""A crew on a Dask cluster: a scheduler somewhere, or one that is started on this machine."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from traceprof.cluster.memory import share_of, trim, usable_bytes
from traceprof.cluster.progress import Report, no_progress
from traceprof.cluster.rounds import DIED, Round, Sent
from traceprof.cluster.travelling import Asked, is_written, laid_down, picked_up
from traceprof.cluster.worker import Holder
from traceprof.errors import TraceError, UsageError
from traceprof.model.intervals_elsewhere import unpacked
from traceprof.values import dataclass

try:
    import dask
    from distributed import Client, KilledWorker, LocalCluster, get_worker
except ImportError as error:
    raise UsageError(
        "--cluster needs Dask, which is not installed: pip install 'traceprof[cluster]' "
        "(--jobs N needs nothing)"
    ) from error

__all__ = ["DaskCrew"]

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
