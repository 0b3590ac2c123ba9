"""OpenMMLab: mmcv's runner (mmdet 2, mmcls 0) and mmengine's (mmdet 3, mmpretrain 1)."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point

__all__ = ["SOURCE"]

_LINE: Final = re.compile(
    r"(?:- (?P<lib>\w+) - )?INFO - (?P<kind>Epoch|Iter)(?:\((?P<phase>train|val|test)\))?\s*"
    r"\[\s*(?P<first>\d+)(?:/(?P<first_total>\d+))?\](?:\[\s*(?P<n>\d+)(?:/\s*(?P<total>\d+))?\])?"
    r"\s+(?P<pairs>.*\S:\s*\S.*)$"
)
_PAIR: Final = re.compile(
    r"(?P<key>[A-Za-z_][\w./@-]*): "
    r"(?P<value>(?:\d+ days?, )?\d+(?::\d+)+|nan|-?inf|-?[\d.]+(?:e[+-]?\d+)?)"
)
_SAVED: Final = re.compile(r"Saving checkpoint at (?P<n>\d+) (?P<what>epochs?|iterations?)")
_WORLD: Final = re.compile(
    r"GPU number: (?P<count>\d+)|Distributed launcher: |\bworld_size: (?P<world>\d+)"
)
_BATCH: Final = re.compile(r"^\s*(?:samples_per_gpu|batch_size)=(?P<batch>\d+)")
_PER_CENT: Final = re.compile(r"^(?:accuracy|acc$|accuracy_top-|accuracy/top)")
_SKIPPED: Final = frozenset({"eta", "lr", "base_lr", "momentum", "memory", "time", "data_time"})


class MmengineReader(Reader):
    """Lines are means of the interval; counters of iterations begin at 1 in each epoch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.per_epoch = 0
        self.step = math.nan

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if "INFO - " in text and (match := _LINE.search(text)) is not None:
            self._line(match, line)
        elif (saved := _SAVED.search(text)) is not None:
            self.book.run.event(
                "checkpoint", self.book.when(line), value=int(saved["n"]), text=saved[0]
            )
        elif (world := _WORLD.search(text)) is not None:
            count = world["count"] or world["world"]
            self.book.run.facts.world_size = int(count) if count else None
        elif (batch := _BATCH.search(text)) is not None:
            facts = self.book.run.facts
            facts.batch_per_device = facts.batch_per_device or float(batch["batch"])

    def _line(self, match: re.Match[str], line: Line) -> None:
        values = {m["key"]: number(m["value"]) for m in _PAIR.finditer(match["pairs"])}
        is_train = match["phase"] == "train" or (match["phase"] is None and "time" in values)
        if is_train:
            self._train(match, values, line)
        else:
            self._evaluated(match, values, line)

    def _train(self, match: re.Match[str], values: dict[str, float | None], line: Line) -> None:
        first = int(match["first"])
        if match["kind"] == "Epoch" and match["n"] is not None and match["total"]:
            n, total = int(match["n"]), int(match["total"])
            self.per_epoch = total
            self.book.position(n, first)
            self.step = (first - 1) * total + n
            epoch = first - 1 + n / total
            self.book.run.epoch(first, steps=total)
        else:
            self.book.position(first)
            self.step, epoch = first, math.nan
        run = self.book.run
        point = Point(self.step, epoch, self.book.when(line).seconds)
        for key, metric in (("time", "step_period_ns"), ("data_time", "data_ns")):
            seconds = values.get(key)
            if seconds is not None:
                run.metric(metric, seconds * 1e9, point, over="interval")
        memory = values.get("memory")
        if memory is not None:
            run.metric("memory_bytes", memory * 2**20, point, scope="rank")
        for key, value in values.items():
            if key not in _SKIPPED:
                name = "train_acc" if key == "acc" else key
                run.metric(name, value, point, over="interval")

    def _evaluated(self, match: re.Match[str], values: dict[str, float | None], line: Line) -> None:
        run = self.book.run
        first = int(match["first"])
        is_epoch = match["kind"] == "Epoch" and first > 0
        point = Point(self.step, first if is_epoch else math.nan, self.book.when(line).seconds)
        known = {k: v for k, v in values.items() if k not in _SKIPPED and v is not None}
        for key, value in known.items():
            name, factor = _named(key)
            run.metric(name, value * factor, point, over="run")
        if known:
            run.event("evaluation", self.book.when(line), epoch=first if is_epoch else None)


def _named(key: str) -> tuple[str, float]:
    """Return the name of a metric of an evaluation, and what it is multiplied with."""
    if key in ("accuracy", "acc", "accuracy_top-1", "accuracy/top1"):
        return "top1", 0.01
    if key in ("accuracy_top-5", "accuracy/top5"):
        return "top5", 0.01
    if _PER_CENT.search(key):
        return key.replace("-", "_"), 0.01
    return ("val_loss" if key == "loss" else key), 1.0


SOURCE: Final = Source("mmengine", "OpenMMLab (mmcv, mmengine)", (_LINE,), MmengineReader)
