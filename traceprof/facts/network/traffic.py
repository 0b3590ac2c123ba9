"""Traffic over links beside the collectives that may have caused it, and the links' speeds."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.collectives.work import collectives_of_ranks
from traceprof.facts.network.counters import find_traffic
from traceprof.hardware.catalogue import Link, Peak
from traceprof.measures.device.peaks import peak_of, peak_of_interface
from traceprof.measures.device.times import part_of_device
from traceprof.measures.facts import of_window
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.ranks import Ranks
from traceprof.values import dataclass

__all__ = ["peak_of_source", "traffic_beside_collectives"]

_LOOPBACK: Final = ("nic:lo", "nic:lo0")
_OWNERS: Final = {"process": "process", "gpu": "device"}


@of_window
def traffic_beside_collectives(ranks: Ranks) -> pd.DataFrame:
    """Return `find_traffic` with collective_ns and collective_bytes of each interval.

    The former is for how long a collective was on its way, the latter what ranks handed in to
    collectives, evenly over their time. The sockets of a process and the links of a GPU are held
    against its own collectives, interfaces against all.
    """
    traffic = find_traffic(ranks)
    if traffic.empty:
        return traffic.assign(collective_ns=0, collective_bytes=0)
    timed = collectives_of_ranks(ranks.whole)
    timed = timed.where(timed.array("is_timed").astype(np.bool_))
    work = timed[["start_ns", "end_ns", "n_bytes", *_OWNERS.values()]]
    everything = _Load.of(work)
    rows_of = {kind: work.groupby(column).indices for kind, column in _OWNERS.items()}
    starts, ends = (traffic[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    covered, moved = np.zeros(len(traffic), np.int64), np.zeros(len(traffic), np.int64)
    for source, rows in traffic.groupby("source", sort=False).indices.items():
        kind, _, number = str(source).partition(":")
        load = everything
        if kind in _OWNERS and number.isdigit():
            load = _Load.of(work.iloc[rows_of[kind].get(int(number), _NO_ROWS)])
        covered[rows] = load.busy.covered_ns(starts[rows], ends[rows])
        moved[rows] = load.bytes_within(starts[rows], ends[rows])
    return traffic.assign(collective_ns=covered, collective_bytes=moved)


def peak_of_source(ranks: Ranks, source: str, link: str) -> Peak | None:
    """Return the speed of a link (as `find_traffic` calls it) of a source; no loopback has one."""
    if source in _LOOPBACK or source.startswith("process:"):
        return None
    if source.startswith("gpu:"):
        number = source.removeprefix("gpu:")
        if not number.isdigit():
            return None
        return peak_of(part_of_device(ranks, int(number)), int(number), Link(link))
    return peak_of_interface(ranks.parts[0], source)


_NO_ROWS: Final[Int64Array] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Load:
    """Collectives as a load of a link: when any was on its way, and how fast bytes were due.

    ``begins`` and ``finishes`` are the ramps of those whose size is known.
    """

    busy: Intervals
    begins: _Ramps
    finishes: _Ramps

    @classmethod
    def of(cls, work: pd.DataFrame) -> _Load:
        starts, ends = (work[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
        sizes = work["n_bytes"].to_numpy(np.float64)
        sized = (sizes > 0) & (ends > starts)
        rates = sizes[sized] / (ends - starts)[sized]
        return cls(
            Intervals.union_of(starts, ends),
            _Ramps.of(starts[sized], rates),
            _Ramps.of(ends[sized], rates),
        )

    def bytes_within(self, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Return the bytes that were handed in within each interval."""
        until = [
            self.begins.at(instants) - self.finishes.at(instants) for instants in (starts, ends)
        ]
        return np.asarray(np.rint(until[1] - until[0]), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Ramps:
    """What grows from its begin on: the sum of ``rate · (instant - begin)`` over all begun."""

    begins: Int64Array
    origin: int
    rate: npt.NDArray[np.float64]
    moment: npt.NDArray[np.float64]

    @classmethod
    def of(cls, begins: Int64Array, rates: npt.NDArray[np.float64]) -> _Ramps:
        order = np.argsort(begins, kind="stable")
        origin = int(begins.min()) if len(begins) else 0
        rate = np.concatenate(([0.0], np.cumsum(rates[order])))
        moments = rates[order] * (begins[order] - origin)
        return cls(begins[order], origin, rate, np.concatenate(([0.0], np.cumsum(moments))))

    def at(self, instants: Int64Array) -> npt.NDArray[np.float64]:
        """Return the sum at each instant."""
        begun = np.searchsorted(self.begins, instants, side="right")
        grown = self.rate[begun] * (instants - self.origin) - self.moment[begun]
        return np.asarray(grown, np.float64)
