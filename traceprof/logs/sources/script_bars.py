"""Read progress bars (tqdm) of scripts and of Ultralytics YOLO, and steps that scripts print."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine, seconds_of
from traceprof.logs.source import LogReader, number
from traceprof.logs.sources.bars import ProgressBar
from traceprof.logs.sources.torch_loops import LightningReader

_YOLO_TITLE: Final = re.compile(r"^(?P<epoch>\d+)/(?P<last>\d+)\s+[\d.]+G\s")
_YOLO_BAR: Final = re.compile(
    r"^\s*+(?P<title>[^%]{1,200}?): \d{1,3}% (?:[━╸─]++ )?+(?P<n>\d++)/(?P<total>\d++) "
    r"(?:\[(?P<elapsed>\d[\d:]*+)<[\d:?]++, ++)?+(?P<rate>[\d.]++)(?P<unit>it/s|s/it)"
    r"(?: (?P<length>\d[\d:]*+(?:\.\d++)?+)s)?+"
)
"""The bar of version 8.3.190 and later, and that of notebooks, which has no blocks."""
_OTHER_LOOP: Final = re.compile(
    r"(?i)\b(?:val|eval|test|predict|infer|download|fetch|load|token|map|filter|generat|process|extract"
    r"|pars|comput|cach|shard|sanity|sampl|sav|upload|epochs?$)"
)
"""Titles of bars that do not count training steps."""
_PLACE: Final = re.compile(r"\s?[\[(]?(?<!\d)\d++(?:/\d++)?+[\])]?+\s?:?$")
"""The number of an epoch at the end of a title."""


class UltralyticsReader(LightningReader):
    """Read Ultralytics YOLO logs. Version 5 counts epochs from 0, later versions from 1."""

    first_epoch = 1

    def read(self, line: LogLine) -> None:
        """Read the progress bars of a line in both forms, then its declared patterns."""
        match = _YOLO_BAR.search(line.text)
        elapsed = match and (match["elapsed"] or match["length"])
        elapsed_s = seconds_of(elapsed or "")
        if match is not None and elapsed_s is not None:
            rate = number(match["rate"]) or None
            period_s = 1 / rate if rate and match["unit"] == "it/s" else rate
            counts = int(match["n"]), int(match["total"])
            self.take_bar(ProgressBar(match["title"], *counts, elapsed_s, period_s, {}))
        super().read(line)

    def take_bar(self, bar: ProgressBar) -> None:
        """Store one state of the bar of an epoch; other bars belong to validation."""
        match = _YOLO_TITLE.match(bar.title)
        if match is not None:
            self.first_epoch = min(self.first_epoch, int(match["epoch"]))
            self.epoch = int(match["epoch"]) - self.first_epoch
            self.store_bar(bar, self.epoch)

    def validated(self, match: re.Match[str], *_: object) -> None:
        """Store the mean average precision over all classes."""
        point = LogPoint(epoch=math.nan if self.epoch is None else self.epoch + 1.0)
        for name, group in (("bbox/AP50", "_ap50"), ("bbox/AP", "_ap")):
            self.run.metric(name, number(match[group]), point, over="run")

    def completed(self, match: re.Match[str], *_: object) -> None:
        """Store the duration of the run."""
        hours = number(match["_hours"])
        if hours:
            self.run.measure("total_ns", hours * 3600e9)


class ScriptBarsReader(LightningReader):
    """Read bars of scripts. The bar that takes the most time counts the training steps."""

    def begin(self) -> None:
        """Reset the state at the start of a log or run."""
        super().begin()
        self.loops: dict[tuple[str, int | None], list[ProgressBar]] = {}

    def take_bar(self, bar: ProgressBar) -> None:
        """Keep the last state of each second until the end of the log; bars print whole seconds."""
        if _OTHER_LOOP.search(bar.title):
            return
        bars = self.loops.setdefault((_PLACE.sub("", bar.title), bar.total), [])
        if bars and bars[-1].elapsed_s == bar.elapsed_s and bars[-1].n <= bar.n:
            bars.pop()
        bars.append(bar)

    def end(self) -> None:
        """Store the bars of the loop that takes the most time."""
        loops, self.loops = self.loops, {}
        passes = max(map(_passes, loops.values()), key=_total_s, default=[])
        for epoch, bars in enumerate(passes):
            for bar in bars:
                self.store_bar(bar, epoch)
        if len(loops) > 1:
            text = "several progress bars; the steps are those of the one that takes the most time"
            self.run.say(text)


def _passes(bars: list[ProgressBar]) -> list[list[ProgressBar]]:
    """Divide the states of a bar into passes, which begin where the count falls."""
    passes: list[list[ProgressBar]] = []
    for bar in bars:
        if not passes or bar.n < passes[-1][-1].n:
            passes.append([])
        passes[-1].append(bar)
    return passes


def _total_s(passes: list[list[ProgressBar]]) -> float:
    """Return the time that all passes of a loop take."""
    return sum(bars[-1].elapsed_s for bars in passes)


_MIN_FINE_S: Final = 1.0
_MIN_WHOLE_S: Final = 50.0
"""Minimum time between lines from which a step time follows: with fractions of a second, and with
whole seconds, which are wrong by up to 1 s."""


class ScriptTimesReader(LogReader):
    """Read lines that name a step, without a rate: step times follow from the times of the lines.

    The time is that since the start ("elapsed"), otherwise the time stamp of the line.
    """

    def begin(self) -> None:
        """Reset the state at the start of a log or run."""
        self.last = LogPoint()

    def stepped(self, match: re.Match[str], point: LogPoint, line: LogLine) -> None:
        """Store the time per step since an earlier line."""
        elapsed = match["elapsed_s"]
        at_s = seconds_of(elapsed) if elapsed else self.at_s(line)
        if at_s is None or not math.isfinite(at_s + point.step):
            return
        point, last = point._replace(at_s=at_s), self.last
        spent_s, steps = at_s - last.at_s, point.step - last.step
        if math.isnan(steps) or steps <= 0 or spent_s < 0:  # the first line, or a restart
            self.last = point
            return
        is_fine = at_s % 1 or last.at_s % 1
        if spent_s >= (_MIN_FINE_S if is_fine else _MIN_WHOLE_S):
            self.run.computed.add("step_period_ns")
            options: dict[str, Any] = {"over": "interval", "is_elapsed": bool(elapsed)}
            self.run.metric("step_period_ns", 1e9 * spent_s / steps, point, **options)
            self.last = point
