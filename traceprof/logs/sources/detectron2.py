"""Detectron2."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number
from traceprof.logs.cleaning import Line
from traceprof.logs.clock import seconds_of
from traceprof.logs.series import Point
from traceprof.model.results import Unit

__all__ = ["SOURCE"]

_LINE: Final = re.compile(r"(?:d2\.)?utils\.events\]:\s+(?P<pairs>.*\biter: (?P<iter>\d+).*)")
_PAIR: Final = re.compile(
    r"(?P<key>[A-Za-z_][\w./-]*): (?P<value>N/A|nan|-?inf|-?[\d.]+(?:e[+-]?\d+)?)(?P<unit>M\b)?"
)
_OVERALL: Final = re.compile(
    r"Overall training speed: (?P<n>\d+) iterations in (?P<time>(?:\d+ days?, )?[\d:]+)"
)
_TASK: Final = re.compile(r"copypaste: Task: (?P<task>[\w-]+)")
_ROW: Final = re.compile(r"copypaste: (?P<cells>[\w.,-]+)$")
_BATCH: Final = re.compile(r"IMS_PER_BATCH: (?P<batch>\d+)")
_SKIPPED: Final = frozenset(
    {"eta", "iter", "lr", "max_mem", "time", "data_time", "last_time", "last_data_time"}
)


class Detectron2Reader(Reader):
    """The time is the mean since the start, which hides what becomes slow later."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.step = math.nan
        self.task = ""
        self.names: list[str] = []

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if "utils.events]" in text and (match := _LINE.search(text)) is not None:
            self._line(match, line)
        elif "copypaste" in text:
            self._evaluated(text, line)
        elif (overall := _OVERALL.search(text)) is not None:
            seconds = seconds_of(overall["time"])
            run = self.book.run
            run.event("end", self.book.when(line), text=overall[0])
            if seconds is not None:
                run.measure("total_ns", seconds * 1e9, Unit.NS, better="lower")
        elif (batch := _BATCH.search(text)) is not None:
            facts = self.book.run.facts
            facts.global_batch = facts.global_batch or float(batch["batch"])

    def _line(self, match: re.Match[str], line: Line) -> None:
        step = int(match["iter"]) + 1
        self.book.position(step)
        self.step = step
        run = self.book.run
        point = Point(step, at_s=self.book.when(line).seconds)
        values = {m["key"]: number(m["value"]) for m in _PAIR.finditer(match["pairs"])}
        for key, metric, over in (
            ("time", "step_period_ns", "run"),
            ("last_time", "step_period_ns", "step"),
            ("data_time", "data_ns", "interval"),
        ):
            seconds = values.get(key)
            if seconds is not None:
                run.metric(metric, seconds * 1e9, point, over=over)
        memory = values.get("max_mem")
        if memory is not None:
            run.metric("memory_bytes", memory * 2**20, point, scope="rank")
        for key, value in values.items():
            if key not in _SKIPPED:
                name = "loss" if key == "total_loss" else key
                run.metric(name, value, point, over="interval")

    def _evaluated(self, text: str, line: Line) -> None:
        task, row = _TASK.search(text), _ROW.search(text.strip())
        if task is not None:
            self.task = task["task"]
        elif row is not None:
            cells = row["cells"].split(",")
            if number(cells[0]) is None:
                self.names = cells
                return
            point = Point(self.step, at_s=self.book.when(line).seconds)
            for name, cell in zip(self.names, cells, strict=False):
                self.book.run.metric(f"{self.task}/{name}", number(cell), point, over="run")


SOURCE: Final = Source("detectron2", "Detectron2", (_LINE,), Detectron2Reader)
