"""What a process of a crew does: it follows recipes and answers questions about what they make."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final

from traceprof.model.elsewhere import Change, Question, Raised, Recipe
from traceprof.model.tables import TABLES
from traceprof.model.trace import Trace

__all__ = ["Holder"]

_MOST_WINDOWS: Final = 4
_WITH_FACTS: Final = 3
"""A Trace and what is computed of it take about this many times the bytes of its tables."""


class Holder:
    """The Traces that a process holds: of every file the last one whole, and windows of it.

    Those that were asked least recently are given up where all take more than ``most_bytes``; they
    are made again when they are asked again.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, question: Question) -> Any:
        """Return the answer to ``question``; an error is the answer, too."""
        recipe = question.recipe
        with self._lock:
            held = self._held.setdefault(recipe.file, _Held())
            self._held.move_to_end(recipe.file)
        try:
            with held.lock:
                trace = held.made(recipe)
                found = question.measure(trace, *question.args, **dict(question.kwargs))
        except Exception as error:  # noqa: BLE001 - it is raised where the question was asked
            return Raised(error)
        finally:
            self._give_up()
        return found

    def _give_up(self) -> None:
        with self._lock:
            while (
                len(self._held) > 1
                and sum(h.n_bytes for h in self._held.values()) > self._most_bytes
            ):
                self._held.popitem(last=False)


class _Held:
    """What is made of one file so far."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.n_bytes = 0
        self._whole: dict[tuple[Change, ...], Trace] = {}
        self._windows: OrderedDict[tuple[Change, ...], Trace] = OrderedDict()

    def made(self, recipe: Recipe) -> Trace:
        """Return the Trace that ``recipe`` makes, from as far as it is made already."""
        changes = recipe.changes
        makers = [change.make for change in changes]
        n_whole = makers.index(Trace.within) if Trace.within in makers else len(makers)
        trace = self._made_whole(changes[:n_whole])
        for n in range(n_whole + 1, len(changes) + 1):
            key = changes[:n]
            if key not in self._windows:
                self._windows[key] = key[-1].make(trace, *key[-1].args)
            self._windows.move_to_end(key)
            trace = self._windows[key]
        while len(self._windows) > _MOST_WINDOWS:
            self._windows.popitem(last=False)
        return trace

    def _made_whole(self, changes: tuple[Change, ...]) -> Trace:
        if changes in self._whole:
            return self._whole[changes]
        if changes[:1] not in self._began_with():
            self._whole.clear()
            self._windows.clear()
        known = next((n for n in range(len(changes), 0, -1) if changes[:n] in self._whole), 0)
        for n in range(known, len(changes)):
            make, args = changes[n].make, changes[n].args
            before = self._whole[changes[:n]] if n else None
            self._whole[changes[: n + 1]] = make(*args) if before is None else make(before, *args)
            if n and not changes[n].takes_part:
                self._forget(changes[:n])
        self.n_bytes = _WITH_FACTS * sum(map(_n_bytes, self._whole.values()))
        return self._whole[changes]

    def _began_with(self) -> set[tuple[Change, ...]]:
        return {changes[:1] for changes in self._whole}

    def _forget(self, changes: tuple[Change, ...]) -> None:
        del self._whole[changes]
        for key in [key for key in self._windows if key[: len(changes)] == changes]:
            del self._windows[key]


def _n_bytes(trace: Trace) -> int:
    return sum(int(trace.table(name).memory_usage(index=False).sum()) for name in TABLES)
