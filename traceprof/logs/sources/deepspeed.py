"""DeepSpeed's timer, in its three generations."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number, share
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point

__all__ = ["SOURCE"]

_LINE: Final = re.compile(
    r"(?:epoch=|(?<!\d))(?P<epoch>\d{1,9})/(?:micro_step=\d+/global_step=)?(?P<step>\d+), "
    r"(?P<running>RunningAvg)?SamplesPerSec=(?P<mean>[\d.e+-]+|nan|inf)"
    r"(?:, CurrSamplesPerSec=(?P<now>[\d.e+-]+|nan|inf))?"
    r"(?:, MemAllocated=[\d.]+ ?GB, MaxMemAllocated=(?P<memory>[\d.]+) ?GB)?"
)
_HYBRID: Final = re.compile(
    r"\|CurSamplesPerSec=(?P<now>[\d.e+-]+)\s*\|AvgSamplesPerSec=(?P<mean>[\d.e+-]+)"
)
_STEP: Final = re.compile(r"\[Rank (?P<rank>\d+)\] step=(?P<step>\d+), skipped=(?P<skipped>\d+)")
_SETTING: Final = re.compile(
    r"^\s*(?:\[[^\]]*\] *)*\"?(?P<key>train_batch_size|train_micro_batch_size_per_gpu|world_size"
    r"|gradient_accumulation_steps)\"?[ .:=]+(?P<value>\d+)\b"
)
_PERPLEXITY: Final = re.compile(r"^\s*(?:ppl|perplexity): (?P<ppl>[\d.e+]+|nan|inf)", re.I)
_EVALUATING: Final = re.compile(r"Evaluating perplexity, Epoch (?P<epoch>\d+)/(?P<of>\d+)")
_ACCURACY: Final = re.compile(
    r"Accuracy of the network on the (?P<n>\d+) test images: (?P<value>[\d.]+) ?%"
)
_ONLY_ONE: Final = (
    "versions of DeepSpeed before 0.7.7 print the samples of one GPU by this name: "
    "{rate:1/s} are of all GPUs or of one"
)


class DeepSpeedReader(Reader):
    """The mean is since the second step of the run, and times steps alone: no loading of data."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.step = math.nan
        self.evaluating: float = math.nan
        self.is_old = False

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if "SamplesPerSec=" in text and (match := _LINE.search(text)) is not None:
            self._rate(match, line)
        elif "SamplesPerSec=" in text and (match := _HYBRID.search(text)) is not None:
            run, at_s = self.book.run, self.book.when(line).seconds
            run.metric("samples_per_s", number(match["now"]), Point(at_s=at_s))
        elif (setting := _SETTING.search(text)) is not None:
            self._setting(setting["key"], int(setting["value"]))
        elif (found := _EVALUATING.search(text)) is not None:
            self.evaluating = float(found["epoch"])
        elif (found := _PERPLEXITY.search(text)) is not None:
            step = 0.0 if math.isnan(self.step) else self.step
            point = Point(step, self.evaluating)
            self.book.run.metric("val_ppl", number(found["ppl"]), point, over="run")
        elif (found := _ACCURACY.search(text)) is not None:
            self.book.run.metric("top1", share(found["value"]), Point(self.step), over="run")

    def _setting(self, key: str, value: int) -> None:
        facts = self.book.run.facts
        if key == "train_batch_size":
            facts.global_batch = value
        elif key == "world_size":
            facts.world_size = value
        elif key == "gradient_accumulation_steps":
            facts.accumulation = value
        else:
            facts.batch_per_device = value

    def _rate(self, match: re.Match[str], line: Line) -> None:
        step = int(match["step"])
        self.book.position(step)
        self.step = step
        run = self.book.run
        run.facts.has_warmup = False
        point = Point(step, at_s=self.book.when(line).seconds)
        run.metric("samples_per_s", number(match["mean"]), point, over="run")
        run.metric("samples_per_s", number(match["now"]), point, over="step")
        memory = number(match["memory"])
        if memory is not None:
            run.metric("memory_bytes", memory * 2**30, point, scope="rank")
        if "micro_step" not in match[0]:
            self.is_old = True

    def end(self) -> None:
        """Say what old versions print."""
        run = self.book.run
        rates = [s.values[-1] for _, s in run.of("samples_per_s") if len(s.values)]
        if self.is_old and rates and run.facts.world_size != 1:
            run.say(_ONLY_ONE, rate=rates[-1])
        self.is_old = False


SOURCE: Final = Source("deepspeed", "DeepSpeed", (_LINE, _STEP, _HYBRID), DeepSpeedReader)
