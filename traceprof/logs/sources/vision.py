"""Programs that train on images: timm, torchvision, OpenMMLab and others."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine, seconds_of
from traceprof.logs.source import LogReader, LogSource, number, share
from traceprof.model.results import Unit

_NUMBER: Final = r"(?:nan|-?inf|[\d.e+-]+)"
_TRAIN: Final = re.compile(
    r"Train: (?P<epoch>\d+) \[\s*(?P<idx>\d+)/(?P<total>\d+)\s*\(\s*\d+%\)\]\s+Loss:\s*"
    rf"(?P<loss>{_NUMBER}) \(\s*(?P<mean>{_NUMBER})\)\s+Time:\s*(?P<time>[\d.]+)s,\s*"
    r"(?P<rate>[\d.]+)/s\s+\(\s*(?P<time_avg>[\d.]+)s,\s*(?P<rate_avg>[\d.]+)/s\)"
)
_TEST: Final = re.compile(
    r"Test(?P<suffix> \([^)]*\))?: \[\s*(?P<idx>\d+)/(?P<last>\d+)\]\s+Time:\s*[\d.]+ "
    r"\(\s*(?P<time_avg>[\d.]+)\)\s+"
    rf"Loss:\s*{_NUMBER} \(\s*(?P<loss>{_NUMBER})\)\s+Acc@1:\s*[\d.]+ \(\s*(?P<top1>[\d.]+)\)"
    r"(?:\s+Acc@5:\s*[\d.]+ \(\s*(?P<top5>[\d.]+)\))?"
)
_TIMM_WORLD: Final = re.compile(r"(?:Process \d+, total |world size:? )(?P<world>\d+)")
_BEST: Final = re.compile(r"\*\*\* Best metric: (?P<value>[\d.]+) \(epoch (?P<epoch>\d+)\)")


class TimmReader(LogReader):
    """Samples per second are of all ranks; the mean since the epoch began stands in brackets."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.epoch: int | None = None
        self.updates = 0
        self.before: tuple[int, int, float] | None = None

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if (train := _TRAIN.search(text)) is not None:
            self._train(train, line)
        elif (test := _TEST.search(text)) is not None:
            self._test(test, line)
        elif (world := _TIMM_WORLD.search(text)) is not None and "total" in text:
            self.book.run.facts.world_size = int(world["world"])
        elif _BEST.search(text) is not None:
            self.book.run.event("end", self.book.when(line), text=text.strip())

    def _train(self, match: re.Match[str], line: LogLine) -> None:
        epoch, idx, total = int(match["epoch"]), int(match["idx"]), int(match["total"])
        self.book.position(idx, epoch)
        self.epoch, self.updates = epoch, total
        run = self.book.run
        at_s = self.book.when(line).seconds
        point = LogPoint(epoch * total + idx + 1, epoch + (idx + 1) / total, at_s)
        run.metric("loss", number(match["loss"]), point)
        rate, mean = number(match["rate"]), number(match["rate_avg"])
        seconds = number(match["time_avg"]) or 0.0
        run.metric("samples_per_s", rate, point)
        run.metric("samples_per_s", mean, point, over="epoch")
        run.epoch(epoch, steps=total)
        if idx == 0 and rate and (update := number(match["time"])):
            run.facts.global_batch = run.facts.global_batch or _whole(rate * update)
        self._interval(epoch, idx, seconds, point)

    def _interval(self, epoch: int, idx: int, mean_s: float, point: LogPoint) -> None:
        """Note the steps between two lines: the mean since the epoch began holds its first one."""
        before = self.before
        self.before = (epoch, idx, mean_s)
        if before is None or before[0] != epoch or idx <= before[1]:
            return
        spent = (idx + 1) * mean_s - (before[1] + 1) * before[2]
        if spent > 0:
            run, period_ns = self.book.run, 1e9 * spent / (idx - before[1])
            run.metric("step_period_ns", period_ns, point, over="interval")
            run.computed |= {"step_period_ns", "samples_per_s"}
            if run.facts.global_batch:
                rate = 1e9 * run.facts.global_batch / period_ns
                run.metric("samples_per_s", rate, point, over="interval")

    def _test(self, match: re.Match[str], line: LogLine) -> None:
        if int(match["idx"]) != int(match["last"]):
            return
        run, epoch = self.book.run, self.epoch
        done = None if epoch is None else epoch + 1
        suffix = "_ema" if "EMA" in (match["suffix"] or "") else ""
        at_s = self.book.when(line).seconds
        point = LogPoint(at_s=at_s)
        if done is not None:
            point = LogPoint(done * self.updates, done, at_s)
        run.metric(f"val_loss{suffix}", number(match["loss"]), point, over="run")
        run.metric(f"top1{suffix}", share(match["top1"]), point, over="run")
        run.metric(f"top5{suffix}", share(match["top5"]), point, over="run")
        seconds = (int(match["last"]) + 1) * (number(match["time_avg"]) or 0.0)
        run.event("evaluation", self.book.when(line), seconds, epoch=epoch)


def _whole(value: float) -> float | None:
    """Return a batch that was computed of two rounded numbers, None where it is none."""
    return float(round(value)) if abs(value - round(value)) <= 0.05 + 2e-3 * value else None


TIMM: Final = LogSource("timm", "timm (pytorch-image-models)", (_TRAIN, _TEST), TimmReader)


_TORCHVISION_STEP: Final = re.compile(
    r"(?P<header>Epoch: ?\[(?P<epoch>\d+)(?:/\d+)?\]|Test:?[\w ]*:?)\s+"
    r"\[\s*(?P<idx>\d+)/(?P<total>\d+)\]"
    r"\s+eta: (?:\d+ days?, )?[\d:]+\s+(?P<meters>.*)"
)
_TORCHVISION_METER: Final = re.compile(
    r"(?P<name>[A-Za-z_][\w.@]*(?: [a-z]\w*)?(?:/s)?): (?P<value>nan|-?inf|[\d.e+-]+)"
    r"(?: \((?P<mean>nan|-?inf|[\d.e+-]+)\))?"
)
_TORCHVISION_TOTAL: Final = re.compile(
    r"(?P<header>Epoch: ?\[(?P<epoch>\d+)(?:/\d+)?\]|Test:?[\w ]*:?) Total time: (?P<total>[\d:]+)"
    r"(?:.*?\((?P<each>[\d.]+) s / it\))?"
)
_TORCHVISION_EVALUATED: Final = re.compile(
    r"(?:Test:|\*)\s*(?P<ema>EMA )?\s*Acc@1:?\s+(?P<top1>[\d.]+)\s+Acc@5:?\s+(?P<top5>[\d.]+)"
    r"(?:\s+loss:?\s+(?P<loss>[\d.]+))?"
)
_NAMESPACE: Final = re.compile(r"Namespace\(|^\s*\{?'?batch_size")
_SETTING: Final = re.compile(
    r"\b(?P<key>batch_size|world_size|epochs|model)=(?P<value>'[^']*'|\d+)"
)
_DONE: Final = re.compile(r"Training time (?P<time>(?:\d+ days?, )?[\d:]+)")
_LEFT_OUT: Final = frozenset({"eta", "max mem", "lr"})
_TORCHVISION_PER_CENT: Final = {"acc1": "train_top1", "acc5": "train_top5"}


class TorchvisionReader(LogReader):
    """``img/s`` is that of rank 0, and its clock starts once the batch is there."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.epoch: int | None = None
        self.total = 0

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if (step := _TORCHVISION_STEP.search(text)) is not None:
            if step["epoch"] is not None:
                self._step(step, line)
        elif (total := _TORCHVISION_TOTAL.search(text)) is not None:
            self._total(total)
        elif (found := _TORCHVISION_EVALUATED.search(text)) is not None:
            self._evaluated(found, line)
        elif "batch_size" in text and _NAMESPACE.search(text):
            self._settings(text)
        elif (done := _DONE.search(text)) is not None:
            seconds = seconds_of(done["time"])
            self.book.run.event("end", self.book.when(line), text=text.strip())
            if seconds is not None:
                self.book.run.measure("total_ns", seconds * 1e9, Unit.NS, better="lower")

    def _step(self, match: re.Match[str], line: LogLine) -> None:
        epoch, idx, total = int(match["epoch"]), int(match["idx"]), int(match["total"])
        self.book.position(idx, epoch, line.rank)
        self.epoch, self.total = epoch, total
        run = self.book.run
        at_s = self.book.when(line).seconds
        point = LogPoint(epoch * total + idx + 1, epoch + (idx + 1) / max(1, total), at_s)
        for meter in _TORCHVISION_METER.finditer(match["meters"]):
            self._meter(meter, point)
        run.epoch(epoch, steps=total)

    def _meter(self, meter: re.Match[str], point: LogPoint) -> None:
        name, run = meter["name"], self.book.run
        value = number(meter["value"])
        if value is None or name in _LEFT_OUT:
            if name == "max mem" and value is not None:
                run.metric("memory_bytes", value * 1024 * 1024, point, scope="rank")
            return
        if name == "img/s":
            run.metric("compute_samples_per_s", value, point, scope="rank")
            run.say(
                "img/s is of rank 0 alone and leaves out loading of data: it is kept as "
                "compute_samples_per_s, and is no throughput"
            )
        elif name in ("time", "data"):
            metric = "step_period_ns" if name == "time" else "data_ns"
            run.metric(metric, value * 1e9, point, over="ema")
        elif name in _TORCHVISION_PER_CENT:
            mean = share(meter["mean"] or meter["value"])
            run.metric(_TORCHVISION_PER_CENT[name], mean, point, scope="rank", over="epoch")
        else:
            run.metric(name, value, point, over="interval")

    def _total(self, match: re.Match[str]) -> None:
        seconds, each = seconds_of(match["total"]), number(match["each"])
        run = self.book.run
        if match["epoch"] is None:
            run.event("evaluation", seconds=seconds, epoch=self.epoch)
            return
        epoch = int(match["epoch"])
        run.epoch(epoch, seconds=seconds)
        if each is not None:
            steps = (epoch + 1) * self.total if self.total else math.nan
            run.metric("step_period_ns", each * 1e9, LogPoint(steps, epoch + 1), over="epoch")

    def _evaluated(self, match: re.Match[str], line: LogLine) -> None:
        run = self.book.run
        done = math.nan if self.epoch is None else self.epoch + 1
        point = LogPoint(
            done * self.total if self.total else math.nan, done, self.book.when(line).seconds
        )
        suffix = "_ema" if match["ema"] else ""
        for name in ("top1", "top5"):
            run.metric(name + suffix, share(match[name]), point, over="run")
        run.metric("val_loss" + suffix, number(match["loss"]), point, over="run")

    def _settings(self, text: str) -> None:
        facts = self.book.run.facts
        for match in _SETTING.finditer(text):
            value = match["value"].strip("'")
            if match["key"] == "batch_size" and value.isdigit():
                facts.batch_per_device = int(value)
            elif match["key"] == "world_size" and value.isdigit():
                facts.world_size = int(value)
            elif match["key"] == "model":
                self.book.run.workload = value


TORCHVISION: Final = LogSource(
    "torchvision",
    "torchvision's references (MetricLogger)",
    (_TORCHVISION_STEP, _TORCHVISION_TOTAL),
    TorchvisionReader,
)


_IMAGENET_STEP: Final = re.compile(
    r"(?P<phase>Epoch|Test): ?(?:\[(?P<epoch>\d+)\])?\s*\[\s*(?P<idx>\d+)/(?P<total>\d+)\]\s+"
    r"Time:?\s+(?P<time>[\d.]+)\s*\(\s*(?P<time_avg>[\d.]+)\)(?P<rest>.*)"
)
_MARK: Final = re.compile(r"Epoch: ?\[\d+\]\s*\[\s*\d+/\d+\]\s+Time:?\s+\d")
_IMAGENET_METER: Final = re.compile(
    rf"(?P<name>Data|Loss|Speed|(?:Acc|Prec|Acc@|Prec@)@?(?P<k>[15])):?\s+(?P<value>{_NUMBER})"
    rf"\s*\(\s*(?P<mean>{_NUMBER})\)"
)
_IMAGENET_EVALUATED: Final = re.compile(
    r"^\s*\*\s+(?:Acc|Prec)@1:?\s+(?P<top1>[\d.]+)\s+(?:Acc|Prec)@5:?\s+(?P<top5>[\d.]+)"
)
_MODEL: Final = re.compile(r"=> (?:creating|using pre-trained) model '(?P<model>[\w.-]+)'")


class ImagenetReader(LogReader):
    """Values are those of one process, and every process prints them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.before: dict[int | None, tuple[int, int, float]] = {}
        self.from_one: bool | None = None
        self.epoch: int | None = None
        self.total = 0

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if (step := _IMAGENET_STEP.search(text)) is not None:
            if step["phase"] == "Epoch" and step["epoch"] is not None:
                self._step(step, line)
        elif (found := _IMAGENET_EVALUATED.search(text)) is not None:
            self._evaluated(found, line)
        elif (model := _MODEL.search(text)) is not None:
            self.book.run.workload = model["model"]

    def _step(self, match: re.Match[str], line: LogLine) -> None:
        epoch, idx, total = int(match["epoch"]), int(match["idx"]), int(match["total"])
        rank = line.rank
        self.book.position(idx, epoch, rank)
        if self.from_one is None:
            self.from_one = idx % 10 == 1 or (idx > 0 and idx == total)
        done = idx if self.from_one else idx + 1
        self.epoch, self.total = epoch, total
        run = self.book.run
        point = LogPoint(epoch * total + done, epoch + done / total, self.book.when(line).seconds)
        seconds, mean = number(match["time"]) or 0.0, number(match["time_avg"]) or 0.0
        run.metric("step_ns", seconds * 1e9, point, scope="rank", rank=rank)
        run.metric("step_ns", mean * 1e9, point, over="epoch", scope="rank", rank=rank)
        for meter in _IMAGENET_METER.finditer(match["rest"]):
            self._meter(meter, point, rank)
        run.epoch(epoch, steps=total)
        self._interval(epoch, done, mean, point, rank)

    def _meter(self, meter: re.Match[str], point: LogPoint, rank: int | None) -> None:
        run = self.book.run
        if meter["name"] == "Data":
            value = number(meter["value"])
            if value is not None:
                run.metric("data_ns", value * 1e9, point, scope="rank", rank=rank)
        elif meter["name"] == "Speed":
            run.metric("samples_per_s", number(meter["value"]), point)
        elif meter["name"] == "Loss":
            run.metric("loss", number(meter["value"]), point, scope="rank", rank=rank)
        else:
            name = f"train_top{meter['k']}"
            run.metric(name, share(meter["mean"]), point, scope="rank", rank=rank, over="epoch")

    def _interval(
        self, epoch: int, done: int, mean_s: float, point: LogPoint, rank: int | None
    ) -> None:
        """Note the steps between two lines: the mean since the epoch began holds its first one."""
        before = self.before.get(rank)
        self.before[rank] = (epoch, done, mean_s)
        if before is None or before[0] != epoch or done <= before[1]:
            return
        spent = done * mean_s - before[1] * before[2]
        if spent > 0:
            period_ns = 1e9 * spent / (done - before[1])
            self.book.run.metric(
                "step_period_ns", period_ns, point, scope="rank", rank=rank, over="interval"
            )

    def _evaluated(self, match: re.Match[str], line: LogLine) -> None:
        done = math.nan if self.epoch is None else self.epoch + 1
        steps = done * self.total if self.total else math.nan
        point = LogPoint(steps, done, self.book.when(line).seconds)
        for name in ("top1", "top5"):
            self.book.run.metric(name, share(match[name]), point, over="run")

    def end(self) -> None:
        """Say how many processes printed the same."""
        copies = max((s.copies for s in self.book.run.series.values()), default=1)
        if copies > 1:
            self.book.run.say(
                "{n:count} processes print without saying who they are: their means are shown",
                n=copies,
            )


IMAGENET: Final = LogSource(
    "imagenet", "pytorch/examples imagenet main.py", (_MARK,), ImagenetReader
)


_MMENGINE_LINE: Final = re.compile(
    r"(?:- (?P<lib>\w+) - )?INFO - (?P<kind>Epoch|Iter)(?:\((?P<phase>train|val|test)\))?\s*"
    r"\[\s*(?P<first>\d+)(?:/(?P<first_total>\d+))?\](?:\[\s*(?P<n>\d+)(?:/\s*(?P<total>\d+))?\])?"
    r"\s+(?P<pairs>.*\S:\s*\S.*)$"
)
_MMENGINE_PAIR: Final = re.compile(
    r"(?P<key>[A-Za-z_][\w./@-]*): "
    r"(?P<value>(?:\d+ days?, )?\d+(?::\d+)+|nan|-?inf|-?[\d.]+(?:e[+-]?\d+)?)"
)
_SAVED: Final = re.compile(r"Saving checkpoint at (?P<n>\d+) (?P<what>epochs?|iterations?)")
_MMENGINE_WORLD: Final = re.compile(
    r"GPU number: (?P<count>\d+)|Distributed launcher: |\bworld_size: (?P<world>\d+)"
)
_MMENGINE_BATCH: Final = re.compile(r"^\s*(?:samples_per_gpu|batch_size)=(?P<batch>\d+)")
_MMENGINE_PER_CENT: Final = re.compile(r"^(?:accuracy|acc$|accuracy_top-|accuracy/top)")
_MMENGINE_SKIPPED: Final = frozenset(
    {"eta", "lr", "base_lr", "momentum", "memory", "time", "data_time"}
)


class MmengineReader(LogReader):
    """Lines are means of the interval; counters of iterations begin at 1 in each epoch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.per_epoch = 0
        self.step = math.nan

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if "INFO - " in text and (match := _MMENGINE_LINE.search(text)) is not None:
            self._line(match, line)
        elif (saved := _SAVED.search(text)) is not None:
            self.book.run.event(
                "checkpoint", self.book.when(line), value=int(saved["n"]), text=saved[0]
            )
        elif (world := _MMENGINE_WORLD.search(text)) is not None:
            count = world["count"] or world["world"]
            self.book.run.facts.world_size = int(count) if count else None
        elif (batch := _MMENGINE_BATCH.search(text)) is not None:
            facts = self.book.run.facts
            facts.batch_per_device = facts.batch_per_device or float(batch["batch"])

    def _line(self, match: re.Match[str], line: LogLine) -> None:
        values = {m["key"]: number(m["value"]) for m in _MMENGINE_PAIR.finditer(match["pairs"])}
        is_train = match["phase"] == "train" or (match["phase"] is None and "time" in values)
        if is_train:
            self._train(match, values, line)
        else:
            self._evaluated(match, values, line)

    def _train(self, match: re.Match[str], values: dict[str, float | None], line: LogLine) -> None:
        first = int(match["first"])
        if match["kind"] == "Epoch" and match["n"] is not None and match["total"]:
            n, total = int(match["n"]), int(match["total"])
            self.per_epoch = total
            self.book.position(n, first)
            self.step = (first - 1) * total + n
            epoch = first - 1 + n / total
            self.book.run.epoch(first, steps=total)
        else:
            self.book.position(first)
            self.step, epoch = first, math.nan
        run = self.book.run
        point = LogPoint(self.step, epoch, self.book.when(line).seconds)
        for key, metric in (("time", "step_period_ns"), ("data_time", "data_ns")):
            seconds = values.get(key)
            if seconds is not None:
                run.metric(metric, seconds * 1e9, point, over="interval")
        memory = values.get("memory")
        if memory is not None:
            run.metric("memory_bytes", memory * 2**20, point, scope="rank")
        for key, value in values.items():
            if key not in _MMENGINE_SKIPPED:
                name = "train_acc" if key == "acc" else key
                run.metric(name, value, point, over="interval")

    def _evaluated(
        self, match: re.Match[str], values: dict[str, float | None], line: LogLine
    ) -> None:
        run = self.book.run
        first = int(match["first"])
        is_epoch = match["kind"] == "Epoch" and first > 0
        point = LogPoint(self.step, first if is_epoch else math.nan, self.book.when(line).seconds)
        known = {k: v for k, v in values.items() if k not in _MMENGINE_SKIPPED and v is not None}
        for key, value in known.items():
            name, factor = _named(key)
            run.metric(name, value * factor, point, over="run")
        if known:
            run.event("evaluation", self.book.when(line), epoch=first if is_epoch else None)


def _named(key: str) -> tuple[str, float]:
    """Return the name of a metric of an evaluation, and what it is multiplied with."""
    if key in ("accuracy", "acc", "accuracy_top-1", "accuracy/top1"):
        return "top1", 0.01
    if key in ("accuracy_top-5", "accuracy/top5"):
        return "top5", 0.01
    if _MMENGINE_PER_CENT.search(key):
        return key.replace("-", "_"), 0.01
    return ("val_loss" if key == "loss" else key), 1.0


MMENGINE: Final = LogSource(
    "mmengine", "OpenMMLab (mmcv, mmengine)", (_MMENGINE_LINE,), MmengineReader
)


_DETECTRON2_LINE: Final = re.compile(
    r"(?:d2\.)?utils\.events\]:\s+(?P<pairs>.*\biter: (?P<iter>\d+).*)"
)
_DETECTRON2_PAIR: Final = re.compile(
    r"(?P<key>[A-Za-z_][\w./-]*): (?P<value>N/A|nan|-?inf|-?[\d.]+(?:e[+-]?\d+)?)(?P<unit>M\b)?"
)
_OVERALL: Final = re.compile(
    r"Overall training speed: (?P<n>\d+) iterations in (?P<time>(?:\d+ days?, )?[\d:]+)"
)
_TASK: Final = re.compile(r"copypaste: Task: (?P<task>[\w-]+)")
_ROW: Final = re.compile(r"copypaste: (?P<cells>[\w.,-]+)$")
_DETECTRON2_BATCH: Final = re.compile(r"IMS_PER_BATCH: (?P<batch>\d+)")
_DETECTRON2_SKIPPED: Final = frozenset(
    {"eta", "iter", "lr", "max_mem", "time", "data_time", "last_time", "last_data_time"}
)


class Detectron2Reader(LogReader):
    """The time is the mean since the start, which hides what becomes slow later."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.step = math.nan
        self.task = ""
        self.names: list[str] = []

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if "utils.events]" in text and (match := _DETECTRON2_LINE.search(text)) is not None:
            self._line(match, line)
        elif "copypaste" in text:
            self._evaluated(text, line)
        elif (overall := _OVERALL.search(text)) is not None:
            seconds = seconds_of(overall["time"])
            run = self.book.run
            run.event("end", self.book.when(line), text=overall[0])
            if seconds is not None:
                run.measure("total_ns", seconds * 1e9, Unit.NS, better="lower")
        elif (batch := _DETECTRON2_BATCH.search(text)) is not None:
            facts = self.book.run.facts
            facts.global_batch = facts.global_batch or float(batch["batch"])

    def _line(self, match: re.Match[str], line: LogLine) -> None:
        step = int(match["iter"]) + 1
        self.book.position(step)
        self.step = step
        run = self.book.run
        point = LogPoint(step, at_s=self.book.when(line).seconds)
        values = {m["key"]: number(m["value"]) for m in _DETECTRON2_PAIR.finditer(match["pairs"])}
        for key, metric, over in (
            ("time", "step_period_ns", "run"),
            ("last_time", "step_period_ns", "step"),
            ("data_time", "data_ns", "interval"),
        ):
            seconds = values.get(key)
            if seconds is not None:
                run.metric(metric, seconds * 1e9, point, over=over)
        memory = values.get("max_mem")
        if memory is not None:
            run.metric("memory_bytes", memory * 2**20, point, scope="rank")
        for key, value in values.items():
            if key not in _DETECTRON2_SKIPPED:
                name = "loss" if key == "total_loss" else key
                run.metric(name, value, point, over="interval")

    def _evaluated(self, text: str, line: LogLine) -> None:
        task, row = _TASK.search(text), _ROW.search(text.strip())
        if task is not None:
            self.task = task["task"]
        elif row is not None:
            cells = row["cells"].split(",")
            if number(cells[0]) is None:
                self.names = cells
                return
            point = LogPoint(self.step, at_s=self.book.when(line).seconds)
            for name, cell in zip(self.names, cells, strict=False):
                self.book.run.metric(f"{self.task}/{name}", number(cell), point, over="run")


DETECTRON2: Final = LogSource("detectron2", "Detectron2", (_DETECTRON2_LINE,), Detectron2Reader)


_TF_CNN_STEP: Final = re.compile(
    r"(?:^|\s)(?P<step>\d+)\s+images/sec: (?P<mean>[\d.]+)"
    r"(?: \+/- (?P<spread>[\d.]+)(?: \(jitter = (?P<jitter>[\d.]+)\))?)?"
    r"(?:\s+(?P<loss>nan|inf|[\d.]+))?(?:\s+(?P<top1>[\d.]+)\s+(?P<top5>[\d.]+))?\s*$"
)
_TF_CNN_TOTAL: Final = re.compile(r"total images/sec: (?P<total>[\d.]+)")
_TF_CNN_BATCH: Final = re.compile(
    r"^(?:Batch size:)?\s+(?P<batch>[\d.]+) (?P<scope>global|per device)"
)
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


class TfCnnReader(LogReader):
    """A step's rate is the mean since warm-up, of one process; the total is of all processes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.total: float | None = None
        self.totals = 0
        self.step = math.nan

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if "images/sec" in text:
            self._rate(text, line)
        elif (batch := _TF_CNN_BATCH.search(text)) is not None:
            name = "global_batch" if batch["scope"] == "global" else "batch_per_device"
            setattr(self.book.run.facts, name, float(batch["batch"]))
        elif (head := _HEAD.search(text)) is not None:
            self._head(head["key"], head["value"])
        elif (found := _ACCURACY.search(text)) is not None:
            for name in ("top1", "top5"):
                self.book.run.metric(name, float(found[name]), LogPoint(self.step), over="run")

    def _rate(self, text: str, line: LogLine) -> None:
        if (total := _TF_CNN_TOTAL.search(text)) is not None:
            self.total, self.totals = float(total["total"]), self.totals + 1
        elif (step := _TF_CNN_STEP.search(text)) is not None:
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

    def _step(self, match: re.Match[str], line: LogLine) -> None:
        self.step = float(match["step"])
        self.book.position(self.step, rank=line.rank)
        run = self.book.run
        run.facts.has_warmup = False
        point = LogPoint(self.step, at_s=self.book.when(line).seconds)
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


TF_CNN_BENCHMARKS: Final = LogSource(
    "tf-cnn-benchmarks", "tf_cnn_benchmarks", (_TF_CNN_STEP, _TF_CNN_TOTAL), TfCnnReader
)
