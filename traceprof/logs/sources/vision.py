"""Read logs of image model training: timm, torchvision, OpenMMLab, and others."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine
from traceprof.logs.source import Declared, LogReader, Pattern, declared, number

_LABELS: Final = {
    "Variables": "variable_update",
    "Data format": "data_format",
    "Dataset": "data",
    "AllReduce": "all_reduce",
    "Mode": "mode",
}


class TimmReader(LogReader):
    """Read timm logs. Samples per second count all ranks; the mean of the epoch is in brackets."""

    def trained(self, match: re.Match[str], point: LogPoint, _line: LogLine) -> None:
        """Store the time per step between two lines."""
        run, idx, rate = self.run, int(match["_idx"]), number(match["samples_per_s__step"])
        if idx == 0 and rate and (update := number(match["_time"])):
            run.facts.global_batch = run.facts.global_batch or _whole(rate * update)
        mean_s = number(match["_time_avg"]) or 0.0
        period_s = self.period_s(None, int(match["epoch"]), idx + 1, mean_s)
        if period_s is not None:
            run.metric("step_period_ns", 1e9 * period_s, point, over="interval")
            run.computed |= {"step_period_ns", "samples_per_s"}
            if run.facts.global_batch:
                rate = run.facts.global_batch / period_s
                run.metric("samples_per_s", rate, point, over="interval")

    def tested(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store the duration of an evaluation."""
        seconds = (int(match["_last"]) + 1) * (number(match["_time_avg"]) or 0.0)
        self.run.event("evaluation", self.book.when(line), seconds, epoch=self.epoch)


def _whole(value: float) -> float | None:
    """Return a batch size computed from two rounded numbers.

    None if it is not near a whole number.
    """
    return float(round(value)) if abs(value - round(value)) <= 0.05 + 2e-3 * value else None


class ImagenetReader(LogReader):
    """Read logs of the PyTorch ImageNet example. Every process prints its own values."""

    by_rank = True
    from_one: bool | None = None

    def done(self, idx: int, total: int) -> int:
        """Return the number of finished steps; some forks count steps from 1."""
        if self.from_one is None:
            self.from_one = idx % 10 == 1 or (idx > 0 and idx == total)
        return idx if self.from_one else idx + 1

    def other(self, _pattern: Pattern, key: str) -> Declared:
        """Return the meaning of a cell: the mean accuracy since the start of the epoch."""
        return declared(f"train_top{key[-1]}_percent_per_rank__epoch")

    def trained(self, match: re.Match[str], point: LogPoint, line: LogLine) -> None:
        """Store the time per step between two lines."""
        n_done = self.done(int(match["_idx"]), self.total)
        mean_s = number(match["step_s_per_rank__epoch"]) or 0.0
        period_s = self.period_s(line.rank, int(match["epoch"]), n_done, mean_s)
        if period_s is not None:
            options = {"scope": "rank", "rank": line.rank, "over": "interval"}
            self.note("step_period_ns", 1e9 * period_s, point, **options)

    def end(self) -> None:
        """Add a note if several processes printed the same values."""
        copies = max((s.copies for s in self.run.series.values()), default=1)
        if copies > 1:
            text = "{n:count} processes print without their rank; traceprof shows their means"
            self.run.say(text, n=copies)


class CountedSamplesReader(LogReader):
    """Read lines that count the samples of an epoch; OpenCLIP counts epochs from 0."""

    def counted(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store the position and the values of a line."""
        groups = match.groupdict()
        epoch, at, epoch_samples = (
            int(groups[name].replace(",", "")) for name in ("_epoch", "_at", "_of")
        )
        self.book.position(at, epoch)
        facts, begun = self.run.facts, epoch - ("_loss" in groups)
        self.epoch, facts.train_samples = begun, epoch_samples
        values = {
            cell["key"] or cell["unit"]: number(cell["value"] or cell["rate"]) or math.nan
            for cell in _COUNTED_CELL.finditer(groups.get("_values") or "")
        }
        if {"Batch (t)", "/s"} <= values.keys() and not facts.global_batch:
            facts.global_batch = _whole(values["Batch (t)"] * values["/s"])
        samples, batch = float(begun * epoch_samples + at), facts.global_batch
        step = samples / batch if batch else math.nan
        point = LogPoint(step, begun + at / epoch_samples, self.at_s(line), samples)
        if "_loss" in groups:
            self.run.metric("loss", number(groups["_loss"]), point)
        for key, value in values.items():
            name, times = _COUNTED[key]
            self.run.metric(name, value * times, point, scope="device" if "gpu" in key else "run")

    def right(self, match: re.Match[str], point: LogPoint, _line: LogLine) -> None:
        """Store the number of correct predictions of an evaluation."""
        if match["_all"] is not None:
            accuracy = int(match["_right"]) / int(match["_all"])
            self.run.metric("top1", accuracy, point, over="run")


_COUNTED_CELL: Final = re.compile(
    r"(?<!\w)(?P<key>Data \(t\)|Batch \(t\)|Loss): (?P<value>nan|[\d.]++)"
    r"|(?<![\d.])(?P<rate>[\d.]++)(?P<unit>/s(?:/gpu)?+)"
)
_COUNTED: Final = {
    "Data (t)": ("data_ns", 1e9),
    "Batch (t)": ("step_period_ns", 1e9),
    "Loss": ("loss", 1.0),
    "/s": ("samples_per_s", 1.0),
    "/s/gpu": ("samples_per_s", 1.0),
}


class PaddleReader(LogReader):
    """Read PaddlePaddle logs.

    Epochs count from 1, iterations from 0; rates refer to one process.
    """

    def _place_in_epoch(
        self, texts: Mapping[str, str], epoch: int, rank: int | None
    ) -> tuple[float, float]:
        if "_total" not in texts:
            return super()._place_in_epoch(texts, epoch, rank)
        return super()._place_in_epoch({**texts, "_n": f"{int(texts['_idx']) + 1}"}, epoch, rank)


class MmengineReader(LogReader):
    """Read MMEngine logs. Lines are means of the interval; each epoch counts iterations from 1."""

    def other(self, pattern: Pattern, key: str) -> Declared:
        """Return the meaning of a value; evaluations print every accuracy in percent."""
        if pattern.over != "run":
            return Declared("train_acc" if key == "acc" else key)
        if key.startswith("accuracy"):
            return Declared(key.replace("-", "_"), by=100.0)
        return Declared(key)


class Detectron2Reader(LogReader):
    """Read Detectron2 logs. The time is the mean since the start, which hides later slowdowns."""

    task = ""
    names: tuple[str, ...] = ()

    def evaluated(self, match: re.Match[str], point: LogPoint, line: LogLine) -> None:
        """Store a line of an evaluation: its task, its column headings, or its values."""
        if match["_task"]:
            self.task = match["_task"]
            return
        cells = match["_row"].split(",")
        if number(cells[0]) is None:
            self.names = tuple(cells)
            return
        point = point._replace(at_s=self.at_s(line))
        for name, cell in zip(self.names, cells, strict=False):
            self.run.metric(f"{self.task}/{name}", number(cell), point, over="run")


class TfCnnReader(LogReader):
    """Read tf_cnn_benchmarks logs.

    A rate is one process's mean since warm-up; the total counts all.
    """

    by_rank = True
    total_per_s: float | None = None
    totals = 0

    def stepped(self, *_of_match: object) -> None:
        """Record that rates exclude the first steps."""
        self.run.facts.has_warmup = False

    def summed(self, match: re.Match[str], *_: object) -> None:
        """Store the total of all processes."""
        self.total_per_s, self.totals = float(match["_per_s"]), self.totals + 1

    def head(self, match: re.Match[str], *_: object) -> None:
        """Store a line of the heading; a heading after a total starts another run."""
        key, value, run = match["_key"], match["_rest"], self.run
        if key in ("TensorFlow", "Model") and self.total_per_s is not None:
            run = self.book.begin_run()
        if key == "TensorFlow":
            run.environment["framework"] = f"TensorFlow {value}"
        elif key == "Model":
            run.workload = value
        elif key == "Devices":
            run.facts.devices = value.count("gpu:") + value.count("cpu:") or None
        else:
            run.labels[_LABELS[key]] = value

    def end(self) -> None:
        """Store the total once, even if several processes print it."""
        run, facts = self.run, self.run.facts
        copies = max((s.copies for _, s in run.of("samples_per_s")), default=1)
        processes = max(copies, len({key.rank for key, _ in run.of("samples_per_s")}))
        if facts.global_batch and facts.batch_per_device and not facts.devices:
            facts.devices = round(facts.global_batch / facts.batch_per_device)
        if processes > 1 or facts.devices == 1:
            facts.world_size = processes
        total, totals = self.total_per_s, self.totals
        self.total_per_s, self.totals = None, 0
        run.measure("samples_per_s", total)
        if totals > 1:
            text = "each of {n:count} processes prints the total of all processes, {total:1/s}; "
            run.say(text + "traceprof counts it once", n=totals, total=total)
