"""The shared input of the rules: facts of a run that several rules use, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.findings.claims import (
    Claim,
    ClaimKind,
    Ledger,
    Times,
    starts_within,
    union_by_device,
)
from traceprof.findings.kernel_times import KernelTimes, kernel_times, largest, time_of_kernels
from traceprof.measures.collectives.matches import Matches, find_matches
from traceprof.measures.device.ncu import longest_launch, ncu_command, recorded_program
from traceprof.measures.device.times import device_times, devices_of_processes, used_devices
from traceprof.measures.facts import kept_on_disk
from traceprof.measures.idle.losses import (
    analyzed,
    analyzed_times,
    find_longest_gap,
    idle_times,
)
from traceprof.measures.lost_work import has_ranges, lost_work
from traceprof.measures.rows import bounds, unions_by
from traceprof.measures.steps.base import (
    ITERATION,
    STEP,
    WINDOW,
    Base,
    base_of,
    usual_steps,
    usual_time,
)
from traceprof.measures.steps.drift import Drift, find_drift
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.measures.steps.ledger import SLOW, ledger_of_window
from traceprof.measures.steps.measured import measured_steps, named_steps
from traceprof.measures.steps.steadiness import excess_of_slow
from traceprof.measures.traffic.copies import copies_with_calls
from traceprof.measures.workload import TRAINING, Software, Vendor, software_of, workload
from traceprof.model.activity import DeviceTime
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.timing import Steps, typed_window
from traceprof.model.trace import Trace
from traceprof.names.kernels import short_name
from traceprof.names.ranges import PROFILER

LOOP_STEP: Final = "the mean step with slow steps"
"""The base of the cost of slow steps: the mean over usual and slow steps."""
_BASES: Final = {STEP: "a step", ITERATION: "an iteration", WINDOW: "the window"}
CopyFilter: TypeAlias = Callable[[Table], npt.NDArray[np.bool_]]
"""A function at module level that returns which rows of a copy table a rule is about."""


class Context:
    """The ranks of a run in a window, with measures that several rules use.

    Rules analyze the typical part of the window: the steady steps without outliers. Warm-up and
    slow steps have their own rules, and evaluation and similar work are one-time costs. Without
    known steps, rules analyze the whole window.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    @cached_property
    def is_idle_known(self) -> bool:
        """Whether enough GPU activity was recorded to measure idle time."""
        lost = lost_work(self.ranks)
        return lost is None or lost.is_idle_known

    @cached_property
    def software(self) -> Software:
        """The software of the run."""
        return software_of(self.ranks)

    @cached_property
    def kind(self) -> str:
        """The workload of the run, one of `WORKLOADS`."""
        return workload(self.ranks.whole).kind

    @property
    def is_training(self) -> bool:
        """Whether the trace has a backward pass or an optimizer; if not, omit gradient advice."""
        return self.kind == TRAINING

    @cached_property
    def devices(self) -> list[int]:
        """The devices with activity anywhere in the recording."""
        return [device for part in self.ranks for device in used_devices(part)]

    @cached_property
    def places(self) -> list[int]:
        """The device numbers whose time is analyzed.

        Without devices, these are negative numbers: -1 - i for the host of rank i. Ranks without
        ranges (a launcher process) are skipped if other ranks have ranges.
        """
        if self.devices:
            return self.devices
        with_ranges = np.flatnonzero(self.ranks.each(has_ranges)).tolist()
        return [-1 - i for i in with_ranges or range(len(self.ranks))]

    @cached_property
    def steps(self) -> Steps:
        """The steps that are entirely inside the window, if the program marked steps.

        Inferred steps may be layers or micro-batches, so no advice is based on them.
        """
        return named_steps(steps_of_ranks(self.ranks))

    @cached_property
    def all_steps(self) -> Steps:
        """The marked steps of the whole recording."""
        return named_steps(steps_of_ranks(self.ranks.whole))

    @cached_property
    def kinds(self) -> npt.NDArray[np.object_]:
        """The kind of each of `steps`, from the step ledger."""
        kinds = ledger_of_window(self.ranks)["kind"]
        return np.asarray(kinds if len(self.steps) else kinds[:0], object)

    @cached_property
    def slow_steps(self) -> npt.NDArray[np.int64]:
        """The row indices of slow steps in `steps`, without those that the profiler slowed down."""
        slow = np.flatnonzero(self.kinds == SLOW)
        if not len(slow):
            return slow
        grown = measured_steps(self.ranks).table["grown_phase"]
        return np.asarray(slow[grown[slow] != PROFILER], np.int64)

    @cached_property
    def slow_time(self) -> Intervals:
        """The device time of the slow steps, without the typical time of the other grounds."""
        table = self.steps.table.take(self.slow_steps)
        return Intervals.union_of(table["device_start_ns"], table["device_end_ns"]) - self.typical

    @cached_property
    def slow_excess_ns(self) -> int:
        """The time that the slow steps take longer than usual, summed over the slow steps."""
        return excess_of_slow(self.steps, self.slow_steps, self.is_usual, self.base.profiled_ns)

    @property
    def slow_ratio(self) -> float:
        """The mean of `slow_excess_ns` over usual and slow steps, as a share of `loop_step_ns`."""
        n_steps = int(self.is_usual.sum()) + len(self.slow_steps)
        return self.slow_excess_ns / max(1, n_steps) / self.loop_step_ns

    @property
    def loop_step_ns(self) -> float:
        """The mean step time including slow steps, or the window length without known steps."""
        step_ns = self.base.step_ns if len(self.steps) else self.base.unit_ns
        if len(slow := self.slow_steps):
            counted = self.steps.durations_ns[np.union1d(np.flatnonzero(self.is_usual), slow)]
            step_ns += float(counted.mean()) - self.base.profiled_ns
        return max(1.0, step_ns)

    @cached_property
    def drift(self) -> Drift | None:
        """The lasting growth of the step time, if steps get slower; None otherwise."""
        drift = find_drift(self.ranks) if len(self.steps) else None
        return drift if drift is not None and drift.excess_ns > 0 else None

    @property
    def drift_ratio(self) -> float:
        """The mean excess of all steps over the earlier steps, as a share of the step time."""
        return self.drift.excess_ns / self.base.step_ns if self.drift else 0.0

    @cached_property
    def grown_ratio(self) -> Mapping[ClaimKind, float]:
        """The share of compute and of lost time that is growth of the step time."""
        shares = self.drift.shares_of(self.base.step_ns) if self.drift else ()
        return dict(zip((ClaimKind.COMPUTE, ClaimKind.LOST), shares, strict=False))

    @property
    def base(self) -> Base:
        """The base of shares and savings: a step, an iteration, or the window."""
        return base_of(self.ranks)

    @cached_property
    def typical(self) -> Intervals:
        """The time that the rules analyze: the usual steps, or the window without known steps."""
        return usual_time(self.ranks)

    @cached_property
    def analyzed_by_place(self) -> Times:
        """The analyzed time of each of `places`."""
        return {**dict.fromkeys(self.places, self.ranks.span.times), **analyzed_times(self.ranks)}

    @cached_property
    def analyzed_ns(self) -> float:
        """The divisor of shares: the analyzed time, summed over all places, at least 1."""
        of_hosts = (time.total_ns for time in self.analyzed_by_place.values())
        ns = analyzed(self.ranks).whole_ns.values() if self.devices else of_hosts
        return max(1.0, float(sum(ns)))

    @property
    def window_ns(self) -> int:
        """The length of the window, at least 1."""
        return max(1, self.ranks.span.duration_ns)

    @property
    def n_steps(self) -> float:
        """The mean number of usual steps per process (1 if the window contains no whole one)."""
        return (self.is_usual.any() and self.base.steps_count) or 1.0

    @cached_property
    def is_usual(self) -> npt.NDArray[np.bool_]:
        """Which of `steps` are usual."""
        usual = usual_steps(self.ranks)
        return usual if len(self.steps) else usual[:0]

    @property
    def times(self) -> dict[int, DeviceTime]:
        """The intervals of each kind of activity inside the window, for each of `places`."""
        return self._times()

    @cached_property
    def _times(self) -> Callable[[], dict[int, DeviceTime]]:
        known = {device: time for part in self.ranks for device, time in device_times(part).items()}
        times = {place: known.get(place) or DeviceTime.nothing() for place in self.places}
        for time in times.values():
            _ = time.busy  # computes and keeps the busy time and the kernel time
        return kept_on_disk(times)

    @cached_property
    def ledger(self) -> Ledger:
        """The analyzed time that no finding has claimed yet."""
        usual = {i: self.analyzed_by_place[i] & self.typical for i in self.times}
        return Ledger(
            {
                ClaimKind.LOST: {i: usual[i] - time.compute for i, time in self.times.items()},
                ClaimKind.COMPUTE: {
                    i: self.typical & time.compute for i, time in self.times.items()
                },
                ClaimKind.SLOW: dict.fromkeys(self.places, self.slow_time),
                ClaimKind.DRIFT: {},
            }
        )

    def unclaimed(
        self,
        times: Times,
        claim_kind: ClaimKind = ClaimKind.LOST,
        saved_ratio: float = 1.0,
        between: tuple[float, float] | None = None,
    ) -> Claim:
        """Return a claim on the part of ``times`` that no finding has claimed yet."""
        return self.ledger.unclaimed(Claim(times, claim_kind, saved_ratio, between))

    def share(self, claim: Claim) -> float:
        """Return the length of ``claim`` as a share of the analyzed time.

        In claims on lost time, the idle time of a device is multiplied by its `idle_scale`.
        """
        scales = analyzed(self.ranks).idle_scale if self.devices else {}
        total_ns = float(claim.total_ns)
        for place, time in claim.times.items() if claim.claim_kind is ClaimKind.LOST else ():
            if (scale := scales.get(place, 1.0)) != 1.0:
                total_ns += (scale - 1.0) * (time - self.times[place].busy).total_ns
        return total_ns / self.analyzed_ns

    def one_time_ns(self, claim: Claim) -> int:
        """Return the one-time cost of ``claim``, the mean over devices."""
        return round(claim.total_ns / max(1, len(self.places)))

    def base_of_claims(self, claims: Iterable[Claim]) -> tuple[str, float]:
        """Return the name and the length in ns of the base of ``claims``."""
        first = next(iter(claims), None)
        if first is None or first.claim_kind in (ClaimKind.LOST, ClaimKind.COMPUTE):
            return _BASES[self.base.unit], self.base.unit_ns
        if first.excess is not None:
            return first.excess.base, first.excess.base_ns
        is_slow = first.claim_kind is ClaimKind.SLOW
        return (LOOP_STEP, self.loop_step_ns) if is_slow else (_BASES[STEP], self.base.step_ns)

    def claimed_ratio(self, claim: Claim) -> float:
        """Return ``claim`` as a share of its base; for slow steps and drift, only their excess."""
        if claim.excess is not None:
            return claim.excess.ratio
        if claim.claim_kind in (ClaimKind.SLOW, ClaimKind.DRIFT):
            return self.slow_ratio if claim.claim_kind is ClaimKind.SLOW else self.drift_ratio
        return self.share(claim) * claim.attributed_ratio

    def saving_ratio(self, claim: Claim) -> float:
        """Return the saving of ``claim`` as a share of its base, without the growth of steps."""
        grown_ratio = self.grown_ratio.get(claim.claim_kind, 0.0)
        return self.claimed_ratio(claim) * claim.saved_ratio * (1.0 - grown_ratio)

    def saving_ns(self, claims: Sequence[Claim]) -> int:
        """Return the saving of ``claims`` in ns per base."""
        return round(sum(map(self.saving_ratio, claims)) * self.base_of_claims(claims)[1])

    def idle_for(self, *causes: str) -> Claim:
        """Return a claim on the unclaimed idle time with one of these ``causes``."""
        return self.unclaimed(union_by_device(idle_times(self.ranks)[cause] for cause in causes))

    def longest_gap(self, *causes: str) -> str:
        """Return the gap with the most idle time of ``causes``, as ``--window`` takes it."""
        found = [gap for gap in self.ranks.each(find_longest_gap, self.typical, causes) if gap]
        longest = max(found, key=lambda gap: gap[0], default=None)
        return "" if longest is None else self.window_text(*longest[1:])

    def copies(self, choose: CopyFilter) -> Table:
        """Return the copies that start in the typical time and for which ``choose`` returns True.

        The table also has ``api`` (the call that made the copy, "" if unknown) and ``call_ns``.
        """
        return self.rows(_copies_in, self.typical, choose)

    @property
    def n_copies(self) -> int:
        """The number of copies and memsets that start in the typical time."""
        return sum(self.ranks.each(_count_copies, self.typical))

    def exposed(self, rows: Table) -> Times:
        """Return the times of the copies ``rows`` during which no kernel ran, by device."""
        running, empty = unions_by(rows, "device"), Intervals.empty()
        return {device: running.get(device, empty) - t.kernel for device, t in self.times.items()}

    def rows(self, measure: Callable[..., Any], *args: Any) -> Table:
        """Return the tables that ``measure`` returns for all ranks, concatenated in rank order."""
        return Table.stacked(self.ranks.each(measure, *args))

    @property
    def process_devices(self) -> Iterator[tuple[int, int]]:
        """Each process with each device that it uses."""
        for part in self.ranks:
            for process, devices in devices_of_processes(part).items():
                yield from ((process, device) for device in devices)

    @cached_property
    def matches(self) -> Matches:
        """The collectives of the window that several ranks share."""
        return find_matches(self.ranks)

    @cached_property
    def kernels(self) -> KernelTimes:
        """The kernels that start in the typical time, summed by name."""
        return kernel_times(self.ranks, self.typical)

    def kernel_claim(
        self, rows: Table, saved_ratio: float = 1.0, between: tuple[float, float] | None = None
    ) -> Claim:
        """Return a claim on the compute kernels ``rows`` of `KernelTimes.by_name`."""
        times = time_of_kernels(self.ranks, set(rows["name"]))
        return self.unclaimed(times, ClaimKind.COMPUTE, saved_ratio, between)

    def ncu(self, names: Mapping[str, int]) -> str:
        """Return the command that profiles the main kernel of ``names`` (ns by kernel name).

        The main kernel has the most time. The command profiles its longest launch in the typical
        time. Returns "" if there is no launch, or if Nsight Compute does not support the GPU.
        """
        if not names or self.software.vendor is Vendor.AMD:
            return ""
        found = self.ranks.each(longest_launch, largest(names, 1)[0][0], self.typical)
        longest = max(filter(None, found), key=lambda launch: launch.duration_ns, default=None)
        if longest is None:
            return ""
        program = recorded_program(self.ranks.table("environment"))
        return ncu_command(longest.function, longest.skip, program)

    def longest_row(self, rows: Table) -> str:
        """Return the longest of ``rows`` (not empty), as ``--window`` takes it."""
        return self.longest_of(*bounds(rows))

    def longest_of(self, starts: Int64Array, ends: Int64Array) -> str:
        """Return the longest of at least one span, as ``--window`` takes it."""
        row = int((ends - starts).argmax())
        return self.window_text(int(starts[row]), int(ends[row]))

    def window_text(self, start_ns: int, end_ns: int) -> str:
        """Return a window as ``--window`` takes it, relative to the start of the run."""
        zero = self.ranks.whole.span.start_ns
        return typed_window(start_ns - zero, end_ns - zero)

    def counted(
        self, count: int, words: str, more: str = "", *, is_of_host: bool = False, **values: Any
    ) -> Note:
        """Return a note on a count: the mean per step and device, or the total without steps.

        ``words`` and ``more`` follow the number. ``is_of_host``: the rows are host events, which
        may be before all device steps: the host runs ahead.
        """
        n_units, unit = self._units
        if not unit:
            return Note.of(f"{{n:count}} {words}{more}", n=count, **values)
        places, per = self._per_step
        each = count / n_units / places
        lengths = (n_units, n_units - 1) if is_of_host else (n_units,)
        is_same = count in (round(each) * places * n for n in lengths)
        if each < 1 and not (is_same and round(each)):
            text = f"{{n:count}} {words} in {{units:count}} {unit}s{more}"
            return Note.of(text, n=count, units=round(n_units), **values)
        about = "" if is_same else "about "
        return Note.of(f"{about}{{n:count}} {words}{per}{more}", n=round(each), **values)

    def timed(self, total_ns: float, before: str = "", after: str = "", **values: Any) -> Note:
        """Return a note on a time between words: the mean over devices, per step if known."""
        places, per = self._per_step
        each = total_ns / places / self._units[0]
        return Note.of(f"{before}{{each:ns}}{per}{after}", each=each, **values)

    def timed_by_kernel(self, names: Mapping[str, int], n: int = 2) -> Iterator[Note]:
        """Yield notes on the ``n`` kernels with the most time in ``names`` (ns by kernel name)."""
        for name, ns in largest(names, n):
            yield self.timed(ns, "{name}: ", name=short_name(name))

    @property
    def _per_step(self) -> tuple[int, str]:
        """The number of devices (or ranks) that share a step, and the words for the divisor."""
        places, noun = max(1, len(self.places)), "GPU" if self.devices else "rank"
        nouns = (self._units[1], noun if places > 1 else "")
        return places, "".join(f" per {noun}" for noun in nouns if noun)

    @property
    def _units(self) -> tuple[float, str]:
        """The number of usual steps or iterations and their noun; (1, "") if none are known."""
        if len(self.steps) and (self.base.steps_count or not self.is_usual.any()):
            return self.n_steps, STEP
        n = self.base.steps_count if self.base.unit == ITERATION else 0
        return (n, ITERATION) if n else (1, "")

    def advice(self, *, pytorch: str, other: str) -> str:
        """Return the advice for PyTorch if the run used PyTorch, else the other advice."""
        return pytorch if self.software.has_pytorch else other


def _copies_in(trace: Trace, analyzed_time: Intervals, choose: CopyFilter) -> Table:
    """Return the copies of a trace that start in the analyzed time and that ``choose`` selects."""
    copies = copies_with_calls(trace)
    return copies.take(starts_within(copies, analyzed_time) & choose(copies))


def _count_copies(trace: Trace, analyzed_time: Intervals) -> int:
    """Return the number of copies of a trace that start in the analyzed time."""
    return int(starts_within(trace.copies, analyzed_time).sum())
