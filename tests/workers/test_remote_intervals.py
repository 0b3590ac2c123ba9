from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from tests.workers.conftest import Told
from traceprof.errors import TraceError
from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace
from traceprof.workers import choice, remote_intervals
from traceprof.workers.holder import Holder
from traceprof.workers.remote import Failed, Plan, PlanStep, Pool, Question
from traceprof.workers.remote_intervals import RemoteIntervals, unpacked

ALL = ("breakdown", "stragglers", "ranks", "shared", "rank-steps", "kernels", "whatif", "path")


class Alone(Pool):
    """A pool in this process, in which no set of instants is too small to stay behind."""

    def __init__(self, most_bytes: int = 10**9) -> None:
        self.holder = Holder(most_bytes, n_large=1)
        self.asked: Counter[str] = Counter()

    def ask(self, questions: Sequence[Any]) -> list[Any]:
        for one in questions:
            self.asked[type(one).__name__] += 1
        return [unpacked(self.holder.answer(one), self, one) for one in questions]

    def close(self) -> None:
        pass


@pytest.fixture
def alone() -> Iterator[Alone]:
    pool = Alone()
    choice._pools["", 2] = pool
    yield pool


@pytest.mark.parametrize(("names", "most_bytes"), [(ALL, 10**9), (("stragglers",), 1)])
def test_what_is_said_of_sets_elsewhere_is_what_is_said_of_them_here(
    generated: Path, told: Told, names: tuple[str, ...], most_bytes: int
) -> None:
    here = told(generated, names)
    pool = Alone(most_bytes)
    choice._pools["", 2] = pool
    assert told(generated, names, jobs=2) == here
    assert pool.asked["TimeQuestion"] > 50


class Doubted(Alone):
    """The same; what sets an answer holds is asked of one who was asked nothing before, too."""

    def __init__(self) -> None:
        super().__init__()
        self.differing: list[str] = []
        self._known: set[tuple[str, str]] = set()

    def ask(self, questions: Sequence[Any]) -> list[Any]:
        answers = super().ask(questions)
        for question in (own for own in questions[:1] if isinstance(own, Question)):
            sets = self._sets_of(self.holder, question)
            key = question.measure.__qualname__, question.plan.steps[-1].name
            if sets and key not in self._known:
                self._known.add(key)
                if self._sets_of(Holder(10**9, n_large=1), question) != sets:
                    self.differing.append(question.measure.__qualname__)
        return answers

    def _sets_of(self, holder: Holder, question: Question) -> set[bytes]:
        found: set[bytes] = set()

        def arrived(*args: Any) -> Intervals:
            found.add(args[1])
            return Intervals.empty()

        text = holder.answer(question)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(remote_intervals, "_remote_set", arrived)
            unpacked(text, self, question)
        return found


def test_who_knows_nothing_answers_as_who_was_asked_much_before(
    generated: Path, told: Told
) -> None:
    """Facts keep what is worked out of them: it is no part of an answer."""
    pool = Doubted()
    choice._pools["", 2] = pool
    told(generated, jobs=2)
    assert pool.differing == []
    assert len(pool._known) > 5


def read(path: str) -> Trace:
    return TraceBuilder().kernel("gemm", 0, 100).build()


def times(trace: Trace, starts: list[int], ends: list[int]) -> dict[str, Intervals]:
    return {"own": Intervals.union_of(starts, ends)}


def refused(trace: Trace) -> Intervals:
    raise TraceError("not this one")


def asked(pool: Alone, found: Intervals, file: str = "a") -> Intervals:
    """Return a set as one that lies elsewhere; an empty one always is here."""
    plan = Plan((PlanStep(read, (file,)),))
    starts, ends = found.starts.tolist(), found.ends.tolist()
    answer: dict[str, Intervals] = pool.ask([Question(plan, times, (starts, ends))])[0]
    return answer["own"]


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=8).map(
    lambda pairs: Intervals.union_of([a for a, _ in pairs], [a + n for a, n in pairs])
)
steps = st.lists(st.tuples(st.sampled_from(["|", "&", "-", "r-", "clip"]), spans), max_size=5)


@given(first=spans, others=steps, are_away=st.lists(st.sampled_from("ab-"), min_size=5))
def test_everything_is_as_if_it_were_here(
    first: Intervals, others: list[tuple[str, Intervals]], are_away: list[str]
) -> None:
    pool = Alone()
    here, away = first, asked(pool, first)
    for (how, own), where in zip(others, are_away, strict=False):
        other = own if where == "-" else asked(pool, own, where)
        match how:
            case "|":
                here, away = here | own, away | other
            case "&":
                here, away = here & own, away & other
            case "-":
                here, away = here - own, away - other
            case "r-":
                here, away = own - here, other - away
            case _:
                here, away = here.clip(10, 40), away.clip(10, 40)
    begin, end = np.arange(0, 70, 3), np.arange(5, 75, 3)
    assert away.covered_ns(begin, end).tolist() == here.covered_ns(begin, end).tolist()
    assert (away.total_ns, len(away)) == (here.total_ns, len(here))
    assert away == here
    assert away.gaps(0, 80) == here.gaps(0, 80)


def test_sets_that_came_about_alike_are_asked_about_together() -> None:
    pool = Alone()
    own = [asked(pool, Intervals.union_of([0, 10, 20], [5, 15, 25]), file) for file in "abc"]
    left = [one - Intervals.single(12, 30) for one in own]
    assert all(isinstance(one, RemoteIntervals) for one in left)
    asked_together: list[int] = []
    ask = pool.ask
    pool.ask = lambda questions: (  # type: ignore[method-assign]
        asked_together.append(len(questions)),
        ask(questions),
    )[1]
    assert [one.total_ns for one in left] == [7, 7, 7]
    assert asked_together == [3]


def test_an_error_is_raised_where_it_is_asked() -> None:
    pool = Alone()
    away = asked(pool, Intervals.union_of([0, 10], [5, 15])) - Intervals.single(0, 3)
    pool.ask = lambda _: [Failed(TraceError("gone"))]  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(TraceError, match="gone"):
            len(away)


def test_what_was_lost_is_found_anew() -> None:
    pool = Alone()
    away = asked(pool, Intervals.union_of([0, 10], [5, 15])) - Intervals.single(0, 3)
    pool.holder = Holder(1, n_large=1)
    assert away.total_ns == 7


def prepared(trace: Trace) -> None:
    trace.facts["prepared",] = True


def three(trace: Trace) -> tuple[Intervals, ...]:
    """Return two equal sets, which are one where nothing was known before, and another."""
    first = Intervals.union_of([0, 10], [5, 15])
    equal = Intervals(first.starts, first.ends) if trace.facts else first
    return first, equal, Intervals.union_of([0, 10], [7, 17]), Intervals.union_of([1], [2])


@pytest.mark.parametrize("is_known_first", [False, True])
def test_the_same_sets_are_found_anew_though_equal_ones_were_one(is_known_first: bool) -> None:
    """Their places in the answer differ: counted by these, others would be found, or none."""
    pool, plan = Alone(), Plan((PlanStep(read, ("a",)),))
    ask = Question(plan, prepared)
    if is_known_first:
        pool.ask([ask])
    away = pool.ask([Question(plan, three)])[0]
    left = [own - Intervals.single(0, 1) for own in away]
    pool.holder = Holder(10**9, n_large=1)
    if not is_known_first:
        pool.ask([ask])
    assert [own.total_ns for own in left] == [9, 9, 13, 1]
