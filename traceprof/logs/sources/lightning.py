"""PyTorch Lightning: its bar of progress."""

from __future__ import annotations

import re
from typing import Any, Final

from traceprof.logs.bars import Bar, BarSpeed, bars_in
from traceprof.logs.base import Reader, Source, number
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point

__all__ = ["SOURCE", "EpochBars"]

_EPOCH: Final = re.compile(r"Epoch\s+(?P<epoch>\d+)(?:/\S+)?\s*:?\s*:?$")
_MARK: Final = re.compile(
    r"Epoch \d+: (?!.*(?:reduced_train_loss|consumed_samples)).*?(?:\|.*\d+/(?:\d+|\?)|\d+it) ?\["
    r"|Epoch \d+/\S+\s+[━╸╺ ]+\s\d+/\d+\s+\d[\d:]* •"
)
_WORLD: Final = re.compile(
    r"GLOBAL_RANK: \d+, MEMBER: \d+/(?P<world>\d+)|Starting with (?P<count>\d+) processes"
)
_START: Final = re.compile(r"(?:GPU|TPU|HPU|IPU) available: |GLOBAL_RANK: \d+, MEMBER:")
_STOPPED: Final = re.compile(r"`Trainer\.fit` stopped: (?P<why>.*)")
_NAMES: Final = {
    "train_loss": "loss",
    "train/loss": "loss",
    "val_acc": "top1",
    "val_accuracy": "top1",
    "train_acc": "train_top1",
}


class EpochBars(Reader):
    """Bars that are called "Epoch N"; other bars are of evaluations."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.speed = BarSpeed()

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        for bar in bars_in(text):
            match = _EPOCH.search(bar.title)
            if match is not None:
                self._bar(int(match["epoch"]), bar)
        if "rocesses" in text or "MEMBER" in text:
            world = _WORLD.search(text)
            if world is not None:
                self.book.run.facts.world_size = int(world["world"] or world["count"])
        elif (stopped := _STOPPED.search(text)) is not None:
            self.book.run.event("end", self.book.when(line), text=stopped["why"].strip())

    def _bar(self, epoch: int, bar: Bar) -> None:
        step = epoch * bar.total + bar.n if bar.total else bar.n
        self.book.position(bar.n, epoch)
        run = self.book.run
        share = bar.n / bar.total if bar.total else 0.0
        point = Point(step, epoch + share)
        if bar.period_s is not None and bar.n:
            run.metric("step_period_ns", bar.period_s * 1e9, point, over="ema", is_redrawn=True)
        period_s = self.speed.period_s(bar)
        if period_s is not None:
            run.metric("step_period_ns", period_s * 1e9, point, over="interval")
        if bar.n:
            self.of_postfix(bar, point)
        if bar.total and bar.n == bar.total:
            run.epoch(epoch, seconds=bar.elapsed_s, steps=bar.total)
            if bar.elapsed_s:
                each_ns = 1e9 * bar.elapsed_s / bar.n
                run.metric("step_period_ns", each_ns, point, over="epoch", is_redrawn=True)

    def of_postfix(self, bar: Bar, point: Point) -> None:
        """Note the metrics behind a bar."""
        for key, text in bar.values.items():
            value = number(text)
            if value is None or key == "v_num":
                continue
            name = _NAMES.get(key, key)
            is_mean = key == "loss"
            over = "run" if key.startswith("val") else "ema" if is_mean else "step"
            self.book.run.metric(name, value, point, over=over, is_redrawn=True)


SOURCE: Final = Source("lightning", "PyTorch Lightning", (_MARK, _START, _STOPPED), EpochBars)
