"""Hold Traces in a worker: follow plans to create them, and answer questions about them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from traceprof.model.intervals import Intervals
from traceprof.model.packed import Packed
from traceprof.model.table import Names
from traceprof.model.tables import TABLES
from traceprof.model.trace import Trace
from traceprof.processes import give_back, used_memory_bytes
from traceprof.workers.remote import Failed, Plan, PlanStep, Question
from traceprof.workers.remote_intervals import LARGE, Expression, KeptSet, TimeQuestion, packed
from traceprof.workers.spill import Spill

_MAX_WINDOWS: Final = 4
_MEMORY_RATIO_LOADED: Final = 3
"""Memory of a Trace and the values computed from it, per byte of its tables."""
_MAX_SETS_BYTES: Final = 150_000_000
"""Limit for kept sets of instants per file, ignoring that facts share them."""
_MAX_SETS_BYTES_SPILLED: Final = 60_000_000
_MEMORY_RATIO_SPILLED: Final = 1
"""The same ratio for a Trace whose tables are mapped from disk."""
_MIN_TRIM_BYTES: Final = 10_000_000
"""Returning memory to the system costs as much time as allocating this much."""
_INTERVAL_BYTES: Final = 16
"""Size of one interval."""
_Key: TypeAlias = tuple[str, bytes]


class Holder:
    """The Traces of a process: of each file the last whole Trace, and windows of it.

    If the process exceeds ``most_bytes``, the least recently used files are spilled to disk and
    loaded again on demand. Without room on disk they are dropped and created again. Sets with at
    least ``n_large`` intervals stay here.
    """

    def __init__(self, most_bytes: int, n_large: int = LARGE) -> None:
        self._most_bytes = most_bytes
        self._n_large = n_large
        self._held: OrderedDict[str, _HeldFile] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, question: Question | TimeQuestion) -> bytes:
        """Return the pickled answer to ``question``; an error is also an answer."""
        file = question.plan.file
        with self._lock:
            held = self._held.setdefault(file, _HeldFile(self._n_large))
            self._held.move_to_end(file)
        try:
            with held.lock:
                return held.answer(question)
        except Exception as error:  # noqa: BLE001 - raised by the process that asked
            return _as_error(error)
        finally:
            self._limit_memory()

    def _limit_memory(self) -> None:
        """Spill or drop the least recently used files while the process exceeds its memory."""
        with self._lock:
            for file, held in list(self._held.items())[:-1]:
                if self._taken_bytes() <= self._most_bytes:
                    return
                if held.is_in_memory and held.lock.acquire(blocking=False):
                    is_large = held.n_bytes >= _MIN_TRIM_BYTES
                    try:
                        if not held.spill():
                            del self._held[file]
                    finally:
                        held.lock.release()
                    if is_large:
                        give_back()

    def _taken_bytes(self) -> int:
        """Return the memory of this process, or an estimate if the system does not report it."""
        known = used_memory_bytes()
        return sum(held.n_bytes for held in self._held.values()) if known is None else known


class _HeldFile:
    """The Traces and sets of one file so far."""

    def __init__(self, n_large: int) -> None:
        self.lock = threading.Lock()
        self._n_large = n_large
        self._n_table_bytes = self._n_sets_bytes = 0
        self._sets: OrderedDict[_Key, Intervals] = OrderedDict()
        self._whole: dict[tuple[PlanStep, ...], Trace] = {}
        self._windows: OrderedDict[tuple[PlanStep, ...], Trace] = OrderedDict()
        self._file = Spill()
        self._is_spilled = self._was_spilled = False

    @property
    def n_bytes(self) -> int:
        """Approximate memory size."""
        if self._is_spilled:
            return 0
        ratio = _MEMORY_RATIO_SPILLED if self._was_spilled else _MEMORY_RATIO_LOADED
        return ratio * self._n_table_bytes + self._n_sets_bytes

    @property
    def is_in_memory(self) -> bool:
        """Whether any data is in memory."""
        return not self._is_spilled and bool(self._whole or self._sets)

    def spill(self) -> bool:
        """Keep the data on disk only; return False if that fails."""
        self._limit_sets(_MAX_SETS_BYTES_SPILLED)
        if not self._file.spill((self._whole, self._windows, self._sets)):
            return False
        self._whole, self._windows, self._sets = {}, OrderedDict(), OrderedDict()
        self._is_spilled = True
        return True

    def _load(self) -> None:
        self._whole, self._windows, self._sets = self._file.load()
        self._is_spilled, self._was_spilled = False, True

    def answer(self, question: Question | TimeQuestion) -> bytes:
        """Return the pickled answer."""
        if isinstance(question, TimeQuestion):
            return packed(question.answer(self._set_of, self._n_large), self._n_large)[0]
        found = self._answer(question)
        try:
            text, large = packed(found, self._n_large)
        except Exception as error:
            raise TypeError(f"an answer cannot be serialized: {error}") from error
        self._keep_sets(question, large)
        return text

    def _answer(self, question: Question) -> Any:
        trace = self.made(question.plan)
        return question.measure(trace, *question.args, **dict(question.kwargs))

    def _set_of(self, expression: Expression) -> Intervals:
        """Return the set that ``expression`` describes, reusing known sets."""
        if isinstance(expression, Intervals):
            return expression
        key: _Key = (
            (expression.question.name, expression.digest)
            if isinstance(expression, KeptSet)
            else (expression.name, b"")
        )
        if key in self._sets:
            self._sets.move_to_end(key)
            return self._sets[key]
        if isinstance(expression, KeptSet):
            large = packed(self._answer(expression.question), self._n_large)[1]
            self._keep_sets(expression.question, large)
            return large[expression.digest]
        found = expression.of(self._set_of)
        self._keep(key, found)
        return found

    def _keep_sets(self, question: Question, large: Mapping[bytes, Intervals]) -> None:
        for digest, times in large.items():
            self._keep((question.name, digest), times)

    def _keep(self, key: _Key, times: Intervals) -> None:
        if key in self._sets:
            return
        self._sets[key] = times
        self._n_sets_bytes += _INTERVAL_BYTES * len(times)
        self._limit_sets(_MAX_SETS_BYTES)

    def _limit_sets(self, most_bytes: int) -> None:
        """Drop the least recently used sets above ``most_bytes``."""
        while self._n_sets_bytes > most_bytes and len(self._sets) > 1:
            self._n_sets_bytes -= _INTERVAL_BYTES * len(self._sets.popitem(last=False)[1])

    def made(self, plan: Plan) -> Trace:
        """Return the Trace that ``plan`` describes, reusing known steps."""
        if self._is_spilled:
            self._load()
        steps = plan.steps
        makers = [step.make for step in steps]
        n_whole = makers.index(Trace.within) if Trace.within in makers else len(makers)
        trace = self._made_whole(steps[:n_whole])
        for n in range(n_whole + 1, len(steps) + 1):
            key = steps[:n]
            if key not in self._windows:
                self._windows[key] = key[-1].make(trace, *key[-1].args)
            self._windows.move_to_end(key)
            trace = self._windows[key]
        while len(self._windows) > _MAX_WINDOWS:
            self._windows.popitem(last=False)
        return trace

    def _made_whole(self, steps: tuple[PlanStep, ...]) -> Trace:
        """Return the whole Trace after ``steps``; reuse known steps and drop obsolete ones."""
        if steps in self._whole:
            return self._whole[steps]
        if steps[:1] not in {known_steps[:1] for known_steps in self._whole}:
            self._whole.clear()
            self._windows.clear()
        known = next((n for n in range(len(steps), 0, -1) if steps[:n] in self._whole), 0)
        for n in range(known, len(steps)):
            make, args = steps[n].make, steps[n].args
            before = self._whole[steps[:n]] if n else None
            self._whole[steps[: n + 1]] = make(*args) if before is None else make(before, *args)
            if n and not steps[n].takes_part:
                self._forget(steps[:n])
        self._n_table_bytes = sum(map(_n_bytes, self._whole.values()))
        return self._whole[steps]

    def _forget(self, steps: tuple[PlanStep, ...]) -> None:
        del self._whole[steps]
        for key in [key for key in self._windows if key[: len(steps)] == steps]:
            del self._windows[key]


def _as_error(error: Exception) -> bytes:
    try:
        return packed(Failed(error), LARGE)[0]
    except Exception as why:  # noqa: BLE001 - an error may contain anything
        return packed(Failed(TypeError(f"an error cannot be serialized: {error}: {why}")), LARGE)[0]


def _n_bytes(trace: Trace) -> int:
    tables = map(trace.table, TABLES)
    columns = (table.stored(name) for table in tables for name in table)
    stored = (column.packed if isinstance(column, Names) else column for column in columns)
    return sum(column.n_bytes if isinstance(column, Packed) else column.nbytes for column in stored)
