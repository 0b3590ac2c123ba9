"""Measure how the pace of a run changes with time: pauses, lasting changes, and the overall rate.

Printed step times and rates cover the steps alone. Timestamps also show the time between them:
evaluations, checkpoints, and stalls. The *usual* time of a step is the running median of the
printed step times; the time of an interval beyond its usual time is a pause.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.logs.gathered import INTERVALS, CollectedRun, Key, Series, unit_of
from traceprof.measures.steps.steadiness import find_rise
from traceprof.model.results import Note, Unit

_Floats = npt.NDArray[np.float64]

_PERIODS: Final = ("step_period_ns",)
_RATES: Final = ("samples_per_s", "tokens_per_s", "frames_per_s", "steps_per_s")
_SCOPES: Final = {"run": "", "device": "_per_device", "rank": "_per_rank"}
_MIN_VALUES: Final = 10
_USUAL_REACH: Final = 5
_MAD_TO_DEVIATION: Final = 1.4826
_MIN_PAUSE_DEVIATIONS: Final = 5.0
_MIN_PAUSE_RATIO: Final = 0.1
"""Minimum duration of a pause, as a ratio of the usual time of its interval."""
_MIN_PAUSES_RATIO: Final = 0.01
"""Minimum share of the run in pauses."""
_MAX_SPREAD_RATIO: Final = 0.2
"""Maximum spread of the work between two lines: above, timestamps do not fit the printed rates."""
_MAX_ROUNDING_S: Final = 1.001
"""Maximum error of the time between two timestamps in whole seconds."""
_MIN_ROUNDED_S: Final = 20.0
"""Minimum time between timestamps in whole seconds from which a step time is computed."""
_MIN_PHASE_CHANGE_RATIO: Final = 0.2
_MAX_PHASES: Final = 3
_MAX_LISTED: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """The intervals between the lines of a log.

    ``ends`` are the numbers of completed steps, and ``counts`` the steps of each interval.
    ``wall_s`` is its time by timestamps. ``step_s`` is the printed time of a step, scaled to the
    timestamps by ``work``: the usual work of a step (or the scale, if step times are printed).
    ``has_first``: the first interval begins with the run, and its time is as printed.
    """

    ends: _Floats
    counts: _Floats
    wall_s: _Floats
    step_s: _Floats
    work: float
    is_whole_seconds: bool
    has_first: bool

    @property
    def overall_step_s(self) -> float:
        """The time of the run, with pauses, divided by its steps."""
        return float(self.wall_s.sum() / self.counts.sum())

    @property
    def pauses_s(self) -> _Floats:
        """The time of each interval beyond the usual time of its steps; 0: no pause."""
        places = range(len(self.step_s))
        usual = np.array(
            [
                np.median(self.step_s[max(0, i - _USUAL_REACH) : i + _USUAL_REACH + 1])
                for i in places
            ]
        )
        excess = self.wall_s - self.counts * usual
        spread = float(np.median(np.abs(excess - np.median(excess)))) * _MAD_TO_DEVIATION
        least = max(_MIN_PAUSE_DEVIATIONS * spread, 2 * _MAX_ROUNDING_S * self.is_whole_seconds)
        is_pause = excess > np.maximum(least, _MIN_PAUSE_RATIO * self.counts * usual)
        is_pause[: int(self.has_first)] = False  # warm-up
        return np.where(is_pause, excess, 0.0)


def lasting_change(values: _Floats) -> int | None:
    """Return the index from which values stay higher, or stay lower; None if they do not change."""
    rise, fall = find_rise(values), find_rise(values[::-1])
    if rise is None and fall is not None:
        rise = len(values) - fall
    return rise if rise is not None and 0 < rise < len(values) else None


def usual_value(values: _Floats, *, is_rate: bool) -> float:
    """Return the median of ``values``; their mean over time if they change for good.

    The median of a run with two levels is one of them, and depends on which lasts longer.
    """
    if len(values) < _MIN_VALUES or not (values > 0).all() or lasting_change(values) is None:
        return float(np.median(values))
    return float(1 / np.mean(1 / values)) if is_rate else float(values.mean())


def add_pace(run: CollectedRun) -> None:
    """Add overall rates, pauses, and notes on lasting changes to ``run``."""
    if run.attempt:
        return  # the table of attempts has the times of a restarted job
    main = None
    for metric in (*_PERIODS, *_RATES):
        found = _series_of(run, metric)
        if found is None:
            continue
        key, series = found
        pace = _pace_of(key, series)
        if main is None:
            main = metric
            _note_change(run, key, series)
            if pace is not None:
                _note_pauses(run, pace)
                _add_step_times(run, pace)
                _add_work_rates(run, pace.overall_step_s)
        if pace is not None and metric in _RATES:
            _add_overall_rate(run, key, pace)
    if main is None:
        _add_steps_by_clock(run)
    _note_phases(run)


def _series_of(run: CollectedRun, metric: str) -> tuple[Key, Series] | None:
    """Return the longest series of intervals of a metric: of the run, otherwise of a device."""
    found = [
        (key, series)
        for key, series in run.of(metric)
        if key.over in INTERVALS and key.scope in _SCOPES and len(series.values) >= _MIN_VALUES
    ]
    order = [*_SCOPES]
    return min(
        found,
        key=lambda item: (order.index(item[0].scope), -len(item[1].values), item[0].rank),
        default=None,
    )


def _columns_of(series: Series) -> tuple[_Floats, _Floats, _Floats]:
    """Return steps, times, and values, where the value and the step are known."""
    steps, at_s, values = (
        np.asarray(column, np.float64) for column in (series.steps, series.at_s, series.values)
    )
    known = np.isfinite(steps) & np.isfinite(values) & (values > 0)
    return steps[known], at_s[known], values[known]


def _pace_of(key: Key, series: Series) -> Pace | None:
    """Return the pace of a series; None if its timestamps are unknown or do not fit its values."""
    steps, at_s, values = _columns_of(series)
    if len(values) < _MIN_VALUES or not np.isfinite(at_s).all():
        return None
    counts, wall_s = np.diff(steps), np.diff(at_s)
    if (counts <= 0).any() or (wall_s < 0).any() or at_s[-1] <= at_s[0]:
        return None
    printed = values / 1e9 if key.metric in _PERIODS else 1 / values
    works = wall_s / counts / printed[1:]
    work = float(np.median(works))
    spread = float(np.median(np.abs(works - work))) * _MAD_TO_DEVIATION
    is_whole_seconds = bool((at_s == np.round(at_s)).all())
    if work <= 0 or spread > _MAX_SPREAD_RATIO * work:
        return None
    # Whole seconds round every interval, but not their sum. Pauses are left out of the sum.
    reach = max(_MIN_PAUSE_DEVIATIONS * spread, _MIN_PAUSE_RATIO * work) * counts * printed[1:]
    excess_s = wall_s - counts * printed[1:] * work
    is_usual = np.abs(excess_s) <= np.maximum(reach, _MAX_ROUNDING_S * is_whole_seconds)
    work = float(wall_s[is_usual].sum() / (counts * printed[1:])[is_usual].sum())
    step_s = printed * work
    # The first line covers the steps before it; the time before them is setup.
    first = min(steps[0], counts[0]) if series.begins else 0.0
    begin = 0 if first > 0 else 1
    return Pace(
        ends=steps[begin:],
        counts=np.append(first, counts)[begin:],
        wall_s=np.append(first * step_s[0], wall_s)[begin:],
        step_s=step_s[begin:],
        work=work,
        is_whole_seconds=is_whole_seconds,
        has_first=begin == 0,
    )


def _add_step_times(run: CollectedRun, pace: Pace) -> None:
    """Add the overall step time, and the usual step time by timestamps if none is printed."""
    run.measure("overall_step_period_ns", pace.overall_step_s * 1e9, source="computed")
    if "step_period_ns" not in run.measures:
        seconds = usual_value(pace.step_s, is_rate=False)
        run.measure("step_period_ns", seconds * 1e9, source="computed")


def _add_overall_rate(run: CollectedRun, key: Key, pace: Pace) -> None:
    """Add the rate over the whole time of the run, and of all devices if their number is known."""
    rate, suffix = pace.work / pace.overall_step_s, _SCOPES[key.scope]
    run.measure(f"overall_{key.metric}{suffix}", rate, scope=key.scope, source="computed")
    size = {"device": run.facts.size, "rank": run.facts.world_size}.get(key.scope)
    if size:
        run.measure(f"overall_{key.metric}", rate * size, source="computed")


def _add_steps_by_clock(run: CollectedRun) -> None:
    """Add the step time by timestamps of a log that prints neither step times nor rates."""
    rows = [series for key, series in run.series.items() if key.over in INTERVALS]
    if not run.facts.has_step_counter or any(run.of("environment_steps_per_s")):
        return  # the lines count episodes, or steps of an environment
    if not rows or "step_period_ns" in run.measures:
        return
    steps, at_s, _ = _columns_of(max(rows, key=lambda series: len(series.values)))
    counts, wall_s = np.diff(steps), np.diff(at_s)
    if len(counts) < _MIN_VALUES or not (wall_s >= 0).all() or not (counts > 0).all():
        return
    run.measure("overall_step_period_ns", wall_s.sum() / counts.sum() * 1e9, source="computed")
    is_exact = np.median(wall_s) >= _MIN_ROUNDED_S or (at_s != np.round(at_s)).any()
    if is_exact and (wall_s > 0).all():
        seconds = usual_value(wall_s / counts, is_rate=False)
        run.measure("step_period_ns", seconds * 1e9, source="computed")


def _add_work_rates(run: CollectedRun, step_s: float) -> None:
    """Add the overall rates that follow from the work of a step."""
    for name, amount in (("samples_per_s", run.facts.batch), ("tokens_per_s", run.facts.tokens)):
        if amount:
            run.measure(f"overall_{name}", amount / step_s, source="computed")


def _note_pauses(run: CollectedRun, pace: Pace) -> None:
    """Note the pauses of the run, with their time and their steps."""
    pauses_s, whole_s = pace.pauses_s, float(pace.wall_s.sum())
    rows = np.flatnonzero(pauses_s)
    if pauses_s.sum() < _MIN_PAUSES_RATIO * whole_s or not len(rows):
        return
    run.measure("pauses_ns", float(pauses_s.sum()) * 1e9, source="computed")
    ends = pace.ends[rows]
    between = np.diff(ends)
    if len(between) >= 2 and (between == between[0]).all():
        where = "every {every:count} steps"
    else:
        where = "before step(s) {steps}" + ", and later" * (len(ends) > _MAX_LISTED)
    # A slow interval whose line reports slow steps is no pause between steps.
    rest_s = pace.wall_s[rows] - pace.counts[rows] * pace.step_s[rows]
    longest = ", the longest {most:ns}" * (len(rows) > 1)
    kind = "pause(s)" if rest_s.sum() > pauses_s.sum() / 2 else "slow interval(s)"
    run.say(
        f"{{ns:ns}} of {{whole:ns}} ({{share:ratio}}) in {{n:count}} {kind}"
        f"{longest}, {where}; the overall rates include them",
        n=len(rows),
        ns=float(pauses_s.sum()) * 1e9,
        whole=whole_s * 1e9,
        share=float(pauses_s.sum()) / whole_s,
        most=float(pauses_s.max()) * 1e9,
        every=float(between[0]) if len(between) else math.nan,
        steps=", ".join(f"{step:g}" for step in ends[:_MAX_LISTED]),
    )


def _note_change(run: CollectedRun, key: Key, series: Series) -> None:
    note = _change_of(run, key, series, 0.0)
    if note is not None:
        run.say(note[1].text, **note[1].values)


def _note_phases(run: CollectedRun) -> None:
    """Note the phases of a step whose time changes most."""
    found = []
    seen: set[str] = set()
    for key, series in run.series.items():
        is_phase = unit_of(key.metric) == Unit.NS and key.metric not in _PERIODS
        if is_phase and key.over in INTERVALS and key.metric not in seen:
            seen.add(key.metric)
            change = _change_of(run, key, series, _MIN_PHASE_CHANGE_RATIO)
            if change is not None:
                found.append(change)
    for _, note in sorted(found, key=lambda change: -change[0])[:_MAX_PHASES]:
        run.say(note.text, **note.values)


def _change_of(
    run: CollectedRun, key: Key, series: Series, least: float
) -> tuple[float, Note] | None:
    """Return the size of the lasting change of a series, and a note; None if it does not change."""
    steps, _, values = _columns_of(series)
    if run.facts.has_warmup and series.begins:
        steps, values = steps[1:], values[1:]
    is_rate = key.metric.endswith("_per_s")
    place = lasting_change(1 / values if is_rate else values) if len(values) else None
    if place is None:
        return None
    before, after = float(np.median(values[:place])), float(np.median(values[place:]))
    if abs(after - before) < least * before:
        return None
    unit, sign = unit_of(key.metric), "+" if after > before else "−"
    return abs(after - before), Note.of(
        f"{{name}} changes after step {{step:count}}: {{before:{unit}}} before, {{after:{unit}}} "
        f"later ({sign}{{change:ratio}})",
        name=key.metric + _SCOPES.get(key.scope, "") * is_rate,
        step=float(steps[place - 1]),
        before=before,
        after=after,
        change=abs(after / before - 1),
    )
