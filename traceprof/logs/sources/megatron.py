"""Megatron-LM, Megatron-DeepSpeed and their forks: one line of cells between bars."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point

__all__ = ["SOURCE"]

_LINE: Final = re.compile(
    r"iteration\s+(?P<step>\d+)\s*/\s*(?P<total>\d+|infinity) \|"
    r"(?P<cells>.*elapsed time per iteration.*)"
)
_CELL: Final = re.compile(
    r"^(?P<key>.*?[A-Za-z)])\s*:?\s+(?P<value>[-+]?(?:nan|inf|[\d.]+(?:E[-+]?\d+)?))$", re.I
)
_WORLD: Final = re.compile(
    r"using world size:\s*(?P<world>\d+)|^\s*world_size \.{2,} (?P<argument>\d+)"
)
_ARGUMENT: Final = re.compile(r"^\s*(?P<key>[a-z_]+) \.{2,} (?P<value>\S+)\s*$")
_VALIDATION: Final = re.compile(
    r"(?P<set>validation|test) loss at (?:iteration (?P<step>\d+)|the end of training[^|]*)"
    r"[^|]*\|(?P<cells>.*)"
)
_SAVED: Final = re.compile(r"successfully saved checkpoint (?:at|from) iteration\s+(?P<step>\d+)")
_KNOWN: Final = {
    "lm loss": "loss",
    "loss": "loss",
    "grad norm": "grad_norm",
    "TFLOPs": "tflop_per_s",
    "throughput per GPU (TFLOP/s/GPU)": "tflop_per_s",
}
_SKIPPED: Final = frozenset({"consumed samples", "consumed tokens", "global batch size"})


class MegatronReader(Reader):
    """The last rank prints; the time is the mean since the line before."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sequence: float | None = None

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if "elapsed time per iteration" in text:
            match = _LINE.search(text)
            if match is not None:
                self._step(match, line)
        elif " loss at " in text and (found := _VALIDATION.search(text)) is not None:
            self._evaluated(found, line)
        elif "world" in text and (world := _WORLD.search(text)) is not None:
            self.book.run.facts.world_size = int(world["world"] or world["argument"])
        elif " .." in text and (argument := _ARGUMENT.search(text)) is not None:
            self._argument(argument["key"], argument["value"])
        elif "saved checkpoint" in text and (saved := _SAVED.search(text)) is not None:
            self.book.run.event(
                "checkpoint", self.book.when(line), value=int(saved["step"]), text=text.strip()
            )

    def _argument(self, key: str, value: str) -> None:
        if key == "seq_length":
            self.sequence = number(value)
        elif key == "global_batch_size":
            self.book.run.facts.global_batch = number(value)

    def _step(self, match: re.Match[str], line: Line) -> None:
        step = int(match["step"])
        self.book.position(step)
        run = self.book.run
        cells = _cells(match["cells"])
        batch = cells.get("global batch size")
        if batch:
            run.facts.global_batch = batch
            run.facts.tokens_per_step = batch * self.sequence if self.sequence else None
        point = Point(
            step, at_s=self.book.when(line).seconds, samples=cells.get("consumed samples", math.nan)
        )
        for key, value in cells.items():
            if key.startswith("elapsed time per iteration"):
                factor = 1e9 if "(s)" in key else 1e6
                run.metric("step_period_ns", value * factor, point, over="interval")
                self._rates(cells, value * factor, point)
            elif key == "samples per second":
                run.metric("samples_per_s", value, point, over="interval")
            elif key in _KNOWN:
                scope = "device" if _KNOWN[key] == "tflop_per_s" else "run"
                run.metric(_KNOWN[key], value, point, scope=scope, over="interval")
            elif key.endswith("loss"):
                run.metric(key.replace(" ", "_"), value, point, over="interval")
        skipped = cells.get("number of skipped iterations")
        if skipped:
            run.say("some iterations were skipped: these have no loss")

    def _rates(self, cells: dict[str, float], period_ns: float, point: Point) -> None:
        """Note the rate of each line: the batch may grow (--rampup-batch-size)."""
        batch = cells.get("global batch size")
        if batch and period_ns and "samples per second" not in cells:
            self.book.run.computed.add("samples_per_s")
            rate = batch * 1e9 / period_ns
            self.book.run.metric("samples_per_s", rate, point, over="interval")

    def _evaluated(self, match: re.Match[str], line: Line) -> None:
        for key, value in _cells(match["cells"]).items():
            name = {"lm loss value": "val_loss", "lm loss PPL": "val_ppl"}.get(key)
            if name is not None:
                step = math.nan if match["step"] is None else float(match["step"])
                point = Point(step, at_s=self.book.when(line).seconds)
                name = name if match["set"] == "validation" else name.replace("val", "test")
                self.book.run.metric(name, value, point, over="run")


def _cells(text: str) -> dict[str, float]:
    found = {}
    for cell in text.split("|"):
        match = _CELL.match(cell.strip())
        value = None if match is None else number(match["value"])
        if match is not None and value is not None:
            found[match["key"].strip()] = value
    return found


SOURCE: Final = Source("megatron", "Megatron-LM", (_LINE,), MegatronReader)
