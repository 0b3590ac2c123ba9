"""Traces that another process holds: questions go to them, and only answers come back.

Such a Trace is a plan: functions that make it from its file, one after another. Whoever follows
the plan has the Trace, so that one that was lost is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar, cast
from uuid import uuid4

import pandas as pd

from traceprof.model.tables import TABLES, empty_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import RowsOf, Trace

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")
_EVENTS: Final = frozenset(name for name, table in TABLES.items() if table.has_times)
"""The tables that grow with the recording; the others travel with the head of a Trace."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a recipe: a function, and what it takes beside the Trace so far.

    Two are the same that bear the same ``name``. ``takes_part``: others are made of the same
    Trace, which is still needed.
    """

    make: Callable[..., Trace] = field(compare=False)
    args: tuple[Any, ...] = field(compare=False, default=())
    takes_part: bool = field(compare=False, default=False)
    name: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a Trace is made: it is read, then changed."""

    changes: tuple[PlanStep, ...]

    @property
    def file(self) -> str:
        """The file that the Trace is read from."""
        return str(self.changes[0].args[0])

    def then(self, change: PlanStep) -> Plan:
        """Return the recipe of what ``change`` makes of this one's Trace."""
        return Plan((*self.changes, change))


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a Trace: a function that pickles by its name, and what it takes beside."""

    recipe: Plan
    measure: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    name: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer to a question that cannot be answered: the error."""

    error: Exception


class Crew(Protocol):
    """The processes that hold the Traces."""

    def ask(self, questions: Sequence[Any]) -> list[Any]:
        """Return the answers in the order of the questions, `Raised` where one raised an error.

        Questions are each a `Question`, or one about sets of instants (`TimeQuestion`).

        Raises:
            TraceprofError: a question cannot be answered by anybody.
        """
        ...


class RemoteTrace(Trace):
    """A Trace that a crew holds; what is small of it is here, and its events where they are.

    ``siblings`` are the Traces that were made in the same way, this one among them: a fact that is
    asked of one is measured of all of them at once.
    """

    __slots__ = ("_facts", "_head", "_span", "_uncut", "crew", "recipe", "siblings")

    crew: Crew
    recipe: Plan
    siblings: list[RemoteTrace]
    _head: Trace | None
    _span: TimeWindow | None
    _uncut: RemoteTrace | None
    _facts: dict[tuple[Any, ...], Any]

    def __init__(
        self,
        crew: Crew,
        recipe: Plan,
        siblings: list[RemoteTrace],
        within: tuple[RemoteTrace, TimeWindow] | None = None,
    ) -> None:
        uncut, span = within or (None, None)
        known = {"crew": crew, "recipe": recipe, "siblings": siblings, "_head": None}
        known |= {"_span": span, "_uncut": uncut, "_facts": {}}
        for name, value in known.items():
            object.__setattr__(self, name, value)
        siblings.append(self)

    @classmethod
    def read_by(
        cls, crew: Crew, read: Callable[..., Trace], roots: Sequence[tuple[Any, ...]]
    ) -> list[RemoteTrace | Exception]:
        """Return the Trace that ``read`` makes of each of ``roots``, or why it cannot."""
        siblings: list[RemoteTrace] = []
        made = [cls(crew, Plan((PlanStep(read, args),)), siblings) for args in roots]
        heads = crew.ask([Question(one.recipe, head_of) for one in made])
        siblings[:] = [
            one for one, head in zip(made, heads, strict=True) if not isinstance(head, Failed)
        ]
        found: list[RemoteTrace | Exception] = []
        for one, head in zip(made, heads, strict=True):
            if isinstance(head, Failed):
                found.append(head.error)
            else:
                object.__setattr__(one, "_head", head)
                found.append(one)
        return found

    @property
    def head(self) -> Trace:
        """The Trace without its events."""
        if self._uncut is not None:
            return self._uncut.head
        if self._head is None:
            missing = [one for one in self.siblings if one._head is None]
            heads = self.crew.ask([Question(one.recipe, head_of) for one in missing])
            for one, head in zip(missing, heads, strict=True):
                if not isinstance(head, Failed):
                    object.__setattr__(one, "_head", head)
                elif one is self:
                    raise head.error
        assert self._head is not None
        return self._head

    def fact(
        self, key: tuple[Any, ...], measure: Callable[..., _Answer], args: Any, kwargs: Any
    ) -> _Answer:
        """Return what ``measure`` says of this Trace; its siblings are asked with it.

        What they say is kept under ``key`` among the facts of each.
        """
        asked = [one for one in self.siblings if key not in one._facts]
        more = tuple(sorted(kwargs.items()))
        found = self.crew.ask([Question(one.recipe, measure, args, more) for one in asked])
        for one, answer in zip(asked, found, strict=True):
            if not isinstance(answer, Failed):
                one._facts[key] = answer
            elif one is self:
                raise answer.error
        kept: _Answer = self._facts[key]
        return kept

    def within(self, window: TimeWindow) -> Self:
        """Return the part of the Trace inside ``window``, held where the Trace is."""
        return cast("Self", _within([self], window)[0])

    def table(self, name: str) -> pd.DataFrame:
        """Return a table; one of events comes from where the Trace is."""
        return cast("pd.DataFrame", getattr(self, name))

    def rows_in_whole(self, name: str) -> RowsOf:
        """Return which rows of table ``name`` of the whole Trace those of this one are."""
        if self._uncut is None:
            return slice(None)
        return measure_each([self], Trace.rows_in_whole, name)[0]

    def _events(self, name: str) -> pd.DataFrame:
        found: pd.DataFrame = measure_each([self], Trace.table, name)[0]
        return found

    @property
    def uncut(self) -> RemoteTrace | None:
        """What it was cut from."""
        return self._uncut

    @property
    def span(self) -> TimeWindow:
        """The time that it covers."""
        return self.head.span if self._span is None else self._span

    @property
    def facts(self) -> dict[tuple[Any, ...], Any]:
        """What has been asked of it."""
        return self._facts

    def __reduce__(self) -> Any:
        raise TypeError("a Trace that is elsewhere does not travel")


def _of_head(name: str) -> property:
    return property(lambda trace: getattr(trace.head, name))


def _of_events(name: str) -> property:
    return property(lambda trace: trace._events(name))


for _name in ("info", "recorded", "hardware", "warmup_steps", "steps", "recordings", "own_devices"):
    setattr(RemoteTrace, _name, _of_head(_name))
for _name in TABLES:
    setattr(RemoteTrace, _name, _of_events(_name) if _name in _EVENTS else _of_head(_name))


def head_of(trace: Trace) -> Trace:
    """Return a Trace without its events."""
    events: dict[str, Any] = {name: empty_table(name) for name in _EVENTS}
    return replace(trace, **events, uncut=None, rows={})


def measure_each(
    traces: Sequence[Trace],
    measure: Callable[Concatenate[Trace, _Arguments], _Answer],
    *args: _Arguments.args,
    **kwargs: _Arguments.kwargs,
) -> list[_Answer]:
    """Return what ``measure`` says of every Trace, where it is.

    ``measure`` must be the function of a module, and everything that goes there and back small.
    """
    return measure_of_each(traces, measure, [args] * len(traces), tuple(kwargs.items()))


def measure_of_each(
    traces: Sequence[Trace],
    measure: Callable[..., _Answer],
    args: Sequence[tuple[Any, ...]],
    kwargs: tuple[tuple[str, Any], ...] = (),
) -> list[_Answer]:
    """Return what ``measure`` says of every Trace with its own arguments (see `measure_each`)."""
    away = [trace for trace in traces if isinstance(trace, RemoteTrace)]
    if not away:
        named = dict(kwargs)
        return [measure(trace, *own, **named) for trace, own in zip(traces, args, strict=True)]
    assert len(away) == len(traces)
    asked = [
        Question(one.recipe, measure, own, kwargs) for one, own in zip(away, args, strict=True)
    ]
    return [_raised(answer) for answer in away[0].crew.ask(asked)]


def change_each(
    traces: Sequence[Trace],
    change: Callable[..., Trace],
    args: Sequence[tuple[Any, ...]],
    *,
    takes_part: bool = False,
) -> list[Trace]:
    """Return what ``change`` makes of every Trace with its own arguments, where it is.

    ``takes_part``: it is one of several that are made of the same Trace.
    """
    away = [trace for trace in traces if isinstance(trace, RemoteTrace)]
    if not away:
        return [change(trace, *own) for trace, own in zip(traces, args, strict=True)]
    assert len(away) == len(traces)
    if change is Trace.within:
        return [*_within(away, *args[0])]
    siblings: list[RemoteTrace] = []
    return [
        RemoteTrace(one.crew, one.recipe.then(PlanStep(change, own, takes_part)), siblings)
        for one, own in zip(away, args, strict=True)
    ]


def _within(traces: Sequence[RemoteTrace], window: TimeWindow) -> list[RemoteTrace]:
    siblings: list[RemoteTrace] = []
    return [
        RemoteTrace(
            one.crew,
            one.recipe.then(PlanStep(Trace.within, (window,))),
            siblings,
            (one if one._uncut is None else one._uncut, window),
        )
        for one in traces
    ]


def _raised(answer: Any) -> Any:
    if isinstance(answer, Failed):
        raise answer.error
    return answer
