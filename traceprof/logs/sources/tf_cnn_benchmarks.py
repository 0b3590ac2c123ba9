"""tf_cnn_benchmarks of TensorFlow."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point
from traceprof.model.results import Unit

__all__ = ["SOURCE"]

_STEP: Final = re.compile(
    r"(?:^|\s)(?P<step>\d+)\s+images/sec: (?P<mean>[\d.]+)"
    r"(?: \+/- (?P<spread>[\d.]+)(?: \(jitter = (?P<jitter>[\d.]+)\))?)?"
    r"(?:\s+(?P<loss>nan|inf|[\d.]+))?(?:\s+(?P<top1>[\d.]+)\s+(?P<top5>[\d.]+))?\s*$"
)
_TOTAL: Final = re.compile(r"total images/sec: (?P<total>[\d.]+)")
_BATCH: Final = re.compile(r"^(?:Batch size:)?\s+(?P<batch>[\d.]+) (?P<scope>global|per device)")
_HEAD: Final = re.compile(
    r"^(?P<key>TensorFlow|Model|Dataset|Mode|Num batches|Devices|Variables|Data format|Optimizer"
    r"|AllReduce|Sync|Num epochs|Layout optimizer|SingleSess|NUMA bind):\s+(?P<value>.*\S)"
)
_ACCURACY: Final = re.compile(
    r"Accuracy @ 1 = (?P<top1>[\d.]+) Accuracy @ 5 = (?P<top5>[\d.]+) \[(?P<n>\d+) examples\]"
)
_LABELS: Final = {
    "Variables": "variable_update",
    "Data format": "data_format",
    "Dataset": "data",
    "AllReduce": "all_reduce",
    "Mode": "mode",
}


class TfCnnReader(Reader):
    """A step's rate is the mean since warm-up, of one process; the total is of all processes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.total: float | None = None
        self.totals = 0
        self.step = math.nan

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if "images/sec" in text:
            self._rate(text, line)
        elif (batch := _BATCH.search(text)) is not None:
            name = "global_batch" if batch["scope"] == "global" else "batch_per_device"
            setattr(self.book.run.facts, name, float(batch["batch"]))
        elif (head := _HEAD.search(text)) is not None:
            self._head(head["key"], head["value"])
        elif (found := _ACCURACY.search(text)) is not None:
            for name in ("top1", "top5"):
                self.book.run.metric(name, float(found[name]), Point(self.step), over="run")

    def _rate(self, text: str, line: Line) -> None:
        if (total := _TOTAL.search(text)) is not None:
            self.total, self.totals = float(total["total"]), self.totals + 1
        elif (step := _STEP.search(text)) is not None:
            self._step(step, line)

    def _head(self, key: str, value: str) -> None:
        run = self.book.run
        if key in ("TensorFlow", "Model") and self.total is not None:
            run = self.book.begin_run()
        if key == "TensorFlow":
            run.environment["framework"] = f"TensorFlow {value}"
        elif key == "Model":
            run.workload = value
        elif key == "Devices":
            run.facts.devices = value.count("gpu:") + value.count("cpu:") or None
        elif key in _LABELS:
            run.labels[_LABELS[key]] = value

    def _step(self, match: re.Match[str], line: Line) -> None:
        self.step = float(match["step"])
        self.book.position(self.step, rank=line.rank)
        run = self.book.run
        run.facts.has_warmup = False
        point = Point(self.step, at_s=self.book.when(line).seconds)
        run.metric(
            "samples_per_s", float(match["mean"]), point, over="run", scope="rank", rank=line.rank
        )
        run.metric("loss", number(match["loss"]), point, scope="rank", rank=line.rank)
        for name in ("top1", "top5"):
            run.metric(f"train_{name}", number(match[name]), point, scope="rank", rank=line.rank)

    def end(self) -> None:
        """Note the total once, however many processes print it."""
        run = self.book.run
        copies = max((s.copies for _, s in run.of("samples_per_s")), default=1)
        ranks = len({key.rank for key, _ in run.of("samples_per_s")})
        processes = max(copies, ranks)
        facts = run.facts
        if facts.global_batch and facts.batch_per_device and not facts.devices:
            facts.devices = round(facts.global_batch / facts.batch_per_device)
        if processes > 1 or (facts.devices == 1):
            facts.world_size = processes
        total, totals = self.total, self.totals
        self.total, self.totals = None, 0
        run.measure("samples_per_s", total, Unit.PER_S, better="higher")
        if totals > 1:
            run.say(
                "every one of {n:count} processes prints the total of all, {total:1/s}"
                ": it is taken once",
                n=totals,
                total=total,
            )


SOURCE: Final = Source("tf-cnn-benchmarks", "tf_cnn_benchmarks", (_STEP, _TOTAL), TfCnnReader)
