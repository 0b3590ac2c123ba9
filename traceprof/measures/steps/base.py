"""Selects the steps that an answer is based on, and measures their step time.

Only `base_of` decides this. Step time, rates, shares, and savings of every command use it, so one
question has one answer. The rules:

1. Usual steps inside the window count. The default window contains only usual steps: warm-up,
   slow steps, steps with an evaluation or a checkpoint, incomplete steps, and steps cut by an edge
   become gaps of the window if at least half of the ranks have them.
2. The step time is the mean over these steps, so the parts of a step add up to the step time.
3. If the recording also contains unprofiled steps, these give the step time. The GPU work of a
   profiled step is the same, but its idle time is not: idle time is the step time minus the work.
4. Shares are relative to the whole window if the user selected times instead of steps, if the
   window contains other steps, or if steps fill less than 95% of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from traceprof.measures.device.times import recorder_times
from traceprof.measures.facts import fact
from traceprof.measures.rows import Bools, Floats, Ints, rows_by
from traceprof.measures.steps.find import rows_inside
from traceprof.measures.steps.ledger import (
    CUT,
    INCOMPLETE,
    USUAL,
    WARMUP,
    all_steps,
    ledger_of_window,
    ledger_within,
    step_ledger,
)
from traceprof.model.activity import IDLE, PARTS
from traceprof.model.grouping import groups_of
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import RecordedBy

STEP: Final = "step"
ITERATION: Final = "iteration"
WINDOW: Final = "window"
_MIN_FILLED_RATIO: Final = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """What an answer is based on, and its duration.

    ``unit``: base of shares: `STEP`, `ITERATION` (of a kernel pattern, if the trace has no steps),
    or `WINDOW`. ``unit_ns``: duration of one unit. ``lengths_ns``: durations of the counted steps;
    unprofiled steps if ``is_unprofiled``. ``processes``: the process of each of them.
    ``steps_count``: number of usual steps in the window, the mean over processes. ``profiled_ns``:
    mean duration of these usual steps. ``samples_count``: samples per step, summed over processes
    (mean; NaN if unknown). ``left_out``: by kind, the number of steps between the start and end of
    the window that do not count (at least 1), and their total duration; both are means over
    processes.
    """

    unit: str
    unit_ns: float
    lengths_ns: Floats
    processes: Ints
    steps_count: float
    profiled_ns: float
    samples_count: float = np.nan
    is_unprofiled: bool = False
    left_out: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def step_ns(self) -> float:
        """Step time: the mean of ``lengths_ns``; NaN if there are no steps."""
        return float(self.lengths_ns.mean()) if len(self.lengths_ns) else np.nan

    @property
    def timed_count(self) -> float:
        """Number of steps per process that ``step_ns`` averages (the mean over processes)."""
        return len(self.lengths_ns) / max(1, len(np.unique(self.processes)))

    @property
    def scale(self) -> float:
        """Ratio of unprofiled to profiled step time; 1 if no unprofiled steps are known."""
        is_scaled = self.is_unprofiled and self.unit == STEP and self.profiled_ns
        return self.step_ns / self.profiled_ns if is_scaled else 1.0

    @property
    def per_s(self) -> float:
        """Steps per second; NaN if unknown."""
        return 1e9 / self.step_ns if self.step_ns else np.nan

    def whole_ns(self, parts_ns: Mapping[str, float]) -> float:
        """Return the denominator of the shares of one device, from the sums of its five parts.

        The GPU work is that of the profiled steps. The rest of the scaled time is idle.
        """
        recorded_ns = sum(parts_ns.values())
        return max(recorded_ns * self.scale, recorded_ns - parts_ns[IDLE])

    def shares(self, devices: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return the share of each of the five parts, from their sums over the window by device.

        The shares add up to 1. The result is {} if no device was recorded.
        """
        whole_ns = sum(map(self.whole_ns, devices))
        if not whole_ns:
            return {}
        found = {
            part: sum(parts_ns[part] for parts_ns in devices) / whole_ns
            for part in PARTS
            if part != IDLE
        }
        return {**found, IDLE: max(0.0, 1.0 - sum(found.values()))}


def base_of(ranks: Ranks) -> Base:
    """Return the base of an answer about the window of ``ranks``."""
    return base_within(ranks, _window_of(ranks))


def _window_of(ranks: Ranks) -> TimeWindow:
    """Return the window of ``ranks``; an uncut recording counts as a window of steps."""
    return ranks.span if ranks.uncut is not None else replace(ranks.span, is_of_steps=True)


def base_of_shares(ranks: Ranks) -> Base:
    """Return the base of shares in the window of ``ranks``, without finding steps if possible.

    The base of a window of times is the window, so no steps are needed.
    """
    window = _window_of(ranks)
    if window.is_of_steps:
        return base_within(ranks, window)
    ns, nothing = float(window.duration_ns), np.empty(0)
    return Base(WINDOW, ns, nothing, nothing.astype(np.int64), 0.0, np.nan)


@fact
def base_within(ranks: Ranks, window: TimeWindow) -> Base:
    """Return the base of an answer about ``window``."""
    ledger = ledger_within(ranks, window)
    inside = _are_inside(ledger, window)
    counted = inside & _are_usual(ledger)
    filled = times_of_steps(ledger.take(counted)) & window.times
    lengths = ledger["duration_ns"][counted].astype(np.float64)
    processes = ledger["process"][counted]
    is_filled = filled.total_ns >= _MIN_FILLED_RATIO * window.duration_ns and len(lengths) > 0
    has_gaps = (inside & _are_gaps(ledger)).any() and not independent_processes(ranks)
    is_of_steps = window.is_of_steps and is_filled and not has_gaps
    profiled_ns = float(lengths.mean()) if len(lengths) else np.nan
    steps_count = len(lengths) / max(1, len({*processes.tolist()}))
    all_rows = step_ledger(ranks)
    is_unprofiled = unprofiled_steps(all_rows) & np.isin(all_rows["process"], processes)
    unprofiled = all_rows.take(is_unprofiled)
    if len(unprofiled):
        lengths, processes = unprofiled["period_ns"].astype(np.float64), unprofiled["process"]
    unit = ITERATION if all_steps(ranks).is_pattern else STEP
    return Base(
        unit=unit if is_of_steps else WINDOW,
        unit_ns=float(lengths.mean() if is_of_steps else window.duration_ns),
        lengths_ns=lengths,
        processes=processes,
        steps_count=steps_count,
        profiled_ns=profiled_ns,
        samples_count=_samples_of_step(unprofiled if len(unprofiled) else ledger.take(counted)),
        is_unprofiled=len(unprofiled) > 0,
        left_out=_left_out(ledger, ~counted, has_gaps & _are_gaps(ledger)),
    )


def _samples_of_step(rows: Table) -> float:
    """Return the mean samples per step in ``rows``, summed over processes; NaN if unknown."""
    counts = rows["samples_count"]
    if np.isnan(counts).all():
        return np.nan
    return sum(
        _mean_samples(counts[process_rows]) for process_rows in rows_by(rows, "process").values()
    )


def _mean_samples(counts: Floats) -> float:
    """Return the mean samples per step of one process, whose steps are in order.

    If several steps share one batch, a step without a batch counts as 0 samples. The mean then
    covers the steps from the first batch up to, but excluding, the last batch.
    """
    known = np.flatnonzero(~np.isnan(counts))
    if 1 < len(known) < len(counts):
        counts = counts[known[0] : known[-1]]
    return float(np.nan_to_num(counts).mean())


def unprofiled_steps(ledger: Table) -> Bools:
    """Return which rows of the ledger are usual steps without profiling overhead."""
    return np.asarray(ledger["is_unprofiled"] & (ledger["kind"] == USUAL), np.bool_)


def counted_steps(ranks: Ranks, window: TimeWindow) -> Bools:
    """Return which rows of `ledger_of_window` the step time of ``window`` averages."""
    ledger = ledger_of_window(ranks)
    within, base = ledger_within(ranks, window), base_within(ranks, window)
    if base.is_unprofiled:
        return unprofiled_steps(ledger) & np.isin(ledger["process"], within["process"])
    found = np.zeros(len(ledger), np.bool_)
    found[rows_inside(ledger, window)] = _are_inside(within, window) & _are_usual(within)
    return found


def _are_inside(ledger: Table, window: TimeWindow) -> Bools:
    """Return which rows are at least half covered by ``window``, without its gaps.

    Ranks do not end steps at the same time, so a gap of one rank may overlap a step of another
    rank.
    """
    covered_ns = window.times.covered_ns(*bounds_on_device(ledger))
    # A window has gaps where the recorder paused the program; a step that contains one counts.
    return np.asarray(covered_ns * 2 >= ledger["duration_ns"], np.bool_)


def _left_out(ledger: Table, rows: Bools, gaps: Bools) -> dict[str, tuple[int, float]]:
    """Return by kind the number of selected rows and their duration, as means over processes.

    A step that is one of the ``gaps`` on some ranks is left out on all of them.
    """
    n = max(1, len({*ledger["process"].tolist()}))
    found = {}
    for kind in dict.fromkeys(ledger["kind"][rows].tolist()):
        chosen = rows & (ledger["kind"] == kind)
        if kind not in (WARMUP, CUT, INCOMPLETE) and (chosen & gaps).any():
            chosen = np.isin(ledger["step"], ledger["step"][chosen & gaps])
        ns = float(ledger["duration_ns"][chosen].astype(np.float64).sum())
        found[kind] = (max(1, round(chosen.sum() / n)), ns / n)
    return found


def times_of_steps(ledger: Table) -> Intervals:
    """Return the union of the times of the steps, on the devices where known."""
    return Intervals.union_of(*bounds_on_device(ledger))


def bounds_on_device(ledger: Table) -> tuple[Ints, Ints]:
    """Return the start and end of each step, on the devices where known."""
    return ledger["device_start_ns"], ledger["device_end_ns"]


def usual_steps(ranks: Ranks) -> Bools:
    """Return which rows of `ledger_of_window` are usual; those with recorded GPU work if any."""
    return _are_usual(ledger_of_window(ranks))


def named_usual_steps(ranks: Ranks) -> Bools:
    """Return which rows of `steps_of_ranks` are usual; empty if only a kernel pattern is known."""
    usual = usual_steps(ranks)
    return usual[:0] if all_steps(ranks).is_pattern else usual


def _are_usual(ledger: Table) -> Bools:
    """Return which rows are usual; those with recorded GPU work if there are any."""
    usual: Bools = np.asarray(ledger["kind"] == USUAL, np.bool_)
    is_covered = usual & ledger["is_covered"]
    return is_covered if is_covered.any() else usual


def _are_gaps(ledger: Table) -> Bools:
    """Return which rows are gaps in the usual time: unusual steps of half the ranks or more.

    With hundreds of ranks, some rank is slow in nearly every step. Such a step still counts on the
    other ranks.
    """
    is_unusual = ~_are_usual(ledger)
    step = groups_of(ledger["step"])
    counts = np.bincount(step.number, is_unusual), np.bincount(step.number)
    return is_unusual & (2 * counts[0] >= counts[1])[step.number]


@fact
def independent_processes(ranks: Ranks) -> int:
    """Return the number of processes with steps if they are not ranks of one job, otherwise 0.

    The recorder knows the rank of a process from its environment, and from its process group. So
    processes without a rank, such as forked children that train, have no steps in common. A child
    can inherit the environment with the rank of its parent.
    """
    whole = ranks.whole
    if len(whole) > 1 or whole.info.recorded_by != RecordedBy.OWN:
        return 0
    with_steps, known = np.unique(step_ledger(ranks)["process"]), whole.table("processes")
    of_steps = known["rank"][np.isin(known["process"], with_steps)]
    n_ranks = len(np.unique(of_steps[of_steps != ABSENT]))
    return len(with_steps) if len(with_steps) > 1 and n_ranks < 2 else 0


def usual_time(ranks: Ranks) -> Intervals:
    """Return the time of the usual steps in the window of ``ranks``; the whole window if none."""
    return usual_time_within(ranks, ranks.span)


@fact
def usual_time_within(ranks: Ranks, window: TimeWindow) -> Intervals:
    """Return the time of the usual steps in ``window``; the whole window if none."""
    ledger = ledger_within(ranks, window)
    usual = _are_usual(ledger)
    if not usual.any() or all_steps(ranks).is_pattern:
        return window.times
    starts, ends = bounds_on_device(ledger.take(usual))
    hull = TimeWindow(int(starts.min()), int(ends.max()))
    # Ranks do not begin together, so the end of a cut step is no gap in another rank's first step.
    left_out = times_of_steps(ledger.take(_are_gaps(ledger) & _are_inside(ledger, hull)))
    # A process that waits for its children does not stop them.
    if len(left_out) and independent_processes(ranks):
        left_out = left_out - times_of_steps(ledger.take(usual))
    kept = (times_of_steps(ledger) & hull.times) - left_out
    if not ledger["on_device"].any():  # host periods exclude the recorder's time
        stepping = set(ledger["process"].tolist())
        for by_process in ranks.each(recorder_times):
            for process, time in by_process.items():
                kept = kept - time if process in stepping else kept
    return (kept & window.times) if len(kept) else window.times


def steady_window(ranks: Ranks, window: TimeWindow) -> TimeWindow:
    """Return ``window`` with all steps except usual ones as gaps.

    It extends from the first to the last completely recorded step after warm-up, so tables also
    list a slow step at its end.
    """
    times = usual_time_within(ranks, window)
    if times == window.times:
        return replace(window, is_of_steps=True)
    ledger = ledger_within(ranks, window)
    is_usual = _are_usual(ledger)
    is_whole = ~np.isin(ledger["kind"], (WARMUP, CUT, INCOMPLETE))
    if ledger["is_covered"][is_usual].any():
        is_whole &= ledger["is_covered"]
    starts, ends = bounds_on_device(ledger.take(is_whole))
    hull = TimeWindow(
        min(int(times.starts[0]), int(starts.min())), max(int(times.ends[-1]), int(ends.max()))
    )
    return TimeWindow.of(times, hull & window, is_of_steps=True)
