"""Measures how steady step times are: warm-up, spread, trend, and outliers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import numpy as np

from traceprof.measures.rows import Bools, Floats, Ints
from traceprof.model.grouping import rows_by_value
from traceprof.model.timing import Steps

FEWEST_FOR_PERCENTILES: Final = 10
"""With fewer steps, the shortest and longest are reported instead of percentiles."""
_MAX_SLOPE_POINTS: Final = 1000
_MIN_EXCESS_RATIO: Final = 0.05
_MAD_TO_DEVIATION: Final = 1.4826
"""Factor from the median absolute deviation to the standard deviation of a normal distribution."""
_MAX_OUTLIERS_RATIO: Final = 0.25
_MIN_OTHERS: Final = 5


def measure_steadiness(durations_ns: Floats, processes: Ints) -> dict[str, float]:
    """Return the statistics of step durations; {} if there are none.

    ``processes`` is the process of each step; the steps of each process are in order. ``trend_ns``
    is the change per step: the median of the slopes between all pairs of steps of a process
    (Theil–Sen, robust against outliers). ``drift_ratio`` is the trend over the longest process,
    divided by the median.
    """
    if not len(durations_ns):
        return {}
    rows = [durations_ns[process_rows] for process_rows in rows_by_value(processes).values()]
    p10, median, p90 = map(float, np.percentile(durations_ns, [10, 50, 90]))
    slopes = [_slopes(row, max(3, _MAX_SLOPE_POINTS // len(rows))) for row in rows if len(row) >= 3]
    trend_ns = float(np.median(np.concatenate(slopes))) if slopes else 0.0
    return {
        "steady_count": len(durations_ns),
        "mean_ns": float(durations_ns.mean()),
        "median_ns": median,
        "p10_ns": p10,
        "p90_ns": p90,
        "min_ns": float(durations_ns.min()),
        "max_ns": float(durations_ns.max()),
        "spread_ratio": (p90 - p10) / median if median else 0.0,
        "trend_ns": trend_ns,
        "drift_ratio": trend_ns * (max(map(len, rows)) - 1) / median if median else 0.0,
    }


def _slopes(durations_ns: Floats, most_places: int) -> Floats:
    # Sample the steps evenly to bound the number of pairs.
    """Return the slopes between pairs of steps, in ns per step."""
    place = np.unique(np.linspace(0, len(durations_ns) - 1, most_places).astype(np.int64))
    first, second = np.triu_indices(len(place), k=1)
    rise = durations_ns[place[second]] - durations_ns[place[first]]
    return np.asarray(rise / (place[second] - place[first]), np.float64)


_MIN_LENGTH_FACTOR: Final = 1.5
_MIN_EXPLAINED_RATIO: Final = 0.9
_MIN_STEPS_OF_KIND: Final = 2
_MIN_KIND_RATIO: Final = 0.1
_MIN_REGULAR_RATIO: Final = 0.9


def are_long(durations_ns: Floats) -> Bools | None:
    """Return which steps are of the longer of two kinds; None if there is only one kind.

    There are two kinds if three conditions hold: a threshold explains nearly all variance of the
    logarithms (evenly spread values reach three quarters); each kind has at least a tenth of the
    steps, and two steps; the median of one kind is at least 1.5 times the median of the other.
    """
    n = len(durations_ns)
    fewest = max(_MIN_STEPS_OF_KIND, int(np.ceil(_MIN_KIND_RATIO * n)))
    if n < 2 * fewest or durations_ns.min() <= 0:
        return None
    order = np.sort(np.log(durations_ns))
    whole = float(((order - order.mean()) ** 2).sum())
    below = np.arange(1, n)
    sums = np.cumsum(order)[:-1]
    distance = sums / below - (order.sum() - sums) / (n - below)
    explained = below * (n - below) / n * distance**2
    explained[: fewest - 1] = explained[n - fewest :] = 0
    place = int(explained.argmax())
    times = np.exp(np.median(order[place + 1 :]) - np.median(order[: place + 1]))
    if times < _MIN_LENGTH_FACTOR or explained[place] < _MIN_EXPLAINED_RATIO * whole:
        return None
    return np.asarray(np.log(durations_ns) > order[place], np.bool_)


def long_step_period(is_long: Bools) -> int:
    """Return the period, in steps, at which a long step occurs; 1 if there is no regular period."""
    between = np.diff(np.flatnonzero(is_long))
    if len(between) < 2:
        return 1
    usual = int(np.median(between))
    return usual if (between == usual).mean() >= _MIN_REGULAR_RATIO else 1


def outliers(durations_ns: Floats) -> Ints:
    """Return 1 for each slow outlier, -1 for each fast one, else 0.

    An outlier lies outside median ± 3 · 1.4826 · MAD and differs from the median by more than 5%.
    Outliers are rare: if more than a quarter of the steps are on one side, the steps are of several
    kinds, and only the outliers within that side count. The same holds if a tenth of the steps are
    slow, and their excess is more than a quarter of the time: a loop whose data workers are slow
    waits in every nth step. If the steps get slower for good, the later steps are slow outliers
    only among themselves.
    """
    if len(durations_ns) < 4:
        return np.zeros(len(durations_ns), np.int64)
    median = float(np.median(durations_ns))
    spread = 3 * _MAD_TO_DEVIATION * float(np.median(np.abs(durations_ns - median)))
    deviation = durations_ns - median
    outside = np.abs(deviation) > max(spread, _MIN_EXCESS_RATIO * median)
    found = np.where(outside, np.sign(deviation), 0).astype(np.int64)
    for side in (1, -1):
        rows = np.flatnonzero(found == side)
        is_large = len(rows) > _MAX_OUTLIERS_RATIO * len(found)
        if side > 0 and len(rows) >= max(_MIN_STEPS_OF_LEVEL, _MIN_KIND_RATIO * len(found)):
            excess_ns = float(deviation[rows].sum())
            is_large |= excess_ns > _MAX_OUTLIERS_RATIO * float(durations_ns.sum())
        if is_large:
            found[rows] = np.where(outliers(durations_ns[rows]) == side, side, 0)
    if (found > 0).any() and (rise := find_rise(durations_ns)) is not None:
        found[rise:] = np.where(outliers(durations_ns[rise:]) > 0, 1, np.minimum(found[rise:], 0))
    return found


_MIN_STEPS_OF_LEVEL: Final = 5
MIN_STEPS_FOR_RISE: Final = 2 * _MIN_STEPS_OF_LEVEL
_MIN_RISE_RATIO: Final = 0.05
_MIN_RISE_DEVIATIONS: Final = 3.0
_MAX_FALSE_ALARM_RATIO: Final = 0.01
_MIN_LONGER_PAIRS_RATIO: Final = 0.9
_LAST_STEPS_RATIO: Final = 0.1
_MIN_LAST_STEPS: Final = 3
_SAME_LEVEL_RATIO: Final = 0.01


def find_rise(durations_ns: Floats) -> int | None:
    """Return the index from which steps are longer for good; None if step times do not rise.

    The split is the one with the largest Mann–Whitney statistic. It must be significant at 1%,
    corrected for the number of splits. A later step must be longer than an earlier step in 90% of
    all pairs, which excludes periodic steps. The difference of the medians must exceed 5%, and
    three standard deviations of the noise between neighboring steps. The last steps must still be
    long.

    Steps may rise slowly. The returned index follows the last step before the split that is still
    as short as the median of these steps.
    """
    n = len(durations_ns)
    if n < MIN_STEPS_FOR_RISE:
        return None
    _, number, counts = np.unique(durations_ns, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[number]
    before = np.arange(_MIN_STEPS_OF_LEVEL, n - _MIN_STEPS_OF_LEVEL + 1)
    pairs = before * (n - before)
    longer = pairs + before * (before + 1) / 2 - np.cumsum(ranks)[before - 1]
    scores = (longer - pairs / 2) / np.sqrt(pairs * (n + 1) / 12)
    best = int(scores.argmax())
    split = int(before[best])
    level_ns = float(np.median(durations_ns[:split]))
    rise_ns = float(np.median(durations_ns[split:])) - level_ns
    steps_ns = np.diff(durations_ns)
    noise_ns = float(np.median(np.abs(steps_ns - np.median(steps_ns)))) * _MAD_TO_DEVIATION / 2**0.5
    last_ns = durations_ns[-max(_MIN_LAST_STEPS, int(_LAST_STEPS_RATIO * n)) :]
    if (
        NormalDist().cdf(-float(scores[best])) * len(before) > _MAX_FALSE_ALARM_RATIO
        or longer[best] < _MIN_LONGER_PAIRS_RATIO * pairs[best]
        or rise_ns < max(_MIN_RISE_RATIO * level_ns, _MIN_RISE_DEVIATIONS * noise_ns)
        or float(np.median(last_ns)) - level_ns < rise_ns / 2
    ):
        return None
    reach_ns = max(_MIN_RISE_DEVIATIONS * noise_ns, _SAME_LEVEL_RATIO * level_ns)
    return int(np.flatnonzero(durations_ns[:split] <= level_ns + reach_ns)[-1]) + 1


def find_change(durations_ns: Floats) -> int | None:
    """Return the index from which durations are longer, or else shorter, for good; None if not."""
    rise, fall = find_rise(durations_ns), find_rise(durations_ns[::-1])
    return rise if rise is not None or fall is None else len(durations_ns) - fall


def outliers_of_processes(durations_ns: Floats, processes: Ints, is_warmup: Bools) -> Ints:
    """Return 1 for each slow and -1 for each fast step among the steady steps of its process.

    Other steps and warm-up steps are 0.
    """
    found = np.zeros(len(durations_ns), np.int64)
    steady = np.flatnonzero(~is_warmup)
    for rows in rows_by_value(processes[steady]).values():
        found[steady[rows]] = outliers(durations_ns[steady[rows]])
    return found


_MIN_FIRST_ITERATION_FACTOR: Final = 2.0
_MIN_KEPT_STEPS: Final = 2
_MIN_STEPS_FOR_SPREAD: Final = 3
_MIN_EXCESS_OF_FEW_RATIO: Final = 0.5
"""Minimum excess over two other steps, because two steps hardly show the usual spread."""


def count_warmup(durations_ns: Ints) -> int:
    """Return the number of leading steps that are warm-up.

    A leading step is warm-up while it is longer than median + 3 · 1.4826 · MAD of the steps after
    it, and longer than the median by more than 5% (by half, if only two steps follow). A step
    shorter than the rest is no warm-up. At least half of the steps, and at least two, are kept.
    """
    n_dropped = 0
    durations: list[float] = durations_ns.astype(np.float64).tolist()
    max_dropped = len(durations) - max(_MIN_KEPT_STEPS, len(durations) / 2)
    rest = sorted(durations)
    while n_dropped < max_dropped:
        duration = durations[n_dropped]
        del rest[bisect_left(rest, duration)]
        middle = ((len(rest) - 1) // 2, len(rest) // 2)
        median = sum(rest[rank] for rank in middle) / 2
        deviation = sum(_deviation(rest, median, rank) for rank in middle) / 2
        spread = 3 * _MAD_TO_DEVIATION * deviation
        floor = (
            _MIN_EXCESS_RATIO if len(rest) >= _MIN_STEPS_FOR_SPREAD else _MIN_EXCESS_OF_FEW_RATIO
        )
        if duration - median <= max(spread, floor * median):
            break
        n_dropped += 1
    return n_dropped


def count_first_iterations(durations_ns: Ints) -> int:
    """Return the number of leading pattern iterations that load kernels and fill memory pools.

    They are warm-up and take more than twice as long as the iterations after them.
    """
    n_warmup = count_warmup(durations_ns)
    is_long = durations_ns[:n_warmup] > _MIN_FIRST_ITERATION_FACTOR * np.median(
        durations_ns[n_warmup:]
    )
    return int(np.logical_and.accumulate(is_long).sum())


def _deviation(values: Sequence[float], median: float, rank: int) -> float:
    """Return the ``rank``-th smallest distance of the sorted ``values`` from their median.

    The nearest values are adjacent, so a binary search finds the first of them in O(log n).
    """
    last = len(values) - 1 - rank
    first = bisect_left(
        range(last), True, key=lambda i: values[i + rank] - median >= median - values[i]
    )
    return min(
        max(abs(values[i] - median), abs(values[i + rank] - median))
        for i in (first, max(first - 1, 0))
    )


def excess_of_slow(steps: Steps, slow: Ints, is_usual: Bools, usual_ns: float) -> int:
    """Return the time in ns that the rows ``slow`` of ``steps`` take longer than usual, in total.

    A delay of one rank can reach other ranks in the next step, or the next step can make up for a
    part of it. A usual step after a slow step therefore counts as well if none of at least five
    other usual steps is as long or as short. Then ``usual_ns``, the mean usual step, excludes it.
    """
    if not len(slow):
        return 0
    process, durations_ns = steps.table["process"], steps.durations_ns
    after = slow[slow + 1 < len(process)] + 1
    after = after[is_usual[after] & (process[after] == process[after - 1])]
    others = durations_ns[is_usual & ~np.isin(np.arange(len(process)), after)]
    if len(others) < _MIN_OTHERS:
        after = after[:0]
    else:
        after = after[(durations_ns[after] < others.min()) | (durations_ns[after] > others.max())]
    if len(after):
        usual_ns = float(others.mean())
    return max(0, int((durations_ns[np.append(slow, after)] - usual_ns).sum()))
