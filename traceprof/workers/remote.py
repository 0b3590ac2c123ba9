"""Traces in another process: questions go there, and only answers come back.

A remote Trace is a plan: the functions that create it from its file, one after another. A worker
creates the Trace by following the plan, so a lost Trace can be created again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Protocol, Self, TypeVar, cast
from uuid import uuid4

from traceprof.model.table import RowsOf, Table
from traceprof.model.tables import TABLES, empty_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

_Answer = TypeVar("_Answer")
_EVENTS: Final = frozenset(name for name, table in TABLES.items() if table.has_times)
"""The tables that grow with the recording; the other tables travel with the head of a Trace."""
_FIELDS: Final = frozenset(field.name for field in fields(Trace))


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a plan: a function, and its arguments besides the Trace so far.

    Steps with the same ``name`` are equal. ``takes_part``: several Traces are derived from the
    Trace before this step, so it is still needed.
    """

    make: Callable[..., Trace] = field(compare=False)
    args: tuple[Any, ...] = field(compare=False, default=())
    takes_part: bool = field(compare=False, default=False)
    name: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a Trace is created: read from a file, then changed."""

    steps: tuple[PlanStep, ...]

    @property
    def file(self) -> str:
        """The file from which the Trace is read."""
        return str(self.steps[0].args[0])

    def then(self, step: PlanStep) -> Plan:
        """Return the plan extended by ``step``."""
        return Plan((*self.steps, step))


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a Trace: a function that pickles by name, and its other arguments."""

    plan: Plan
    measure: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    name: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer to a question that raised an error."""

    error: Exception


class Pool(Protocol):
    """The processes that hold the Traces."""

    @abstractmethod
    def ask(self, questions: Sequence[Any], /) -> list[Any]:
        """Return the answers in the order of the questions, `Failed` for each raised error.

        A question is a `Question`, or a `TimeQuestion` about sets of instants.

        Raises:
            TraceprofError: no worker can answer a question.
        """
        ...

    def close(self) -> None:
        """Drop all held data; the next question starts again."""

    def read(
        self, read: Callable[..., Trace], roots: Sequence[tuple[Any, ...]]
    ) -> list[RemoteTrace | Exception]:
        """Return the remote Trace ``read(*root)`` for each of ``roots``, or the raised error."""
        siblings: list[RemoteTrace] = []
        made = [RemoteTrace(self, Plan((PlanStep(read, args),)), siblings) for args in roots]
        failed = _fetch_heads(made)
        siblings[:] = [trace for trace in made if trace not in failed]
        return [failed.get(trace, trace) for trace in made]


class RemoteTrace(Trace):
    """A Trace that a pool holds. Small data is here; events stay in the other process.

    ``siblings`` are the Traces that were created in the same way, including this one. A fact of one
    Trace is measured for all of them at once.
    """

    __slots__ = ("_head", "plan", "pool", "siblings")

    is_remote = True

    pool: Pool
    plan: Plan
    siblings: list[RemoteTrace]
    uncut: RemoteTrace | None
    _head: Trace | None

    def __init__(
        self,
        pool: Pool,
        plan: Plan,
        siblings: list[RemoteTrace],
        within: tuple[RemoteTrace, TimeWindow] | None = None,
    ) -> None:
        known = {"pool": pool, "plan": plan, "siblings": siblings, "_head": None}
        known |= {"uncut": None, "facts": {}}
        if within is not None:
            known["uncut"], known["span"] = within
        for name, value in known.items():
            object.__setattr__(self, name, value)
        siblings.append(self)

    def __getattr__(self, name: str) -> Any:
        """Return a field of `Trace`: event tables are fetched, other fields are in the head."""
        if name not in _FIELDS:
            raise AttributeError(name)
        if name in _EVENTS:
            return self._events(name)
        return getattr(self.head, name)

    def _events(self, name: str) -> Table:
        """Fetch a table of events."""
        return self.measure_all([self], Trace.table, [(name,)], {})[0]

    @property
    def head(self) -> Trace:
        """The Trace without its events."""
        if self.uncut is not None:
            return self.uncut.head
        if self._head is None:
            failed = _fetch_heads([trace for trace in self.siblings if trace._head is None])
            if self in failed:
                raise failed[self]
        assert self._head is not None
        return self._head

    def fact(self, key: tuple[Any, ...], measure: Callable[..., _Answer], *given: Any) -> _Answer:
        """Return ``measure`` of this Trace; measure its siblings in the same round.

        The results are cached under ``key`` in the facts of each Trace.
        """
        args, kwargs = given
        missing = [trace for trace in self.siblings if key not in trace.facts]
        more = tuple(sorted(kwargs.items()))
        answers = self.pool.ask([Question(trace.plan, measure, args, more) for trace in missing])
        for trace, answer in zip(missing, answers, strict=True):
            if not isinstance(answer, Failed):
                trace.facts[key] = answer
            elif trace is self:
                raise answer.error
        return cast("_Answer", self.facts[key])

    @classmethod
    def measure_all(
        cls,
        traces: Sequence[Any],
        measure: Callable[..., _Answer],
        args: Sequence[tuple[Any, ...]],
        kwargs: Mapping[str, Any],
    ) -> list[_Answer]:
        """Return ``measure(trace, ...)`` for each of ``traces``, computed where they are held."""
        more = tuple(kwargs.items())
        questions = [
            Question(trace.plan, measure, trace_args, more)
            for trace, trace_args in zip(traces, args, strict=True)
        ]
        return answers_of(traces[0].pool, questions)

    @classmethod
    def change_all(
        cls,
        traces: Sequence[Any],
        change: Callable[..., Trace],
        args: Sequence[tuple[Any, ...]],
        *,
        takes_part: bool = False,
    ) -> list[Trace]:
        """Return ``change(trace, ...)`` for each of ``traces``, held where they are."""
        siblings: list[RemoteTrace] = []
        made: list[Trace] = []
        for trace, trace_args in zip(traces, args, strict=True):
            within = None
            if change is Trace.within:
                within = trace.whole, *trace_args
            step = PlanStep(change, trace_args, takes_part)
            made.append(cls(trace.pool, trace.plan.then(step), siblings, within))
        return made

    def within(self, window: TimeWindow) -> Self:
        """Return the part of the Trace inside ``window``, held by the same process."""
        return cast("Self", self.change_all([self], Trace.within, [(window,)])[0])

    def rows_in_whole(self, name: str) -> RowsOf:
        """Return the row numbers of table ``name`` in the whole Trace."""
        if self.uncut is None:
            return slice(None)
        return self.measure_all([self], Trace.rows_in_whole, [(name,)], {})[0]

    def __reduce__(self) -> Any:
        raise TypeError("a Trace in another process cannot be pickled")


def answers_of(pool: Pool, questions: Sequence[Any]) -> list[Any]:
    """Return the answers of ``pool`` in the order of ``questions``; raise the first error."""
    answers = pool.ask(questions)
    for answer in answers:
        if isinstance(answer, Failed):
            raise answer.error
    return answers


def _fetch_heads(traces: Sequence[RemoteTrace]) -> dict[RemoteTrace, Exception]:
    """Fetch the heads of ``traces``; return the errors of those that failed."""
    heads = (
        traces[0].pool.ask([Question(trace.plan, head_of) for trace in traces]) if traces else []
    )
    failed = {}
    for trace, head in zip(traces, heads, strict=True):
        if isinstance(head, Failed):
            failed[trace] = head.error
        else:
            object.__setattr__(trace, "_head", head)
    return failed


def head_of(trace: Trace) -> Trace:
    """Return a Trace without its events."""
    events: dict[str, Any] = {name: empty_table(name) for name in _EVENTS}
    return replace(trace, **events, uncut=None, rows={})
