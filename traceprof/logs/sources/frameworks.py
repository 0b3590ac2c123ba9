"""Loops of frameworks: Hugging Face, Lightning, NeMo, Keras, MXNet."""

from __future__ import annotations

import ast
import csv
import math
import re
from typing import Any, Final

from traceprof.logs.bars import ProgressBar, ProgressSpeed, bars_in
from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine, seconds_of
from traceprof.logs.source import LogReader, LogSource, number
from traceprof.model.results import Unit

_DICT: Final = re.compile(
    r"\{'(?=[^{}]*'(?:loss|eval_\w+|train_runtime|train_loss|learning_rate|epoch)')[^{}]*\}"
)
_HF_PAIR: Final = re.compile(r"'(?P<key>[^']+)':\s*'?(?P<value>[^,'}]+)'?")
_BANNER: Final = re.compile(
    r"(?P<key>Num examples|Num Epochs|Instantaneous batch size per device|Total train batch size"
    r"[^=]*|Gradient Accumulation steps|Total optimization steps)\s*=\s*(?P<value>[\d,.]+)"
)
_HF_METRIC: Final = re.compile(
    r"^\s{0,4}(?P<key>(?:train|eval|predict)_\w+|epoch)\s+=\s+(?P<value>\S+)$"
)
_BEGIN: Final = re.compile(r"\*{5} Running training \*{5}")
_HF_SAVED: Final = re.compile(r"Saving model checkpoint to (?P<where>\S+)")
_SKIPPED: Final = frozenset({"epoch", "step", "learning_rate", "total_flos"})


class HfTrainerReader(LogReader):
    """Steps come from the bars, or from the epochs: the dictionaries have none."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.epochs: float | None = None
        self.total_steps: int | None = None
        self.bar: ProgressBar | None = None
        self.speed = ProgressSpeed()
        self.rate: float | None = None
        self.steps_rate: float | None = None

    def read(self, line: LogLine) -> None:
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
        elif (saved := _HF_SAVED.search(text)) is not None:
            self.book.run.event("checkpoint", self.book.when(line), text=saved["where"])

    def _setting(self, text: str) -> None:
        banner = _BANNER.search(text)
        if banner is not None:
            self._banner(banner["key"], number(banner["value"]) or 0.0)
            return
        metric = _HF_METRIC.match(text)
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

    def _bar(self, bar: ProgressBar) -> None:
        if bar.title or bar.total is None:
            return
        if self.total_steps is None:
            self.total_steps = bar.total
        if bar.total != self.total_steps:
            return
        self.book.position(bar.n)
        run = self.book.run
        point = LogPoint(bar.n, at_s=bar.elapsed_s)
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

    def _point(self, epoch: float | None, step: float | None) -> LogPoint:
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
        return LogPoint(_known(step), _known(epoch), at_s, samples)

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
        return {match["key"]: match["value"].strip() for match in _HF_PAIR.finditer(text)}
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


HF_TRAINER: Final = LogSource(
    "hf-trainer",
    "Hugging Face Trainer",
    (_DICT, _BANNER, re.compile(r"train_steps_per_second")),
    HfTrainerReader,
)


_LIGHTNING_EPOCH: Final = re.compile(r"Epoch\s+(?P<epoch>\d+)(?:/\S+)?\s*:?\s*:?$")
_LIGHTNING_MARK: Final = re.compile(
    r"Epoch \d+: (?!.*(?:reduced_train_loss|consumed_samples)).*?(?:\|.*\d+/(?:\d+|\?)|\d+it) ?\["
    r"|Epoch \d+/\S+\s+[━╸╺ ]+\s\d+/\d+\s+\d[\d:]* •"
)
_WORLD: Final = re.compile(
    r"GLOBAL_RANK: \d+, MEMBER: \d+/(?P<world>\d+)|Starting with (?P<count>\d+) processes"
)
_START: Final = re.compile(r"(?:GPU|TPU|HPU|IPU) available: |GLOBAL_RANK: \d+, MEMBER:")
_STOPPED: Final = re.compile(r"`Trainer\.fit` stopped: (?P<why>.*)")
_LIGHTNING_NAMES: Final = {
    "train_loss": "loss",
    "train/loss": "loss",
    "val_acc": "top1",
    "val_accuracy": "top1",
    "train_acc": "train_top1",
}


class EpochBars(LogReader):
    """Bars that are called "Epoch N"; other bars are of evaluations."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.speed = ProgressSpeed()

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        for bar in bars_in(text):
            match = _LIGHTNING_EPOCH.search(bar.title)
            if match is not None:
                self._bar(int(match["epoch"]), bar)
        if "rocesses" in text or "MEMBER" in text:
            world = _WORLD.search(text)
            if world is not None:
                self.book.run.facts.world_size = int(world["world"] or world["count"])
        elif (stopped := _STOPPED.search(text)) is not None:
            self.book.run.event("end", self.book.when(line), text=stopped["why"].strip())

    def _bar(self, epoch: int, bar: ProgressBar) -> None:
        step = epoch * bar.total + bar.n if bar.total else bar.n
        self.book.position(bar.n, epoch)
        run = self.book.run
        share = bar.n / bar.total if bar.total else 0.0
        point = LogPoint(step, epoch + share)
        if bar.period_s is not None and bar.n:
            run.metric("step_period_ns", bar.period_s * 1e9, point, over="ema", is_redrawn=True)
        period_s = self.speed.period_s(bar)
        if period_s is not None:
            run.metric("step_period_ns", period_s * 1e9, point, over="interval")
        if bar.n:
            self.of_postfix(bar, point)
        if bar.total and bar.n == bar.total:
            run.epoch(epoch, seconds=bar.elapsed_s, steps=bar.total)
            if bar.elapsed_s:
                each_ns = 1e9 * bar.elapsed_s / bar.n
                run.metric("step_period_ns", each_ns, point, over="epoch", is_redrawn=True)

    def of_postfix(self, bar: ProgressBar, point: LogPoint) -> None:
        """Note the metrics behind a bar."""
        for key, text in bar.values.items():
            value = number(text)
            if value is None or key == "v_num":
                continue
            name = _LIGHTNING_NAMES.get(key, key)
            is_mean = key == "loss"
            over = "run" if key.startswith("val") else "ema" if is_mean else "step"
            self.book.run.metric(name, value, point, over=over, is_redrawn=True)


LIGHTNING: Final = LogSource(
    "lightning", "PyTorch Lightning", (_LIGHTNING_MARK, _START, _STOPPED), EpochBars
)


_LINE: Final = re.compile(
    r"Training epoch (?P<epoch>\d+), iteration (?P<step>\d+)/(?P<total>\d+)\s*\|(?P<cells>.*)"
)
_BAR: Final = re.compile(r"Epoch \d+: .*(?:reduced_train_loss|consumed_samples)=")
_REACHED: Final = re.compile(
    r"Epoch (?P<epoch>\d+), global step (?P<step>\d+): '?(?P<name>val_\w+)'? "
    r"(?:reached (?P<value>[\d.]+|nan)|was not in top)"
)
_NEMO_SAVED: Final = re.compile(
    r"checkpoint save for step (?P<step>\d+) finalized|saving model to '(?P<where>[^']+)'"
)


class NemoReader(EpochBars):
    """Counters in the bar of the first version are rounded; steps are counted by the bar."""

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if "Training epoch" in text and (match := _LINE.search(text)) is not None:
            self._step(match, line)
            return
        if (reached := _REACHED.search(text)) is not None:
            value = number(reached["value"])
            point = LogPoint(float(reached["step"]), float(reached["epoch"]), self._at_s(line))
            self.book.run.metric(reached["name"], value, point, over="run")
        if (saved := _NEMO_SAVED.search(text)) is not None:
            step = number(saved["step"])
            self.book.run.event("checkpoint", self.book.when(line), value=step)
        super().read(line)

    def _at_s(self, line: LogLine) -> float:
        return self.book.when(line).seconds

    def _step(self, match: re.Match[str], line: LogLine) -> None:
        cells = {
            key.strip(): number(value)
            for key, colon, value in (cell.rpartition(": ") for cell in match["cells"].split("|"))
            if colon
        }
        done = cells.get("global_step")
        epoch, iteration = int(match["epoch"]), int(match["step"])
        if done is None:
            self.book.position(iteration, epoch)
        else:
            self.book.position(done)
        run = self.book.run
        run.facts.global_batch = cells.get("global_batch_size") or run.facts.global_batch
        samples = cells.get("consumed_samples")
        point = LogPoint(
            math.nan if done is None else done,
            epoch if done is None else math.nan,
            self._at_s(line),
            math.nan if samples is None else samples,
        )
        seconds = cells.get("train_step_timing in s")
        if seconds is not None:
            run.metric("step_period_ns", seconds * 1e9, point)
        run.metric("loss", cells.get("reduced_train_loss"), point)
        for key, value in cells.items():
            if key.startswith("val_"):
                run.metric(key, value, point, over="run")

    def of_postfix(self, bar: ProgressBar, point: LogPoint) -> None:
        """Note the metrics behind a bar; those that count are rounded to two or three digits."""
        run = self.book.run
        for key, text in bar.values.items():
            value = number(text)
            if key == "reduced_train_loss":
                run.metric("loss", value, point, is_redrawn=True)
            elif key == "train_step_timing in s" and value is not None:
                run.metric("step_period_ns", value * 1e9, point, is_redrawn=True)
            elif key.startswith("val_"):
                run.metric(key, value, point, over="interval", is_redrawn=True)
        if "global_step" in bar.values:
            run.say("global_step and consumed_samples in the bar are rounded, and are not used")


NEMO: Final = LogSource("nemo", "NVIDIA NeMo", (_LINE, _BAR, _REACHED), NemoReader)


_STATE: Final = re.compile(
    r"(?:^|\s)(?P<n>\d+)/(?P<total>\d+|Unknown)\s*(?:\[[=>.]*\] - |[━╸╺\s]*━[━╸╺\s]*|- )"
    r"(?:(?P<eta>ETA: [\d:]+s?)|(?P<elapsed>[\d:]+)s?(?: -)?)?"
    r"(?:\s*(?P<step>\d+)(?P<unit>us|ms|s|min)/(?P<per>step|sample|epoch))?"
    r"(?P<metrics>(?: - [\w.@/ ]+?: (?:nan|-?inf|-?[\d.e+-]+))*)"
)
_KERAS_METRIC: Final = re.compile(r" - (?P<key>[\w.@/ ]+?): (?P<value>nan|-?inf|-?[\d.e+-]+)")
_KERAS_EPOCH: Final = re.compile(r"^\s*Epoch (?P<epoch>\d+)/(?P<epochs>\d+)\s*$")
_REPLICAS: Final = re.compile(
    r"MirroredStrategy with devices \((?P<devices>.*)\)|^Number of devices: (?P<count>\d+)"
)
_RESTORED: Final = re.compile(r"Restoring from (?P<where>\S+)|Restored from (?P<other>\S+)")
_UNITS: Final = {"us": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}
_KERAS_MARK: Final = re.compile(
    r"(?<!\S)\d+/(?:\d+|Unknown)\s*"
    r"(?:\[[=>.]+\] - |━(?!.*•)|- (?:\d+:)*\d+s - (?:\d+m?s/step|loss:))"
)


class KerasReader(LogReader):
    """Metrics of training are running means of the epoch; the closing line holds validation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.epoch: int | None = None
        self.is_open = False
        self.restored = False
        self.elapsed_s = 0.0
        self.pending: tuple[re.Match[str], int, dict[str, float | None], LogLine] | None = None

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if (head := _KERAS_EPOCH.search(text)) is not None:
            self.end()
            epoch = int(head["epoch"])
            if not self.is_open or self.epoch != epoch:
                self.epoch, self.is_open = epoch, True
            return
        if "/" in text and (state := _STATE.search(text)) is not None:
            self._state(state, line)
        elif (replicas := _REPLICAS.search(text)) is not None:
            count = replicas["count"]
            devices = int(count) if count else replicas["devices"].count("device:")
            self.book.run.facts.devices = devices or None
        elif (restored := _RESTORED.search(text)) is not None:
            self.book.run.event("restart", text=restored[0])
            if self.epoch is not None:
                self.book.run.life += 1
            self.restored = True

    def _state(self, match: re.Match[str], line: LogLine) -> None:
        n, metrics = (
            int(match["n"]),
            {
                m["key"].strip(): number(m["value"])
                for m in _KERAS_METRIC.finditer(match["metrics"])
            },
        )
        total = int(match["total"]) if match["total"].isdigit() else None
        is_last = match["elapsed"] is not None and (total is None or n >= total)
        if not is_last:
            self._in_progress(n, total, metrics, line)
            return
        if "━" in match[0] and not metrics and match["step"] is None:
            return
        has_val = any(key.startswith("val_") for key in metrics)
        if self._is_drawn_again(match, n, has_val=has_val):
            self.pending = (match, n, metrics, line)
            return
        self.end()
        if not self.is_open and not has_val and self.epoch is not None:
            self._evaluated(match, metrics)
            return
        if not self.is_open:
            self.epoch = (self.epoch or 0) + 1  # verbose=2 in a pipe prints no heads
            self._closed(match, n, metrics, line)
            return
        # The bar of the last batch may be drawn again at the end of the epoch.
        self.pending = (match, n, metrics, line)
        self.is_open = False

    def _is_drawn_again(self, match: re.Match[str], n: int, *, has_val: bool) -> bool:
        """Return whether a full bar is that of the epoch whose full bar was seen last."""
        if self.pending is None or self.is_open or self.pending[1] != n:
            return False
        before, now = (seconds_of(own["elapsed"]) or 0.0 for own in (self.pending[0], match))
        has_had_val = any(key.startswith("val_") for key in self.pending[2])
        return now >= before and (has_val or not has_had_val)

    def end(self) -> None:
        """Note the epoch that was seen last: no bar of it follows."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            self._closed(*pending)

    def _in_progress(
        self, n: int, total: int | None, metrics: dict[str, float | None], line: LogLine
    ) -> None:
        if not metrics:
            return
        epoch = (self.epoch or 1) - 1
        step = epoch * total + n if total else n
        for key, value in metrics.items():
            name = key if key == "loss" else f"train_{_keras_named(key)}"
            self.book.run.metric(
                name,
                value,
                LogPoint(step, epoch + n / total if total else math.nan),
                scope="rank",
                rank=line.rank,
                over="ema",
                is_redrawn=True,
            )

    def _closed(
        self, match: re.Match[str], n: int, metrics: dict[str, float | None], line: LogLine
    ) -> None:
        run = self.book.run
        epoch = self.epoch or 1
        seconds = seconds_of(match["elapsed"])
        rank = line.rank
        self.elapsed_s += seconds or 0.0
        steps = math.nan if match["per"] == "sample" else epoch * n
        point = LogPoint(steps, epoch, self.elapsed_s)

        if match["step"] is not None:
            each = float(match["step"]) * _UNITS[match["unit"]]
            if match["per"] == "sample":
                run.metric(
                    "samples_per_s", 1e9 / each, point, over="epoch", rank=rank, is_elapsed=True
                )
            elif match["per"] == "step":
                run.metric("step_period_ns", each, point, over="epoch", rank=rank, is_elapsed=True)
        is_sample = match["per"] == "sample"
        done = {"samples" if is_sample else "steps": n}
        run.epoch(
            epoch, **done, seconds=seconds, at_s=self.elapsed_s - (seconds or 0.0), is_elapsed=True
        )
        for key, value in metrics.items():
            if key.startswith("val_"):
                name = _keras_named(key.removeprefix("val_"))
                name = "val_loss" if name == "loss" else name
                run.metric(name, value, point, over="run", rank=rank, is_elapsed=True)
            else:
                name = "loss" if key == "loss" else f"train_{_keras_named(key)}"
                run.metric(name, value, point, over="epoch", rank=rank, is_elapsed=True)

    def _evaluated(self, match: re.Match[str], metrics: dict[str, float | None]) -> None:
        run = self.book.run
        seconds = seconds_of(match["elapsed"])
        run.event("evaluation", seconds=seconds, epoch=self.epoch, text="evaluate()")
        for key, value in metrics.items():
            name = "test_loss" if key == "loss" else f"test_{_keras_named(key)}"
            run.metric(name, value, LogPoint(epoch=self.epoch or math.nan), over="run")


def _keras_named(key: str) -> str:
    """Return the name of a metric as all sources have it: any accuracy of one guess is top1."""
    if key in ("accuracy", "acc", "categorical_accuracy", "sparse_categorical_accuracy"):
        return "top1"
    if key == "binary_accuracy":
        return "top1"
    return "top5" if "top_k" in key or "top_5" in key or key == "top5" else key


KERAS: Final = LogSource("keras", "Keras", (_KERAS_MARK,), KerasReader)


_SPEED: Final = re.compile(
    r"(?:(?:Epoch|Iter) ?\[(?P<epoch>\d+)\],? ?Batch ?\[(?:(?P<from>\d+)-)?(?P<batch>\d+)\]"
    r"|\[Epoch (?P<gepoch>\d+)\]\s*\[Batch (?P<gbatch>\d+)\],?)\s*"
    r"Speed: (?P<speed>[\d.]+|inf) samples/s(?:ec)?,?\s*(?P<metrics>.*)$"
)
_MXNET_EPOCH: Final = re.compile(
    r"(?:Epoch ?\[(?P<epoch>\d+)\]|\[Epoch (?P<gepoch>\d+)\]) "
    r"(?P<key>Train-[\w-]+|Validation-[\w-]+|Time cost"
    r"|(?:training|validation|train|val): (?:[\w-]+))\s*[=:]\s*(?P<value>[\d.]+|nan)"
)
_GLUON: Final = re.compile(
    r"\[Epoch (?P<epoch>\d+)\] speed: (?P<speed>[\d.]+) samples/sec\s+time cost: (?P<cost>[\d.]+)"
)
_MXNET_PAIR: Final = re.compile(r"(?P<key>[A-Za-z][\w-]*)=(?P<value>nan|-?inf|-?[\d.e+-]+)")
_MXNET_SAVED: Final = re.compile(r"Saved checkpoint to \"?(?P<where>[^\"\s]+)")


class MxnetReader(LogReader):
    """Speed is of the batch that the callback was given: that of one worker."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.before: tuple[int, int] | None = None
        self.per_epoch = 0

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if "Speed:" in text and (speed := _SPEED.search(text)) is not None:
            self._speed(speed, line)
        elif (epoch := _MXNET_EPOCH.search(text)) is not None:
            self._epoch(epoch, line)
        elif (gluon := _GLUON.search(text)) is not None:
            number_of = int(gluon["epoch"])
            self.book.run.epoch(number_of, seconds=number(gluon["cost"]))
            self.book.run.metric(
                "samples_per_s",
                number(gluon["speed"]),
                LogPoint(epoch=number_of + 1),
                scope="rank",
                over="epoch",
            )
        elif (saved := _MXNET_SAVED.search(text)) is not None:
            self.book.run.event("checkpoint", self.book.when(line), text=saved["where"])

    def _speed(self, match: re.Match[str], line: LogLine) -> None:
        epoch = int(match["epoch"] or match["gepoch"])
        batch = int(match["batch"] or match["gbatch"])
        self.book.position(batch, epoch, line.rank)
        run = self.book.run
        point = LogPoint(batch, epoch, self.book.when(line).seconds)
        rate = number(match["speed"])
        run.metric("samples_per_s", rate, point, scope="rank", rank=line.rank, over="interval")
        for pair in _MXNET_PAIR.finditer(match["metrics"]):
            name = _mxnet_named(pair["key"].lower().removeprefix("train-"))
            name = name if name.startswith("train_") or "loss" in name else f"train_{name}"
            run.metric(
                name, number(pair["value"]), point, scope="rank", rank=line.rank, over="interval"
            )

    def _epoch(self, match: re.Match[str], line: LogLine) -> None:
        run = self.book.run
        epoch = int(match["epoch"] or match["gepoch"])
        value, key = number(match["value"]), match["key"].lower()
        point = LogPoint(epoch=epoch + 1, at_s=self.book.when(line).seconds)
        if ": err-" in key and value is not None:
            key, value = key.replace("err-", ""), 1 - value
        if key == "time cost":
            run.epoch(epoch, seconds=value)
        elif key.startswith("val"):
            name = _mxnet_named(re.split(r"-|: ", key, maxsplit=1)[1])
            run.metric(name.replace("loss", "val_loss"), value, point, over="run")
        else:
            name = _mxnet_named(re.split(r"-|: ", key, maxsplit=1)[1])
            run.metric(f"train_{name}", value, point, scope="rank", over="epoch")
        run.epoch(epoch)

    def end(self) -> None:
        """Say whose the speed is."""
        self.book.run.say(
            "the speed is that of one worker: it is not known how many trained together"
        )


def _mxnet_named(key: str) -> str:
    if key in ("accuracy", "acc", "top-1", "top1"):
        return "top1"
    if key in ("top_k_accuracy_5", "top-5", "top5"):
        return "top5"
    return key.replace("-", "_")


MXNET: Final = LogSource("mxnet", "MXNet", (_SPEED, _MXNET_EPOCH, _GLUON), MxnetReader)


_HEADING: Final = re.compile(
    r"^(?=(?:.*,)?step(?:,|$))(?=(?:.*,)?epoch(?:,|$))"
    r"[A-Za-z_][\w./@ -]*(?:,[A-Za-z_][\w./@ -]*)+\s*$"
)
_CSV_NAMES: Final = {"train_loss": "loss", "val_acc": "top1", "val_accuracy": "top1"}
_PLACES: Final = frozenset({"step", "epoch"})
_RATES: Final = re.compile(r"^lr-|^lr$|learning_rate")


class MetricsCsvReader(LogReader):
    """Steps are counted from 0; no row tells a time, so that there is no throughput."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.names: list[str] = []
        self.epoch = math.nan

    def read(self, line: LogLine) -> None:
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
        point = LogPoint(step + 1, self.epoch)
        for name, value in values.items():
            if name not in _PLACES and not _RATES.search(name):
                is_evaluated = name.startswith(("val", "test"))
                over = "run" if is_evaluated else "step"
                place = point._replace(epoch=self.epoch + 1) if is_evaluated else point
                self.book.run.metric(_CSV_NAMES.get(name, name), value, place, over=over)


METRICS_CSV: Final = LogSource(
    "metrics-csv", "Lightning's metrics.csv", (_HEADING,), MetricsCsvReader
)
