"""A process that does what is untrusted, within limits."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from traceprof.errors import TraceError
from traceprof.workers.limited import Limited, OutOfTimeError, ProcessDiedError


def refuse(name: str) -> None:
    raise TraceError(f"{name}: damaged")


def sums(parts: Iterator[int], start: int) -> Iterator[int]:
    yield start
    yield start + sum(parts)


def fails(parts: Iterator[Any]) -> Iterator[None]:
    yield from map(refuse, ["a.pickle"])


def hangs(parts: Iterator[Any]) -> Iterator[None]:
    nested: Any = ()
    for _ in range(64):
        nested = nested, nested
    hash(nested)  # in C: no signal and no exception reaches it
    yield


def dies(parts: Iterator[Any]) -> Iterator[None]:
    yield from map(os._exit, [9])


def takes(parts: Iterator[Any], n_bytes: int) -> Iterator[int]:
    yield len(bytes(n_bytes))


def test_it_takes_parts_and_answers_more_than_once() -> None:
    with Limited(sums, 5) as limited:
        assert limited.answer() == 5
        for part in (1, 0, 2):
            limited.send(part)
        limited.finish()
        assert limited.answer() == 8


def test_what_the_work_raises_is_raised_here() -> None:
    with Limited(fails) as limited, pytest.raises(TraceError, match=r"a\.pickle: damaged"):
        for _ in range(1000):  # more than a pipe holds, and nobody takes it
            limited.send("x" * 1000)
        limited.answer()


def test_work_that_never_ends_is_killed() -> None:
    with Limited(hangs) as limited:
        with pytest.raises(OutOfTimeError):
            limited.answer(0.1)
        limited._started.process.join()
        assert limited._started.process.exitcode != 0


def test_a_process_that_dies_is_seen() -> None:
    with Limited(dies) as limited, pytest.raises(ProcessDiedError):
        limited.answer()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds memory")
def test_memory_is_bounded() -> None:
    with Limited(takes, 1 << 20, most_bytes=256 << 20) as limited:
        assert limited.answer() == 1 << 20
    with Limited(takes, 1 << 30, most_bytes=256 << 20) as limited, pytest.raises(MemoryError):
        limited.answer()
