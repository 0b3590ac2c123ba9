"""Read lines such as ``step 10 loss 2.31 time 120.5ms tok/s 135000`` that scripts print per step.

A line counts if it names its step and at least one loss, rate, or duration, or its epoch and a loss
or rate. Names and units are those of ``columns.toml``. Other numbers of the line are ignored.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from traceprof.logs.cells import (
    TypedMeasure,
    measure_by_name,
    measure_by_unit,
    plain_name,
    unit_named,
)
from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine
from traceprof.logs.source import LogReader, number
from traceprof.model.results import Unit

_NUMBER: Final = (
    r"[-+]?+(?:[1-9]\d{0,2}+(?:,\d{3})++(?!\d)|\d++(?!,\d))(?:\.\d++)?+(?:e[-+]?+\d{1,3}+)?+(?!:\d)"
)
_KEY: Final = r"[A-Za-z_][\w./@%]*+(?:\s?\([a-zµ/]{1,16}+\))?+"
_UNIT: Final = (
    r"[a-zA-Zµ]{1,12}+(?:\s?/\s?(?:s|sec|second|it|iter|step|batch)s?+)"
    r"(?:/(?:gpu|GPU|device|rank|worker))?+|ms|msec|secs?|seconds?|us|µs|s|min|%"
)
_ODD: Final = (
    r"[A-Za-zµ]\w*+|\s[KMGT]i?B/s\b|\s[A-Za-zµ]{1,12}+\s?/\s?(?:s|sec|second|min|minute|h|hour|day)\b"
    r"(?!\s?+[:=]?+\s?+(?:[-+]?+\d|nan|inf))"
)
_PAIR: Final = re.compile(
    rf"(?:(?<![\w./@%])(?P<key>{_KEY}(?:[ _-]{_KEY}){{0,2}}+)[\"']?+\s{{0,8}}+[:=]?+\s{{0,8}}+)?+"
    rf"[\[(\"']?+(?<![\w.])(?P<value>{_NUMBER})(?:\s?/\s?(?P<total>\d++))?+"
    rf"(?P<times>[kKMB](?![\w/%]))?+"
    rf"(?:\s?+(?P<unit>{_UNIT})(?![\w/])(?!\s?+[:=]?+\s?+[-+]?+\d))?+(?P<odd>{_ODD})?+"
    r"(?P<colon>:\s)?+"
)
"""The name, value, and unit of a number. A unit before another number is that number's name.

Other letters behind a number, and other rates, are an unknown unit."""
_PLACE: Final = re.compile(r"(?<![\w./])(?P<n>\d{1,9}+)\s?/\s{0,6}(?P<total>\d{1,9}+)(?![\w./%])")
_TIMES: Final = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}
_PERIOD: Final = re.compile(r"[a-zµ]{1,12}+/(?:step|iter|iteration|it|batch)")
_UNIT_IN_KEY: Final = re.compile(r"(?P<key>.*\w)\s?\((?P<unit>[^()]*)\)")
_STEPS: Final = frozenset(
    {"step", "global_step", "train_step", "training_step", "iter", "iteration", "it", "update"}
)
_STEPS_OF_EPOCHS: Final = frozenset({"batch", "step", "iter", "iteration", "it"})
_GLOBAL: Final = frozenset({"global_step"})
_OF_EVALUATION: Final = frozenset({"val", "valid", "validation", "eval", "test"})
_ALIASES: Final = {
    "took": "step_time",
    "dt": "step_time",
    "acc": "train_top1",
    "gnorm": "grad_norm",
    "data_time": "data",
    **{f"{word}_acc{end}": "top1" for word in _OF_EVALUATION for end in ("", "uracy")},
    **{f"train{word}_acc{end}": "train_top1" for word in ("", "ing") for end in ("", "uracy")},
}
_OF_TRAINING: Final = frozenset(
    {*("train", "training", "batch", "avg", "average", "mean"), *("total", "tot", "lm", "running")}
)
"""Words before "loss"; other losses are parts of it."""
_STORED: Final = frozenset(
    {"grad_norm", "mfu_ratio", "top1", "top5", "train_top1", "step_period_ns", "data_ns"}
)
_EVALUATES: Final = re.compile(
    r"(?i)(?:(?!loss|acc).){0,200}?\b(?:val|valid|validation|eval|evaluation|test)\b"
)
_EVALUATED: Final = {"loss": "val_loss", "train_top1": "top1"}
_ACCURACIES: Final = ("top1", "top5", "train_top1", "train_top5")
_MAX_DURATIONS: Final = 2_000
"""Number of durations without a meaning that are kept until the end of the log."""
_HALF_A_DAY_S: Final = 43_200.0
_CLOCK: Final = re.compile(r"^\W{0,2}(?P<h>\d\d):(?P<min>\d\d):(?P<s>\d\d(?:[.,]\d{1,6}+)?+)\b")


class _Quantity(NamedTuple):
    """A number of a line with its plain name; ``total`` follows after a slash."""

    name: str
    value: float
    unit: str
    total: int | None
    is_heading: bool = False
    """Whether it is "Batch 100:"; a colon after the word would mean a size of batches."""


class ScriptLinesReader(LogReader):
    """Read lines that name a step, and losses, rates, or durations."""

    def begin(self) -> None:
        """Reset the state at the start of a log or run."""
        self.clock_s = math.nan
        self.is_global, self.in_epoch, self.last_epoch = False, 0.0, math.nan
        self.durations: list[tuple[LogPoint, float]] = []
        self.has_pace = False
        self.counts_from: float | None = None

    def read(self, line: LogLine) -> None:
        """Store the values of a line that names its step."""
        quantities = quantities_of(line.text)
        if quantities and quantities[0].name == "episode":
            return  # its steps are those of the episode
        epoch = next((q.value for q in quantities if q.name == "epoch"), math.nan)
        step = _step_of(quantities, epoch, line.text)
        if step is None and epoch >= 0 and "%|" not in line.text:
            self._read_epoch(quantities, epoch, line)
        if step is None or step.value % 1 or step.unit:
            return
        values = measures_of(quantities)
        lengths = [q.value * _ns_of(q) for q in quantities if q.name == "time" and _ns_of(q)]
        if not values and not lengths:
            return
        point = self._point(step, epoch, line)
        for measure, quantity in values.values():
            self.has_pace |= measure.name == "step_period_ns" or "_per_s" in measure.name
            if measure.assumed:
                text = "{name} has no unit in the log; traceprof assumes {unit}"
                self.run.say(text, name=quantity.name, unit=measure.assumed)
            over = "run" if measure.name.startswith(("val_", "top")) else "interval"
            self._store(measure, quantity, point, over)
        if lengths and len(self.durations) < _MAX_DURATIONS:
            self.durations.append((point, lengths[0]))

    def _store(
        self, measure: TypedMeasure, quantity: _Quantity, point: LogPoint, over: str
    ) -> None:
        """Store a value; `end` decides whether accuracies without a unit are percent."""
        name = measure.name.removesuffix(f"_per_{measure.scope}")
        is_bare = name in _ACCURACIES and not quantity.unit
        value = quantity.value * (1.0 if is_bare else measure.times)
        self.note(name, value, point, scope=measure.scope, over=over)

    def _read_epoch(self, quantities: list[_Quantity], epoch: float, line: LogLine) -> None:
        """Store the losses and rates of a line about an epoch."""
        values = measures_of(quantities)
        if epoch % 1 or not values:
            return
        if math.isnan(self.step) and math.isnan(self.last_epoch):  # no lines of steps
            self.book.position(0, epoch, line.rank)
        if self.counts_from is None:
            self.counts_from = min(epoch, 1)
        point = LogPoint(self.step, epoch + 1 - self.counts_from, self.at_s(line))
        is_evaluated = _EVALUATES.match(line.text) is not None
        for measure, quantity in values.values():
            name = _EVALUATED.get(measure.name, "")
            is_of_training = not is_evaluated or "train" in quantity.name or name in values
            used = measure if is_of_training or not name else measure._replace(name=name)
            self._store(used, quantity, point, "epoch")

    def _point(self, step: _Quantity, epoch: float, line: LogLine) -> LogPoint:
        """Return the position of a line; steps may count from the start of their epoch."""
        at_s, rank = self.at_s(line), line.rank
        if math.isnan(at_s) and (clock := _CLOCK.match(line.text)):
            at_s = self._since_midnight(clock)
        is_whole = math.isfinite(epoch) and epoch % 1 == 0
        before, self.last_epoch = self.last_epoch, epoch
        if is_whole and step.name not in _GLOBAL and not self.is_global:
            if epoch == before + 1 and step.value > self.in_epoch:
                self.is_global = True  # the count goes on in the next epoch
            else:
                self.in_epoch = step.value
                texts = {"_n": str(int(step.value))}
                texts |= {"_total": str(step.total)} if step.total else {}
                at, epochs = self._place_in_epoch(texts, int(epoch), rank)
                return LogPoint(at, epochs, at_s)
        self.book.position(step.value, epoch if is_whole else 0.0, rank)
        self.step = step.value
        return LogPoint(step.value, epoch, at_s)

    def _since_midnight(self, clock: re.Match[str]) -> float:
        """Return a time of day in seconds; days are added where it falls by half a day or more."""
        seconds = 3600 * int(clock["h"]) + 60 * int(clock["min"])
        at_s = seconds + float(clock["s"].replace(",", "."))
        while self.clock_s - at_s > _HALF_A_DAY_S:
            at_s += 2 * _HALF_A_DAY_S
        self.clock_s = at_s
        return at_s

    def end(self) -> None:
        """Store durations called "time" if they are those of a step; say so if they may not be."""
        for key, series in self.run.series.items():
            series.end()
            if key.metric in _ACCURACIES and max(series.values, default=0.0) > 1:
                series.values = array("d", (value / 100 for value in series.values))
        found, has_pace = self.durations, self.has_pace
        values = [ns for _, ns in found]
        if has_pace or not found or (len(values) > 2 and values == sorted(set(values))):
            self.begin()  # known otherwise, or times since the start
            return
        gaps = {b.step - a.step for (a, _), (b, _) in pairwise(found)}
        if gaps <= {1.0}:
            for point, ns in found:
                self.note("step_period_ns", ns, point, scope="run", over="interval")
        else:
            text = 'the log prints a "time" every {n:count} steps, of one step or of all of them; '
            self.run.say(text + "traceprof ignores it", n=max(gaps))
        self.begin()


def quantities_of(text: str) -> list[_Quantity]:
    """Return the numbers of a line with their names and units, in order."""
    found = []
    for match in _PAIR.finditer(text):
        value, key, unit = number(match["value"]), match["key"] or "", match["unit"] or ""
        if match["odd"] and not unit:
            unit = match["odd"].strip()
            value = value if unit_named(unit) else None
        in_key = _UNIT_IN_KEY.fullmatch(key)
        if in_key is not None and not unit and unit_named(in_key["unit"]):
            key, unit = in_key.groups()
        last = key.rpartition(" ")[2]
        if _PERIOD.fullmatch(last) and not unit:  # ms/step=120
            key, unit = "", last
        if value is None or not (key or unit):
            continue
        total = None if match["total"] is None else int(match["total"][:15])
        name = _name_of(key)
        is_heading = name == "batch" and match["colon"] is not None
        value *= _TIMES.get(match["times"], 1.0)
        found.append(_Quantity(name, value, unit, total, is_heading))
    return found


def _step_of(quantities: Sequence[_Quantity], epoch: float, text: str) -> _Quantity | None:
    """Return the step that a line names, also as ``epoch 1 | 200/2983 batches``, or None."""
    names = _STEPS if math.isnan(epoch) else _STEPS | _STEPS_OF_EPOCHS
    named = (q for q in quantities if q.value >= 0 and (q.name in names or q.is_heading))
    step = next(named, None)
    if step is not None or math.isnan(epoch) or "%|" in text:
        return step
    total = next(q.total for q in quantities if q.name == "epoch")
    places = [(float(match["n"]), int(match["total"])) for match in _PLACE.finditer(text)]
    steps = [place for place in places if place != (epoch, total)]
    return _Quantity("batch", steps[0][0], "", steps[0][1]) if len(steps) == 1 else None


def measures_of(
    quantities: Sequence[_Quantity],
) -> dict[str, tuple[TypedMeasure, _Quantity]]:
    """Return the measures of a line by name; of several means, the first is of the fewest steps."""
    values: dict[str, tuple[TypedMeasure, _Quantity]] = {}
    for quantity in quantities:
        measure = _measure_of(quantity)
        if measure is not None:
            values.setdefault(measure.name, (measure, quantity))
    return values


def _name_of(key: str) -> str:
    """Return the plain name of up to three words: the longest end of them that has a meaning."""
    words = key.split(" ")
    names = [plain_name(" ".join(words[first:])) for first in range(len(words))]
    known = (name for name in names if _is_known(name))
    return next(known, names[-1])


def _is_known(name: str) -> bool:
    return (
        name in _STEPS
        or name in _STEPS_OF_EPOCHS
        or name in ("epoch", "time")
        or name in _ALIASES
        or measure_by_name(name, ()) is not None
    )


def _measure_of(quantity: _Quantity) -> TypedMeasure | None:
    """Return what a number measures, if it is worth storing."""
    name = _ALIASES.get(quantity.name, quantity.name)
    if quantity.name in _STEPS_OF_EPOCHS and not quantity.unit:
        return None
    *words, last = name.split("_")
    if last == "loss" and {*words} <= _OF_TRAINING | _OF_EVALUATION:
        is_evaluated = not _OF_EVALUATION.isdisjoint(words)
        return TypedMeasure("val_loss" if is_evaluated else "loss", Unit.NUMBER)
    unit = unit_named(quantity.unit, name) if quantity.unit else None
    found = (
        measure_by_name(name, (quantity.value,))
        if unit is None
        else measure_by_unit(name, unit.kind, unit.times, (quantity.value,))
    )
    if found is not None and (found.name in _STORED or "_per_s" in found.name):
        return found
    return TypedMeasure(name, Unit.NUMBER) if name == "grad_norm" else None


def _ns_of(quantity: _Quantity) -> float:
    """Return the ns of the unit of a duration; 0 without one."""
    unit = unit_named(quantity.unit, "time") if quantity.unit else None
    return unit.times if unit is not None and unit.kind == "ns" else 0.0
