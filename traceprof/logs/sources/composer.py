"""MosaicML Composer and llm-foundry: a head, then one line per metric."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point

__all__ = ["SOURCE"]

_HEAD: Final = re.compile(
    r"^\s*\[(?:epoch=(?P<epoch>\d+)(?:/\d+)?\]\[)?(?P<eval>Eval )?(?P<unit>batch|sample|token|epoch"
    r"|iteration|second|ep|ba|tok|sp)=(?P<n>\d+)(?:/(?P<total>\d+))?\]"
)
_METRIC: Final = re.compile(r"^\s*(?P<phase>Train|Eval) (?P<key>\S.*): (?P<value>\S+)\s*$")
_GLOBAL: Final = {
    "throughput/samples_per_sec": "samples_per_s",
    "throughput/tokens_per_sec": "tokens_per_s",
    "throughput/batches_per_sec": "steps_per_s",
    "samples/sec": "samples_per_s",
}
_DEVICE: Final = {
    "throughput/device/samples_per_sec": "samples_per_s",
    "throughput/device/tokens_per_sec": "tokens_per_s",
    "throughput/device/mfu": "mfu_ratio",
}
_COUNTERS: Final = re.compile(r"^time/|^memory/|^trainer/|^throughput/|^lr|alloc_retries")


class ComposerReader(Reader):
    """Only what changed since the block before is printed: what is absent is not known."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.head: re.Match[str] | None = None
        self.point = Point()
        self.last: dict[str, float] = {}
        self.place: tuple[float, float] | None = None

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if (head := _HEAD.search(text)) is not None:
            self.head = head
            n = float(head["n"])
            epoch = math.nan if head["epoch"] is None else float(head["epoch"])
            if not head["eval"]:
                if head["unit"] in ("batch", "ba"):
                    self.book.position(n, 0 if math.isnan(epoch) else epoch)
                self.point = Point(
                    n if head["unit"] in ("batch", "ba") and math.isnan(epoch) else math.nan,
                    epoch,
                    self.book.when(line).seconds,
                )
        elif self.head is not None and (metric := _METRIC.search(text)) is not None:
            self._metric(metric["phase"], metric["key"], number(metric["value"]))

    def _metric(self, phase: str, key: str, value: float | None) -> None:
        if value is None:
            return
        run = self.book.run
        if key == "time/batch":
            self._count(value)
        self.last[key] = value
        if key in _GLOBAL:
            run.metric(_GLOBAL[key], value, self.point, over="interval")
        elif key in _DEVICE:
            run.metric(_DEVICE[key], value, self.point, scope="device", over="interval")
            self._world()
        elif not _COUNTERS.search(key):
            name = "loss" if key == "loss/train/total" else key.removeprefix("metrics/")
            if phase == "Eval":
                run.metric(f"val_{name.removeprefix('eval/')}", value, self.point, over="run")
            else:
                run.metric(name, value, self.point, over="step")

    def _count(self, batches: float) -> None:
        """Take the counter of batches as the step, and how samples grow with it as the batch."""
        self.point = self.point._replace(step=batches)
        samples = self.last.get("time/sample")
        if samples is None:
            return
        if self.place is not None and batches > self.place[0] and samples > self.place[1]:
            batch = (samples - self.place[1]) / (batches - self.place[0])
            self.book.run.facts.global_batch = batch
        self.place = (batches, samples)
        self.point = self.point._replace(samples=samples)

    def _world(self) -> None:
        for name in ("samples_per_sec", "tokens_per_sec"):
            whole, each = (self.last.get(f"throughput/{where}{name}") for where in ("", "device/"))
            if whole and each:
                self.book.run.facts.world_size = round(whole / each) or None

    def end(self) -> None:
        """Say why there is no throughput."""
        run = self.book.run
        if next(run.of("samples_per_s"), None) is None and not run.is_empty:
            run.say(
                "no throughput: it is printed by SpeedMonitor, once its window is full (100 "
                "batches unless set)"
            )


SOURCE: Final = Source("composer", "MosaicML Composer", (_HEAD, _METRIC), ComposerReader)
