"""imagenet/main.py of pytorch/examples, and the many scripts that began as it."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number, share
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point

__all__ = ["SOURCE"]

_NUMBER: Final = r"(?:nan|-?inf|[\d.e+-]+)"
_STEP: Final = re.compile(
    r"(?P<phase>Epoch|Test): ?(?:\[(?P<epoch>\d+)\])?\s*\[\s*(?P<idx>\d+)/(?P<total>\d+)\]\s+"
    r"Time:?\s+(?P<time>[\d.]+)\s*\(\s*(?P<time_avg>[\d.]+)\)(?P<rest>.*)"
)
_MARK: Final = re.compile(r"Epoch: ?\[\d+\]\s*\[\s*\d+/\d+\]\s+Time:?\s+\d")
_METER: Final = re.compile(
    rf"(?P<name>Data|Loss|Speed|(?:Acc|Prec|Acc@|Prec@)@?(?P<k>[15])):?\s+(?P<value>{_NUMBER})"
    rf"\s*\(\s*(?P<mean>{_NUMBER})\)"
)
_EVALUATED: Final = re.compile(
    r"^\s*\*\s+(?:Acc|Prec)@1:?\s+(?P<top1>[\d.]+)\s+(?:Acc|Prec)@5:?\s+(?P<top5>[\d.]+)"
)
_MODEL: Final = re.compile(r"=> (?:creating|using pre-trained) model '(?P<model>[\w.-]+)'")


class ImagenetReader(Reader):
    """Values are those of one process, and every process prints them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.before: dict[int | None, tuple[int, int, float]] = {}
        self.from_one: bool | None = None
        self.epoch: int | None = None
        self.total = 0

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if (step := _STEP.search(text)) is not None:
            if step["phase"] == "Epoch" and step["epoch"] is not None:
                self._step(step, line)
        elif (found := _EVALUATED.search(text)) is not None:
            self._evaluated(found, line)
        elif (model := _MODEL.search(text)) is not None:
            self.book.run.workload = model["model"]

    def _step(self, match: re.Match[str], line: Line) -> None:
        epoch, idx, total = int(match["epoch"]), int(match["idx"]), int(match["total"])
        rank = line.rank
        self.book.position(idx, epoch, rank)
        if self.from_one is None:
            self.from_one = idx % 10 == 1 or (idx > 0 and idx == total)
        done = idx if self.from_one else idx + 1
        self.epoch, self.total = epoch, total
        run = self.book.run
        point = Point(epoch * total + done, epoch + done / total, self.book.when(line).seconds)
        seconds, mean = number(match["time"]) or 0.0, number(match["time_avg"]) or 0.0
        run.metric("step_ns", seconds * 1e9, point, scope="rank", rank=rank)
        run.metric("step_ns", mean * 1e9, point, over="epoch", scope="rank", rank=rank)
        for meter in _METER.finditer(match["rest"]):
            self._meter(meter, point, rank)
        run.epoch(epoch, steps=total)
        self._interval(epoch, done, mean, point, rank)

    def _meter(self, meter: re.Match[str], point: Point, rank: int | None) -> None:
        run = self.book.run
        if meter["name"] == "Data":
            value = number(meter["value"])
            if value is not None:
                run.metric("data_ns", value * 1e9, point, scope="rank", rank=rank)
        elif meter["name"] == "Speed":
            run.metric("samples_per_s", number(meter["value"]), point)
        elif meter["name"] == "Loss":
            run.metric("loss", number(meter["value"]), point, scope="rank", rank=rank)
        else:
            name = f"train_top{meter['k']}"
            run.metric(name, share(meter["mean"]), point, scope="rank", rank=rank, over="epoch")

    def _interval(
        self, epoch: int, done: int, mean_s: float, point: Point, rank: int | None
    ) -> None:
        """Note the steps between two lines: the mean since the epoch began holds its first one."""
        before = self.before.get(rank)
        self.before[rank] = (epoch, done, mean_s)
        if before is None or before[0] != epoch or done <= before[1]:
            return
        spent = done * mean_s - before[1] * before[2]
        if spent > 0:
            period_ns = 1e9 * spent / (done - before[1])
            self.book.run.metric(
                "step_period_ns", period_ns, point, scope="rank", rank=rank, over="interval"
            )

    def _evaluated(self, match: re.Match[str], line: Line) -> None:
        done = math.nan if self.epoch is None else self.epoch + 1
        steps = done * self.total if self.total else math.nan
        point = Point(steps, done, self.book.when(line).seconds)
        for name in ("top1", "top5"):
            self.book.run.metric(name, share(match[name]), point, over="run")

    def end(self) -> None:
        """Say how many processes printed the same."""
        copies = max((s.copies for s in self.book.run.series.values()), default=1)
        if copies > 1:
            self.book.run.say(
                "{n:count} processes print without saying who they are: their means are shown",
                n=copies,
            )


SOURCE: Final = Source("imagenet", "pytorch/examples imagenet main.py", (_MARK,), ImagenetReader)
