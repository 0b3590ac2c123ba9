import gc
import logging
import os
import random
import signal
import socket
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import LocalCluster
from distributed.batched import BatchedSend

from tests.builders import TraceBuilder
from tests.workers.conftest import Told
from traceprof.errors import TraceError, UsageError
from traceprof.model.trace import Trace
from traceprof.workers.dask import DaskPool, _Sent
from traceprof.workers.remote import Plan, PlanStep, Question

LOG_LENGTH = "distributed.admin.low-level-log-length"
DEADLY = "deadly"

pytestmark = pytest.mark.filterwarnings("ignore")  # those of Dask are its own


def test_a_cluster_says_what_one_process_says(generated: Path, told: Told) -> None:
    names = ("stragglers",)
    assert told(generated, names, scheduler="local", jobs=2) == told(generated, names)


def test_workers_are_asked_a_few_questions_at_a_time(
    generated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler in the process of the command keeps what it was asked, and its answers."""
    n_done, most = 0, 0
    asked: list[int] = []

    def progress(done: int, _: int) -> None:
        nonlocal n_done
        n_done = done

    pool = DaskPool("", 1, progress)
    submit = pool._client.submit

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal most
        asked.append(len(asked))
        most = max(most, len(asked) - n_done)
        return submit(*args, **kwargs)

    monkeypatch.setattr(pool._client, "submit", counted)
    try:
        found = pool.ask(_questions_of_one(generated, 9))
    finally:
        pool.close()
    assert found == list(range(9))
    assert (len(asked), most) == (9, 3)  # two, and one for the answer that has just come


def test_connections_do_not_keep_what_was_asked(generated: Path) -> None:
    """Dask's last messages hold questions: of a run of 64 large ranks half a gigabyte.

    Also those to a worker that came in the place of another.
    """
    before = dask.config.get(LOG_LENGTH)
    pool = DaskPool("", 1)
    questions = _questions_of_one(generated, 3)
    try:
        pool.ask(questions)
        _kill_one(pool)
        pool.ask(questions)
        ends = [
            one for one in gc.get_objects() if isinstance(one, BatchedSend) and not one.closed()
        ]
        assert len(ends) >= 2  # to the scheduler, and its to the worker
        assert [one.batch_count > 0 for one in ends].count(True) >= 2
        assert not [one for one in ends if one.recent_message_log]
    finally:
        pool.close()
    assert dask.config.get(LOG_LENGTH) == before > 0


def test_who_dies_is_replaced_before_files_are_shared_out_anew(generated: Path) -> None:
    """Else all files would go to who is left, and stay there."""
    pool = DaskPool("", 2)
    questions = _questions_of_each(generated)
    try:
        pool.ask(questions)
        before = set(pool._owners.values())
        address = _kill_one(pool)
        assert pool.ask(questions) == list(range(len(questions)))
        owners = Counter(pool._owners.values())
    finally:
        pool.close()
    assert len(before) == 2
    assert address not in owners
    assert sorted(owners.values()) == [2, 2]


def test_a_question_is_asked_again_where_nobody_is_left(generated: Path) -> None:
    """A scheduler keeps what was meant for a worker that died while there was no other."""
    killed: list[int] = []

    def kill(done: int, _: int) -> None:
        if done == 2:
            killed.extend(pids := pool._client.run(os.getpid).values())
            for pid in pids:
                os.kill(pid, signal.SIGKILL)

    pool = DaskPool("", 1, kill)
    try:
        found = pool.ask(_questions_of_one(generated, 9))
    finally:
        pool.close()
    assert found == list(range(9))
    assert len(killed) == 1


def test_an_answer_that_is_lost_with_its_worker_is_asked_for_again(generated: Path) -> None:
    """Two answers wait to be read while their worker dies, and the scheduler knows of it."""
    killed: list[str] = []

    def kill(done: int, _: int) -> None:
        if done == 2:
            sent = [pool._done.get(timeout=60) for _ in range(2)]
            killed.append(_kill_one(pool))
            for one in sent:
                while one.future.status == "finished":
                    pass
                pool._done.put(one)

    pool = DaskPool("", 1, kill)
    try:
        found = pool.ask(_questions_of_one(generated, 9))
    finally:
        pool.close()
    assert found == list(range(9))
    assert len(killed) == 1


def test_who_dies_while_files_are_looked_for_is_done_without(
    generated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On workers that run elsewhere: those of this machine see the same files."""
    monkeypatch.setattr("traceprof.workers.dask._which_are_there", _die_or_tell)
    questions = _questions_of_each(generated)
    deadly = generated / DEADLY
    deadly.touch()
    where = {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    with LocalCluster(n_workers=2, threads_per_worker=1, **where) as elsewhere:
        pool = DaskPool(elsewhere.scheduler_address, 2)
        assert pool.ask(questions) == list(range(len(questions)))
        pool.close()
    assert not deadly.exists()


def _die_or_tell(files: list[str]) -> list[bool]:
    """Die, if nobody has; the others have all files."""
    with suppress(FileNotFoundError):
        Path(files[0]).with_name(DEADLY).unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return [True] * len(files)


def _kill_one(pool: DaskPool) -> str:
    """Kill a worker, wait until that is known, and return its address."""
    address, pid = next(iter(pool._client.run(os.getpid).items()))
    os.kill(pid, signal.SIGKILL)
    while address in pool.living():
        pass
    return str(address)


def _questions_of_one(run: Path, n: int) -> list[Question]:
    """Return so many questions about one file, of which each is answered by its number."""
    file = min(run.iterdir())
    return [Question(_plan_of(file), _with_number, (number,)) for number in range(n)]


def _questions_of_each(run: Path) -> list[Question]:
    """Return a question about each file, answered by its number."""
    files = sorted(run.glob("*.sqlite"))
    return [Question(_plan_of(file), _with_number, (i,)) for i, file in enumerate(files)]


def _plan_of(file: Path) -> Plan:
    return Plan((PlanStep(_trace_of, (file,)),))


def _trace_of(_: Path) -> Trace:
    return TraceBuilder().build()


def _with_number(_: Trace, number: int) -> int:
    return number


def test_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceprof.workers.dask._SCHEDULER_TIMEOUT_S", 0.2)
    pool = DaskPool("tcp://127.0.0.1:1", 1)
    with pytest.raises(UsageError, match=r"--cluster tcp://127.0.0.1:1: no Dask scheduler"):
        pool.ask([Question(_plan_of(Path("a")), _with_number, (0,))])
    assert dask.config.get(LOG_LENGTH) > 0  # as it was, whether that pool is closed or not
    pool.close()


def test_workers_that_cannot_be_started_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr("traceprof.workers.dask.LocalCluster", refuse)
    with pytest.raises(UsageError, match=r"cluster local: cannot start workers.*ulimit -u"):
        DaskPool("", 2).workers()


def _frames(*lengths: int) -> bytes:
    return b"".join(length.to_bytes(8, "little") for length in lengths)


@pytest.mark.parametrize(
    "said",
    [
        b"",  # it listens, and is silent
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(1 << 16),
        _frames(1 << 40) + b"x",
        _frames(1, 1 << 60) + b"x",
        _frames(16, 1, 0) + _frames(16, 1, 0),
        random.Random(5).randbytes(1 << 12),
        b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    ],
)
def test_who_is_no_scheduler_is_left_alone_within_a_bounded_time(
    said: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("traceprof.workers.dask._SCHEDULER_TIMEOUT_S", 1.0)
    met: list[socket.socket] = []

    def answer() -> None:
        with suppress(OSError):
            while True:
                met.append(listening.accept()[0])
                met[-1].sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, daemon=True).start()
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        pool = DaskPool(address, 1)
        with pytest.raises(UsageError, match=f"--cluster {address}: no Dask scheduler"):
            pool.workers()
        pool.close()
    for one in met:
        one.close()
    assert met
    assert capfd.readouterr().err == ""


def test_others_cannot_send_work_to_a_cluster_of_this_machine(generated: Path) -> None:
    pool = DaskPool("", 1)
    assert pool.workers()
    address = str(pool._local.scheduler_address)
    stranger = DaskPool(address.replace("tls://", "tcp://"), 1)
    with pytest.raises(UsageError, match="no Dask scheduler answers at this address"):
        stranger.workers()
    without_certificate = DaskPool(address, 1)
    with pytest.raises(UsageError, match="no Dask scheduler answers at this address"):
        without_certificate.workers()
    assert pool.ask([Question(_plan_of(generated), _with_number, (7,))]) == [7]
    pool.close()


def test_an_answer_of_a_worker_that_is_none_is_said(generated: Path) -> None:
    class Future:
        status = "finished"

        def __init__(self, answer: object) -> None:
            self.answer = answer

        def result(self, timeout: float) -> object:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    for answer, what in ((ModuleNotFoundError("No module named 'traceprof'"), "No module"),
                         ({"rubbish": 1}, "a dict"), (None, "a NoneType")):  # fmt: skip
        with pytest.raises(TraceError, match=f"a cluster worker cannot answer.*{what}"):
            _Sent(Future(answer), b"", None).result()
