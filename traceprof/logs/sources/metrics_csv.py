"""Metrics as Lightning's CSVLogger writes them: a row per step, cells empty where not logged."""

from __future__ import annotations

import csv
import math
import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point

__all__ = ["SOURCE"]

_HEADING: Final = re.compile(
    r"^(?=(?:.*,)?step(?:,|$))(?=(?:.*,)?epoch(?:,|$))"
    r"[A-Za-z_][\w./@ -]*(?:,[A-Za-z_][\w./@ -]*)+\s*$"
)
_NAMES: Final = {"train_loss": "loss", "val_acc": "top1", "val_accuracy": "top1"}
_PLACES: Final = frozenset({"step", "epoch"})
_RATES: Final = re.compile(r"^lr-|^lr$|learning_rate")


class MetricsCsvReader(Reader):
    """Steps are counted from 0; no row tells a time, so that there is no throughput."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.names: list[str] = []
        self.epoch = math.nan

    def read(self, line: Line) -> None:
        """Note what one row says."""
        text = line.raw.strip()
        if _HEADING.match(text):
            self.names = [name.strip() for name in text.split(",")]
            return
        cells = next(csv.reader([text]), []) if self.names else []
        if len(cells) != len(self.names):
            return
        values = {
            name: value
            for name, cell in zip(self.names, cells, strict=True)
            if (value := number(cell)) is not None
        }
        step = values.get("step")
        if step is None:
            return
        self.epoch = values.get("epoch", self.epoch)
        self.book.position(step)
        point = Point(step + 1, self.epoch)
        for name, value in values.items():
            if name not in _PLACES and not _RATES.search(name):
                is_evaluated = name.startswith(("val", "test"))
                over = "run" if is_evaluated else "step"
                place = point._replace(epoch=self.epoch + 1) if is_evaluated else point
                self.book.run.metric(_NAMES.get(name, name), value, place, over=over)


SOURCE: Final = Source("metrics-csv", "Lightning's metrics.csv", (_HEADING,), MetricsCsvReader)
