"""Programs that train on images: timm, torchvision, OpenMMLab and others."""

from __future__ import annotations

import re
from re import compile as rx
from typing import Final

from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine
from traceprof.logs.source import (
    Declared,
    LogSource,
    MeansOfEpoch,
    Pattern,
    PatternReader,
    declared,
    mark,
    number,
)
from traceprof.model.results import Unit

_NUMBER: Final = r"(?:nan|-?inf|[\d.e+-]+)"


class TimmReader(PatternReader):
    """Samples per second are of all ranks; the mean since the epoch began stands in brackets."""

    def begin(self) -> None:
        """Know nothing."""
        self.means = MeansOfEpoch()

    def trained(self, match: re.Match[str], point: LogPoint, _line: LogLine) -> None:
        """Note the steps between two lines."""
        run, idx, rate = self.run, int(match["_idx"]), number(match["samples_per_s__step"])
        if idx == 0 and rate and (update := number(match["_time"])):
            run.facts.global_batch = run.facts.global_batch or _whole(rate * update)
        mean_s = number(match["_time_avg"]) or 0.0
        period_s = self.means.period_s(None, int(match["epoch"]), idx + 1, mean_s)
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


TIMM: Final = LogSource(
    "timm",
    "timm (pytorch-image-models)",
    (
        mark(
            r"Train: (?P<epoch>\d+) \[\s*(?P<_idx>\d+)/(?P<_total>\d+)\s*\(\s*\d+%\)\]\s+Loss:"
            rf"\s*(?P<loss>{_NUMBER}) \(\s*{_NUMBER}\)\s+Time:\s*(?P<_time>[\d.]+)s,\s*"
            r"(?P<samples_per_s__step>[\d.]+)/s\s+\(\s*(?P<_time_avg>[\d.]+)s,\s*"
            r"(?P<samples_per_s__epoch>[\d.]+)/s\)",
            over="step",
            then="trained",
        ),
        Pattern(
            r"Test(?: \((?:(?P<_ema>[^)]*EMA[^)]*)|[^)]*)\))?: \[\s*(?P<_last>\d+)/(?P=_last)\]"
            rf"\s+Time:\s*[\d.]+ \(\s*(?P<_time_avg>[\d.]+)\)\s+Loss:\s*{_NUMBER} "
            rf"\(\s*(?P<val_loss>{_NUMBER})\)\s+Acc@1:\s*[\d.]+ \(\s*(?P<top1_percent>[\d.]+)\)"
            r"(?:\s+Acc@5:\s*[\d.]+ \(\s*(?P<top5_percent>[\d.]+)\))?",
            over="run",
            at="epoch",
            then="tested",
        ),
        Pattern(r"Process \d+, total (?P<world_size>\d+)"),
        Pattern(r"\*\*\* Best metric: [\d.]+ \(epoch \d+\)", event="end", text="{line}"),
    ),
    TimmReader,
    marks=(rx(r"Test(?: \([^)]*\))?: \[\s*\d+/\d+\]\s+Time:\s*[\d.]+ \(.*\)\s+Loss:.*Acc@1:"),),
)

_METER: Final = rx(
    r"(?P<key>[A-Za-z_][\w.@]*(?: [a-z]\w*)?(?:/s)?): (?P<value>nan|-?inf|[\d.e+-]+)"
    r"(?: \((?P<mean>nan|-?inf|[\d.e+-]+)\))?"
)
_EVALUATION: Final = r"Test:?[\w ]*:?"
TORCHVISION: Final = LogSource(
    "torchvision",
    "torchvision's references (MetricLogger)",
    (
        mark(
            r"Epoch: ?\[(?P<epoch>\d+)(?:/\d+)?\]\s+\[\s*(?P<_idx>\d+)/(?P<_total>\d+)\]"
            r"\s+eta: (?:\d+ days?, )?[\d:]+\s+(?P<_cells>.*)",
            cells=_METER,
            names={
                "img/s": "compute_samples_per_s_per_rank__step",
                "loss": "loss__interval",
                "acc1": "train_top1_percent_per_rank__epoch",
                "acc5": "train_top5_percent_per_rank__epoch",
                "time": "step_period_s__ema",
                "data": "data_s__ema",
                "max mem": "memory_in_mib_per_rank__step",
                "eta": "",
                "lr": "",
            },
            others=lambda key: Declared(key, over="interval"),
        ),
        mark(rf"{_EVALUATION}\s+\[\s*\d+/\d+\]\s+eta: (?:\d+ days?, )?[\d:]+\s"),
        mark(
            r"Epoch: ?\[(?P<epoch>\d+)(?:/\d+)?\] Total time: (?P<epoch_s>[\d:]+)"
            r"(?:.*?\((?P<step_period_s__epoch>[\d.]+) s / it\))?",
            at="epoch",
        ),
        mark(rf"{_EVALUATION} Total time: (?P<_seconds>[\d:]+)", event="evaluation"),
        Pattern(
            r"(?:Test:|\*)\s*(?P<_ema>EMA )?\s*Acc@1:?\s+(?P<top1_percent>[\d.]+)\s+"
            r"Acc@5:?\s+(?P<top5_percent>[\d.]+)(?:\s+loss:?\s+(?P<val_loss>[\d.]+))?",
            over="run",
            at="epoch",
        ),
        Pattern(
            r"(?P<_cells>(?:Namespace\(|^\s*\{?'?batch_size).*)",
            holds="batch_size",
            cells=rx(r"\b(?P<key>batch_size|world_size|model)=(?P<value>'[^']*'|\d+)"),
            names={
                "batch_size": "batch_per_device",
                "world_size": "world_size",
                "model": "workload",
            },
        ),
        Pattern(r"Training time (?P<total_s>(?:\d+ days?, )?[\d:]+)", event="end", text="{line}"),
    ),
    says={
        "compute_samples_per_s": "img/s is of rank 0 alone and leaves out loading of data: it is "
        "kept as compute_samples_per_s, and is no throughput"
    },
)


class ImagenetReader(PatternReader):
    """Values are those of one process, and every process prints them."""

    by_rank = True
    from_one: bool | None = None

    def begin(self) -> None:
        """Know nothing."""
        self.means = MeansOfEpoch()

    def done(self, idx: int, total: int) -> int:
        """Return how many steps are done; forks count them from 1."""
        if self.from_one is None:
            self.from_one = idx % 10 == 1 or (idx > 0 and idx == total)
        return idx if self.from_one else idx + 1

    def trained(self, match: re.Match[str], point: LogPoint, line: LogLine) -> None:
        """Note the steps between two lines."""
        done = self.done(int(match["_idx"]), self.total)
        mean_s = number(match["step_s_per_rank__epoch"]) or 0.0
        period_s = self.means.period_s(line.rank, int(match["epoch"]), done, mean_s)
        if period_s is not None:
            own = {"scope": "rank", "rank": line.rank, "over": "interval"}
            self.note("step_period_ns", 1e9 * period_s, point, **own)

    def end(self) -> None:
        """Say how many processes printed the same."""
        copies = max((s.copies for s in self.run.series.values()), default=1)
        if copies > 1:
            self.run.say(
                "{n:count} processes print without saying who they are: their means are shown",
                n=copies,
            )


IMAGENET: Final = LogSource(
    "imagenet",
    "pytorch/examples imagenet main.py",
    (
        Pattern(
            r"Epoch: ?\[(?P<epoch>\d+)\]\s*\[\s*(?P<_idx>\d+)/(?P<_total>\d+)\]\s+Time:?\s+"
            r"(?P<step_s_per_rank__step>[\d.]+)\s*\(\s*(?P<step_s_per_rank__epoch>[\d.]+)\)"
            r"(?P<_cells>.*)",
            over="step",
            cells=rx(
                r"(?P<key>Data|Loss|Speed|(?:Acc|Prec|Acc@|Prec@)@?[15]):?\s+"
                rf"(?P<value>{_NUMBER})\s*\(\s*(?P<mean>{_NUMBER})\)"
            ),
            names={"Data": "data_s_per_rank", "Loss": "loss_per_rank", "Speed": "samples_per_s"},
            others=lambda key: declared(f"train_top{key[-1]}_percent_per_rank__epoch"),
            then="trained",
        ),
        Pattern(
            r"^\s*\*\s+(?:Acc|Prec)@1:?\s+(?P<top1_percent>[\d.]+)\s+"
            r"(?:Acc|Prec)@5:?\s+(?P<top5_percent>[\d.]+)",
            over="run",
            at="epoch",
        ),
        Pattern(r"=> (?:creating|using pre-trained) model '(?P<workload>[\w.-]+)'"),
    ),
    ImagenetReader,
    marks=(rx(r"Epoch: ?\[\d+\]\s*\[\s*\d+/\d+\]\s+Time:?\s+\d"),),
)


def _of_evaluation(key: str) -> Declared | None:
    """Return what a value of an evaluation of OpenMMLab is."""
    if key in ("accuracy", "acc", "accuracy_top-1", "accuracy/top1"):
        return declared("top1_percent")
    if key in ("accuracy_top-5", "accuracy/top5"):
        return declared("top5_percent")
    by = 100.0 if key.startswith("accuracy") else 1.0
    return Declared(key.replace("-", "_") if by > 1 else key, by=by)


_MM: Final = r"(?:- \w+ - )?INFO - "
_MM_LINE: Final = rx(
    _MM + r"(?:Epoch|Iter)(?:\((?:train|val|test)\))?\s*\[\s*\d+(?:/\d+)?\]"
    r"(?:\[\s*\d+(?:/\s*\d+)?\])?\s+.*\S:\s*\S.*$"
)
_MM_TRAINS: Final = r"(?:\(train\)|(?!\()(?=.* time: ))\s*"
_MM_REST: Final = r"\s+(?P<_cells>.*\S:\s*\S.*)$"
_MM_PAIR: Final = rx(
    r"(?P<key>[A-Za-z_][\w./@-]*): "
    r"(?P<value>(?:\d+ days?, )?\d+(?::\d+)+|nan|-?inf|-?[\d.]+(?:e[+-]?\d+)?)"
)
_MM_SKIPPED: Final = dict.fromkeys(("eta", "lr", "base_lr", "momentum"), "")
_MM_TRAINED: Final = _MM_SKIPPED | {
    "time": "step_period_s",
    "data_time": "data_s",
    "memory": "memory_in_mib_per_rank__step",
}
MMENGINE: Final = LogSource(
    "mmengine",
    "OpenMMLab (mmcv, mmengine)",
    (
        *(
            Pattern(
                _MM + place + _MM_REST,
                holds="INFO - ",
                over="interval",
                cells=_MM_PAIR,
                names=_MM_TRAINED,
                others=lambda key: Declared("train_acc" if key == "acc" else key),
            )
            for place in (
                rf"Epoch{_MM_TRAINS}\[\s*(?P<epoch>\d+)(?:/\d+)?\]"
                r"\[\s*(?P<_n>\d+)/\s*(?P<_total>\d+)\]",
                rf"(?:Epoch|Iter){_MM_TRAINS}\[\s*(?P<step>\d+)(?:/\d+)?\](?:\[[^\]]*\])?",
            )
        ),
        Pattern(
            _MM + r"(?:Epoch(?:\(\w+\))?\s*\[\s*(?:(?P<epoch>[1-9]\d*)|0)"
            r"|Iter(?:\(\w+\))?\s*\[\s*\d+)(?:/\d+)?\](?:\[[^\]]*\])?\s+"
            r"(?P<_cells>.*[A-Za-z_][\w./@-]*: (?:nan|-?inf|-?[\d.]).*)$",
            holds="INFO - ",
            over="run",
            at="step",
            cells=_MM_PAIR,
            names=_MM_SKIPPED | {"memory": "", "time": "", "data_time": "", "loss": "val_loss"},
            others=_of_evaluation,
            event="evaluation",
        ),
        Pattern(
            r"Saving checkpoint at (?P<_value>\d+) (?:epochs?|iterations?)",
            event="checkpoint",
            text="{match}",
        ),
        Pattern(r"GPU number: (?P<world_size>\d+)"),
        Pattern(r"\bworld_size: (?P<world_size>\d+)"),
        Pattern(r"^\s*(?:samples_per_gpu|batch_size)=(?P<batch_per_device>\d+)", is_first=True),
    ),
    marks=(_MM_LINE,),
)


class Detectron2Reader(PatternReader):
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


DETECTRON2: Final = LogSource(
    "detectron2",
    "Detectron2",
    (
        mark(
            r"(?:d2\.)?utils\.events\]:\s+(?P<_cells>.*\biter: (?P<_step>\d+).*)",
            holds="utils.events]",
            over="interval",
            cells=rx(
                r"(?P<key>[A-Za-z_][\w./-]*): "
                r"(?P<value>N/A|nan|-?inf|-?[\d.]+(?:e[+-]?\d+)?)(?:M\b)?"
            ),
            names={
                "time": "step_period_s__run",
                "last_time": "step_period_s__step",
                "data_time": "data_s",
                "max_mem": "memory_in_mib_per_rank__step",
                "total_loss": "loss",
                **dict.fromkeys(("eta", "iter", "lr", "last_data_time"), ""),
            },
            others=Declared,
        ),
        Pattern(
            r"copypaste: (?:Task: (?P<_task>[\w-]+)|(?P<_row>[\w.,-]+)\s*$)",
            holds="copypaste",
            at="step",
            then="evaluated",
        ),
        Pattern(
            r"Overall training speed: \d+ iterations in "
            r"(?P<total_s>(?:\d+ days?, )?[\d:]+)",
            event="end",
            text="{match}",
        ),
        Pattern(r"IMS_PER_BATCH: (?P<global_batch>\d+)", is_first=True),
    ),
    Detectron2Reader,
)

_LABELS: Final = {
    "Variables": "variable_update",
    "Data format": "data_format",
    "Dataset": "data",
    "AllReduce": "all_reduce",
    "Mode": "mode",
}


class TfCnnReader(PatternReader):
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
        run.measure("samples_per_s", total, Unit.PER_S, better="higher")
        if totals > 1:
            run.say(
                "every one of {n:count} processes prints the total of all, {total:1/s}"
                ": it is taken once",
                n=totals,
                total=total,
            )


TF_CNN_BENCHMARKS: Final = LogSource(
    "tf-cnn-benchmarks",
    "tf_cnn_benchmarks",
    (
        mark(r"total images/sec: (?P<_per_s>[\d.]+)", holds="images/sec", then="summed"),
        mark(
            r"(?:^|\s)(?P<step>\d+)\s+images/sec: (?P<samples_per_s_per_rank__run>[\d.]+)"
            r"(?: \+/- [\d.]+(?: \(jitter = [\d.]+\))?)?"
            r"(?:\s+(?P<loss_per_rank>nan|inf|[\d.]+))?"
            r"(?:\s+(?P<train_top1_per_rank>[\d.]+)\s+(?P<train_top5_per_rank>[\d.]+))?\s*$",
            holds="images/sec",
            over="step",
            then="stepped",
        ),
        Pattern(
            r"^(?:Batch size:)?\s+(?:(?P<global_batch>[\d.]+) global"
            r"|(?P<batch_per_device>[\d.]+) per device)"
        ),
        Pattern(
            r"^(?P<_key>TensorFlow|Model|Devices|Variables|Data format|Dataset|AllReduce|Mode):"
            r"\s+(?P<_rest>.*\S)",
            then="head",
        ),
        Pattern(
            r"Accuracy @ 1 = (?P<top1>[\d.]+) Accuracy @ 5 = (?P<top5>[\d.]+) \[\d+ examples\]",
            over="run",
            at="step",
        ),
    ),
    TfCnnReader,
)
