"""The ranges that the host was in at an instant, on the thread that annotates the most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.model.intervals import nesting_depth, parents_of
from traceprof.model.trace import Trace

__all__ = ["ranges_at"]

_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Lane:
    """The nested ranges of one thread, by start; ``name`` is the code of each."""

    starts: _Int64Array
    ends: _Int64Array
    parents: _Int64Array
    name: _Int64Array

    def names_at(self, instants: _Int64Array) -> _Int64Array:
        """Return the code of the name of the innermost range open at each instant, else -1."""
        place = np.searchsorted(self.starts, instants, side="right") - 1
        while (closed := (place >= 0) & (self.ends[place] <= instants)).any():
            place[closed] = self.parents[place[closed]]
        return np.where(place >= 0, self.name[place], -1)


def ranges_at(trace: Trace, process: _Int64Array, instants: _Int64Array) -> npt.NDArray[np.object_]:
    """Return the name of the innermost range that each process was in at each instant.

    Of the busiest annotated thread of the process in the whole recording; "" where none is open.
    """
    lanes = _busiest_lanes(trace)
    found = np.full(len(instants), -1, np.int64)
    for owner, rows in pd.Series(process).groupby(process).indices.items():
        lane = lanes.get(int(str(owner)))
        if lane is not None:
            found[rows] = lane.names_at(instants[rows])
    names = trace.whole.ranges["name"].cat.categories
    return np.array([*map(str, names), ""], object)[found]


@fact
def _busiest_lanes(trace: Trace) -> Mapping[int, _Lane]:
    """Return the thread of each process that has the most nested ranges."""
    ranges = trace.ranges
    nested = np.flatnonzero(ranges["kind"] == "push_pop")
    lanes = ranges[["process", "thread"]].iloc[nested].groupby(["process", "thread"])
    processes = ranges["process"].to_numpy(np.int64)
    busiest: dict[int, _Int64Array] = {}
    for rows in lanes.indices.values():
        process = int(processes[nested[rows[0]]])
        if len(rows) > len(busiest.get(process, ())):
            busiest[process] = nested[rows]
    starts, ends = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    codes = np.asarray(ranges["name"].cat.codes, np.int64)
    return {
        process: _Lane(
            starts[rows],
            ends[rows],
            parents_of(nesting_depth(starts[rows], ends[rows])),
            codes[rows],
        )
        for process, rows in busiest.items()
    }
