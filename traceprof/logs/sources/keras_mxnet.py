"""Read logs of Keras (with TensorFlow or another backend) and MXNet."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine, seconds_of
from traceprof.logs.source import LogReader, number

_KERAS_TOP1: Final = frozenset(
    {"accuracy", "acc", "binary_accuracy", "categorical_accuracy", "sparse_categorical_accuracy"}
)
_KERAS_METRIC: Final = re.compile(r" - (?P<key>[\w.@/ ]+?): (?P<value>nan|-?inf|-?[\d.e+-]+)")
_KERAS_UNITS: Final = {"us": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}
_MXNET_PAIR: Final = re.compile(
    r"(?<![\w-])[\d_-]*+(?P<key>[A-Za-z][\w-]*+)=(?P<value>nan|-?inf|-?[\d.e+-]+)"
)


class KerasReader(LogReader):
    """Read Keras logs.

    Training metrics are running means of the epoch; its last line adds validation.
    """

    is_open = False
    elapsed_s = 0.0
    pending: tuple[re.Match[str], dict[str, float | None], LogLine] | None = None

    def head(self, match: re.Match[str], *_: object) -> None:
        """Start an epoch."""
        self.end()
        epoch = int(match["_epoch"])
        if not self.is_open or self.epoch != epoch:
            self.epoch, self.is_open = epoch, True

    def replicas(self, match: re.Match[str], *_: object) -> None:
        """Store the number of devices of a distribution strategy."""
        count = match["_count"]
        devices = int(count) if count else match["_devices"].count("device:")
        self.run.facts.devices = devices or None

    def restored(self, match: re.Match[str], *_: object) -> None:
        """Record that training resumes from a checkpoint."""
        self.run.event("restart", text=match[0])
        if self.epoch is not None:
            self.run.attempt += 1

    def state(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store one state of a progress bar."""
        n, pairs = int(match["_at"]), _KERAS_METRIC.finditer(match["_metrics"])
        metrics = {m["key"].strip(): number(m["value"]) for m in pairs}
        total = int(match["_of"]) if match["_of"].isdigit() else None
        if match["_elapsed"] is None or (total is not None and n < total):
            self._note_progress(n, total, metrics, line)
            return
        if "━" in match[0] and not metrics and match["_each"] is None:
            return
        has_val = any(key.startswith("val_") for key in metrics)
        if self._is_redrawn(match, has_val=has_val):
            self.pending = (match, metrics, line)
            return
        self.end()
        if not self.is_open and not has_val and self.epoch is not None:
            self._note_evaluation(match, metrics)
        elif not self.is_open:
            self.epoch = (self.epoch or 0) + 1  # verbose=2 in a pipe prints no epoch headings
            self._note_epoch(match, metrics, line)
        else:
            # Keras may redraw the bar of the last batch at the end of the epoch.
            self.pending = (match, metrics, line)
            self.is_open = False

    def _is_redrawn(self, match: re.Match[str], *, has_val: bool) -> bool:
        """Return whether a full bar belongs to the epoch of the last full bar."""
        if self.pending is None or self.is_open:
            return False
        last, metrics, _ = self.pending
        if int(last["_at"]) != int(match["_at"]):
            return False
        before, now = (seconds_of(bar["_elapsed"]) or 0.0 for bar in (last, match))
        return now >= before and (has_val or not any(key.startswith("val_") for key in metrics))

    def end(self) -> None:
        """Store the last epoch; no further bar of it follows."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            self._note_epoch(*pending)

    def _note_progress(
        self, n: int, total: int | None, metrics: dict[str, float | None], line: LogLine
    ) -> None:
        epoch = (self.epoch or 1) - 1
        options: dict[str, Any] = {"scope": "rank", "rank": line.rank, "over": "ema"}
        for key, value in metrics.items():
            step = epoch * total + n if total else n
            point = LogPoint(step, epoch + n / total if total else math.nan)
            self.run.metric(_train_name(key), value, point, is_redrawn=True, **options)

    def _note_epoch(
        self, match: re.Match[str], metrics: dict[str, float | None], line: LogLine
    ) -> None:
        run, n, epoch = self.run, int(match["_at"]), self.epoch or 1
        seconds, per = seconds_of(match["_elapsed"]), match["_per"]
        began_s = self.elapsed_s
        self.elapsed_s += seconds or 0.0
        steps = math.nan if per == "sample" else epoch * n
        point = LogPoint(steps, epoch, self.elapsed_s)
        options: dict[str, Any] = {"rank": line.rank, "is_elapsed": True}
        if match["_each"] is not None:
            each = float(match["_each"]) * _KERAS_UNITS[match["_unit"]]
            if per == "sample":
                run.metric("samples_per_s", 1e9 / each, point, over="epoch", **options)
            elif per == "step":
                run.metric("step_period_ns", each, point, over="epoch", **options)
        done = {"samples" if per == "sample" else "steps": n}
        run.epoch(epoch, **done, seconds=seconds, at_s=began_s, is_elapsed=True)
        for key, value in metrics.items():
            if key.startswith("val_"):
                name = _keras_name(key.removeprefix("val_"))
                name = "val_loss" if name == "loss" else name
                run.metric(name, value, point, over="run", **options)
            else:
                run.metric(_train_name(key), value, point, over="epoch", **options)

    def _note_evaluation(self, match: re.Match[str], metrics: dict[str, float | None]) -> None:
        seconds = seconds_of(match["_elapsed"])
        self.run.event("evaluation", seconds=seconds, epoch=self.epoch, text="evaluate()")
        for key, value in metrics.items():
            point = LogPoint(epoch=self.epoch or math.nan)
            self.run.metric(f"test_{_keras_name(key)}", value, point, over="run")


def _train_name(key: str) -> str:
    return key if key == "loss" else f"train_{_keras_name(key)}"


def _keras_name(key: str) -> str:
    """Return the common name of a metric; every top-1 accuracy is named top1."""
    if key in _KERAS_TOP1:
        return "top1"
    return "top5" if "top_k" in key or "top_5" in key or key == "top5" else key


class MxnetReader(LogReader):
    """Read MXNet logs.

    The speed refers to the batch that the callback was given: that of one worker.
    """

    def speed(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store a line of the Speedometer callback."""
        epoch, batch = int(match["_epoch"]), int(match["_batch"])
        self.book.position(batch, epoch, line.rank)
        run, point = self.run, LogPoint(batch, epoch, self.at_s(line))
        options: dict[str, Any] = {"scope": "rank", "rank": line.rank, "over": "interval"}
        run.metric("samples_per_s", number(match["_speed"]), point, **options)
        for pair in _MXNET_PAIR.finditer(match["_metrics"]):
            name = _mxnet_name(pair["key"].lower().removeprefix("train-"))
            name = name if name.startswith("train_") or "loss" in name else f"train_{name}"
            run.metric(name, number(pair["value"]), point, **options)

    def of_epoch(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store a line about an epoch."""
        run, epoch = self.run, int(match["_epoch"])
        value, key = number(match["_of"]), match["_key"].lower()
        point = LogPoint(epoch=epoch + 1, at_s=self.at_s(line))
        if ": err-" in key and value is not None:
            key, value = key.replace("err-", ""), 1 - value
        if key == "time cost":
            run.epoch(epoch, seconds=value)
            return
        name = _mxnet_name(re.split(r"-|: ", key, maxsplit=1)[1])
        if key.startswith("val"):
            run.metric(name.replace("loss", "val_loss"), value, point, over="run")
        else:
            run.metric(f"train_{name}", value, point, scope="rank", over="epoch")
        run.epoch(epoch)

    def gluon(self, match: re.Match[str], *_: object) -> None:
        """Store a GluonCV line about an epoch."""
        epoch, speed = int(match["_epoch"]), number(match["_speed"])
        self.run.epoch(epoch, seconds=number(match["_cost"]))
        point = LogPoint(epoch=epoch + 1)
        self.run.metric("samples_per_s", speed, point, scope="rank", over="epoch")

    def end(self) -> None:
        """Add the note that the rate is per worker."""
        self.run.say("the rate is per worker; the number of workers is unknown")


def _mxnet_name(key: str) -> str:
    if key in ("accuracy", "acc", "top-1", "top1"):
        return "top1"
    return "top5" if key in ("top_k_accuracy_5", "top-5", "top5") else key.replace("-", "_")
