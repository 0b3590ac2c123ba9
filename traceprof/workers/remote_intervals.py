"""Large sets of instants that stay in the process of their Trace.

Operations on them are recorded here and executed there, once a small result is requested: a length,
or how much of some spans they cover. So an analysis of a thousand ranks needs no memory for the
millions of intervals in which their devices worked.
"""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, cast
from uuid import uuid4
from weakref import ref

import numpy as np
import numpy.typing as npt

from traceprof.model.intervals import Int64Array, Intervals
from traceprof.workers.remote import Plan, Pool, Question, answers_of

LARGE: Final = 2048
"""Sets with at least this many intervals stay in their process."""

_Operation: TypeAlias = Callable[..., Intervals]
_unpacked_answer: ContextVar[tuple[Pool, Question]] = ContextVar("_asked")


@dataclass(frozen=True, slots=True)
class KeptSet:
    """A large set in the answer to a question, identified by its digest (see `packed`)."""

    question: Question
    digest: bytes


@dataclass(frozen=True, slots=True, eq=False)
class CombinedSet:
    """An operation on one set and another set, or two instants."""

    how: _Operation
    left: Expression
    right: Expression | tuple[int, int]
    name: str = field(default_factory=lambda: uuid4().hex)

    def of(self, value: Callable[[Expression], Intervals]) -> Intervals:
        """Return the resulting set; ``value`` returns the operands."""
        right = self.right if isinstance(self.right, tuple) else (value(self.right),)
        return self.how(value(self.left), *right)


Expression: TypeAlias = KeptSet | CombinedSet | Intervals


@dataclass(frozen=True, slots=True)
class TimeQuestion:
    """A question about remote sets: their sizes, the sets themselves, or how much they cover.

    ``plan`` is that of one of the Traces of the sets, all of one file. ``spans`` are starts and
    ends in ns.
    """

    plan: Plan
    expression: Expression
    spans: tuple[Int64Array, Int64Array] | None = None
    is_whole: bool = False

    def answer(self, value: Callable[[Expression], Intervals], n_large: int) -> Any:
        """Return the answer; ``value`` returns the set of an expression."""
        found = value(self.expression)
        if self.spans is not None:
            return found.covered_ns(*self.spans)
        is_here = self.is_whole or len(found) < n_large
        return _Size(len(found), found.total_ns, (found.starts, found.ends) if is_here else None)


class _Size(NamedTuple):
    """The size of a set, and its starts and ends if it is small or was requested."""

    n: int
    total_ns: int
    whole: tuple[Int64Array, Int64Array] | None = None


class RemoteIntervals(Intervals):
    """A set that a pool holds, with all operations of `Intervals`.

    Sets of other ranks that were computed in the same way (equal ``shape``) are measured together.
    """

    __slots__ = ("__weakref__", "_expression", "_plan", "_pool", "_shape", "_size")

    _pool: Pool
    _expression: KeptSet | CombinedSet
    _plan: Plan
    _shape: int
    _size: _Size | None
    _unknown: ClassVar[dict[int, list[ref[RemoteIntervals]]]] = {}
    """The sets of unknown size, by the way in which they were computed."""

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

    def _measured(self) -> _Size:
        """Return the size of the set; measure all sets of the same shape in one round."""
        if self._size is None:
            others = (times() for times in self._unknown.pop(self._shape, ()))
            unmeasured = [
                times for times in others if times is not None and times._pool is self._pool
            ]
            unmeasured = [self, *(times for times in unmeasured if times is not self)]
            questions = [TimeQuestion(times._plan, times._expression) for times in unmeasured]
            for times, found in zip(unmeasured, answers_of(self._pool, questions), strict=True):
                object.__setattr__(times, "_size", found)
        assert self._size is not None
        return self._size

    def _small(self) -> Intervals | None:
        """Return the set if it is known to be small, otherwise None."""
        whole = None if self._size is None else self._size.whole
        return None if whole is None else Intervals(*whole)

    def here(self) -> Intervals:
        """Return the set in this process, even if it is large."""
        self._measured()
        found = self._small()
        if found is None:
            question = TimeQuestion(self._plan, self._expression, is_whole=True)
            found = Intervals(*answers_of(self._pool, [question])[0].whole)
        return found

    @property
    def starts(self) -> Int64Array:
        """All starts in ns."""
        return self.here().starts

    @property
    def ends(self) -> Int64Array:
        """All ends in ns."""
        return self.here().ends

    def __len__(self) -> int:
        return self._measured().n

    @property
    def total_ns(self) -> int:
        """The total length in nanoseconds."""
        return self._measured().total_ns

    def covered_ns(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Int64Array:
        """Return the covered ns of each interval."""
        small = self._small()
        if small is not None:
            return small.covered_ns(starts, ends)
        spans = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
        question = TimeQuestion(self._plan, self._expression, spans)
        return cast("Int64Array", answers_of(self._pool, [question])[0])

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
    """Return the result of an operation, computed remotely if a large operand is remote."""
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
    """Return the set itself if it is known to be small, otherwise ``found``."""
    small = found._small() if isinstance(found, RemoteIntervals) else None
    return found if small is None else small


class _Packer(pickle.Pickler):
    """Pickles an answer without its large sets."""

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
    """Return a remote set for the large set ``number`` of the answer that is being unpickled."""
    pool, question = _unpacked_answer.get()
    shape = hash((getattr(question.measure, "__qualname__", ""), number))
    return RemoteIntervals(pool, question.plan, KeptSet(question, digest), shape, size)


def packed(answer: Any, n_large: int) -> tuple[bytes, Mapping[bytes, Intervals]]:
    """Return the pickled answer, and its sets of at least ``n_large`` intervals, which stay here.

    The sets are identified by a digest of their instants. Their positions are not reliable: an
    answer that is computed again may contain one set in place of two equal ones.
    """
    file = io.BytesIO()
    packer = _Packer(file, n_large)
    packer.dump(answer)
    return file.getvalue(), packer.large


def unpacked(text: bytes, pool: Pool, question: Question | TimeQuestion) -> Any:
    """Return the answer to a question that was sent to ``pool``."""
    if isinstance(question, TimeQuestion):
        return pickle.loads(text)
    token = _unpacked_answer.set((pool, question))
    try:
        return pickle.loads(text)
    finally:
        _unpacked_answer.reset(token)
