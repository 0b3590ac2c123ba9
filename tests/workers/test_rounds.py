"""Rounds of questions on a cluster that is made up: who dies, and when, is said here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from traceprof.errors import TraceError
from traceprof.model.trace import Trace
from traceprof.workers import dask
from traceprof.workers.dask import Round
from traceprof.workers.pool import Asked
from traceprof.workers.remote import Plan, PlanStep, Question

FILES = ("a", "b", "a", "b", "a", "b", "a")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "_LOOKS_EVERY_S", 0.001)


@dataclass(eq=False)
class Sent:
    cluster: MadeUp
    question: Asked
    owner: str
    tell: Callable[[], None]
    is_dropped: bool = False

    def text(self, most_s: float) -> bytes:
        if self.owner not in self.cluster.workers:
            raise TimeoutError
        return self.question.name.encode()

    def drop(self) -> None:
        self.is_dropped = True


@dataclass
class MadeUp:
    """Workers that answer the question that they have had longest when somebody looks for them.

    Those of ``deaths`` die when so many questions have been sent to them; another comes.
    """

    deaths: dict[str, int] = field(default_factory=dict)
    workers: list[str] = field(default_factory=lambda: ["w0", "w1"])
    sent: list[Sent] = field(default_factory=list)
    open: deque[Sent] = field(default_factory=deque)

    def living(self) -> Sequence[str]:
        if self.open:
            first = self.open.popleft()
            if first.owner in self.workers:
                first.tell()
        return self.workers

    def owners_of(self, files: Sequence[str]) -> Sequence[str]:
        return [self.workers["ab".index(file)] for file in files]

    def send(self, question: Asked, owner: str, tell: Callable[[], None]) -> Sent:
        sent = Sent(self, question, owner, tell)
        self.sent.append(sent)
        self.open.append(sent)
        if sum(one.owner == owner for one in self.sent) == self.deaths.get(owner):
            self.workers[self.workers.index(owner)] = f"{owner}'"
        return sent


def asked(files: Sequence[str]) -> list[Question]:
    return [
        Question(Plan((PlanStep(_nothing, (file,)),)), _nothing, name=str(number))
        for number, file in enumerate(files)
    ]


def _nothing(file: str) -> Trace:
    raise AssertionError(file)


def answers(cluster: MadeUp, files: Sequence[str] = FILES) -> list[tuple[int, bytes]]:
    one = Round(cluster, asked(files))
    one.begin(range(len(files)))
    return sorted(one.answers())


EACH = [(number, str(number).encode()) for number in range(len(FILES))]


def test_all_are_answered_a_few_at_a_time() -> None:
    cluster = MadeUp()
    one = Round(cluster, asked(FILES))
    one.begin(range(len(FILES)))
    assert len(cluster.sent) == 4
    assert sorted(one.answers()) == EACH
    assert [sent.owner for sent in cluster.sent].count("w0") == FILES.count("a")
    assert all(sent.is_dropped for sent in cluster.sent)


@pytest.mark.parametrize("n_sent", [1, 2, 3])
@pytest.mark.parametrize("who", [("w0",), ("w1",), ("w0", "w1"), ("w0", "w0'", "w1")])
def test_what_was_asked_of_the_dead_is_asked_of_others(who: tuple[str, ...], n_sent: int) -> None:
    cluster = MadeUp(dict.fromkeys(who, min(n_sent, 3)))
    assert answers(cluster) == EACH
    assert not {*who} & {*cluster.workers}
    assert all(sent.is_dropped for sent in cluster.sent)
    assert {sent.owner for sent in cluster.sent} >= {*who}


def test_a_question_that_kills_is_not_asked_for_ever() -> None:
    cluster = MadeUp({"w1": 1, "w1'": 1, "w1''": 1})
    with pytest.raises(TraceError, match=r"^b: the workers that read it died \(not enough memory"):
        answers(cluster)
    assert [sent.owner for sent in cluster.sent if sent.question.name == "1"] == [
        *("w1", "w1'", "w1''")
    ]


def test_nothing_to_ask() -> None:
    assert answers(MadeUp(), ()) == []
