"""What an analysis is: a pure function of a Trace that returns a frozen result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["Analysis", "Result", "table_of"]


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


def table_of(result: Result, trace: Trace) -> pd.DataFrame:
    """Return the table of ``result``; in a run of several ranks, each process with its rank.

    A process id says little where every rank has its own. None where the rank is not known.
    """
    frame = result.to_frame()
    processes = trace.processes[trace.processes["rank"] != ABSENT]
    if "process" not in frame or "rank" in frame or processes["rank"].nunique() < 2:
        return frame
    ranks = dict(zip(processes["process"], processes["rank"], strict=True))
    found = [ranks.get(process) for process in frame["process"]]
    with_rank = frame.copy(deep=False)
    kind = object if None in found else np.int64
    with_rank.insert(list(frame).index("process"), "rank", pd.Series(found, frame.index, kind))
    return with_rank
