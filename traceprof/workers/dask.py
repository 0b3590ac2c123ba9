"""Workers on a Dask cluster: an existing scheduler, or one started on this machine."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from traceprof.errors import TraceError, UsageError
from traceprof.processes import share_of, usable_bytes
from traceprof.workers.holder import Holder
from traceprof.workers.pool import (
    POLL_INTERVAL_S,
    Asked,
    Report,
    WorkerPool,
    no_progress,
    picked_up,
)

try:
    import dask
    from distributed import Client, KilledWorker, LocalCluster, get_worker
    from distributed.comm.core import connect
    from distributed.security import Security
except ImportError as error:
    raise UsageError(
        "--cluster needs Dask; run pip install 'traceprof[cluster]', or use --jobs N, which works "
        "without Dask"
    ) from error

_SCHEDULER_TIMEOUT_S: Final = 10.0
_WORKERS_TIMEOUT_S: Final = 10
_REPLACEMENT_TIMEOUT_S: Final = 60
"""Time to wait for the replacement of a dead local worker. It takes longer under load."""
_LOCAL_SETTINGS: Final = {
    # A worker that takes over a question must first read its file.
    "distributed.scheduler.work-stealing": False,
    # The profiler samples every worker a hundred times per second and keeps the samples.
    "distributed.worker.profile.enabled": False,
    # Any user of this machine could open these pages.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # Replaces Dask's setting to return each freed array to the system, which doubles CPU time.
    "distributed.nanny.pre-spawn-environ": {"OMP_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1},
}
_NO_MESSAGE_LOG: Final = {"distributed.admin.low-level-log-length": 0}
"""Without this, both ends of a connection keep the last thousand messages, including the questions.

Dask reads the setting when a connection begins, also to a worker that replaces another.
"""
_NO_GRAPH_WARNING: Final = {"distributed.admin.large-graph-warning-threshold": "1TB"}
"""A question may contain sets of instants that all ranks share. Dask would warn about each."""
_holders: Final[dict[int, Holder]] = {}


class _LostAnswerError(Exception):
    """The worker that held an answer died before the answer was read."""


class DaskPool(WorkerPool):
    """Dask workers that answer questions. Questions about a file go to a worker that can read it.

    ``address`` is that of the scheduler; "" starts one here, with ``n_workers``.
    """

    n_ahead = 2  # one to answer, one waiting
    deaths = (KilledWorker, _LostAnswerError)
    died = (
        "the workers reading this file died (out of memory?); use fewer workers, so that each has "
        "more memory"
    )

    def __init__(self, address: str, n_workers: int, progress: Report = no_progress) -> None:
        super().__init__(n_workers, progress)
        self._address = address
        self._n_expected = self._n_found = n_workers
        self._settings = ExitStack()
        self._done: SimpleQueue[_Sent] = SimpleQueue()

    def living(self) -> Collection[str]:
        """Return the current workers."""
        return [*self._client.scheduler_info(n_workers=-1)["workers"]]

    def workers(self) -> Collection[str]:
        """Return the current workers; wait for replacements of local workers that just died.

        Raises:
            UsageError: there are no workers.
        """
        found = self.living()
        wanted = 1 if self._address else self._n_expected
        if len(found) < wanted:
            timeout_s = _WORKERS_TIMEOUT_S if self._address else _REPLACEMENT_TIMEOUT_S
            with suppress(TimeoutError):
                self._client.wait_for_workers(wanted, timeout=timeout_s)
            found = self.living()
            self._n_expected = max(1, len(found))
        if not found:
            where = self._address or "local"
            raise UsageError(f"--cluster {where}: the scheduler has no workers; start some first")
        self._n_found = len(found)
        return found

    def able(self, files: Sequence[str], workers: Collection[str]) -> Sequence[Collection[str]]:
        """Return, for each file, the workers that can read it; empty for local workers: any can."""
        # A worker that dies during the call is omitted.
        found = (
            self._client.run(_which_are_there, files, on_error="ignore") if self._address else {}
        )
        return [
            [worker for worker in workers if worker in found and found[worker][place]]
            for place in range(len(files))
        ]

    def submit(self, worker: str, question: Asked) -> Any:
        """Send a question to a worker; return the future of its answer.

        A local question stays with its worker, since another worker would first have to read the
        file. On a cluster, a worker may be stopped for its memory, and another one takes over.
        """
        # Use files: a scheduler in this process would hold several copies of questions and answers
        # in transit, and an answer would be lost with its worker.
        asked = question if self._address else self.posted(question)
        answer = None if self._address else self.new_file()
        with dask.config.set(_NO_GRAPH_WARNING):
            future = self._client.submit(
                _answer,
                asked,
                answer,
                self._n_found,
                workers=[worker],
                allow_other_workers=bool(self._address),
                pure=False,
            )
        sent = _Sent(future, asked, answer)
        future.add_done_callback(lambda _: self._done.put(sent))
        return sent

    def next_done(self, asked: Mapping[int, Any]) -> int | None:
        """Return the key of a finished future; None if none finished, or it was asked again."""
        try:
            sent = self._done.get(timeout=POLL_INTERVAL_S)
        except Empty:
            return None
        # None for a question that was asked again meanwhile.
        return next((key for key, future in asked.items() if future is sent), None)

    def close(self) -> None:
        """Disconnect from the cluster; end it if it was started here."""
        super().close()
        if client := self.__dict__.pop("_client", None):
            client.close()
        if local := self.__dict__.pop("_local", None):
            local.close(timeout=_WORKERS_TIMEOUT_S)
        self._settings.close()

    @cached_property
    def _local(self) -> Any:
        try:
            with dask.config.set(_LOCAL_SETTINGS):
                return LocalCluster(
                    n_workers=self.n_workers,
                    threads_per_worker=1,
                    memory_limit=None,  # Dask would count mapped files and stop workers
                    dashboard_address="127.0.0.1:0",
                    security=Security.temporary(),  # other users could send work
                    death_timeout=_REPLACEMENT_TIMEOUT_S,  # Dask waits forever by default
                    silence_logs=logging.CRITICAL,
                )
        except ImportError as error:
            raise UsageError(
                f"--cluster local: {error}; run pip install 'traceprof[cluster]', or use --jobs N"
            ) from error
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"--cluster local: cannot start workers ({error}); use --jobs N, which needs fewer "
                "processes and threads (see ulimit -u)"
            ) from error

    @cached_property
    def _client(self) -> Any:
        with ExitStack() as settings:
            settings.enter_context(dask.config.set(_NO_MESSAGE_LOG))
            where = self._address or self._local
            if self._address:
                _check_scheduler(self._address)
            try:
                client = Client(where, timeout=_SCHEDULER_TIMEOUT_S, set_as_default=False)
            except (OSError, ValueError) as error:
                raise _no_scheduler(self._address, error) from error
            self._settings = settings.pop_all()  # until the client is closed
            return client


def _check_scheduler(address: str) -> None:
    """Check that a Dask scheduler answers at ``address``. A Dask client would wait forever.

    Raises:
        UsageError: no scheduler answers.
    """
    answers: list[Any] = []

    def ask() -> None:  # this thread may already run an event loop
        try:
            answers.append(asyncio.run(asyncio.wait_for(_identity(address), _SCHEDULER_TIMEOUT_S)))
        except Exception as error:  # noqa: BLE001 - whatever it is, no scheduler answers
            answers.append(error)

    asking, log = threading.Thread(target=ask, daemon=True), logging.getLogger("distributed")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)  # it would print unreadable replies
    try:
        asking.start()
        asking.join()
    finally:
        log.setLevel(level)
    (found,) = answers
    if not isinstance(found, dict) or found.get("type") != "Scheduler":
        raise _no_scheduler(address, found if isinstance(found, Exception) else None)


async def _identity(address: str) -> Any:
    arguments = Security().get_connection_args("client")
    # Do not deserialize the reply: that could run arbitrary code.
    there = await connect(address, _SCHEDULER_TIMEOUT_S, deserialize=False, **arguments)
    try:
        await there.write({"op": "identity", "reply": True})
        return await there.read()
    finally:
        there.abort()


def _no_scheduler(address: str, error: Exception | None) -> UsageError:
    reason = f" ({error})" if error is not None and str(error) else ""
    return UsageError(f"--cluster {address}: no Dask scheduler answers at this address{reason}")


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """A question that was sent to a worker, and the files that may contain it and its answer."""

    future: Any
    asked: Asked | bytes | Path
    answer: Path | None

    def result(self) -> bytes:
        if self.answer is not None and self.future.status == "finished" and self.answer.exists():
            text = self.answer.read_bytes()
        else:
            text = self._result()
        for file in (self.asked, self.answer):
            if isinstance(file, Path):
                file.unlink(missing_ok=True)
        return text

    def _result(self) -> bytes:
        try:
            text = self._received()
        except (KilledWorker, CancelledError, _LostAnswerError):
            raise
        except Exception as error:
            raise _no_answer(f"{type(error).__name__}: {error}") from error
        if not isinstance(text, bytes):
            raise _no_answer(f"a {type(text).__name__}")
        return text

    def _received(self) -> Any:
        """Return the answer that is on its way.

        A future whose answer is lost is pending again, forever if only the dead worker may answer.
        """
        while self.future.status not in ("pending", "lost"):
            try:
                return self.future.result(timeout=POLL_INTERVAL_S)
            except TimeoutError:
                if self.future.status == "error":  # it is the worker's
                    raise
        raise _LostAnswerError


def _no_answer(what: str) -> TraceError:
    return TraceError(
        f"a cluster worker cannot answer ({what}); install the same versions of traceprof and "
        "Python on the workers as on this machine"
    )


def _answer(asked: Asked | bytes | Path, file: Path | None, n_workers: int) -> bytes | None:
    """Answer a question in a worker, which keeps its traces; None: the answer is in ``file``."""
    question = picked_up(asked) if isinstance(asked, bytes | Path) else asked
    limit = get_worker().memory_manager.memory_limit
    most_bytes = share_of(limit) if limit else usable_bytes(n_workers)
    text = _holders.setdefault(0, Holder(most_bytes)).answer(question)
    if file is not None:
        with suppress(OSError):  # no room: return it directly
            file.write_bytes(text)
            return None
    return text


def _which_are_there(files: Sequence[str]) -> list[bool]:
    return [Path(file).is_file() for file in files]
