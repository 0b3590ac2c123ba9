"""Decide from the checks of a live run whether to capture: a straggler, or slower steps."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import UsageError
from traceprof.recording.live.view import OTHER, RunView

_CONFIRMING_RANK_CHECKS: Final = 3
_MIN_VALUES, _ENOUGH_VALUES, MAX_VALUES = 4, 24, 600
_PART_STEPS, _MAX_PARTS = 20, 2
"""A check with at least 40 steps adds two values: two such checks are a reference."""
_MISS: Final = 2
"""Cancels as many slow checks. So five of six or more must be slow, and a few need not be."""
_UNCLEAR_FACTOR: Final = 3
"""So many more values must be slow if they do not exceed five times the spread."""
_LONG_CHECKS: Final = 8
_SLOW_RATIO: Final = 0.2
_HIGH_PERCENTILE, _HIGH_FACTOR = 95, 1.1
_MAD_FACTOR: Final = 5 * 1.4826
_DRIFT_RATIO: Final = 0.5
_WARM_UP_FACTOR: Final = 1.5
_DROP: Final = re.compile(r"drop=(\d{1,2}(?:\.\d+)?)%")

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Conditions:
    """When to capture: a rank falls behind, steps become slow, or throughput drops (ratio)."""

    straggler: bool = False
    slow: bool = False
    drop_ratio: float | None = None


def parse_conditions(text: str) -> Conditions:
    """Parse the conditions of --capture-when, for example "straggler,slow,drop=5%".

    Raises:
        UsageError: the text contains another condition.
    """
    conditions = Conditions()
    for part in text.split(","):
        drop = _DROP.fullmatch(part.strip())
        if part.strip() == "straggler":
            conditions = replace(conditions, straggler=True)
        elif part.strip() == "slow":
            conditions = replace(conditions, slow=True)
        elif drop is not None and float(drop[1]) > 0:
            conditions = replace(conditions, drop_ratio=float(drop[1]) / 100)
        else:
            raise UsageError(
                f"--capture-when {part.strip()!r}: choose straggler, slow, drop=N% (such as "
                "drop=5%), or several of them, separated by commas"
            )
    return conditions


def in_phase(place: str) -> str:
    """Return the end of a sentence about additional time: where most of it is ("": unknown)."""
    outside = ", mostly outside the phases" if place == OTHER else ""
    return outside or (f", mostly in {place}" if place else "")


@dataclass(slots=True)
class _Series:
    """Step times of checks, or of ``n_checks`` checks each, and whether they have become slow.

    ``combine`` is the median, or the mean: a few slow steps change only the mean. From the first
    slow value to the decision, ``n_open`` checks, the reference (``_earlier``) does not change.
    """

    conditions: Conditions
    combine: Callable[[Values], np.floating]
    n_checks: int
    n_confirming: int
    _earlier: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_VALUES))
    _candidates: list[float] = field(default_factory=list)
    _checks: list[float] = field(default_factory=list)
    _score: int = 0
    n_open: int = 0

    @property
    def is_mean(self) -> bool:
        return self.combine is np.mean

    def add(self, steps_ns: Values) -> bool:
        """Add a check; return whether the steps are slow in enough checks."""
        self._checks.append(float(self.combine(steps_ns)))
        if len(self._checks) < self.n_checks:
            return False
        value_ns = float(self.combine(np.array(self._checks)))
        self._checks.clear()
        n_parts = 1 if self.n_checks > 1 else min(max(len(steps_ns) // _PART_STEPS, 1), _MAX_PARTS)
        if n_parts > 1 and len(self._earlier) < _ENOUGH_VALUES:
            parts = np.array_split(steps_ns, n_parts)
            self._candidates.extend(float(self.combine(part)) for part in parts)
        else:
            self._candidates.append(value_ns)
        limit_ns, noisy_ns = self._limits_ns()
        is_slow = value_ns > limit_ns
        self._score += 1 if is_slow else -_MISS
        self.n_open += self.n_checks
        if self._score <= 0:
            self._earlier.extend(self._candidates)
            self._candidates.clear()
            self._score = self.n_open = 0
        is_clear = bool(self._candidates) and np.median(self._candidates) > noisy_ns
        n_confirming = self.n_confirming * (1 if is_clear else _UNCLEAR_FACTOR)
        return is_slow and self._score >= n_confirming

    def rise_ns(self) -> tuple[float, float]:
        """Return the step times before and after the last change."""
        return float(np.median(self._earlier)), float(np.median(self._candidates))

    def restart(self) -> None:
        """Make the slow checks the reference."""
        self._earlier.clear()
        self._earlier.extend(self._candidates)
        self._candidates.clear()
        self._checks.clear()
        self._score = self.n_open = 0

    def _limits_ns(self) -> tuple[float, float]:
        """Return the value above which steps are slow, and the one that few values must exceed."""
        if len(self._earlier) < _MIN_VALUES:
            return math.inf, math.inf
        earlier = np.array(self._earlier)
        while earlier[0] > _WARM_UP_FACTOR * np.median(earlier):
            earlier = earlier[1:]
        usual_ns = float(np.median(earlier))
        spread_ns = float(np.median(np.abs(earlier - usual_ns)))
        scale = max(1.0, float(np.sqrt(_ENOUGH_VALUES / len(earlier))))
        noisy_ns = usual_ns + scale * _MAD_FACTOR * spread_ns
        # On a busy machine, step times vary for seconds: high values of before are usual.
        high_ns = float(np.percentile(earlier, _HIGH_PERCENTILE))
        limits = []
        if self.conditions.slow and not self.is_mean:
            slow_ns = (1 + scale * _SLOW_RATIO) * usual_ns
            limits.append(max(slow_ns, _HIGH_FACTOR * high_ns))
        if self.conditions.drop_ratio is not None:
            drop_ns = usual_ns / (1 - self.conditions.drop_ratio)
            limits.append(max(drop_ns, high_ns, noisy_ns))
        limit_ns = min(limits)
        if self.n_checks == 1:
            return limit_ns, noisy_ns
        # A slow rise becomes a part of the reference, but not of its beginning.
        first_ns = float(np.median(earlier[:_MIN_VALUES]))
        jitter_ns = float(np.median(np.abs(np.diff(earlier)))) / np.sqrt(2)
        drift_ns = first_ns + max(_DRIFT_RATIO * first_ns, scale * _MAD_FACTOR * jitter_ns)
        return min(limit_ns, max(drift_ns, high_ns)), min(noisy_ns, drift_ns)


@dataclass(slots=True)
class Trigger:
    """Decide from the checks of a run whether a condition is met; each check is a `RunView`.

    The same rank must be a straggler in three checks in a row. Steps must be slow in six checks
    (3 s), so that single slow steps and short loads of the machine do not count; a check that is
    not slow cancels two. Groups of eight checks show changes that are smaller than the noise of
    checks, and slow rises. Values are compared with the earlier ones, at least four; with fewer
    than 24, the limits are higher. Each change triggers once: afterwards, the slower steps are the
    reference. ``is_rise_of_mean``: the last reason is a few steps, and not the usual step. In the
    last ``n_slow_checks`` checks with steps, they were slow.
    """

    conditions: Conditions
    is_rise_of_mean: bool = False
    n_slow_checks: int = 0
    _series: list[_Series] = field(init=False)
    _n_behind: int = 0
    _behind: int | None = None
    _reported: int | None = None

    def __post_init__(self) -> None:
        has_drop = self.conditions.drop_ratio is not None
        kinds = [np.median] * (self.conditions.slow or has_drop) + [np.mean] * has_drop
        sizes = ((1, 6), (_LONG_CHECKS, 3))
        self._series = [_Series(self.conditions, kind, *size) for size in sizes for kind in kinds]

    def check(self, view: RunView, steps_ns: npt.ArrayLike) -> str:
        """Return the reason for a capture now, "" for none.

        ``steps_ns`` are the times of the steps since the last check, oldest first; empty for none.
        """
        steps = np.atleast_1d(np.asarray(steps_ns, np.float64))
        rank_reason, step_reason = self._check_ranks(view), self._check_steps(steps)
        reason = rank_reason or step_reason
        self.is_rise_of_mean &= not rank_reason
        if reason:  # a slow rank also makes steps slow: capture this change once
            for series in self._series:
                series.restart()
            if self.conditions.straggler and view.straggler is not None:
                self._reported = view.straggler.rank
        return reason

    def _check_ranks(self, view: RunView) -> str:
        rank = view.straggler.rank if view.straggler is not None else None
        self._n_behind = self._n_behind + 1 if rank is not None and rank == self._behind else 1
        self._behind = rank
        if rank is None:
            self._reported = None
        is_new = rank is not None and rank != self._reported
        if not self.conditions.straggler or not is_new or self._n_behind < _CONFIRMING_RANK_CHECKS:
            return ""
        self._reported = rank
        place = view.straggler.place if view.straggler is not None else ""
        return f"rank {rank} is a straggler{in_phase(place)}"

    def _check_steps(self, steps_ns: Values) -> str:
        slow = [series for series in self._series if len(steps_ns) and series.add(steps_ns)]
        if not slow:
            return ""
        before_ns, now_ns = slow[0].rise_ns()
        self.is_rise_of_mean, self.n_slow_checks = slow[0].is_mean, slow[0].n_open
        kind = "mean step time" if slow[0].is_mean else "step time"
        return f"the {kind} rose from {before_ns / 1e6:.3g} ms to {now_ns / 1e6:.3g} ms"
