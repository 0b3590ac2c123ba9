"""How steady steps are: warm-up, spread, trend and outliers of their durations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np

from traceprof.measures.rows import Bools, Floats, Ints
from traceprof.model.grouping import rows_by_value

FEWEST_FOR_PERCENTILES: Final = 10
"""Of fewer steps the shortest and the longest are told."""
_MAX_SLOPE_POINTS: Final = 1000
_MIN_EXCESS_RATIO: Final = 0.05
_MAX_OUTLIERS_RATIO: Final = 0.25


def measure_steadiness(durations_ns: Floats, processes: Ints) -> dict[str, float]:
    """Return the statistics of the lengths of steps; nothing of none.

    ``processes`` says whose each step is; the steps of each are in their order. ``trend_ns`` is how
    much longer each step is than the one before (the median of the slopes between all pairs of a
    process: outliers do not bend it), ``drift_ratio`` what that adds from the first to the last of
    the process with the most, of the median.
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
    # Evenly thinned, so that the number of pairs stays bounded.
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
    """Return which steps are of the longer of two kinds; None where all are of one.

    They are of two kinds where a border explains nearly all by which their logarithms vary (of
    evenly spread ones it explains three quarters), both hold a tenth of the steps and two of them,
    and the median of one is half as long again as that of the other.
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


def turn_of(is_long: Bools) -> int:
    """Return every how many steps a long one comes; 1 where they come in no order."""
    between = np.diff(np.flatnonzero(is_long))
    if len(between) < 2:
        return 1
    usual = int(np.median(between))
    return usual if (between == usual).mean() >= _MIN_REGULAR_RATIO else 1


def outliers(durations_ns: Floats) -> Ints:
    """Return 1 for each slow outlier, -1 for each fast one, else 0.

    An outlier lies outside median ± 3 · 1.4826 · MAD, and more than 5 % from the median. Outliers
    are rare: where more than a quarter of the steps lie on one side, steps are of several kinds,
    and outliers are those of the kind on that side.
    """
    if len(durations_ns) < 4:
        return np.zeros(len(durations_ns), np.int64)
    median = float(np.median(durations_ns))
    spread = 3 * 1.4826 * float(np.median(np.abs(durations_ns - median)))
    away = durations_ns - median
    outside = np.abs(away) > max(spread, _MIN_EXCESS_RATIO * median)
    found = np.where(outside, np.sign(away), 0).astype(np.int64)
    for side in (1, -1):
        rows = np.flatnonzero(found == side)
        if len(rows) > _MAX_OUTLIERS_RATIO * len(found):
            found[rows] = np.where(outliers(durations_ns[rows]) == side, side, 0)
    return found


def outliers_of_processes(durations_ns: Floats, processes: Ints, is_warmup: Bools) -> Ints:
    """Return 1 for each slow and -1 for each fast step among the steady ones of its process.

    0 for the others and for warm-up.
    """
    found = np.zeros(len(durations_ns), np.int64)
    steady = np.flatnonzero(~is_warmup)
    for rows in rows_by_value(processes[steady]).values():
        found[steady[rows]] = outliers(durations_ns[steady[rows]])
    return found


_MIN_FIRST_ITERATION_FACTOR: Final = 2.0
_MAD_TO_DEVIATION: Final = 1.4826
"""Times the median absolute deviation: the standard deviation, if durations are normal."""
_MIN_KEPT_STEPS: Final = 2
_MIN_STEPS_FOR_SPREAD: Final = 3
_MIN_EXCESS_OF_FEW_RATIO: Final = 0.5
"""By so much a step is longer than two others, which hardly tell how much steps spread."""


def count_warmup(durations_ns: Ints) -> int:
    """Return how many leading steps are warm-up.

    A leading step is warm-up while it is longer than median + 3 · 1.4826 · MAD of the steps after
    it, and by more than 5 % of the median (of two steps after it by half); one that is shorter
    than the rest is none. At least half of the steps are kept, and at least two.
    """
    n_dropped = 0
    durations: list[float] = durations_ns.astype(np.float64).tolist()
    most = len(durations) - max(_MIN_KEPT_STEPS, len(durations) / 2)
    rest = sorted(durations)
    while n_dropped < most:
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


def count_first_turns(durations_ns: Ints) -> int:
    """Return how many leading turns of a pattern load kernels and fill pools: no turns as others.

    They are warm-up, and take more than twice as long as the turns after them.
    """
    most = count_warmup(durations_ns)
    is_long = durations_ns[:most] > _MIN_FIRST_ITERATION_FACTOR * np.median(durations_ns[most:])
    return int(np.logical_and.accumulate(is_long).sum())


def _deviation(values: Sequence[float], median: float, rank: int) -> float:
    """Return the ``rank``-th smallest distance of the sorted ``values`` from their median.

    The values that are nearest lie side by side: O(log n) finds the first of them.
    """
    last = len(values) - 1 - rank
    first = bisect_left(
        range(last), True, key=lambda i: values[i + rank] - median >= median - values[i]
    )
    return min(
        max(abs(values[i] - median), abs(values[i + rank] - median))
        for i in (first, max(first - 1, 0))
    )
