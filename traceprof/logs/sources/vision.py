"""Programs that train on images: timm, torchvision, OpenMMLab and others."""

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
    """Samples per second are of all ranks; the mean since the epoch began stands in brackets."""

    def trained(self, match: re.Match[str], point: LogPoint, _line: LogLine) -> None:
        """Note the steps between two lines."""
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
        """Note how long an evaluation took."""
        seconds = (int(match["_last"]) + 1) * (number(match["_time_avg"]) or 0.0)
        self.run.event("evaluation", self.book.when(line), seconds, epoch=self.epoch)


def _whole(value: float) -> float | None:
    """Return a batch that was computed of two rounded numbers, None where it is none."""
    return float(round(value)) if abs(value - round(value)) <= 0.05 + 2e-3 * value else None


class ImagenetReader(LogReader):
    """Values are those of one process, and every process prints them."""

    by_rank = True
    from_one: bool | None = None

    def done(self, idx: int, total: int) -> int:
        """Return how many steps are done; forks count them from 1."""
        if self.from_one is None:
            self.from_one = idx % 10 == 1 or (idx > 0 and idx == total)
        return idx if self.from_one else idx + 1

    def other(self, _pattern: Pattern, key: str) -> Declared:
        """Return what a cell is: the mean accuracy since the epoch began."""
        return declared(f"train_top{key[-1]}_percent_per_rank__epoch")

    def trained(self, match: re.Match[str], point: LogPoint, line: LogLine) -> None:
        """Note the steps between two lines."""
        done = self.done(int(match["_idx"]), self.total)
        mean_s = number(match["step_s_per_rank__epoch"]) or 0.0
        period_s = self.period_s(line.rank, int(match["epoch"]), done, mean_s)
        if period_s is not None:
            own = {"scope": "rank", "rank": line.rank, "over": "interval"}
            self.note("step_period_ns", 1e9 * period_s, point, **own)

    def end(self) -> None:
        """Say how many processes printed the same."""
        copies = max((s.copies for s in self.run.series.values()), default=1)
        if copies > 1:
            text = "{n:count} processes print without their rank; traceprof shows their means"
            self.run.say(text, n=copies)


class CountedSamplesReader(LogReader):
    """Lines count the samples of an epoch; of OpenCLIP epochs are counted from 0."""

    def counted(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Note where a line is, and what it says."""
        own = match.groupdict()
        epoch, at, of = (int(own[name].replace(",", "")) for name in ("_epoch", "_at", "_of"))
        self.book.position(at, epoch)
        facts, begun = self.run.facts, epoch - ("_loss" in own)
        self.epoch, facts.train_samples = begun, of
        told = {
            cell["key"] or cell["unit"]: number(cell["value"] or cell["rate"]) or math.nan
            for cell in _COUNTED_CELL.finditer(own.get("_values") or "")
        }
        if {"Batch (t)", "/s"} <= told.keys() and not facts.global_batch:
            facts.global_batch = _whole(told["Batch (t)"] * told["/s"])
        samples, batch = float(begun * of + at), facts.global_batch
        step = samples / batch if batch else math.nan
        point = LogPoint(step, begun + at / of, self.at_s(line), samples)
        if "_loss" in own:
            self.run.metric("loss", number(own["_loss"]), point)
        for key, value in told.items():
            name, times = _COUNTED[key]
            self.run.metric(name, value * times, point, scope="device" if "gpu" in key else "run")

    def right(self, match: re.Match[str], point: LogPoint, _line: LogLine) -> None:
        """Note how many were right in an evaluation."""
        if match["_all"] is not None:
            share = int(match["_right"]) / int(match["_all"])
            self.run.metric("top1", share, point, over="run")


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
    """Epochs are counted from 1 and iterations from 0; rates are of one process."""

    def _place_in_epoch(
        self, texts: Mapping[str, str], epoch: int, rank: int | None
    ) -> tuple[float, float]:
        if "_total" not in texts:
            return super()._place_in_epoch(texts, epoch, rank)
        return super()._place_in_epoch({**texts, "_n": f"{int(texts['_idx']) + 1}"}, epoch, rank)


class MmengineReader(LogReader):
    """Lines are means of the interval; counters of iterations begin at 1 in each epoch."""

    def other(self, pattern: Pattern, key: str) -> Declared:
        """Return what a value is: of an evaluation every accuracy is in per cent."""
        if pattern.over != "run":
            return Declared("train_acc" if key == "acc" else key)
        if key.startswith("accuracy"):
            return Declared(key.replace("-", "_"), by=100.0)
        return Declared(key)


class Detectron2Reader(LogReader):
    """The time is the mean since the start, which hides what becomes slow later."""

    task = ""
    names: tuple[str, ...] = ()

    def evaluated(self, match: re.Match[str], point: LogPoint, line: LogLine) -> None:
        """Note a line of the evaluation: its task, the heads of its columns, or their values."""
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
    """A step's rate is the mean since warm-up, of one process; the total is of all processes."""

    by_rank = True
    total_per_s: float | None = None
    totals = 0

    def stepped(self, *_of_match: object) -> None:
        """Note that no rate holds the first steps."""
        self.run.facts.has_warmup = False

    def summed(self, match: re.Match[str], *_: object) -> None:
        """Note the total of all processes."""
        self.total_per_s, self.totals = float(match["_per_s"]), self.totals + 1

    def head(self, match: re.Match[str], *_: object) -> None:
        """Note a line of the head; a head after a total begins another run."""
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
        """Note the total once, however many processes print it."""
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
