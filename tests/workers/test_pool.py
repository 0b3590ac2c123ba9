import os
import signal
from multiprocessing import active_children
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from tests.workers.conftest import STRAGGLER, Told
from traceprof.errors import TraceError
from traceprof.model.trace import Trace, TraceInfo, make_trace
from traceprof.workers.pool import ProcessPool
from traceprof.workers.remote import Failed, Plan, PlanStep, Question

ACROSS_RANKS = ("stragglers", "ranks", "shared", "rank-steps", "alignment", "kernels", "whatif")


def empty(path: str) -> Trace:
    return make_trace(TraceInfo(path), {}, ())


def number_of(trace: Trace, number: int) -> int:
    return number if len(trace.kernels.to_frame()) == 0 else -1


def process_of(trace: Trace) -> int:
    return os.getpid()


def die(trace: Trace) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(trace: Trace) -> None:
    raise TraceError("not this one")


def sums_of(trace: Trace, *arrays: np.ndarray) -> list[int]:
    return [int(own.sum()) for own in arrays]


def keep_a_secret(trace: Trace) -> Any:
    return lambda: trace


def asked(measure: Any, *args: Any, file: str = "a") -> Question:
    return Question(Plan((PlanStep(empty, (file,)),)), measure, args)


@pytest.fixture
def pool() -> Any:
    made = ProcessPool(2)
    yield made
    made.close()


def test_many_processes_say_what_one_says(generated: Path, told: Told) -> None:
    alone = told(generated, ACROSS_RANKS)
    assert f"rank {STRAGGLER}" in alone
    assert told(generated, ACROSS_RANKS, jobs=3) == alone


def test_arrays_of_any_size_are_sent_as_they_are(pool: ProcessPool) -> None:
    sizes = [0, 1, 8191, 8192, 8193, 300_000]
    arrays = [np.arange(size) for size in sizes]
    own = (*arrays, arrays[-1][::2], np.asfortranarray(np.ones((300, 300), np.int16)))
    expected = [int(array.sum()) for array in own]
    questions = [asked(sums_of, *own, file=name) for name in "abc"]
    assert pool.ask(questions) == [expected] * 3


def test_answers_come_in_the_order_of_the_questions(pool: ProcessPool) -> None:
    files = [f"file{number % 3}" for number in range(20)]
    questions = [asked(number_of, n, file=file) for n, file in enumerate(files)]
    assert pool.ask(questions) == list(range(20))
    assert pool.ask([]) == []


def test_one_process_holds_a_file(pool: ProcessPool) -> None:
    files = ["a", "b", "a", "b", "a"]
    held = dict.fromkeys(files, 0)
    found = pool.ask([asked(process_of, file=file) for file in files])
    for file, process in zip(files, found, strict=True):
        assert held[file] in (0, process)
        held[file] = process
    assert len(set(held.values())) == 2
    assert os.getpid() not in held.values()


def test_a_question_that_kills_is_not_asked_for_ever(pool: ProcessPool) -> None:
    with pytest.raises(TraceError, match=r"^a: the process reading this file died 3 times"):
        pool.ask([asked(die), asked(number_of, 7, file="b")])
    assert pool.ask([asked(number_of, 8)]) == [8]


def test_an_error_is_an_answer(pool: ProcessPool) -> None:
    refused, secret, known = pool.ask([asked(refuse), asked(keep_a_secret), asked(number_of, 1)])
    assert isinstance(refused, Failed)
    assert str(refused.error) == "not this one"
    assert isinstance(refused.error, TraceError)
    assert isinstance(secret, Failed)
    assert "cannot be serialized" in str(secret.error)
    assert known == 1


def test_who_interrupts_leaves_no_process_behind() -> None:
    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    pool = ProcessPool(2, interrupt)
    before = set(active_children())
    with pytest.raises(KeyboardInterrupt):
        pool.ask([asked(number_of, 1), asked(number_of, 2, file="b")])
    assert set(active_children()) <= before
    assert pool.pids() == []


def test_a_rank_that_cannot_be_read_is_named(generated: Path, told: Told, tmp_path: Path) -> None:
    run = tmp_path / "run"
    copytree(generated, run)
    damaged = run / "rank3.sqlite"
    damaged.write_bytes(damaged.read_bytes()[:50_000])
    for jobs in (1, 2):
        with pytest.raises(
            TraceError, match=rf"^{damaged}: .*; use --allow-missing to ignore this file$"
        ):
            told(run, jobs=jobs)
    alone = told(run, allow_missing=True)
    assert f"traceprof ignored a file: {damaged}" in alone
    assert told(run, allow_missing=True, jobs=2) == alone
