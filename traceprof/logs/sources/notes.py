"""Read logs of scripts: nanoGPT, and scripts that print the duration of epochs."""

from __future__ import annotations

import math
import re
from array import array
from itertools import accumulate, pairwise
from typing import Any, Final

from traceprof.logs.gathered import LogPoint, When
from traceprof.logs.lines import LogLine, seconds_of
from traceprof.logs.source import LogReader, number
from traceprof.logs.sources.script_lines import measures_of, quantities_of
from traceprof.model.summary import CONTRADICTS

_UNITS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "h": 3600.0}
_PAIR: Final = re.compile(
    r"(?<![\w@./-])[\d@./-]*+(?P<key>[A-Za-z_][\w@./-]*+)\s*+[:=]\s*+(?P<value>nan|-?inf|-?\d[\d.]*(?:e-?\d+)?)\b"
)
_BATCH: Final = re.compile(r"(?:^|[-_.])(?:bs|batch)[-_]?(?P<batch>\d+)(?:$|[-_.])")
_PHASES: Final = {"data loading": "data_ns", "forward": "forward_ns", "backward": "backward_ns"}
_NAMES: Final = {
    "accuracy": "top1",
    "acc": "top1",
    "top_1_accuracy": "top1",
    "top_5_accuracy": "top5",
}
_TIME_WORDS: Final = frozenset({"took", "time", "taken", "is", "epoch", "duration"})
_FURTHER_PART: Final = re.compile(
    r"(?i)\s{0,2}(?P<length>\d{1,9}(?:\.\d{1,9})?)\s{0,2}(?P<unit>[sm])(?:ec(?:onds?)?|in(?:utes?)?)?\b"
)
_MIN_TIMES: Final = 4
_MAX_GROWTH_DEVIATION_RATIO: Final = 0.5
_MAX_DEVIATION_RATIO: Final = 0.05
_MAX_UNEXPLAINED_S: Final = 1.0


class NotesReader(LogReader):
    """Read durations that scripts print; no throughput follows from them.

    The time of an event is the sum of the durations that were printed before it.
    """

    counts_from = 0

    def begin(self) -> None:
        """Reset the state at the start of a log or run."""
        self.spent_s = self.setups_s = 0.0
        self.epoch = None
        self.parts: dict[str, float] = {}
        self.times: list[float] = []

    def lost(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store lost time."""
        self._note_duration("time_lost", match, line)

    def setup(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store a setup or an initialization."""
        kind = "setup" if "set" in match["_what"].lower() else "initialization"
        self._note_duration(kind, match, line)

    def _note_duration(self, kind: str, match: re.Match[str], line: LogLine) -> None:
        """Store an event with a duration; after the first epoch it belongs to the next epoch."""
        run, seconds = self.run, _seconds(match)
        if self.epoch is not None and kind == "initialization":
            run.attempt += 1
        epoch = None if self.epoch is None else self.epoch + 1
        when = When(self.spent_s, is_elapsed=True)
        run.event(kind, when, seconds, epoch=epoch, text=line.text.strip())
        if self.epoch is None:
            self.spent_s += seconds
            self.setups_s += seconds

    def took(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store the duration of an epoch, and the values in the same line."""
        epoch, seconds = int(match["_epoch"]), _seconds(match)
        self.book.position(0, epoch)
        if self.epoch is None:
            self.counts_from = min(epoch, 1)
        self.epoch = epoch
        self.run.epoch(epoch, seconds=seconds, at_s=self.spent_s, is_elapsed=True)
        self.spent_s += seconds
        self.times.append(seconds if match["_word"].lower() == "time" else math.nan)
        point = LogPoint(epoch=epoch + 1 - self.counts_from, at_s=self.spent_s)
        rates = {
            quantity.name: (measure, quantity.value * measure.times)
            for measure, quantity in measures_of(quantities_of(line.text)).values()
            if "_per_s" in measure.name
        }
        for measure, rate in rates.values():
            name = measure.name.removesuffix(f"_per_{measure.scope}")
            self.run.metric(name, rate, point, scope=measure.scope, over="epoch", is_elapsed=True)
        for pair in _PAIR.finditer(
            f"{line.text[match.end() :]};{line.text[: match.start('_length')]}"
        ):
            key = pair["key"].lower()
            if key not in _TIME_WORDS | rates.keys():
                name = _NAMES.get(key.removeprefix("val_"), key)
                value = number(pair["value"])
                self.run.metric(name, value, point, over="epoch", is_elapsed=True)

    def whole(self, match: re.Match[str], *_: object) -> None:
        """Store the duration of the run, and add a note if the epochs do not explain it."""
        self._count_from_start()
        run, total_s = self.run, _seconds(match)
        run.measure("total_ns", total_s * 1e9)
        run.event("end", When(self.spent_s, is_elapsed=True), text=match[0].strip())
        epochs_s = sum(epoch.get("seconds", 0.0) for epoch in run.epochs.values())
        rest_s = total_s - epochs_s - self.setups_s
        lengths = {"total": total_s * 1e9, "epochs": epochs_s * 1e9}
        if epochs_s and rest_s < -_MAX_UNEXPLAINED_S and total_s < epochs_s:
            text = ": its epochs add up to {epochs:ns}, but it reports a total of {total:ns}"
            run.say(CONTRADICTS + text, **lengths)
        elif epochs_s and rest_s > _MAX_UNEXPLAINED_S:
            text = (
                "of the total {total:ns}, epochs take {epochs:ns} and the initial setup "
                "{setup:ns}; the log does not explain {rest:ns}, so times of events (sums of "
                "reported times) may be up to that much too early"
            )
            run.say(text, **lengths, setup=self.setups_s * 1e9, rest=rest_s * 1e9)

    def part(self, match: re.Match[str], *_: object) -> None:
        """Keep a phase, a rate, or a count of a step until the line of the step follows."""
        if match["_phase"]:
            name = _PHASES.get(match["_phase"].removesuffix("s"), f"{match['_phase']}_ns")
            self.parts[name] = float(match["_ms"]) * 1e6
            return
        for name in ("samples_per_s", "syncs_per_s", "ddp_parameters"):
            if match[f"_{name}"]:
                self.parts[name] = float(match[f"_{name}"])

    def indexed(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store the kept values at this step."""
        epoch, n, total = (int(match[name]) for name in ("_epoch", "_at", "_of"))
        self.book.position(n, epoch)
        self._write(LogPoint(epoch * total + n, epoch + n / max(1, total), self.at_s(line)))

    def _write(self, point: LogPoint) -> None:
        for name, value in self.parts.items():
            scope = "rank" if name.endswith("_ns") else "run"
            self.run.metric(name, value, point, scope=scope, over="interval")
        self.parts = {}

    def _count_from_start(self) -> None:
        """Convert the "time" of each epoch to durations if it counts from the start of the run."""
        times, self.times = self.times, []
        growth = [time / (i + 1) / times[0] - 1 for i, time in enumerate(times) if times[0]]
        is_growing = all(before < time for before, time in pairwise(times))
        if len(growth) < _MIN_TIMES or not is_growing or len(times) != len(self.run.epochs):
            return
        if not all(abs(change) < _MAX_GROWTH_DEVIATION_RATIO for change in growth):
            return
        ends_s = [self.setups_s + time for time in (0.0, *times)]
        right = dict(zip(accumulate(times, initial=self.setups_s), ends_s, strict=True))
        for epoch, (begin_s, end_s) in zip(self.run.epochs.values(), pairwise(ends_s), strict=True):
            epoch |= {"seconds": end_s - begin_s, "at_s": begin_s}
        for series in self.run.series.values():
            series.at_s = array("d", (right.get(at_s, at_s) for at_s in series.at_s))
        self.spent_s = ends_s[-1]
        self.run.say("the time in the lines of epochs counts from the start of the run")

    def end(self) -> None:
        """Check the phases of a step against the printed rate."""
        self._write(LogPoint())
        self._count_from_start()
        self.begin()
        run = self.run
        run.facts.has_warmup = False
        last = {key.metric: s.values[-1] for key, s in run.series.items() if len(s.values)}
        named = _BATCH.search(self.stem)
        batch = float(named["batch"]) if named is not None else None
        if {"forward_ns", "backward_ns"} <= last.keys():
            run.facts.batch_per_device = batch or run.facts.batch_per_device
            _check_parts(run, last, batch)


def _check_parts(run: Any, last: dict[str, float], batch: float | None) -> None:
    """Add notes where data, forward, and backward contradict the rate or the synchronizations."""
    parts_ns = sum(last.get(name, 0.0) for name in _PHASES.values())
    rate, syncs = last.get("samples_per_s"), last.get("syncs_per_s")
    values = {
        "data": last.get("data_ns", math.nan),
        "forward": last["forward_ns"],
        "backward": last["backward_ns"],
        "parts": parts_ns,
    }
    if rate and batch and abs(rate * parts_ns / 1e9 / batch - 1) > _MAX_DEVIATION_RATIO:
        text = (
            f"{CONTRADICTS}, or counts several ranks: {{batch:count}} samples (batch size from "
            "the file name) in {data:ns} data, {forward:ns} forward and {backward:ns} backward "
            "give {by:1/s}, but the log reports {rate:1/s}"
        )
        run.say(text, batch=batch, by=1e9 * batch / parts_ns, rate=rate, **values)
    if syncs and parts_ns * syncs / 1e9 < 1 - _MAX_DEVIATION_RATIO:
        period = 1e9 / syncs
        text = (
            "{syncs:1/s} synchronizations mean {period:ns} per step; data, forward and backward "
            "take {parts:ns}, and the log does not explain the remaining {rest:ns}"
        )
        run.say(text, syncs=syncs, period=period, rest=period - parts_ns, parts=parts_ns)
    if syncs and rate and batch:
        ranks = rate / syncs / batch
        if round(ranks) >= 1 and abs(ranks / round(ranks) - 1) < _MAX_DEVIATION_RATIO:
            text = (
                "the reported {rate:1/s} match {n:count} rank(s) with {batch:count} samples "
                "each at {syncs:1/s} synchronizations"
            )
            run.say(text, rate=rate, n=round(ranks), batch=batch, syncs=syncs)
    if last["backward_ns"] < last["forward_ns"] / 2:
        text = (
            "backward ({backward:ns}) takes less than half of forward ({forward:ns}), although "
            "it usually takes longer; "
        )
        if last.get("ddp_parameters") == 0:
            text += "DDP reduces no parameters, so the layers are frozen and need no gradients"
        else:
            text += (
                "layers may be frozen and need no gradients, or the program timed other code "
                "under these names"
            )
        run.say(text, backward=last["backward_ns"], forward=last["forward_ns"])


def _seconds(match: re.Match[str]) -> float:
    if ":" in match["_length"]:
        return seconds_of(match["_length"]) or 0.0
    unit = (match["_unit"] or "").lower()
    short = "ms" if unit.startswith(("ms", "milli")) else unit[:1]
    found, at = (number(match["_length"]) or 0.0) * _UNITS[short], match.end()
    while short in ("m", "h") and (more := _FURTHER_PART.match(match.string, at)):  # 1h 2m 30s
        found += float(more["length"]) * _UNITS[more["unit"].lower()]
        at = more.end()
    return found


class NanoGptReader(LogReader):
    """Read nanoGPT logs. The time is one iteration, including its evaluation if it has one."""

    evaluated = -1.0

    def note(self, name: str, value: float, point: LogPoint, **of: Any) -> None:
        """Store a value; iterations with an evaluation get a separate metric."""
        if name == "val_loss":
            self.evaluated = point.step
        elif name == "step_period_ns" and point.step == self.evaluated:
            name = "step_with_evaluation_ns"
        super().note(name, value, point, **of)
