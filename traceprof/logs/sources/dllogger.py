"""Read logs of NVIDIA DLLogger, which DeepLearningExamples use."""

from __future__ import annotations

import math
import re
from typing import Final

from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine
from traceprof.logs.source import LogReader, number

_EPOCH: Final = re.compile(r"^(?:epoch\s+|Epoch: )(?P<epoch>\d+)$")
_STEP: Final = re.compile(
    r"^(?:iter\s+(?=\d+/)|Iteration: (?=\d+$))(?P<n>\d+)(?:/(?P<total>\d+))?$"
)
_RATE: Final = re.compile(r"^(?P<value>[\d.]+) (?P<what>\w+)/s$")
_TOOK: Final = re.compile(r"^took (?P<value>[\d.]+) (?P<unit>s|ms|min)$")
_CELL: Final = re.compile(
    r"^(?P<key>[A-Za-z][\w .@/-]*?)(?<! )\s*+:?\s*+(?<=\s)"
    r"(?P<value>-?[\d.]+(?:e[+-]?\d+)?|nan)(?: \S+)?$"
)
_SKIPPED: Final = frozenset({"lrate", "lr", "learning rate", "epoch", "Epoch", "Iteration"})
_SECONDS: Final = {"s": 1.0, "ms": 1e-3, "min": 60.0}


class DlloggerReader(LogReader):
    """Read DLLogger lines: lines with an iteration are about this step, others are epoch means."""

    def of_line(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store the cells of one line."""
        cells = [cell.strip() for cell in match["_rest"].split("|")]
        epoch, step = None, math.nan
        for cell in cells[:2]:
            if (found := _EPOCH.match(cell)) is not None:
                epoch = int(found["epoch"])
            elif (found := _STEP.match(cell)) is not None:
                step, total = float(found["n"]), found["total"]
                step += 0 if total is None or epoch is None else (epoch - 1) * int(total)
        if math.isfinite(step):
            self.book.position(step)
        self._cells(cells, epoch, step, line)

    def _cells(self, cells: list[str], epoch: int | None, step: float, line: LogLine) -> None:
        run, is_step = self.run, math.isfinite(step)
        over = "step" if is_step else "epoch"
        is_valid = any("val" in cell.lower() for cell in cells[:3])
        prefix = "val_" if is_valid else ""
        point = LogPoint(step, math.nan if epoch is None else epoch, self.at_s(line))
        for cell in cells:
            if (rate := _RATE.match(cell)) is not None:
                name = "samples" if rate["what"] in ("images", "imgs") else rate["what"]
                run.metric(f"{prefix}{name}_per_s", float(rate["value"]), point, over=over)
            elif (took := _TOOK.match(cell)) is not None:
                seconds = float(took["value"]) * _SECONDS[took["unit"]]
                if is_step:
                    run.metric("step_period_ns", seconds * 1e9, point)
                elif epoch is not None and not is_valid:
                    run.epoch(epoch, seconds=seconds)
            elif (found := _CELL.match(cell)) is not None and found["key"] not in _SKIPPED:
                name = prefix + found["key"].strip().replace(" ", "_")
                run.metric(name, number(found["value"]), point, over=over)
