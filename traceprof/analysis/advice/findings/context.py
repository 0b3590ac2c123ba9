"""What the rules look at: measured once, shared by all of them."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.collectives.matches import Matches, find_matches
from traceprof.facts.devices import device_time
from traceprof.facts.gaps import find_gaps
from traceprof.facts.host.states import find_host_states
from traceprof.facts.launches import find_launches
from traceprof.facts.steps.find import find_steps
from traceprof.facts.steps.steadiness import outliers
from traceprof.model.intervals import Intervals
from traceprof.model.parts import DeviceTime
from traceprof.model.steps import Steps
from traceprof.model.trace import Trace
from traceprof.units import format_duration

__all__ = ["Context"]

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


class Context:
    """A trace, and what several rules measure of it.

    Times are judged in the typical part of the window: the steady steps without the outliers
    (warm-up and slow steps have rules of their own), or all of it where steps are not known.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def devices(self) -> list[int]:
        """The devices that worked anywhere in the recording."""
        devices = self.trace.devices
        return [int(device) for device in devices.loc[devices["used"] == 1, "device"]]

    @cached_property
    def steps(self) -> Steps:
        """The steps that lie wholly inside the window, if somebody named them.

        Steps that were inferred may be layers or micro-batches: advice does not rest on them.
        """
        return _named(find_steps(self.trace))

    @cached_property
    def all_steps(self) -> Steps:
        """The named steps of the whole trace."""
        return _named(find_steps(self.trace.whole))

    @cached_property
    def is_warmup(self) -> npt.NDArray[np.bool_]:
        """Which of `steps` are warm-up, as seen in the whole trace."""
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
        span = Intervals.single(self.trace.span.start_ns, self.trace.span.end_ns)
        if not len(table):
            return span
        left_out = table[self.is_warmup | (self.step_outliers > 0)]
        whole = Intervals.union_of(table["start_ns"], table["end_ns"])
        kept = whole - Intervals.union_of(left_out["start_ns"], left_out["end_ns"])
        return kept if len(kept) else span

    @property
    def typical_ns(self) -> int:
        """The length of `typical`; at least 1."""
        return max(1, self.typical.total_ns)

    @cached_property
    def step_ns(self) -> float:
        """The median length of a typical step; the window where steps are not known."""
        kept = ~self.is_warmup & (self.step_outliers <= 0)
        if not kept.any():
            return float(self.trace.span.duration_ns)
        return float(np.median(self.steps.durations_ns[kept]))

    @property
    def n_steps(self) -> float:
        """How many typical steps there are (1 where steps are not known)."""
        return max(1.0, self.typical_ns / max(1.0, self.step_ns))

    @cached_property
    def times(self) -> dict[int, DeviceTime]:
        """What each device did when."""
        return {device: device_time(self.trace, device) for device in self.devices}

    @cached_property
    def gaps(self) -> pd.DataFrame:
        """The gaps of the devices with ``owner``, the one rule that each counts for.

        ``typical_ns`` is the part of a gap in the typical time.
        """
        gaps = find_gaps(self.trace)
        causes = list(_OWNERS)
        main = gaps[causes].to_numpy(np.int64).argmax(axis=1) if len(gaps) else []
        owner = np.array([_OWNERS[causes[place]] for place in main], object)
        opened_by_sync = self._opens_in_a_sync(gaps) & np.isin(owner, ["launch_bound", "host_code"])
        owner[opened_by_sync] = "host_sync"
        return gaps.assign(
            owner=owner, typical_ns=self.typical.covered_ns(gaps["start_ns"], gaps["end_ns"])
        )

    def _opens_in_a_sync(self, gaps: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Return which gaps open while the host waits for the device: the queue ran dry."""
        opens = np.zeros(len(gaps), np.bool_)
        states = find_host_states(self.trace)
        for process, rows in gaps.groupby("process").indices.items():
            state = states.get(int(str(process)))
            if state is not None:
                at = gaps["start_ns"].to_numpy()[rows]
                opens[rows] = state.synchronising.covered_ns(at - 1, at + 1) > 0
        return opens

    def gap_ratio(self, owner: str) -> float:
        """Return the share of the typical time, the mean over devices, in the gaps of a rule."""
        gaps = self.gaps
        total = int(gaps.loc[gaps["owner"] == owner, "typical_ns"].sum())
        return total / self.typical_ns / max(1, len(self.devices))

    def longest_gap(self, owner: str) -> str:
        """Return the window of the longest typical gap of a rule, as people type it."""
        own = self.gaps[(self.gaps["owner"] == owner) & (self.gaps["typical_ns"] > 0)]
        if own.empty:
            return ""
        return self.longest_row(own)

    def ratio(self, time: Intervals) -> float:
        """Return the share of the typical time that ``time`` (of one device) covers."""
        return (time & self.typical).total_ns / self.typical_ns

    def mean_ratio(self, times: dict[int, Intervals]) -> float:
        """Return the mean over devices of the typical share."""
        return sum(map(self.ratio, times.values())) / max(1, len(self.devices))

    @cached_property
    def copies(self) -> pd.DataFrame:
        """The copies of `all_copies` that start in the typical time."""
        starts = self.all_copies["start_ns"].to_numpy()
        inside = self.typical.covered_ns(starts, starts + 1) > 0
        return self.all_copies[inside].reset_index(drop=True)

    @cached_property
    def all_copies(self) -> pd.DataFrame:
        """The copies with the call that made them: ``api`` ("" unknown) and its ``call_ns``."""
        copies = self.trace.copies
        launches = find_launches(self.trace, copies)
        names = self.trace.whole.api_calls["name"].to_numpy(object)
        api = np.full(len(copies), "", object)
        api[launches.is_known] = names[launches.call[launches.is_known]]
        call_ns = np.where(launches.is_known, launches.end_ns - launches.start_ns, 0)
        return copies.assign(api=api, call_ns=call_ns)

    @cached_property
    def matches(self) -> Matches:
        """The collectives of the window that several ranks share."""
        return find_matches(self.trace)

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """The kernels that start in the typical time, with ``duration_ns``."""
        kernels = self.trace.kernels
        starts = kernels["start_ns"].to_numpy()
        marked = kernels.assign(duration_ns=kernels["end_ns"] - kernels["start_ns"])
        return marked[self.typical.covered_ns(starts, starts + 1) > 0].reset_index(drop=True)

    def exposed(self, device: int, rows: pd.DataFrame) -> Intervals:
        """Return when ``rows`` (copies of ``device``) ran and no kernel did."""
        own = rows[rows["device"] == device]
        time = self.times[device]
        kernel = time.compute | time.communication
        return Intervals.union_of(own["start_ns"], own["end_ns"]) - kernel

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
        """Return a window as ``--window`` takes it, relative to the start of the trace."""
        zero = self.trace.whole.span.start_ns
        return f"{(start_ns - zero) / 1e3:.3f}us..{(end_ns - zero) / 1e3:.3f}us"

    def per_step(self, count: float) -> str:
        """Return a count per step and device in words, or the count where steps are not known."""
        if not len(self.steps):
            return f"{count:.0f}"
        each = count / self.n_steps / max(1, len(self.devices))
        return f"{each:.0f} {self._unit}" if each >= 100 else f"{each:.3g} {self._unit}"

    def time_per_step(self, total_ns: float) -> str:
        """Return a time per step and device in words, or the time where steps are not known."""
        if not len(self.steps):
            return format_duration(total_ns)
        each = total_ns / self.n_steps / max(1, len(self.devices))
        return f"{format_duration(each)} {self._unit}"

    @property
    def _unit(self) -> str:
        return "per step and device" if len(self.devices) > 1 else "per step"


def _named(steps: Steps) -> Steps:
    return Steps(steps.table.iloc[:0], "") if steps.is_inferred else steps
