"""Read logs that print the time since their previous line, or since the start, but no rate."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine
from traceprof.logs.source import LogReader, number

_MAX_TIMES: Final = 20_000
_MIN_TIMES: Final = 4
"""Number of times that show whether they grow from line to line."""
_MIN_GROWTH: Final = 2.0


class IntervalReader(LogReader):
    """Read the time of all steps since the previous line, such as those of DeePMD-kit."""

    metric = "step_period_ns"

    def begin(self) -> None:
        """Reset the state at the start of a log or run."""
        self.times: list[tuple[LogPoint, float]] = []

    def spent(self, match: re.Match[str], point: LogPoint, _line: LogLine) -> None:
        """Keep a time until the end of the log, which shows from where it counts."""
        seconds = number(match["_spent_s"])
        if seconds is not None and len(self.times) < _MAX_TIMES:
            self.times.append((point, seconds))

    def end(self) -> None:
        """Store the time per step between two lines; the first line has none before it."""
        found = self.times
        is_since_start = _grow([seconds for _, seconds in found])
        for (before, before_s), (point, seconds) in pairwise(found):
            steps = point.step - before.step
            spent_s = seconds - before_s if is_since_start else seconds
            if steps > 0 and (is_since_start or self.is_of_interval(steps)):
                self.run.metric(self.metric, 1e9 * spent_s / steps, point, over="interval")
        self.begin()

    def is_of_interval(self, _steps: float) -> bool:
        """Return whether a time that does not grow is that of all steps since the previous line."""
        return True


class EpisodesReader(IntervalReader):
    """Read lines about episodes of reinforcement learning, which are not training steps."""

    metric = "episode_ns"

    def is_of_interval(self, steps: float) -> bool:
        """Return whether the time is clear: it may be of one episode, or of all since a line."""
        if steps > 1:
            text = 'the log prints a "time" every {n:count} episodes, of one or of all of them; '
            self.run.say(text + "traceprof ignores it", n=steps)
        return steps == 1

    def begin(self) -> None:
        """Reset the state at the start of a log or run."""
        super().begin()
        self.run.facts.has_step_counter = False


def _grow(times: list[float]) -> bool:
    """Return whether times grow from each line to the next, as those since the start do."""
    is_growing = all(before < after for before, after in pairwise(times))
    return len(times) >= _MIN_TIMES and is_growing and times[-1] >= _MIN_GROWTH * times[0]
