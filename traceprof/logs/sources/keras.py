"""Keras, with TensorFlow or another backend."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number
from traceprof.logs.cleaning import Line
from traceprof.logs.clock import seconds_of
from traceprof.logs.series import Point

__all__ = ["SOURCE"]

_STATE: Final = re.compile(
    r"(?:^|\s)(?P<n>\d+)/(?P<total>\d+|Unknown)\s*(?:\[[=>.]*\] - |[━╸╺\s]*━[━╸╺\s]*|- )"
    r"(?:(?P<eta>ETA: [\d:]+s?)|(?P<elapsed>[\d:]+)s?(?: -)?)?"
    r"(?:\s*(?P<step>\d+)(?P<unit>us|ms|s|min)/(?P<per>step|sample|epoch))?"
    r"(?P<metrics>(?: - [\w.@/ ]+?: (?:nan|-?inf|-?[\d.e+-]+))*)"
)
_METRIC: Final = re.compile(r" - (?P<key>[\w.@/ ]+?): (?P<value>nan|-?inf|-?[\d.e+-]+)")
_EPOCH: Final = re.compile(r"^\s*Epoch (?P<epoch>\d+)/(?P<epochs>\d+)\s*$")
_REPLICAS: Final = re.compile(
    r"MirroredStrategy with devices \((?P<devices>.*)\)|^Number of devices: (?P<count>\d+)"
)
_RESTORED: Final = re.compile(r"Restoring from (?P<where>\S+)|Restored from (?P<other>\S+)")
_UNITS: Final = {"us": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}
_MARK: Final = re.compile(
    r"(?<!\S)\d+/(?:\d+|Unknown)\s*"
    r"(?:\[[=>.]+\] - |━(?!.*•)|- (?:\d+:)*\d+s - (?:\d+m?s/step|loss:))"
)


class KerasReader(Reader):
    """Metrics of training are running means of the epoch; the closing line holds validation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.epoch: int | None = None
        self.is_open = False
        self.restored = False
        self.elapsed_s = 0.0
        self.pending: tuple[re.Match[str], int, dict[str, float | None], Line] | None = None

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if (head := _EPOCH.search(text)) is not None:
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

    def _state(self, match: re.Match[str], line: Line) -> None:
        n, metrics = (
            int(match["n"]),
            {m["key"].strip(): number(m["value"]) for m in _METRIC.finditer(match["metrics"])},
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
        self, n: int, total: int | None, metrics: dict[str, float | None], line: Line
    ) -> None:
        if not metrics:
            return
        epoch = (self.epoch or 1) - 1
        step = epoch * total + n if total else n
        for key, value in metrics.items():
            name = key if key == "loss" else f"train_{_named(key)}"
            self.book.run.metric(
                name,
                value,
                Point(step, epoch + n / total if total else math.nan),
                scope="rank",
                rank=line.rank,
                over="ema",
                is_redrawn=True,
            )

    def _closed(
        self, match: re.Match[str], n: int, metrics: dict[str, float | None], line: Line
    ) -> None:
        run = self.book.run
        epoch = self.epoch or 1
        seconds = seconds_of(match["elapsed"])
        rank = line.rank
        self.elapsed_s += seconds or 0.0
        steps = math.nan if match["per"] == "sample" else epoch * n
        point = Point(steps, epoch, self.elapsed_s)

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
                name = _named(key.removeprefix("val_"))
                name = "val_loss" if name == "loss" else name
                run.metric(name, value, point, over="run", rank=rank, is_elapsed=True)
            else:
                name = "loss" if key == "loss" else f"train_{_named(key)}"
                run.metric(name, value, point, over="epoch", rank=rank, is_elapsed=True)

    def _evaluated(self, match: re.Match[str], metrics: dict[str, float | None]) -> None:
        run = self.book.run
        seconds = seconds_of(match["elapsed"])
        run.event("evaluation", seconds=seconds, epoch=self.epoch, text="evaluate()")
        for key, value in metrics.items():
            name = "test_loss" if key == "loss" else f"test_{_named(key)}"
            run.metric(name, value, Point(epoch=self.epoch or math.nan), over="run")


def _named(key: str) -> str:
    """Return the name of a metric as all sources have it: any accuracy of one guess is top1."""
    if key in ("accuracy", "acc", "categorical_accuracy", "sparse_categorical_accuracy"):
        return "top1"
    if key == "binary_accuracy":
        return "top1"
    return "top5" if "top_k" in key or "top_5" in key or key == "top5" else key


SOURCE: Final = Source("keras", "Keras", (_MARK,), KerasReader)
