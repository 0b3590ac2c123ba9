"""Horovod's synthetic benchmarks, and what forks made of them."""

from __future__ import annotations

import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point
from traceprof.model.results import Unit

__all__ = ["SOURCE"]

_ITER: Final = re.compile(
    r"Iter #(?P<iter>\d+): (?P<rate>[\d.]+) (?:img|images?|samples?)/sec"
    r"(?: (?:per )?(?:GPU|CPU|device))?"
)
_SUMMARY: Final = re.compile(
    r"(?:(?P<each>Img/sec per (?:GPU|CPU))|Total img/sec on (?P<size>\d+) (?:GPU|CPU)\(s\)): "
    r"(?P<mean>[\d.]+) \+-(?P<spread>[\d.]+)"
)
_HEAD: Final = re.compile(
    r"^(?P<key>Model|Batch size|Number of GPUs|Number of CPUs):\s*(?P<value>\S+)"
)
_SAME: Final = 0.05


class HorovodReader(Reader):
    """Rank 0 measures, and its mean times the number of ranks is what the total says."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.each: float | None = None
        self.total: float | None = None
        self.size: int | None = None

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if (found := _ITER.search(text)) is not None:
            step = int(found["iter"])
            self.book.position(step)
            point = Point(step, at_s=self.book.when(line).seconds)
            self.book.run.metric("iter_samples_per_s", float(found["rate"]), point)
        elif (found := _SUMMARY.search(text)) is not None:
            if found["each"]:
                self.each = float(found["mean"])
            else:
                self.total, self.size = float(found["mean"]), int(found["size"])
        elif (head := _HEAD.search(text)) is not None:
            self._head(head["key"], head["value"])

    def _head(self, key: str, value: str) -> None:
        run = self.book.run
        if key == "Model" and self.total is not None:
            run = self.book.begin_run()
        if key == "Model":
            run.workload = value
        elif value.isdigit() and key == "Batch size":
            run.facts.batch_per_device = float(value)
        elif value.isdigit():
            run.facts.world_size = run.facts.devices = int(value)

    def end(self) -> None:
        """Note whose the rates of the iterations are, once the summary tells."""
        run = self.book.run
        run.facts.has_warmup = False
        if self.size:
            run.facts.world_size = run.facts.devices = self.size
        scope = "device"
        for key in [key for key in run.series if key.metric == "iter_samples_per_s"]:
            series = run.series.pop(key)
            values = series.steady(has_warmup=False)
            mean = float(values.mean()) if len(values) else 0.0
            if self.total and (self.size or 2) > 1 and abs(mean / self.total - 1) < _SAME:
                scope = "run"
            run.series[key._replace(metric="samples_per_s", scope=scope)] = series
        if scope == "run" and self.each is not None:
            run.say(
                "lines of iterations are the total of {n:count} device(s), not of one as in "
                "Horovod: their mean is the total that is printed, {total:1/s}",
                n=self.size or 0,
                total=self.total,
            )
        run.measure(
            "samples_per_s_per_device", self.each, Unit.PER_S, scope="device", better="higher"
        )
        run.measure("samples_per_s", self.total, Unit.PER_S, better="higher")
        self.each = self.total = self.size = None


SOURCE: Final = Source(
    "horovod", "Horovod's synthetic benchmarks", (_ITER, _SUMMARY), HorovodReader
)
