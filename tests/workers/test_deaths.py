"""Whoever dies, and whenever: the page is the same."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workers.conftest import Told
from traceprof.workers import choice
from traceprof.workers.dask import DaskPool
from traceprof.workers.pool import ProcessPool

pytestmark = pytest.mark.filterwarnings("ignore")  # those of Dask are its own

Pids = Callable[[Any], list[int]]
AT_ANSWERS = (1, 60, 222)


def pids_of_pool(pool: ProcessPool) -> list[int]:
    return pool.pids()


def pids_of_dask(pool: DaskPool) -> list[int]:
    return [nanny.pid for nanny in pool._local.workers.values() if nanny.pid]


@pytest.mark.parametrize(
    ("scheduler", "make", "pids_of"),
    [("", ProcessPool, pids_of_pool), ("local", DaskPool, pids_of_dask)],
)
def test_deaths_change_nothing(
    generated: Path, told: Told, scheduler: str, make: Any, pids_of: Pids
) -> None:
    n_answers = 0
    killed: list[int] = []

    def kill(done: int, total: int) -> None:
        nonlocal n_answers
        n_answers += done > 0
        if done and n_answers in AT_ANSWERS:
            living = [pid for pid in pids_of(pool) if pid not in killed]
            victim = living[len(killed) % len(living)]
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

    pool = make("", 2, kill) if scheduler else make(2, kill)
    choice._pools[scheduler, 2] = pool
    assert told(generated, scheduler=scheduler, jobs=2) == told(generated)
    assert len(killed) == len(AT_ANSWERS)
