"""torchvision's reference scripts, and what took over their MetricLogger (DeiT, MAE, DETR)."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number, share
from traceprof.logs.cleaning import Line
from traceprof.logs.clock import seconds_of
from traceprof.logs.series import Point
from traceprof.model.results import Unit

__all__ = ["SOURCE"]

_STEP: Final = re.compile(
    r"(?P<header>Epoch: ?\[(?P<epoch>\d+)(?:/\d+)?\]|Test:?[\w ]*:?)\s+"
    r"\[\s*(?P<idx>\d+)/(?P<total>\d+)\]"
    r"\s+eta: (?:\d+ days?, )?[\d:]+\s+(?P<meters>.*)"
)
_METER: Final = re.compile(
    r"(?P<name>[A-Za-z_][\w.@]*(?: [a-z]\w*)?(?:/s)?): (?P<value>nan|-?inf|[\d.e+-]+)"
    r"(?: \((?P<mean>nan|-?inf|[\d.e+-]+)\))?"
)
_TOTAL: Final = re.compile(
    r"(?P<header>Epoch: ?\[(?P<epoch>\d+)(?:/\d+)?\]|Test:?[\w ]*:?) Total time: (?P<total>[\d:]+)"
    r"(?:.*?\((?P<each>[\d.]+) s / it\))?"
)
_EVALUATED: Final = re.compile(
    r"(?:Test:|\*)\s*(?P<ema>EMA )?\s*Acc@1:?\s+(?P<top1>[\d.]+)\s+Acc@5:?\s+(?P<top5>[\d.]+)"
    r"(?:\s+loss:?\s+(?P<loss>[\d.]+))?"
)
_NAMESPACE: Final = re.compile(r"Namespace\(|^\s*\{?'?batch_size")
_SETTING: Final = re.compile(
    r"\b(?P<key>batch_size|world_size|epochs|model)=(?P<value>'[^']*'|\d+)"
)
_DONE: Final = re.compile(r"Training time (?P<time>(?:\d+ days?, )?[\d:]+)")
_LEFT_OUT: Final = frozenset({"eta", "max mem", "lr"})
_PER_CENT: Final = {"acc1": "train_top1", "acc5": "train_top5"}


class TorchvisionReader(Reader):
    """``img/s`` is that of rank 0, and its clock starts once the batch is there."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.epoch: int | None = None
        self.total = 0

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if (step := _STEP.search(text)) is not None:
            if step["epoch"] is not None:
                self._step(step, line)
        elif (total := _TOTAL.search(text)) is not None:
            self._total(total)
        elif (found := _EVALUATED.search(text)) is not None:
            self._evaluated(found, line)
        elif "batch_size" in text and _NAMESPACE.search(text):
            self._settings(text)
        elif (done := _DONE.search(text)) is not None:
            seconds = seconds_of(done["time"])
            self.book.run.event("end", self.book.when(line), text=text.strip())
            if seconds is not None:
                self.book.run.measure("total_ns", seconds * 1e9, Unit.NS, better="lower")

    def _step(self, match: re.Match[str], line: Line) -> None:
        epoch, idx, total = int(match["epoch"]), int(match["idx"]), int(match["total"])
        self.book.position(idx, epoch, line.rank)
        self.epoch, self.total = epoch, total
        run = self.book.run
        at_s = self.book.when(line).seconds
        point = Point(epoch * total + idx + 1, epoch + (idx + 1) / max(1, total), at_s)
        for meter in _METER.finditer(match["meters"]):
            self._meter(meter, point)
        run.epoch(epoch, steps=total)

    def _meter(self, meter: re.Match[str], point: Point) -> None:
        name, run = meter["name"], self.book.run
        value = number(meter["value"])
        if value is None or name in _LEFT_OUT:
            if name == "max mem" and value is not None:
                run.metric("memory_bytes", value * 1024 * 1024, point, scope="rank")
            return
        if name == "img/s":
            run.metric("compute_samples_per_s", value, point, scope="rank")
            run.say(
                "img/s is of rank 0 alone and leaves out loading of data: it is kept as "
                "compute_samples_per_s, and is no throughput"
            )
        elif name in ("time", "data"):
            metric = "step_period_ns" if name == "time" else "data_ns"
            run.metric(metric, value * 1e9, point, over="ema")
        elif name in _PER_CENT:
            mean = share(meter["mean"] or meter["value"])
            run.metric(_PER_CENT[name], mean, point, scope="rank", over="epoch")
        else:
            run.metric(name, value, point, over="interval")

    def _total(self, match: re.Match[str]) -> None:
        seconds, each = seconds_of(match["total"]), number(match["each"])
        run = self.book.run
        if match["epoch"] is None:
            run.event("evaluation", seconds=seconds, epoch=self.epoch)
            return
        epoch = int(match["epoch"])
        run.epoch(epoch, seconds=seconds)
        if each is not None:
            steps = (epoch + 1) * self.total if self.total else math.nan
            run.metric("step_period_ns", each * 1e9, Point(steps, epoch + 1), over="epoch")

    def _evaluated(self, match: re.Match[str], line: Line) -> None:
        run = self.book.run
        done = math.nan if self.epoch is None else self.epoch + 1
        point = Point(
            done * self.total if self.total else math.nan, done, self.book.when(line).seconds
        )
        suffix = "_ema" if match["ema"] else ""
        for name in ("top1", "top5"):
            run.metric(name + suffix, share(match[name]), point, over="run")
        run.metric("val_loss" + suffix, number(match["loss"]), point, over="run")

    def _settings(self, text: str) -> None:
        facts = self.book.run.facts
        for match in _SETTING.finditer(text):
            value = match["value"].strip("'")
            if match["key"] == "batch_size" and value.isdigit():
                facts.batch_per_device = int(value)
            elif match["key"] == "world_size" and value.isdigit():
                facts.world_size = int(value)
            elif match["key"] == "model":
                self.book.run.workload = value


SOURCE: Final = Source(
    "torchvision", "torchvision's references (MetricLogger)", (_STEP, _TOTAL), TorchvisionReader
)
