"""Kernels of the typical time, summed by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceprof.findings.claims import Times, starts_within, union_by_device
from traceprof.measures.rows import bounds, grouped, unions_by
from traceprof.model.activity import Activity
from traceprof.model.combining import counted, counted_together
from traceprof.model.grouping import codes_of, grouped_by, groups_of, numbered
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Samples
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.kernels import SHORT_NS


@dataclass(frozen=True, slots=True, eq=False)
class KernelTimes:
    """The kernels of all ranks that start in the typical time, by name.

    ``by_name`` has name, activity, count, total_ns, and short_count and short_ns for kernels below
    `SHORT_NS`. ``lengths`` has the distinct durations in ns with their counts, in row 1 for
    communication kernels and in row 0 for other kernels. ``longest_communication`` is the start and
    end of the longest communication kernel (None without any).
    """

    by_name: Table
    lengths: Samples
    longest_communication: tuple[int, int] | None

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of kernels with each of the ``lengths``."""
        counts = self.lengths.counts
        return np.ones(len(self.lengths.rows), np.int64) if counts is None else counts

    def with_name(self, pattern: re.Pattern[str]) -> Table:
        """Return the rows of ``by_name`` whose name contains a match of ``pattern``."""
        found = [pattern.search(name) is not None for name in self.by_name["name"]]
        return self.by_name.take(found)

    def with_activity(self, *activities: Activity) -> Table:
        """Return the rows of ``by_name`` with one of ``activities``."""
        wanted = [activity.value for activity in activities]
        return self.by_name.take([name in wanted for name in self.by_name["activity"]])


def times_of(rows: Table, measure: str = "total_ns", key: str = "name") -> dict[str, int]:
    """Return a column of ``rows``, for example of `KernelTimes.by_name`, by name."""
    return dict(zip(rows[key], rows[measure].tolist(), strict=True))


def summed(rows: Table, ns: npt.NDArray[np.int64], *keys: str) -> Table:
    """Return the distinct values of ``keys`` in ``rows`` with the column ns: the sums of ``ns``."""
    found, groups = grouped_by(rows, *keys)
    return found.assign(ns=groups.sums(ns))


def largest(times: Mapping[str, int], n: int) -> list[tuple[str, int]]:
    """Return the ``n`` names with the most time and their times, the longest first."""
    return sorted(times.items(), key=lambda item: -item[1])[:n]


def kernel_times(ranks: Ranks, analyzed_time: Intervals) -> KernelTimes:
    """Return the kernels that start in ``analyzed_time``, summed by name over all ranks."""
    parts = ranks.each(_kernel_times, analyzed_time)
    rows = Table.stacked([part.by_name for part in parts])
    number, first = numbered(codes_of(rows["name"]), codes_of(rows["activity"]))
    groups, keys = groups_of(number), ("name", "activity")
    sums = {name: groups.sums(rows[name]) for name in rows if name not in keys}
    longest = [p.longest_communication for p in parts if p.longest_communication is not None]
    return KernelTimes(
        rows.select(*keys).take(first).assign(**sums),
        counted_together([part.lengths for part in parts]),
        max(longest, key=lambda span: span[1] - span[0], default=None),
    )


def time_of_kernels(ranks: Ranks, names: Collection[str]) -> Times:
    """Return the times of all kernels with one of these ``names``, by device."""
    return union_by_device(ranks.each(_time_of_kernels, sorted(names)))


def _time_of_kernels(part: Trace, names: Sequence[str]) -> Times:
    """Return the times of the kernels in ``names`` of a trace, by device."""
    kernels = part.kernels.select("start_ns", "end_ns", "device")
    return unions_by(kernels.take(part.kernels["name"].isin(names)), "device")


def _kernel_times(part: Trace, analyzed_time: Intervals) -> KernelTimes:
    """Return the same as `kernel_times` for one trace, names in the order of first use."""
    columns = part.kernels.select("start_ns", "end_ns", "name", "activity")
    kernels = columns.take(starts_within(part.kernels, analyzed_time))
    starts, ends = bounds(kernels)
    durations = ends - starts
    is_short = durations < SHORT_NS
    groups, keys = grouped({name: kernels[name] for name in ("name", "activity")})
    by_name = Table(
        {
            **keys,
            "count": groups.counts,
            "total_ns": groups.reduced(np.add, durations),
            "short_count": groups.reduced(np.add, is_short.astype(np.int64)),
            "short_ns": groups.reduced(np.add, np.where(is_short, durations, 0)),
        }
    )
    # In the order of first occurrence.
    by_name = by_name.take(np.argsort(groups.first_rows))
    communicates = kernels["activity"] == Activity.COMMUNICATION.value
    longest = None
    if communicates.any():
        place = int(np.where(communicates, durations, -1).argmax())
        longest = int(starts[place]), int(ends[place])
    lengths = counted(Samples(communicates.astype(np.int64), durations))
    return KernelTimes(by_name, lengths, longest)
