"""The kernels of the analysed time, summed up by their names."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.findings.claims import Times, together
from traceprof.measures.rows import bounds, by_category, grouped, unions_by
from traceprof.model.activity import Activity
from traceprof.model.combining import counted, counted_together
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Samples
from traceprof.model.trace import Trace
from traceprof.names.kernels import SHORT_NS


@dataclass(frozen=True, slots=True, eq=False)
class KernelTimes:
    """The kernels that start in the typical time, by name; of all ranks.

    ``by_name``: name, activity, count, total_ns, short_count and short_ns (of those below
    `SHORT_NS`). ``lengths`` are the durations in ns, each once with its count, in row 1 those of
    communication, else 0. ``longest_communication``: start and end of the longest communication
    kernel, None without any.
    """

    by_name: pd.DataFrame
    lengths: Samples
    longest_communication: tuple[int, int] | None

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How often each of ``lengths`` occurs."""
        counts = self.lengths.counts
        return np.ones(len(self.lengths.rows), np.int64) if counts is None else counts

    def named(self, pattern: re.Pattern[str]) -> pd.DataFrame:
        """Return those of ``by_name`` in whose name ``pattern`` is found."""
        found = [pattern.search(str(name)) is not None for name in self.by_name["name"]]
        return self.by_name[np.array(found, np.bool_)]

    def doing(self, *activities: Activity) -> pd.DataFrame:
        """Return those of ``by_name`` with one of ``activities``."""
        return self.by_name[self.by_name["activity"].isin([own.value for own in activities])]


def kernel_times(ranks: Ranks, judged: Intervals) -> KernelTimes:
    """Return the kernels that start in ``judged``, rank by rank summed up by their names."""
    parts = ranks.each(_kernel_times, judged)
    by_name = pd.concat([part.by_name for part in parts], ignore_index=True)
    longest = [p.longest_communication for p in parts if p.longest_communication is not None]
    return KernelTimes(
        by_name.groupby(["name", "activity"], sort=False).sum().reset_index(),
        counted_together([part.lengths for part in parts]),
        max(longest, key=lambda span: span[1] - span[0], default=None),
    )


def time_of_kernels(ranks: Ranks, names: Collection[str]) -> Times:
    """Return when each device ran kernels of these ``names``."""
    return together(ranks.each(_time_of_kernels, sorted(names)))


def _time_of_kernels(part: Trace, names: Sequence[str]) -> Times:
    kernels = part.kernels.to_frame()
    wanted = by_category(kernels["name"], kernels["name"].cat.categories.isin(names))
    return unions_by(kernels[["start_ns", "end_ns", "device"]][wanted], "device")


def _kernel_times(part: Trace, judged: Intervals) -> KernelTimes:
    begins = part.kernels.to_frame()["start_ns"].to_numpy()
    kernels = part.kernels.to_frame()[["start_ns", "end_ns", "name", "activity"]]
    kernels = kernels[judged.covered_ns(begins, begins + 1) > 0]
    starts, ends = bounds(kernels)
    durations = ends - starts
    is_short = durations < SHORT_NS
    groups, keys = grouped({name: kernels[name] for name in ("name", "activity")})
    by_name = pd.DataFrame(
        {
            **keys,
            "count": groups.counts,
            "total_ns": groups.reduced(np.add, durations),
            "short_count": groups.reduced(np.add, is_short.astype(np.int64)),
            "short_ns": groups.reduced(np.add, np.where(is_short, durations, 0)),
        }
    )
    # As they come first.
    by_name = by_name.take(np.argsort(groups.order[groups.first])).reset_index(drop=True)
    communicates = (kernels["activity"] == Activity.COMMUNICATION.value).to_numpy()
    longest = None
    if communicates.any():
        place = int(np.where(communicates, durations, -1).argmax())
        longest = int(starts[place]), int(ends[place])
    lengths = counted(Samples(communicates.astype(np.int64), durations))
    return KernelTimes(by_name, lengths, longest)
