"""Finds steps in the kernel sequence: bursts of optimizer kernels, or a period of kernel names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from traceprof.measures.host.launches import launches_of
from traceprof.measures.host.threads import are_launched_by_loop
from traceprof.measures.rows import Floats, Ints, lengths_of, span_at, union_of
from traceprof.model.activity import Activity
from traceprof.model.grouping import groups_of, rows_by_value
from traceprof.model.packed import Packed
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.timing import empty_steps, steps_between
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES, phases_of_ranges

_MAX_SYMBOLS: Final = 1 << 18
"""Number of symbols searched for the period. It is enough for steps of 80,000 kernels."""
_MIN_PERIOD: Final = 4
_MIN_MATCH_RATIO: Final = 0.8
_AS_GOOD_RATIO: Final = 0.99
_OF_DIVISOR_RATIO: Final = 0.98
_SIGNATURE_LENGTH: Final = 8
_MAX_CANDIDATES: Final = 256
_MAX_CUT_PLACES: Final = 8
_MAX_SAME_PASS_RATIO: Final = 0.5
_MAX_DRIFT_RATIO: Final = 0.1
"""Maximum difference between the length of an iteration and the period, as a share of the period.
"""
_PASSES: Final = tuple(map(PHASES.index, ("forward", "backward")))
_SAMPLE_SIZE: Final = 1 << 10
"""Number of symbols sampled to estimate the shifts at which a sequence matches itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Period:
    """A repeating sequence: its length, its match ratio, and the last index of each iteration."""

    length: int
    match_ratio: float
    lasts: Ints


def find_period(codes: Ints, weights: Ints) -> Period | None:
    """Return the period of ``codes``; None if fewer than 80% of the symbols repeat.

    ``weights[i]`` is the pause after symbol i. Iterations are cut at the usually longest pause.
    """
    # Use the end of a recording, because it is steadier than the beginning.
    tail = Packed(codes[-_MAX_SYMBOLS:])
    length = _best_shift(tail)
    if length is None:
        return None
    match = float(np.mean(tail[length:] == tail[:-length]))
    return (
        Period(length, match, _iteration_ends(codes, weights, length))
        if match >= _MIN_MATCH_RATIO
        else None
    )


def _best_shift(codes: Packed) -> int | None:
    """Return the shortest shift at which the sequence matches itself about best."""
    longest = len(codes) // 3
    if longest < _MIN_PERIOD:
        return None
    ratio = _matches(codes, longest)
    ratio[:_MIN_PERIOD] = 0
    candidates = np.argsort(-ratio, kind="stable")[:_MAX_CANDIDATES]
    exact = np.array([float(np.mean(codes[k:] == codes[:-k])) if k else 0.0 for k in candidates])
    if not exact.any():
        return None
    # A layer that repeats within an iteration matches nearly as well as the iteration.
    best = candidates[exact >= _AS_GOOD_RATIO * exact.max()].min()
    # A multiple of the period may match slightly better by chance, so prefer its divisors.
    divides = best % np.maximum(candidates, 1) == 0
    return int(candidates[divides & (exact >= _OF_DIVISOR_RATIO * exact.max())].min())


def _matches(codes: Packed, longest: int) -> Floats:
    """Return the approximate share of symbols that match themselves, by shift up to ``longest``.

    The estimate uses random symbols that have a predecessor at every shift. The seed is fixed, so
    the same input gives the same result.
    """
    last = np.random.default_rng(0).permutation(np.arange(longest, len(codes)))[:_SAMPLE_SIZE]
    n_matches = np.zeros(longest + 1, np.int16)
    for at in last.tolist():
        n_matches += codes[at - longest : at + 1] == codes[at]
    return n_matches[::-1] / len(last)


def _iteration_ends(codes: Ints, weights: Ints, length: int) -> Ints:
    """Return the last index of each iteration, where the usual pause after it is the longest."""
    n_iterations = len(codes) // length
    whole = n_iterations * length
    pauses = np.median(weights[-whole:].reshape(n_iterations, length), axis=0)
    for place in np.argsort(-pauses, kind="stable")[:_MAX_CUT_PLACES]:
        signature_end = len(codes) - whole + int(place) + (n_iterations - 2) * length
        size = max(1, min(_SIGNATURE_LENGTH, length // 2))
        signature = codes[signature_end - size + 1 : signature_end + 1]
        windows = np.lib.stride_tricks.sliding_window_view(codes, size)
        found = np.flatnonzero((windows == signature).all(axis=1)) + size - 1
        if abs(len(found) - n_iterations) <= max(1, n_iterations // 10):
            return _add_missed_ends(codes, found, length)
    place = int(np.argmax(pauses))
    return np.arange(len(codes) - whole + place, len(codes), length)


def _add_missed_ends(codes: Ints, lasts: Ints, length: int) -> Ints:
    """Return ``lasts`` with the missed iteration ends between two of them.

    An iteration whose end differs slightly from the others would be merged with the next
    iterations. A stretch of about k times ``length`` symbols is therefore cut where the same last
    symbol occurs about every ``length`` symbols.
    """
    found = [lasts]
    for first, last in zip(lasts[:-1].tolist(), lasts[1:].tolist(), strict=True):
        n = round((last - first) / length)
        if n < 2 or abs(last - first - n * length) > _MAX_DRIFT_RATIO * n * length:
            continue
        reach = max(1, int(_MAX_DRIFT_RATIO * length))
        for iteration in range(1, n):
            at = first + iteration * (last - first) // n
            candidates = (
                np.flatnonzero(codes[at - reach : at + reach + 1] == codes[last]) + at - reach
            )
            nearest = candidates[np.abs(candidates - at).argmin()] if len(candidates) else at
            found.append(np.array([nearest], np.int64))
    return np.unique(np.concatenate(found))


_HEAVY: Final = (Activity.GEMM.value, Activity.CONVOLUTION.value, Activity.ATTENTION.value)
"""Kernel classes of the forward and backward passes, never of an optimizer step."""
_MIN_STEPS: Final = 3
_MIN_KERNELS_PER_STEP: Final = 8
"""A burst of optimizer kernels that occurs more often ends no step."""


InferredSteps: TypeAlias = tuple[Table, float]
"""Steps (columns as in `Steps.table`) and the confidence from the kernel sequence (0 to 1)."""


def find_optimizer_steps(trace: Trace) -> InferredSteps:
    """Return the steps between the ends of the bursts of optimizer kernels."""
    tables, confidences = [], []
    has_optimizer = (trace.kernels["activity"] == Activity.OPTIMIZER.value).any()
    for process, kernels in _busiest_lanes(trace) if has_optimizer else ():
        optimizer = np.flatnonzero(kernels["activity"] == Activity.OPTIMIZER.value)
        heavy = np.cumsum(kernels["activity"].isin(_HEAVY))
        if len(optimizer) < _MIN_STEPS:
            continue
        last = optimizer[np.append(np.diff(heavy[optimizer]) > 0, True)]
        if len(last) <= _MIN_STEPS:
            continue
        sizes = np.diff(last)
        if np.median(sizes) < _MIN_KERNELS_PER_STEP:
            continue
        tables.append(steps_between(process, ABSENT, _running_ends(kernels)[last]))
        confidences.append(
            float(np.mean(np.abs(sizes - np.median(sizes)) <= 0.1 * np.median(sizes)))
        )
    return _joined(tables, confidences)


def find_periodic_steps(trace: Trace) -> InferredSteps:
    """Return the steps that repeat the same sequence of kernel names."""
    tables, confidences = [], []
    for process, kernels in _busiest_lanes(trace):
        gaps = np.append(np.maximum(kernels["start_ns"][1:] - _running_ends(kernels)[:-1], 0), 0)
        period = find_period(kernels["name"].codes, gaps)
        if period is None or len(period.lasts) <= _MIN_STEPS:
            continue
        if _are_of_one_pass(trace, process, kernels["call_ns"][period.lasts]):
            continue
        tables.append(steps_between(process, ABSENT, _running_ends(kernels)[period.lasts]))
        confidences.append(period.match_ratio)
    return _joined(tables, confidences)


def _are_of_one_pass(trace: Trace, process: int, called_ns: Ints) -> bool:
    """Return whether most iterations are launched in the same pass as the previous iteration.

    The pass is a forward or backward pass, or one call that launches a graph. The repeating unit is
    then a layer of a model.
    """
    if (
        np.mean((called_ns[1:] == called_ns[:-1]) & (called_ns[1:] != ABSENT))
        > _MAX_SAME_PASS_RATIO
    ):
        return True
    ranges = trace.ranges.take(trace.ranges["process"] == process)
    time = union_of(ranges.take(np.isin(phases_of_ranges(ranges), _PASSES)))
    place = span_at(time.starts, time.ends, called_ns)
    return bool(
        len(time) and np.mean((place[1:] == place[:-1]) & (place[1:] >= 0)) > _MAX_SAME_PASS_RATIO
    )


def _busiest_lanes(trace: Trace) -> list[tuple[int, Table]]:
    """Return, per process, the kernels of the stream that runs the most kernels of its loop.

    Kernels launched by background threads are excluded. Processes with too few kernels for steps
    are omitted.
    """
    columns = ("process", "device", "stream", "start_ns", "end_ns", "name", "activity")
    launches = launches_of(trace, "kernels")
    kernels, threads = trace.kernels.select(*columns), launches.thread
    kernels = kernels.assign(call_ns=launches.start_ns)
    if (threads != threads[:1]).any():
        kernels = kernels.take(are_launched_by_loop(trace, "kernels", _threads_of_loops(trace)))
    groups = groups_of(kernels["process"], kernels["device"], kernels["stream"])
    counts = groups.counts
    busiest: dict[int, int] = {}
    for place in np.flatnonzero(counts > _MIN_STEPS).tolist():
        process = groups.keys[place][0]
        if process not in busiest or counts[place] > counts[busiest[process]]:
            busiest[process] = place
    return [
        (process, kernels.take(groups.order[first : first + n]))
        for process, place in busiest.items()
        for first, n in [(groups.first[place], counts[place])]
    ]


def _threads_of_loops(trace: Trace) -> dict[int, tuple[int, int]]:
    """Return the thread of each process that launches its optimizer kernels, else the most work.

    The second number is a placeholder for the number of steps, which is not known yet: 0.
    """
    kernels, launches = trace.kernels, launches_of(trace, "kernels")
    length_ns = lengths_of(kernels)
    is_optimizer = kernels["activity"] == Activity.OPTIMIZER.value
    found, linked = {}, np.flatnonzero(launches.is_known)
    for process, rows in rows_by_value(kernels["process"][linked]).items():
        known = linked[rows]
        chosen = known[is_optimizer[known]] if is_optimizer[known].any() else known
        threads = groups_of(launches.thread[chosen])
        busiest = threads.reduced(np.add, length_ns[chosen]).argmax()
        found[process] = int(threads.values[0][busiest]), 0
    return found


def _running_ends(kernels: Table) -> Ints:
    """Return the latest end up to and including each kernel."""
    found: Ints = np.maximum.accumulate(kernels["end_ns"])
    return found


def _joined(tables: list[Table], confidences: list[float]) -> InferredSteps:
    """Return the steps of all processes with the lowest confidence, at most 0.99."""
    if not tables:
        return empty_steps(), 1.0
    # Inferred steps are never certain, even if the sequence repeats perfectly.
    return Table.stacked(tables), min(0.99, *confidences)
