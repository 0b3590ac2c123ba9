"""What an analysis is: a pure function of a Trace that returns a frozen result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pandas as pd

from traceprof.model.trace import Trace

__all__ = ["Analysis", "Result"]


class Result(Protocol):
    """The outcome of an analysis: a frozen dataclass of plain values with units in its names.

    Column names of the frame carry the unit as a suffix that renderers understand: ``_ns``,
    ``_bytes``, ``_bytes_per_s``, ``_ratio`` (0 to 1), ``_count``.
    """

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that must be read with the numbers."""
        ...

    def to_frame(self) -> pd.DataFrame:
        """Return the result as a table, one row per thing measured, the most important first."""
        ...


@dataclass(frozen=True, slots=True)
class Analysis:
    """One analysis.

    ``name`` is that of its line in `ANALYSES`, which also holds the words for people.
    ``needs`` names the tables without which it means nothing; `run_analysis` checks them once.
    """

    name: str
    needs: tuple[str, ...]
    run: Callable[[Trace], Result]
