"""Read the logs of PyTorch training loops: Hugging Face Trainer, Lightning, NeMo."""

from __future__ import annotations

import ast
import csv
import math
import re
from typing import Any, Final

from traceprof.logs.cells import find_rate
from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine, seconds_of
from traceprof.logs.source import LogReader, number
from traceprof.logs.sources.bars import MIN_INTERVAL_S, ProgressBar, ProgressSpeed, bars_in

_HF_PAIR: Final = re.compile(r"'(?P<key>[^']+)':\s*'?(?P<value>[^,'}]+)'?")
_HF_SKIPPED: Final = frozenset({"epoch", "step", "learning_rate", "total_flos", "num_tokens"})
_HF_NAMES: Final = {"eval_accuracy": "top1", "eval_acc": "top1", "eval_loss": "val_loss"} | {
    "completions/mean_length": "response_length"
}
_EPOCH_BAR: Final = re.compile(r"Epoch\s++(?P<epoch>\d++)(?:/\S++)?\s*+:?\s*+:?$")
_CSV_NAMES: Final = {"train_loss": "loss", "val_acc": "top1", "val_accuracy": "top1"}
_LIGHTNING_NAMES: Final = {**_CSV_NAMES, "train/loss": "loss", "train_acc": "train_top1"}
_LEARNING_RATE: Final = re.compile(r"^lr-|^lr$|learning_rate")


class _BarReader(LogReader):
    """Base of readers of logs with progress bars."""

    def begin(self) -> None:
        """Reset the state at the start of a log or run."""
        self.speed = ProgressSpeed()

    def read(self, line: LogLine) -> None:
        """Read the progress bars of a line, then its declared patterns."""
        for bar in bars_in(line.text):
            self.take_bar(bar)
        super().read(line)

    def take_bar(self, bar: ProgressBar) -> None:
        """Store one state of a progress bar; ignore bars with other titles."""
        raise NotImplementedError

    def of_postfix(self, bar: ProgressBar, point: LogPoint) -> None:
        """Store the metrics behind a bar; a subclass may override this."""


class HfTrainerReader(_BarReader):
    """Read Hugging Face Trainer logs; steps come from bars or epochs, not from dictionaries."""

    titles: tuple[str, ...] = ("",)
    epochs: float | None = None
    total_steps: int | None = None
    bar: ProgressBar | None = None
    rate: float | None = None
    steps_rate: float | None = None
    tokens: LogPoint | None = None
    n_tokens: float | None = None

    def dictionaries(self, match: re.Match[str], *_: object) -> None:
        """Store the values of all dictionaries in a line."""
        for dictionary in match.re.finditer(match.string):
            self.values(_parse_dictionary(dictionary[0]))

    def began(self, _match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store the time at which training began."""
        at_s = self.at_s(line)
        if self.run.training_from_s is None and math.isfinite(at_s):
            self.run.training_from_s = at_s

    def banner(self, match: re.Match[str], *_: object) -> None:
        """Store one line of the start banner; derive the number of ranks from batch sizes."""
        facts, value = self.run.facts, number(match["_of"]) or 0.0
        if match["_key"] == "Num Epochs":
            self.epochs = value
        elif match["_key"] == "Total optimization steps":
            self.total_steps = int(value)
        elif match["_key"].startswith("Total train"):
            facts.global_batch = value
        elif match["_key"].startswith("Grad"):
            facts.accumulation = int(value)
        else:
            name = "train_samples" if match["_key"] == "Num examples" else "batch_per_device"
            setattr(facts, name, value)
        each = (facts.batch_per_device or 0) * (facts.accumulation or 0)
        if each and facts.global_batch:
            facts.world_size = round(facts.global_batch / each) or None

    def final(self, match: re.Match[str], *_: object) -> None:
        """Store one line of the final table."""
        self._final({match["_key"]: match["_of"]})

    def take_bar(self, bar: ProgressBar) -> None:
        """Store one state of a progress bar; ignore bars with other titles or totals."""
        if bar.title not in self.titles or bar.total is None:
            return
        self.total_steps = self.total_steps or bar.total
        if bar.total != self.total_steps:
            return
        self.book.position(bar.n)
        point = LogPoint(bar.n, at_s=bar.elapsed_s)
        for period_s, over in ((bar.period_s, "ema"), (self.speed.period_s(bar), "interval")):
            if period_s is not None:
                options: dict[str, Any] = {"over": over, "is_redrawn": over == "ema"}
                self.run.metric("step_period_ns", period_s * 1e9, point, is_elapsed=True, **options)
        self.bar = bar
        self.of_postfix(bar, point)

    def values(self, values: dict[str, Any]) -> None:
        """Store a dictionary that the Trainer printed or wrote to one of its files."""
        if "train_samples" in values:
            self.run.facts.train_samples = number(values["train_samples"])
        if "train_runtime" in values:
            self._final(values)
            return
        epoch = number(values.get("epoch"))
        point = self._point(epoch, number(values.get("step")))
        for key, text in values.items():
            if key not in _HF_SKIPPED and not key.endswith(("_runtime", "_per_second")):
                over = "run" if key.startswith("eval_") else "interval"
                name, times = _HF_NAMES.get(key, key), 1.0
                if key == "step_time":  # of TRL, in seconds, without the optimizer
                    name, times = "training_pass_ns", 1e9
                elif (rate := find_rate(key)) is not None:
                    name = rate.name
                value = number(text)
                value = value if value is None else times * value
                self.run.metric(name, value, point, over=over, is_elapsed=True)
        self._note_tokens(number(values.get("num_tokens")), point)
        seconds = number(values.get("eval_runtime"))
        if seconds is not None:
            self.run.event("evaluation", seconds=seconds, epoch=epoch)

    def _note_tokens(self, tokens: float | None, point: LogPoint) -> None:
        """Store the rate since the last noted number of tokens, which TRL counts from the start."""
        self.n_tokens = self.n_tokens if tokens is None else tokens
        if tokens is None or not math.isfinite(point.at_s):
            return
        last = self.tokens
        elapsed_s = point.at_s - last.at_s if last is not None else math.inf
        if last is None or elapsed_s < 0 or tokens < last.samples:
            self.tokens = point._replace(samples=tokens)
        elif elapsed_s >= MIN_INTERVAL_S:
            rate = (tokens - last.samples) / elapsed_s
            self.run.metric("tokens_per_s", rate, point, over="interval", is_elapsed=True)
            self.tokens = point._replace(samples=tokens)

    def _point(self, epoch: float | None, step: float | None) -> LogPoint:
        """Return a position from epoch or step.

        The last bar provides the missing step and the time.
        """
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
        batch = self.run.facts.global_batch
        samples = step * batch if step is not None and batch else math.nan
        return LogPoint(_or_nan(step), _or_nan(epoch), at_s, samples)

    def _final(self, values: dict[str, Any]) -> None:
        """Store the totals of the run, and keep its rates until `end`."""
        run, length = self.run, values.get("train_runtime")
        seconds = number(length)
        if seconds is None and length is not None:
            seconds = seconds_of(str(length))
        if seconds is not None:
            run.measure("total_ns", seconds * 1e9)
            if seconds and self.n_tokens and self.tokens is None:  # no bar tells the time
                run.metric("tokens_per_s", self.n_tokens / seconds, over="run")
        if "train_loss" in values:
            run.measure("mean_loss", number(values["train_loss"]), better="lower")
        rate = number(values.get("train_samples_per_second"))
        steps = number(values.get("train_steps_per_second"))
        self.rate = self.rate if rate is None else rate
        self.steps_rate = self.steps_rate if steps is None else steps
        for key, text in values.items():
            if key.startswith("eval_") and not key.endswith(("_runtime", "_per_second")):
                name = key if key == "eval_acc" else _HF_NAMES.get(key, key)
                run.metric(name, number(text), over="run")

    def end(self) -> None:
        """Store the rates of the whole run.

        The meaning of ``train_samples_per_second`` depends on whether a rate in steps was printed,
        which is known only at the end.
        """
        run, rate, steps = self.run, self.rate, self.steps_rate
        self.rate = self.steps_rate = None
        if steps is not None:
            run.metric("steps_per_s", steps, over="run")
        if rate is None:
            return
        run.metric("steps_per_s" if steps is None else "samples_per_s", rate, over="run")
        text = "throughput of the whole run, {rate:1/s}, includes evaluations and checkpoints"
        if steps is None:
            text = (
                "traceprof reads train_samples_per_second, {rate:1/s}, as steps per second, as "
                "in versions before May 2021, because train_steps_per_second is absent"
            )
        run.say(text, rate=rate)


class StepsBarReader(HfTrainerReader):
    """Read bars titled "Steps", which show the loss of the step behind the bar."""

    titles = ("Steps",)

    def of_postfix(self, bar: ProgressBar, point: LogPoint) -> None:
        """Store the metrics behind a bar."""
        for key, text in bar.values.items():
            if key not in _HF_SKIPPED and not key.startswith("lr"):
                name = "loss" if key in ("step_loss", "train_loss") else key
                self.run.metric(name, number(text), point, is_elapsed=True, is_redrawn=True)


def _parse_dictionary(text: str) -> dict[str, Any]:
    """Return a printed Python dictionary."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        # nan and inf without quotes are not Python literals.
        return {match["key"]: match["value"].strip() for match in _HF_PAIR.finditer(text)}
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


class LightningReader(_BarReader):
    """Read Lightning bars titled "Epoch N"; all other bars belong to evaluations."""

    def take_bar(self, bar: ProgressBar) -> None:
        """Store one state of a progress bar; ignore bars with other titles."""
        match = _EPOCH_BAR.search(bar.title)
        if match is not None:
            self.store_bar(bar, int(match["epoch"]))

    def store_bar(self, bar: ProgressBar, epoch: int) -> None:
        """Store the position, speed, and metrics of a bar that counts the steps of an epoch."""
        step = epoch * bar.total + bar.n if bar.total else bar.n
        self.book.position(bar.n, epoch)
        run = self.run
        point = LogPoint(step, epoch + (bar.n / bar.total if bar.total else 0.0))
        if bar.period_s is not None and bar.n:
            run.metric("step_period_ns", bar.period_s * 1e9, point, over="ema", is_redrawn=True)
        period_s = self.speed.period_s(bar)
        if period_s is not None:
            run.metric("step_period_ns", period_s * 1e9, point, over="interval")
        if bar.n:
            self.of_postfix(bar, point)
        if bar.total and bar.n == bar.total:
            run.epoch(epoch, seconds=bar.pass_s, steps=bar.total)
            if bar.pass_s:
                each_ns = 1e9 * bar.pass_s / bar.n
                run.metric("step_period_ns", each_ns, point, over="epoch", is_redrawn=True)

    def of_postfix(self, bar: ProgressBar, point: LogPoint) -> None:
        """Store the metrics behind a bar."""
        for key, text in bar.values.items():
            if key != "v_num":
                over = "run" if key.startswith("val") else "ema" if key == "loss" else "step"
                name = _LIGHTNING_NAMES.get(key, key)
                self.run.metric(name, number(text), point, over=over, is_redrawn=True)


class NemoReader(LightningReader):
    """Read NeMo logs. Counters in the version 1 bar are rounded; the bar itself counts steps."""

    def stepped(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store the cells of a NeMo 2 line."""
        parts = (cell.rpartition(": ") for cell in match["_parts"].split("|"))
        cells = {key.strip(): number(value) for key, colon, value in parts if colon}
        global_step, samples = cells.get("global_step"), cells.get("consumed_samples")
        epoch = int(match["_epoch"])
        self.book.position(*((int(match["_at"]), epoch) if global_step is None else (global_step,)))
        run = self.run
        run.facts.global_batch = cells.get("global_batch_size") or run.facts.global_batch
        of_epoch = epoch if global_step is None else math.nan
        point = LogPoint(_or_nan(global_step), of_epoch, self.at_s(line), _or_nan(samples))
        seconds = cells.get("train_step_timing in s")
        if seconds is not None:
            run.metric("step_period_ns", seconds * 1e9, point)
        run.metric("loss", cells.get("reduced_train_loss"), point)
        for key, value in cells.items():
            if key.startswith("val_"):
                run.metric(key, value, point, over="run")

    def reached(self, match: re.Match[str], point: LogPoint, line: LogLine) -> None:
        """Store a new best value, and the checkpoint that is saved for it, if any."""
        point = point._replace(at_s=self.at_s(line))
        self.run.metric(match["_name"], number(match["_best"]), point, over="run")
        if "saving model to '" in line.text:
            self.run.event("checkpoint", self.book.when(line))

    def of_postfix(self, bar: ProgressBar, point: LogPoint) -> None:
        """Store the metrics behind a bar; the bar rounds counters to two or three digits."""
        run = self.run
        for key, text in bar.values.items():
            value = number(text)
            if key == "reduced_train_loss":
                run.metric("loss", value, point, is_redrawn=True)
            elif key == "train_step_timing in s" and value is not None:
                run.metric("step_period_ns", value * 1e9, point, is_redrawn=True)
            elif key.startswith("val_"):
                run.metric(key, value, point, over="interval", is_redrawn=True)
        if "global_step" in bar.values:
            run.say(
                "global_step and consumed_samples in the bar are rounded, so traceprof ignores them"
            )


class MetricsCsvReader(LogReader):
    """Read Lightning CSVLogger files: one row per step, with empty cells where nothing was logged.

    Steps are counted from 0. Rows contain no times, so there is no throughput.
    """

    def begin(self) -> None:
        """Reset the state at the start of a log or run."""
        self.names: list[str] = []
        self.last_epoch = math.nan

    def read(self, line: LogLine) -> None:
        """Store the values of one row, or the heading."""
        text = line.raw.strip()
        if self.source.patterns[0].regex.match(text):
            self.names = [name.strip() for name in text.split(",")]
            return
        cells = next(csv.reader([text]), []) if self.names else []
        if len(cells) != len(self.names):
            return
        found = zip(self.names, map(number, cells), strict=True)
        values = {name: value for name, value in found if value is not None}
        step = values.pop("step", None)
        if step is None:
            return
        self.last_epoch = values.pop("epoch", self.last_epoch)
        self.book.position(step)
        for name, value in values.items():
            if not _LEARNING_RATE.search(name):
                is_evaluated = name.startswith(("val", "test"))
                point = LogPoint(step + 1, self.last_epoch + is_evaluated)
                over = "run" if is_evaluated else "step"
                self.run.metric(_CSV_NAMES.get(name, name), value, point, over=over)
