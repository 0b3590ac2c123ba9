import pickle
from errno import ENOSPC
from typing import Any

import numpy as np
import pytest

from tests.builders import TraceBuilder
from traceprof.model.intervals import Intervals
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.workers import holder as holders
from traceprof.workers import spill
from traceprof.workers.holder import Holder
from traceprof.workers.remote import Failed, Plan, PlanStep, Question

made: list[str] = []


def read(path: str) -> Trace:
    made.append(f"read {path}")
    return TraceBuilder().kernel("gemm", 0, 100).kernel("relu", 100, 200).build()


def change(trace: Trace, name: str) -> Trace:
    made.append(name)
    return trace


def n_kernels(trace: Trace) -> int:
    return len(trace.kernels.to_frame())


def asked(holder: Holder, plan: Plan) -> Any:
    made.clear()
    return pickle.loads(holder.answer(Question(plan, n_kernels)))


def plan_of(path: str) -> Plan:
    return Plan((PlanStep(read, (path,)),))


def test_what_is_made_is_kept() -> None:
    holder = Holder(1_000_000)
    first = plan_of("a")
    placed = first.then(PlanStep(change, ("placed",)))
    assert asked(holder, first) == 2
    assert made == ["read a"]
    assert asked(holder, placed) == 2
    assert made == ["placed"]
    cut = placed.then(PlanStep(Trace.within, (TimeWindow(0, 50),)))
    assert asked(holder, cut) == 1
    assert asked(holder, placed) == 2
    assert made == []
    assert asked(holder, plan_of("a")) == 2  # read by another command: anew
    assert made == ["read a"]


def test_several_ranks_of_one_file() -> None:
    holder = Holder(1_000_000)
    file = plan_of("a")
    ranks = [file.then(PlanStep(change, (f"rank {n}",), takes_part=True)) for n in range(3)]
    for rank in ranks:
        asked(holder, rank)
    placed = [rank.then(PlanStep(change, ("placed",))) for rank in ranks]
    for rank in placed:
        assert asked(holder, rank) == 2
        assert made == ["placed"]


def test_the_oldest_is_spilled_where_memory_is_short() -> None:
    holder = Holder(1)
    first, other = plan_of("a"), plan_of("b")
    cut = first.then(PlanStep(Trace.within, (TimeWindow(0, 50),)))
    assert asked(holder, first) == 2
    assert asked(holder, cut) == 1
    for _ in range(3):
        assert asked(holder, other) == 2
        assert asked(holder, cut) == 1
        assert asked(holder, first) == 2
        assert "read a" not in made
    assert made == []


def test_where_the_disk_is_full_the_oldest_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> Any:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(spill.tempfile, "TemporaryFile", full)
    holder = Holder(1)
    asked(holder, first := plan_of("a"))
    asked(holder, plan_of("b"))
    assert asked(holder, first) == 2
    assert made == ["read a"]


@pytest.mark.parametrize("taken", [101, 100, None])
def test_what_the_process_takes_decides_what_is_spilled(
    taken: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spilled = []
    write = spill.Spill.spill
    monkeypatch.setattr(holders, "used_memory_bytes", lambda: taken)
    monkeypatch.setattr(
        spill.Spill, "spill", lambda self, known: spilled.append(1) or write(self, known)
    )
    holder = Holder(100)
    asked(holder, first := plan_of("a"))
    asked(holder, plan_of("b"))
    assert bool(spilled) == (taken != 100)
    asked(holder, first)
    assert made == []


def test_sets_of_instants_that_were_asked_last_are_spilled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holders, "_MAX_SETS_BYTES_SPILLED", 16)
    held = holders._HeldFile(0)
    for n in range(3):
        held._keep((str(n), b""), Intervals(np.array([n]), np.array([n + 1])))
    assert held.spill()
    held._load()
    assert [name for name, _ in held._sets] == ["2"]


def test_an_error_is_the_answer() -> None:
    answer = pickle.loads(Holder(1).answer(Question(plan_of("a"), Trace.require, ("samples",))))
    assert isinstance(answer, Failed)
