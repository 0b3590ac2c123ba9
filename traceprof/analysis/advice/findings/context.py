"""What the rules look at: measured once, shared by all of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.collectives.matches import Matches, find_matches
from traceprof.facts.device.times import device_times, used_devices
from traceprof.facts.gaps import find_gaps
from traceprof.facts.host.states import find_host_states
from traceprof.facts.launches import launches_of
from traceprof.facts.names.kernels import SHORT_NS
from traceprof.facts.steps.find import steps_of_ranks
from traceprof.facts.steps.steadiness import outliers
from traceprof.model.activity import Activity
from traceprof.model.intervals import Intervals
from traceprof.model.parts import DeviceTime
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.steps import Steps
from traceprof.model.trace import Trace

__all__ = ["Context", "KernelTimes", "copies_with_calls"]

_OWNERS: Final = {
    "data": "input_bound",
    "launch": "launch_bound",
    "host": "host_code",
    "profiler": "profiler",
    "queued": "queued",
    "peer": "peer",
    "synchronising": "host_sync",
    "edge": "edge",
    "unknown": "unknown",
}


@dataclass(frozen=True, slots=True, eq=False)
class KernelTimes:
    """The kernels that start in the typical time, by name; of all ranks.

    ``by_name``: name, activity, count, total_ns, short_count and short_ns (of those below
    `SHORT_NS`). ``durations_ns`` and ``is_communication`` are of the single kernels, and
    ``longest_communication`` start and end of the longest communication kernel, None without any.
    """

    by_name: pd.DataFrame
    durations_ns: npt.NDArray[np.int64]
    is_communication: npt.NDArray[np.bool_]
    longest_communication: tuple[int, int] | None

    @property
    def communication(self) -> pd.DataFrame:
        """Those of ``by_name`` that communicate."""
        return self.by_name[self.by_name["activity"] == Activity.COMMUNICATION.value]

    def named(self, pattern: re.Pattern[str]) -> pd.DataFrame:
        """Return those of ``by_name`` in whose name ``pattern`` is found."""
        found = [pattern.search(str(name)) is not None for name in self.by_name["name"]]
        return self.by_name[np.array(found, np.bool_)]


class Context:
    """The ranks of a run in a window, and what several rules measure of them.

    Times are judged in the typical part of the window: the steady steps without the outliers
    (warm-up and slow steps have rules of their own), or all of it where steps are not known.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    @cached_property
    def devices(self) -> list[int]:
        """The devices that worked anywhere in the recording."""
        return [device for part in self.ranks for device in used_devices(part)]

    @cached_property
    def steps(self) -> Steps:
        """The steps that lie wholly inside the window, if somebody named them.

        Steps that were inferred may be layers or micro-batches: advice does not rest on them.
        """
        return _named(steps_of_ranks(self.ranks))

    @cached_property
    def all_steps(self) -> Steps:
        """The named steps of the whole recording."""
        return _named(steps_of_ranks(self.ranks.whole))

    @cached_property
    def is_warmup(self) -> npt.NDArray[np.bool_]:
        """Which of `steps` are warm-up, as seen in the whole recording."""
        return self.steps.warmup()

    @cached_property
    def step_outliers(self) -> npt.NDArray[np.int64]:
        """1 for each slow one of `steps`, -1 for each fast one; 0 for the others and warm-up."""
        table, found = self.steps.table, np.zeros(len(self.steps), np.int64)
        steady = np.flatnonzero(~self.is_warmup)
        durations = self.steps.durations_ns.astype(np.float64)
        for rows in table.iloc[steady].groupby("process").indices.values():
            found[steady[rows]] = outliers(durations[steady[rows]])
        return found

    @cached_property
    def typical(self) -> Intervals:
        """The time that the rules judge."""
        table = self.steps.table
        span = Intervals.single(self.ranks.span.start_ns, self.ranks.span.end_ns)
        if not len(table):
            return span
        left_out = table[self.is_warmup | (self.step_outliers > 0)]
        kept = _union_of(table) - _union_of(left_out)
        return kept if len(kept) else span

    @property
    def typical_ns(self) -> int:
        """The length of `typical`; at least 1."""
        return max(1, self.typical.total_ns)

    @property
    def window_ns(self) -> int:
        """The length of the window; at least 1."""
        return max(1, self.ranks.span.duration_ns)

    @cached_property
    def step_ns(self) -> float:
        """The median length of a typical step; the window where steps are not known."""
        kept = ~self.is_warmup & (self.step_outliers <= 0)
        if not kept.any():
            return float(self.ranks.span.duration_ns)
        return float(np.median(self.steps.durations_ns[kept]))

    @property
    def n_steps(self) -> float:
        """How many typical steps there are (1 where steps are not known)."""
        return max(1.0, self.typical_ns / max(1.0, self.step_ns))

    @cached_property
    def times(self) -> dict[int, DeviceTime]:
        """What each device did when, inside the window."""
        known = {device: time for part in self.ranks for device, time in device_times(part).items()}
        return {device: known.get(device) or DeviceTime.nothing() for device in self.devices}

    @cached_property
    def gaps(self) -> pd.DataFrame:
        """The gaps of the devices with ``owner``, the one rule that each counts for.

        ``typical_ns`` is the part of a gap in the typical time, ``part`` the place of its rank.
        """
        found = [_owned(part).assign(part=i) for i, part in enumerate(self.ranks)]
        filled = [gaps for gaps in found if len(gaps)] or found[:1]
        gaps = pd.concat(filled, ignore_index=True)
        return gaps.assign(typical_ns=self.typical.covered_ns(gaps["start_ns"], gaps["end_ns"]))

    def gap_ratio(self, owner: str) -> float:
        """Return the share of the typical time, the mean over devices, in the gaps of a rule."""
        gaps = self.gaps
        total = int(gaps.loc[gaps["owner"] == owner, "typical_ns"].sum())
        return total / self.typical_ns / max(1, len(self.devices))

    def longest_gap(self, owner: str) -> str:
        """Return the window of the longest typical gap of a rule, as people type it."""
        own = self.gaps[(self.gaps["owner"] == owner) & (self.gaps["typical_ns"] > 0)]
        return "" if own.empty else self.longest_row(own)

    def ratio(self, time: Intervals) -> float:
        """Return the share of the typical time that ``time`` (of one device) covers."""
        return (time & self.typical).total_ns / self.typical_ns

    def mean_ratio(self, times: dict[int, Intervals]) -> float:
        """Return the mean over devices of the typical share."""
        return sum(map(self.ratio, times.values())) / max(1, len(self.devices))

    @cached_property
    def copies(self) -> pd.DataFrame:
        """The copies that start in the typical time.

        With the call that made each: ``api`` ("" unknown) and its ``call_ns``.
        """
        found = [copies_with_calls(part) for part in self.ranks]
        copies = pd.concat([own for own in found if len(own)] or found[:1], ignore_index=True)
        starts = copies["start_ns"].to_numpy()
        inside = self.typical.covered_ns(starts, starts + 1) > 0
        return copies[inside].reset_index(drop=True)

    @cached_property
    def matches(self) -> Matches:
        """The collectives of the window that several ranks share."""
        return find_matches(self.ranks)

    @cached_property
    def kernels(self) -> KernelTimes:
        """The kernels that start in the typical time, rank by rank summed up by their names."""
        return _joined([_kernel_times(part, self.typical) for part in self.ranks])

    def kernels_ratio(self, total_ns: int) -> float:
        """Return ``total_ns`` of kernels as a share of the typical time, the mean over devices."""
        return total_ns / self.typical_ns / max(1, len(self.devices))

    def exposed(self, device: int, rows: pd.DataFrame) -> Intervals:
        """Return when ``rows`` (copies of ``device``) ran and no kernel did."""
        own = rows[rows["device"] == device]
        return Intervals.union_of(own["start_ns"], own["end_ns"]) - self.times[device].kernel

    def exposed_ratio(self, rows: pd.DataFrame) -> float:
        """Return the typical share of time, the mean over devices, in exposed copies ``rows``."""
        return self.mean_ratio({device: self.exposed(device, rows) for device in self.devices})

    def saving_ns(self, ratio: float) -> int:
        """Return ``ratio`` of a step (of the window where steps are not known) in ns."""
        return round(ratio * self.step_ns)

    def longest_row(self, rows: pd.DataFrame) -> str:
        """Return the window of the longest of ``rows`` (there is one), as people type it."""
        starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        place = int((ends - starts).argmax())
        return self.window_text(int(starts[place]), int(ends[place]))

    def window_text(self, start_ns: int, end_ns: int) -> str:
        """Return a window as ``--window`` takes it, relative to the start of the run."""
        zero = self.ranks.whole.span.start_ns
        return f"{(start_ns - zero) / 1e3:.3f}us..{(end_ns - zero) / 1e3:.3f}us"

    def counted(self, count: float, what: str, **values: Any) -> Note:
        """Return how many of ``what`` there are, per step and device where steps are known.

        ``what`` may name ``values``, as notes do.
        """
        each, per = self._each(count)
        return Note.of(f"{{each:number}} {what}{per}", each=each, **values)

    def timed(self, total_ns: float, before: str = "", after: str = "", **values: Any) -> Note:
        """Return a time with words around it, per step and device where steps are known."""
        each, per = self._each(total_ns)
        return Note.of(f"{before}{{each:ns}}{per}{after}", each=each, **values)

    def _each(self, value: float) -> tuple[float, str]:
        if not len(self.steps):
            return value, ""
        several = len(self.devices) > 1
        each = value / self.n_steps / max(1, len(self.devices))
        return each, " per step and device" if several else " per step"


def _union_of(steps: pd.DataFrame) -> Intervals:
    return Intervals.union_of(steps["device_start_ns"], steps["device_end_ns"])


def _named(steps: Steps) -> Steps:
    is_none = steps.is_inferred or steps.warmup().all()
    return Steps(steps.table.iloc[:0], "") if is_none else steps


def _owned(part: Trace) -> pd.DataFrame:
    """Return the gaps of a rank with the rule that each counts for."""
    gaps = find_gaps(part)
    causes = list(_OWNERS)
    main = gaps[causes].to_numpy(np.int64).argmax(axis=1) if len(gaps) else []
    rules = list(_OWNERS.values())
    owner = np.asarray(main, np.int64)
    of_host = np.isin(owner, [rules.index("launch_bound"), rules.index("host_code")])
    owner[_opens_in_a_sync(part, gaps) & of_host] = rules.index("host_sync")
    return gaps.assign(owner=pd.Categorical.from_codes(owner, pd.Index(rules)))


def _opens_in_a_sync(part: Trace, gaps: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which gaps open while the host waits for the device: the queue ran dry."""
    opens = np.zeros(len(gaps), np.bool_)
    states = find_host_states(part)
    for process, rows in gaps.groupby("process").indices.items():
        state = states.get(int(str(process)))
        if state is not None:
            at = gaps["start_ns"].to_numpy()[rows]
            opens[rows] = state.synchronising.covered_ns(at - 1, at + 1) > 0
    return opens


def copies_with_calls(part: Trace) -> pd.DataFrame:
    """Return the copies of a rank with the call that made each: ``api`` and its ``call_ns``."""
    copies, launches = part.copies, launches_of(part, "copies")
    names = part.whole.api_calls["name"].to_numpy(object)
    api = np.full(len(copies), "", object)
    api[launches.is_known] = names[launches.call[launches.is_known]]
    call_ns = np.where(launches.is_known, launches.end_ns - launches.start_ns, 0)
    return copies.assign(api=api, call_ns=call_ns)


def _kernel_times(part: Trace, typical: Intervals) -> KernelTimes:
    starts = part.kernels["start_ns"].to_numpy()
    kernels = part.kernels[typical.covered_ns(starts, starts + 1) > 0]
    starts, ends = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    durations = ends - starts
    is_short = durations < SHORT_NS
    sums = pd.DataFrame(
        {
            "count": 1,
            "total_ns": durations,
            "short_count": is_short.astype(np.int64),
            "short_ns": np.where(is_short, durations, 0),
        }
    )
    keys = [kernels[name].reset_index(drop=True) for name in ("name", "activity")]
    by_name = sums.groupby(keys, observed=True, sort=False).sum()
    by_name = by_name.rename_axis(["name", "activity"]).reset_index()
    communicates = (kernels["activity"] == Activity.COMMUNICATION.value).to_numpy()
    longest = None
    if communicates.any():
        place = int(np.where(communicates, durations, -1).argmax())
        longest = int(starts[place]), int(ends[place])
    by_name = by_name.astype({"name": object, "activity": object})
    return KernelTimes(by_name, durations, communicates, longest)


def _joined(parts: list[KernelTimes]) -> KernelTimes:
    by_name = pd.concat([part.by_name for part in parts], ignore_index=True)
    by_name = by_name.groupby(["name", "activity"], sort=False).sum().reset_index()
    longest = [p.longest_communication for p in parts if p.longest_communication is not None]
    return KernelTimes(
        by_name,
        np.concatenate([part.durations_ns for part in parts]),
        np.concatenate([part.is_communication for part in parts]),
        max(longest, key=lambda span: span[1] - span[0], default=None),
    )
