"""What a trace format is: how to recognise one by its content, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from traceprof.model.activity import RULES, Rule
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow

__all__ = ["Candidate", "ReadOptions", "Reader", "TraceFormat"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file to be recognised: its first bytes and, if it is SQLite, its tables."""

    path: Path
    head: bytes
    tables: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read.

    ``window`` (on the trace's own clock) lets a reader skip rows outside it; it is a saving,
    not a cut: rows that overlap the window come back whole.
    """

    rules: Sequence[Rule] = field(default=RULES)
    window: TimeWindow | None = None


class Reader(Protocol):
    """Reads a file of one format."""

    def __call__(self, path: Path, options: ReadOptions) -> Trace:
        """Return the Trace in ``path``; raises TraceError where it cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format. To add one: a module that defines ``FORMAT``, and its line in ``FORMATS``."""

    name: str
    summary: str
    recognises: Callable[[Candidate], bool]
    read: Reader
