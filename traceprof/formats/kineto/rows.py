"""Rows of some categories of a Kineto trace, on the clock of the trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.kineto.events import KinetoEvents
from traceprof.model.tables import ABSENT
from traceprof.values import dataclass

__all__ = ["Rows", "all_rows"]


_NAMELESS: Final = 0
"""The process of a trace that has rows of devices only."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Events as columns; ``host_process`` is the process that was traced."""

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    process: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    category: pd.Categorical
    name: pd.Categorical
    arguments: Mapping[str, Any]
    host_process: int
    shapes: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.start_ns)

    def of(self, *categories: str) -> Rows:
        """Return the rows of these categories."""
        return self.where(np.asarray(self.category.isin(categories)))

    def where(self, chosen: npt.NDArray[np.bool_]) -> Rows:
        """Return the rows that are chosen."""
        places = np.flatnonzero(chosen)  # few: quicker than to ask every row for every column
        return Rows(
            self.start_ns[places],
            self.end_ns[places],
            self.process[places],
            self.thread[places],
            self.category[places],
            self.name[places].remove_unused_categories(),
            {name: _of_some(values, places) for name, values in self.arguments.items()},
            self.host_process,
            None if self.shapes is None else self.shapes[places],
        )

    def number(self, argument: str) -> npt.NDArray[np.int64]:
        """Return an argument that is a whole number; `ABSENT` where a row has none."""
        values: npt.NDArray[np.int64] = self.arguments[argument]
        return values

    def text(self, argument: str) -> pd.Categorical:
        """Return an argument that is a text; "" where a row has none."""
        values: pd.Categorical = self.arguments[argument]
        return values

    def named(self, matches: Any) -> npt.NDArray[np.bool_]:
        """Return for which rows ``matches(name)`` is true; asked once per distinct name."""
        told = np.array([bool(matches(str(name))) for name in self.name.categories], np.bool_)
        return told[self.name.codes] if len(told) else np.zeros(len(self), np.bool_)


def _of_some(values: Any, places: npt.NDArray[np.intp]) -> Any:
    """Return some values; of a single value for all (an argument that is absent) no copy."""
    if isinstance(values, np.ndarray) and values.strides == (0,):
        return np.broadcast_to(values[:1], len(places))
    return values[places]


def all_rows(events: KinetoEvents, zero_ns: int, host_categories: tuple[str, ...]) -> Rows:
    """Return every event, in ns since ``zero_ns``."""
    on_host = events.process[np.asarray(events.category.isin(host_categories))]
    processes, counts = np.unique(on_host[on_host != ABSENT], return_counts=True)
    return Rows(
        events.start_ns - zero_ns,
        events.end_ns - zero_ns,
        events.process,
        events.thread,
        events.category,
        events.name,
        events.arguments,
        int(processes[counts.argmax()]) if len(processes) else _NAMELESS,
        events.shapes,
    )
