"""Sets of instants that stay where the Trace is that they were found in, because they are large.

What is done to them here is written down, and done there once something is asked that is small:
how long they are, or how much of some spans they cover. So whoever looks at a thousand ranks needs
no memory for the millions of intervals in which their devices worked.
"""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias
from uuid import uuid4
from weakref import ref

import numpy as np
import numpy.typing as npt

from traceprof.model.intervals import Int64Array, Intervals
from traceprof.workers.remote import Failed, Plan, Pool, Question

LARGE: Final = 2048
"""Sets of so many intervals do not travel."""

_Operation: TypeAlias = Callable[..., Intervals]
_unpacked_answer: ContextVar[tuple[Pool, Question]] = ContextVar("_asked")


@dataclass(frozen=True, slots=True)
class KeptSet:
    """The large set in the answer to a question that has this digest (see `packed`)."""

    question: Question
    digest: bytes


@dataclass(frozen=True, slots=True, eq=False)
class CombinedSet:
    """What is done to one set (and another, or two instants)."""

    how: _Operation
    left: Expression
    right: Expression | tuple[int, int]
    name: str = field(default_factory=lambda: uuid4().hex)

    def of(self, value: Callable[[Expression], Intervals]) -> Intervals:
        """Return the set, where ``value`` tells what the parts are."""
        right = self.right if isinstance(self.right, tuple) else (value(self.right),)
        return self.how(value(self.left), *right)


Expression: TypeAlias = KeptSet | CombinedSet | Intervals


@dataclass(frozen=True, slots=True)
class TimeQuestion:
    """What is asked of sets that lie elsewhere: their sizes, themselves, or how much they cover.

    ``plan`` is that of one of the Traces that they are of, all of one file; ``spans`` are starts
    and ends in ns.
    """

    plan: Plan
    expression: Expression
    spans: tuple[Int64Array, Int64Array] | None = None
    is_whole: bool = False

    def answer(self, value: Callable[[Expression], Intervals], n_large: int) -> Any:
        """Return the answer, where ``value`` tells what the sets are."""
        found = value(self.expression)
        if self.spans is not None:
            return found.covered_ns(*self.spans)
        is_here = self.is_whole or len(found) < n_large
        return _Size(len(found), found.total_ns, (found.starts, found.ends) if is_here else None)


class _Size(NamedTuple):
    """How large a set is; and starts and ends of one that is small, or asked for."""

    n: int
    total_ns: int
    whole: tuple[Int64Array, Int64Array] | None = None


class RemoteIntervals(Intervals):
    """A set that a pool holds; it does all that `Intervals` does.

    Sets that came about in the same way are asked about together: those of other ranks.
    """

    __slots__ = ("__weakref__", "_expression", "_plan", "_pool", "_shape", "_size")

    _pool: Pool
    _expression: KeptSet | CombinedSet
    _plan: Plan
    _shape: int
    _size: _Size | None
    _unknown: ClassVar[dict[int, list[ref[RemoteIntervals]]]] = {}
    """Those of which nobody has asked how large they are, by the way in which they came about."""

    def __init__(
        self,
        pool: Pool,
        plan: Plan,
        expression: KeptSet | CombinedSet,
        shape: int,
        size: _Size | None = None,
    ) -> None:
        known = {"_pool": pool, "_plan": plan, "_expression": expression, "_shape": shape}
        for name, value in (known | {"_size": size}).items():
            object.__setattr__(self, name, value)
        if size is None:
            self._unknown.setdefault(shape, []).append(ref(self))

    def _known(self) -> _Size:
        if self._size is None:
            others = (one() for one in self._unknown.pop(self._shape, ()))
            unmeasured = [one for one in others if one is not None and one._pool is self._pool]
            unmeasured = [self, *(one for one in unmeasured if one is not self)]
            questions = [TimeQuestion(one._plan, one._expression) for one in unmeasured]
            for one, found in zip(unmeasured, _answers(self._pool, questions), strict=True):
                object.__setattr__(one, "_size", found)
        assert self._size is not None
        return self._size

    def _small(self) -> Intervals | None:
        """Return the set, if it is known already to be small."""
        whole = None if self._size is None else self._size.whole
        return None if whole is None else Intervals(*whole)

    def here(self) -> Intervals:
        """Return the set itself, however large it is."""
        self._known()
        found = self._small()
        if found is None:
            question = TimeQuestion(self._plan, self._expression, is_whole=True)
            found = Intervals(*_answers(self._pool, [question])[0].whole)
        return found

    @property
    def starts(self) -> Int64Array:
        """The starts in ns, all of them."""
        return self.here().starts

    @property
    def ends(self) -> Int64Array:
        """The ends in ns, all of them."""
        return self.here().ends

    def __len__(self) -> int:
        return self._known().n

    @property
    def total_ns(self) -> int:
        """The number of nanoseconds in the set."""
        return self._known().total_ns

    def covered_ns(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Int64Array:
        """Return, for each interval, how many ns of it are in the set."""
        small = self._small()
        if small is not None:
            return small.covered_ns(starts, ends)
        spans = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
        question = TimeQuestion(self._plan, self._expression, spans)
        found: Int64Array = _answers(self._pool, [question])[0]
        return found

    def clip(self, start_ns: int, end_ns: int) -> Intervals:
        """Return the part of the set inside ``[start_ns, end_ns)``."""
        small = self._small()
        if small is not None:
            return small.clip(start_ns, end_ns)
        return self._with(Intervals.clip, self._expression, (start_ns, end_ns), "clip")

    def __or__(self, other: Intervals) -> Intervals:
        return _combined(operator.or_, self, other)

    def __ror__(self, other: Intervals) -> Intervals:
        return _combined(operator.or_, other, self)

    def __and__(self, other: Intervals) -> Intervals:
        return _combined(operator.and_, self, other)

    def __rand__(self, other: Intervals) -> Intervals:
        return _combined(operator.and_, other, self)

    def __sub__(self, other: Intervals) -> Intervals:
        return _combined(operator.sub, self, other)

    def __rsub__(self, other: Intervals) -> Intervals:
        return _combined(operator.sub, other, self)

    def _with(
        self, how: _Operation, left: Expression, right: Expression | tuple[int, int], about: object
    ) -> RemoteIntervals:
        shape = hash((how.__name__, self._shape, about))
        return RemoteIntervals(self._pool, self._plan, CombinedSet(how, left, right), shape)

    def __reduce__(self) -> Any:
        found = self.here()
        return Intervals, (found.starts, found.ends)


def _combined(how: _Operation, left: Intervals, right: Intervals) -> Intervals:
    left, right = _local_if_small(left), _local_if_small(right)
    remote = left if isinstance(left, RemoteIntervals) else right
    if not isinstance(remote, RemoteIntervals):
        return how(left, right)
    if isinstance(left, RemoteIntervals) and isinstance(right, RemoteIntervals):
        if left._plan.file != right._plan.file or left._pool is not right._pool:
            return how(left.here(), right.here())
        return left._with(how, left._expression, right._expression, right._shape)
    if remote is left and not len(right):
        return Intervals.empty() if how is operator.and_ else left
    if remote is right and not len(left):
        return right if how is operator.or_ else Intervals.empty()
    if remote is left:
        return remote._with(how, remote._expression, right, "left")
    return remote._with(how, left, remote._expression, "right")


def _local_if_small(found: Intervals) -> Intervals:
    small = found._small() if isinstance(found, RemoteIntervals) else None
    return found if small is None else small


def _answers(pool: Pool, questions: Sequence[TimeQuestion]) -> list[Any]:
    found = pool.ask(questions)
    for answer in found:
        if isinstance(answer, Failed):
            raise answer.error
    return found


class _Packer(pickle.Pickler):
    """Pickles an answer; large sets stay behind."""

    def __init__(self, file: io.BytesIO, n_large: int) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.large: dict[bytes, Intervals] = {}
        self._n_large = n_large

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Intervals or len(value) < self._n_large:
            return NotImplemented
        digest = blake2b(digest_size=16)
        for instants in (value.starts, value.ends):
            digest.update(np.ascontiguousarray(instants).data)
        self.large[digest.digest()] = value
        size = _Size(len(value), value.total_ns)
        return _remote_set, (len(self.large) - 1, digest.digest(), size)


def _remote_set(number: int, digest: bytes, size: _Size) -> RemoteIntervals:
    """Return a set that stayed behind when the rest of the answer came, the ``number``-th."""
    pool, question = _unpacked_answer.get()
    shape = hash((getattr(question.measure, "__qualname__", ""), number))
    return RemoteIntervals(pool, question.plan, KeptSet(question, digest), shape, size)


def packed(answer: Any, n_large: int) -> tuple[bytes, Mapping[bytes, Intervals]]:
    """Return an answer as it travels, and the sets of at least ``n_large`` that stay behind.

    These are told apart by a digest of their instants: an answer that is made anew may hold one set
    where it held two equal ones, so that their places in it say nothing.
    """
    file = io.BytesIO()
    packer = _Packer(file, n_large)
    packer.dump(answer)
    return file.getvalue(), packer.large


def unpacked(text: bytes, pool: Pool, question: Question | TimeQuestion) -> Any:
    """Return the answer to a question that ``pool`` was asked."""
    if isinstance(question, TimeQuestion):
        return pickle.loads(text)
    token = _unpacked_answer.set((pool, question))
    try:
        return pickle.loads(text)
    finally:
        _unpacked_answer.reset(token)
