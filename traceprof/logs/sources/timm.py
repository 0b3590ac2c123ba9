"""timm's train.py (pytorch-image-models)."""

from __future__ import annotations

import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number, share
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point

__all__ = ["SOURCE"]

_NUMBER: Final = r"(?:nan|-?inf|[\d.e+-]+)"
_TRAIN: Final = re.compile(
    r"Train: (?P<epoch>\d+) \[\s*(?P<idx>\d+)/(?P<total>\d+)\s*\(\s*\d+%\)\]\s+Loss:\s*"
    rf"(?P<loss>{_NUMBER}) \(\s*(?P<mean>{_NUMBER})\)\s+Time:\s*(?P<time>[\d.]+)s,\s*"
    r"(?P<rate>[\d.]+)/s\s+\(\s*(?P<time_avg>[\d.]+)s,\s*(?P<rate_avg>[\d.]+)/s\)"
)
_TEST: Final = re.compile(
    r"Test(?P<suffix> \([^)]*\))?: \[\s*(?P<idx>\d+)/(?P<last>\d+)\]\s+Time:\s*[\d.]+ "
    r"\(\s*(?P<time_avg>[\d.]+)\)\s+"
    rf"Loss:\s*{_NUMBER} \(\s*(?P<loss>{_NUMBER})\)\s+Acc@1:\s*[\d.]+ \(\s*(?P<top1>[\d.]+)\)"
    r"(?:\s+Acc@5:\s*[\d.]+ \(\s*(?P<top5>[\d.]+)\))?"
)
_WORLD: Final = re.compile(r"(?:Process \d+, total |world size:? )(?P<world>\d+)")
_BEST: Final = re.compile(r"\*\*\* Best metric: (?P<value>[\d.]+) \(epoch (?P<epoch>\d+)\)")


class TimmReader(Reader):
    """Samples per second are of all ranks; the mean since the epoch began stands in brackets."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.epoch: int | None = None
        self.updates = 0
        self.before: tuple[int, int, float] | None = None

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if (train := _TRAIN.search(text)) is not None:
            self._train(train, line)
        elif (test := _TEST.search(text)) is not None:
            self._test(test, line)
        elif (world := _WORLD.search(text)) is not None and "total" in text:
            self.book.run.facts.world_size = int(world["world"])
        elif _BEST.search(text) is not None:
            self.book.run.event("end", self.book.when(line), text=text.strip())

    def _train(self, match: re.Match[str], line: Line) -> None:
        epoch, idx, total = int(match["epoch"]), int(match["idx"]), int(match["total"])
        self.book.position(idx, epoch)
        self.epoch, self.updates = epoch, total
        run = self.book.run
        at_s = self.book.when(line).seconds
        point = Point(epoch * total + idx + 1, epoch + (idx + 1) / total, at_s)
        run.metric("loss", number(match["loss"]), point)
        rate, mean = number(match["rate"]), number(match["rate_avg"])
        seconds = number(match["time_avg"]) or 0.0
        run.metric("samples_per_s", rate, point)
        run.metric("samples_per_s", mean, point, over="epoch")
        run.epoch(epoch, steps=total)
        if idx == 0 and rate and (update := number(match["time"])):
            run.facts.global_batch = run.facts.global_batch or _whole(rate * update)
        self._interval(epoch, idx, seconds, point)

    def _interval(self, epoch: int, idx: int, mean_s: float, point: Point) -> None:
        """Note the steps between two lines: the mean since the epoch began holds its first one."""
        before = self.before
        self.before = (epoch, idx, mean_s)
        if before is None or before[0] != epoch or idx <= before[1]:
            return
        spent = (idx + 1) * mean_s - (before[1] + 1) * before[2]
        if spent > 0:
            run, period_ns = self.book.run, 1e9 * spent / (idx - before[1])
            run.metric("step_period_ns", period_ns, point, over="interval")
            run.computed |= {"step_period_ns", "samples_per_s"}
            if run.facts.global_batch:
                rate = 1e9 * run.facts.global_batch / period_ns
                run.metric("samples_per_s", rate, point, over="interval")

    def _test(self, match: re.Match[str], line: Line) -> None:
        if int(match["idx"]) != int(match["last"]):
            return
        run, epoch = self.book.run, self.epoch
        done = None if epoch is None else epoch + 1
        suffix = "_ema" if "EMA" in (match["suffix"] or "") else ""
        at_s = self.book.when(line).seconds
        point = Point(at_s=at_s)
        if done is not None:
            point = Point(done * self.updates, done, at_s)
        run.metric(f"val_loss{suffix}", number(match["loss"]), point, over="run")
        run.metric(f"top1{suffix}", share(match["top1"]), point, over="run")
        run.metric(f"top5{suffix}", share(match["top5"]), point, over="run")
        seconds = (int(match["last"]) + 1) * (number(match["time_avg"]) or 0.0)
        run.event("evaluation", self.book.when(line), seconds, epoch=epoch)


def _whole(value: float) -> float | None:
    """Return a batch that was computed of two rounded numbers, None where it is none."""
    return float(round(value)) if abs(value - round(value)) <= 0.05 + 2e-3 * value else None


SOURCE: Final = Source("timm", "timm (pytorch-image-models)", (_TRAIN, _TEST), TimmReader)
