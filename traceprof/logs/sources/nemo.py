"""NVIDIA NeMo: the bar of its first version, the lines of its second."""

from __future__ import annotations

import math
import re
from typing import Final

from traceprof.logs.bars import Bar
from traceprof.logs.base import Source, number
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point
from traceprof.logs.sources.lightning import EpochBars

__all__ = ["SOURCE"]

_LINE: Final = re.compile(
    r"Training epoch (?P<epoch>\d+), iteration (?P<step>\d+)/(?P<total>\d+)\s*\|(?P<cells>.*)"
)
_BAR: Final = re.compile(r"Epoch \d+: .*(?:reduced_train_loss|consumed_samples)=")
_REACHED: Final = re.compile(
    r"Epoch (?P<epoch>\d+), global step (?P<step>\d+): '?(?P<name>val_\w+)'? "
    r"(?:reached (?P<value>[\d.]+|nan)|was not in top)"
)
_SAVED: Final = re.compile(
    r"checkpoint save for step (?P<step>\d+) finalized|saving model to '(?P<where>[^']+)'"
)


class NemoReader(EpochBars):
    """Counters in the bar of the first version are rounded; steps are counted by the bar."""

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if "Training epoch" in text and (match := _LINE.search(text)) is not None:
            self._step(match, line)
            return
        if (reached := _REACHED.search(text)) is not None:
            value = number(reached["value"])
            point = Point(float(reached["step"]), float(reached["epoch"]), self._at_s(line))
            self.book.run.metric(reached["name"], value, point, over="run")
        if (saved := _SAVED.search(text)) is not None:
            step = number(saved["step"])
            self.book.run.event("checkpoint", self.book.when(line), value=step)
        super().read(line)

    def _at_s(self, line: Line) -> float:
        return self.book.when(line).seconds

    def _step(self, match: re.Match[str], line: Line) -> None:
        cells = {
            key.strip(): number(value)
            for key, colon, value in (cell.rpartition(": ") for cell in match["cells"].split("|"))
            if colon
        }
        done = cells.get("global_step")
        epoch, iteration = int(match["epoch"]), int(match["step"])
        if done is None:
            self.book.position(iteration, epoch)
        else:
            self.book.position(done)
        run = self.book.run
        run.facts.global_batch = cells.get("global_batch_size") or run.facts.global_batch
        samples = cells.get("consumed_samples")
        point = Point(
            math.nan if done is None else done,
            epoch if done is None else math.nan,
            self._at_s(line),
            math.nan if samples is None else samples,
        )
        seconds = cells.get("train_step_timing in s")
        if seconds is not None:
            run.metric("step_period_ns", seconds * 1e9, point)
        run.metric("loss", cells.get("reduced_train_loss"), point)
        for key, value in cells.items():
            if key.startswith("val_"):
                run.metric(key, value, point, over="run")

    def of_postfix(self, bar: Bar, point: Point) -> None:
        """Note the metrics behind a bar; those that count are rounded to two or three digits."""
        run = self.book.run
        for key, text in bar.values.items():
            value = number(text)
            if key == "reduced_train_loss":
                run.metric("loss", value, point, is_redrawn=True)
            elif key == "train_step_timing in s" and value is not None:
                run.metric("step_period_ns", value * 1e9, point, is_redrawn=True)
            elif key.startswith("val_"):
                run.metric(key, value, point, over="interval", is_redrawn=True)
        if "global_step" in bar.values:
            run.say("global_step and consumed_samples in the bar are rounded, and are not used")


SOURCE: Final = Source("nemo", "NVIDIA NeMo", (_LINE, _BAR, _REACHED), NemoReader)
