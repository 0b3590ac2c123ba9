"""NVIDIA's DLLogger, as DeepLearningExamples print it."""

from __future__ import annotations

import math
import re
from typing import Final

from traceprof.logs.base import Reader, Source, number
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point

__all__ = ["SOURCE"]

_LINE: Final = re.compile(r"\bDLL (?P<stamp>\d{4}-\d\d-\d\d [\d:.]+) - (?P<rest>.*)")
_EPOCH: Final = re.compile(r"^epoch\s+(?P<epoch>\d+)$|^Epoch: (?P<other>\d+)$")
_ITER: Final = re.compile(r"^iter\s+(?P<n>\d+)/(?P<total>\d+)$|^Iteration: (?P<other>\d+)$")
_RATE: Final = re.compile(r"^(?P<value>[\d.]+) (?P<what>\w+)/s$")
_TOOK: Final = re.compile(r"^took (?P<value>[\d.]+) (?P<unit>s|ms|min)$")
_CELL: Final = re.compile(
    r"^(?P<key>[A-Za-z][\w .@/-]*?)\s*:?\s+(?P<value>-?[\d.]+(?:e[+-]?\d+)?|nan)(?: \S+)?$"
)
_RATES: Final = {
    "frames": "frames_per_s",
    "samples": "samples_per_s",
    "images": "samples_per_s",
    "imgs": "samples_per_s",
    "tokens": "tokens_per_s",
}
_SKIPPED: Final = frozenset({"lrate", "lr", "learning rate", "epoch", "Epoch", "Iteration"})
_SECONDS: Final = {"s": 1.0, "ms": 1e-3, "min": 60.0}


class DlloggerReader(Reader):
    """Lines with an iteration are of that one, lines with an epoch alone are its means."""

    def read(self, line: Line) -> None:
        """Note what one line says."""
        match = _LINE.search(line.text)
        if match is None:
            return
        cells = [cell.strip() for cell in match["rest"].split("|")]
        epoch = total = None
        step = math.nan
        for cell in cells[:2]:
            if (found := _EPOCH.match(cell)) is not None:
                epoch = int(found["epoch"] or found["other"])
            elif (found := _ITER.match(cell)) is not None:
                n = int(found["n"] or found["other"])
                total = int(found["total"]) if found["total"] else None
                step = n if total is None or epoch is None else (epoch - 1) * total + n
        if math.isfinite(step):
            self.book.position(step)
        self._cells(cells, epoch, step, line)

    def _cells(self, cells: list[str], epoch: int | None, step: float, line: Line) -> None:
        run = self.book.run
        is_step = math.isfinite(step)
        over = "step" if is_step else "epoch"
        is_valid = any("val" in cell.lower() for cell in cells[:3])
        prefix = "val_" if is_valid else ""
        point = Point(step, math.nan if epoch is None else epoch, self.book.when(line).seconds)
        for cell in cells:
            if (rate := _RATE.match(cell)) is not None:
                name = _RATES.get(rate["what"], f"{rate['what']}_per_s")
                run.metric(prefix + name, float(rate["value"]), point, over=over)
            elif (took := _TOOK.match(cell)) is not None:
                seconds = float(took["value"]) * _SECONDS[took["unit"]]
                if is_step:
                    run.metric("step_period_ns", seconds * 1e9, point)
                elif epoch is not None and not is_valid:
                    run.epoch(epoch, seconds=seconds)
            elif (found := _CELL.match(cell)) is not None and found["key"] not in _SKIPPED:
                name = prefix + found["key"].strip().replace(" ", "_")
                run.metric(name, number(found["value"]), point, over=over)


SOURCE: Final = Source("dllogger", "NVIDIA DLLogger", (_LINE,), DlloggerReader)
