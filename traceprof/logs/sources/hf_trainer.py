"""Hugging Face's Trainer, and what is built on it (TRL, LLaMA-Factory, Axolotl)."""

from __future__ import annotations

import ast
import math
import re
from typing import Any, Final

from traceprof.logs.bars import Bar, BarSpeed, bars_in
from traceprof.logs.base import Reader, Source, number
from traceprof.logs.cleaning import Line
from traceprof.logs.clock import seconds_of
from traceprof.logs.series import Point
from traceprof.model.results import Unit

__all__ = ["SOURCE"]

_DICT: Final = re.compile(
    r"\{'(?=[^{}]*'(?:loss|eval_\w+|train_runtime|train_loss|learning_rate|epoch)')[^{}]*\}"
)
_PAIR: Final = re.compile(r"'(?P<key>[^']+)':\s*'?(?P<value>[^,'}]+)'?")
_BANNER: Final = re.compile(
    r"(?P<key>Num examples|Num Epochs|Instantaneous batch size per device|Total train batch size"
    r"[^=]*|Gradient Accumulation steps|Total optimization steps)\s*=\s*(?P<value>[\d,.]+)"
)
_METRIC: Final = re.compile(
    r"^\s{0,4}(?P<key>(?:train|eval|predict)_\w+|epoch)\s+=\s+(?P<value>\S+)$"
)
_BEGIN: Final = re.compile(r"\*{5} Running training \*{5}")
_SAVED: Final = re.compile(r"Saving model checkpoint to (?P<where>\S+)")
_SKIPPED: Final = frozenset({"epoch", "step", "learning_rate", "total_flos"})


class HfTrainerReader(Reader):
    """Steps come from the bars, or from the epochs: the dictionaries have none."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.epochs: float | None = None
        self.total_steps: int | None = None
        self.bar: Bar | None = None
        self.speed = BarSpeed()
        self.rate: float | None = None
        self.steps_rate: float | None = None

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        for bar in bars_in(text):
            self._bar(bar)
        if "{'" in text:
            for match in _DICT.finditer(text):
                self._values(_parsed(match[0]))
        elif "=" in text:
            self._setting(text)
        if "Running training" in text and _BEGIN.search(text):
            when = self.book.when(line)
            run = self.book.run
            if run.training_from_s is None and math.isfinite(when.seconds):
                run.training_from_s = when.seconds
        elif (saved := _SAVED.search(text)) is not None:
            self.book.run.event("checkpoint", self.book.when(line), text=saved["where"])

    def _setting(self, text: str) -> None:
        banner = _BANNER.search(text)
        if banner is not None:
            self._banner(banner["key"], number(banner["value"]) or 0.0)
            return
        metric = _METRIC.match(text)
        if metric is not None and metric["key"] != "epoch":
            self._final({metric["key"]: metric["value"]})

    def _banner(self, key: str, value: float) -> None:
        facts = self.book.run.facts
        if key == "Num examples":
            facts.train_samples = value
        elif key == "Num Epochs":
            self.epochs = value
        elif key == "Total optimization steps":
            self.total_steps = int(value)
        elif key.startswith("Instantaneous"):
            facts.batch_per_device = value
        elif key.startswith("Gradient"):
            facts.accumulation = int(value)
        else:
            facts.global_batch = value
        each = (facts.batch_per_device or 0) * (facts.accumulation or 0)
        if each and facts.global_batch:
            facts.world_size = round(facts.global_batch / each) or None

    def _bar(self, bar: Bar) -> None:
        if bar.title or bar.total is None:
            return
        if self.total_steps is None:
            self.total_steps = bar.total
        if bar.total != self.total_steps:
            return
        self.book.position(bar.n)
        run = self.book.run
        point = Point(bar.n, at_s=bar.elapsed_s)
        if bar.period_s is not None:
            run.metric(
                "step_period_ns",
                bar.period_s * 1e9,
                point,
                over="ema",
                is_elapsed=True,
                is_redrawn=True,
            )
        period_s = self.speed.period_s(bar)
        if period_s is not None:
            run.metric("step_period_ns", period_s * 1e9, point, over="interval", is_elapsed=True)
        self.bar = bar

    def _values(self, values: dict[str, Any]) -> None:
        if "train_runtime" in values:
            self._final(values)
            return
        epoch = _value(values.get("epoch"))
        point = self._point(epoch, _value(values.get("step")))
        for key, text in values.items():
            value = _value(text)
            if value is None or key in _SKIPPED:
                continue
            name = "top1" if key in ("eval_accuracy", "eval_acc") else key
            if key == "eval_loss":
                name = "val_loss"
            over = "run" if key.startswith("eval_") else "interval"
            if not key.endswith(("_runtime", "_per_second")):
                self.book.run.metric(name, value, point, over=over, is_elapsed=True)
        seconds = _value(values.get("eval_runtime"))
        if seconds is not None:
            self.book.run.event("evaluation", seconds=seconds, epoch=epoch)

    def _point(self, epoch: float | None, step: float | None) -> Point:
        bar = self.bar
        if step is None and epoch is not None and self.epochs and self.total_steps:
            step = float(round(epoch * self.total_steps / self.epochs))
        if step is None and bar is not None:
            step = bar.n
        at_s = math.nan
        if bar is not None and step is not None:
            at_s = bar.elapsed_s
            if bar.period_s is not None:
                at_s = max(0.0, at_s + (step - bar.n) * bar.period_s)
        batch = self.book.run.facts.global_batch
        samples = step * batch if step is not None and batch else math.nan
        return Point(_known(step), _known(epoch), at_s, samples)

    def _final(self, values: dict[str, Any]) -> None:
        run = self.book.run
        seconds = _duration(values.get("train_runtime"))
        if seconds is not None:
            run.measure("total_ns", seconds * 1e9, Unit.NS, better="lower")
        if "train_loss" in values:
            run.measure("mean_loss", _value(values["train_loss"]), Unit.NUMBER, better="lower")
        rate = _value(values.get("train_samples_per_second"))
        steps = _value(values.get("train_steps_per_second"))
        self.rate = self.rate if rate is None else rate
        self.steps_rate = self.steps_rate if steps is None else steps
        for key, text in values.items():
            if key.startswith("eval_") and not key.endswith(("_runtime", "_per_second")):
                name = {"eval_loss": "val_loss", "eval_accuracy": "top1"}.get(key, key)
                run.metric(name, _value(text), over="run")

    def end(self) -> None:
        """Note the rates of the whole run, once it is known whether steps are printed, too."""
        run, rate, steps = self.book.run, self.rate, self.steps_rate
        self.rate = self.steps_rate = None
        if steps is not None:
            run.metric("steps_per_s", steps, over="run")
        if rate is not None and steps is not None:
            run.metric("samples_per_s", rate, over="run")
            run.say(
                "throughput of the whole run holds evaluations and checkpoints: {rate:1/s}",
                rate=rate,
            )
        elif rate is not None:
            run.metric("steps_per_s", rate, over="run")
            run.say(
                "train_samples_per_second stands alone: versions before May 2021 print steps per "
                "second by that name, and {rate:1/s} is taken as such",
                rate=rate,
            )


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        # Bare nan and inf are no literals.
        return {match["key"]: match["value"].strip() for match in _PAIR.finditer(text)}
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def _value(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    return float(value) if isinstance(value, int | float) else number(str(value))


def _duration(value: Any) -> float | None:
    found = _value(value)
    return seconds_of(str(value)) if found is None and value is not None else found


def _known(value: float | None) -> float:
    return math.nan if value is None else value


SOURCE: Final = Source(
    "hf-trainer",
    "Hugging Face Trainer",
    (_DICT, _BANNER, re.compile(r"train_steps_per_second")),
    HfTrainerReader,
)
