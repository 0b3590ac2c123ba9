"""Logs in a declared form: MLPerf Training, NVIDIA's DLLogger."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from traceprof.logs.checks import Evidence, disagree
from traceprof.logs.gathered import LogPoint, When
from traceprof.logs.lines import LogClock, LogLine
from traceprof.logs.source import LogReader, LogSource, number
from traceprof.model.results import Unit

_MLPERF_LINE: Final = re.compile(r":::MLLOG\s*(?P<json>\{.*\})")
_OLD: Final = re.compile(
    r":::MLPv?(?P<version>0\.[56]\.\d+)\s+(?P<benchmark>\S+)\s+(?P<time>\d+\.\d+)\s+"
    r"\((?P<where>[^)]*)\)\s+(?P<key>\w+)(?::\s*(?P<value>.*))?$"
)
_NODES: Final = re.compile(r"^(\d+)\s*x", re.IGNORECASE)
_LOWER: Final = re.compile(r"gpt|llama|deepseek|mixtral|flux|moe|lora|diffusion", re.IGNORECASE)
_MLPERF_RATES: Final = ("imgs_sec", "samples_sec", "samples_per_sec", "throughput", "seqs_per_sec")
_BEGINNINGS: Final = ("init_start", "run_start", "cache_clear", "submission_benchmark")
_ENVIRONMENT: Final = {
    "submission_platform": "platform",
    "submission_org": "organisation",
    "submission_division": "division",
    "submission_benchmark": "benchmark",
}
"""What of a submission is kept; contact data is not."""


class MlperfReader(LogReader):
    """The rules of the benchmark say what most keys mean; rates are each submitter's own."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._begin()

    def _begin(self) -> None:
        self.times: dict[str, float] = {}
        self.starts = 0
        self.train_samples: float | None = None
        self.device_batch: float | None = None
        self.target: float | None = None
        self.status = ""
        self.benchmark = ""
        self.evaluations: list[tuple[LogPoint, float]] = []
        self.spans: list[tuple[float, float]] = []
        self.done = 0.0
        self.training_from_s = math.nan
        self.has_tracked = False

    def read(self, line: LogLine) -> None:
        """Note one event."""
        if ":::ML" not in line.text:
            return
        event = _event_of(line.text, self.book.clock)
        if event is None:
            return
        key, value, at_s, about = event
        if "run_stop" in self.times and key in _BEGINNINGS:
            self.book.begin_run()
        handler = getattr(self, f"_{key}", None)
        if handler is not None:
            handler(value, at_s, about)
        elif key in _ENVIRONMENT:
            self.book.run.environment[_ENVIRONMENT[key]] = str(value)
            self._of_submission(key, str(value))

    def end(self) -> None:
        """Note what follows from the whole."""
        self._flush()
        self._begin()

    def _of_submission(self, key: str, value: str) -> None:
        if key == "submission_benchmark":
            self.benchmark = self.book.run.workload = value
        elif key == "submission_platform" and (nodes := _NODES.match(value)) is not None:
            self.book.run.facts.nodes = int(nodes[1])

    def _init_start(self, _value: Any, at_s: float, _about: dict[str, Any]) -> None:
        self.starts += 1
        self.times.setdefault("init_start", at_s)

    def _init_stop(self, _value: Any, at_s: float, _about: dict[str, Any]) -> None:
        began = self.times.get("init_start", at_s)
        seconds = at_s - began
        self.book.run.event("initialisation", When(began), None if math.isnan(seconds) else seconds)

    def _run_start(self, _value: Any, at_s: float, _about: dict[str, Any]) -> None:
        run = self.book.run
        self.times["run_start"] = self.training_from_s = at_s
        base_s = self.book.clock.base_s
        run.utc_of_zero_s = base_s if math.isfinite(at_s) else None
        if math.isfinite(at_s):
            run.training_from_s = at_s
        run.event("start", When(at_s), text="run_start: the clock of the benchmark")

    def _run_stop(self, _value: Any, at_s: float, about: dict[str, Any]) -> None:
        self.times["run_stop"] = at_s
        self.status = str(about.get("status", ""))
        self.book.run.event("end", When(at_s), text=f"run_stop: {self.status or 'no status'}")

    def _global_batch_size(self, value: Any, *_: Any) -> None:
        self.book.run.facts.global_batch = _float(value)

    def _gradient_accumulation_steps(self, value: Any, *_: Any) -> None:
        steps = _float(value)
        self.book.run.facts.accumulation = int(steps) if steps else None

    def _d_batch_size(self, value: Any, *_: Any) -> None:
        self.device_batch = _float(value)

    def _train_samples(self, value: Any, *_: Any) -> None:
        self.train_samples = _float(value)

    def _target_accuracy(self, value: Any, *_: Any) -> None:
        self.target = _float(value)

    def _epoch_start(self, _value: Any, at_s: float, about: dict[str, Any]) -> None:
        number = _float(about.get("epoch_num"))
        if number is not None:
            self.times["epoch"] = at_s
            self.book.run.epoch(int(number), at_s=at_s)

    def _epoch_stop(self, _value: Any, at_s: float, about: dict[str, Any]) -> None:
        number = _float(about.get("epoch_num"))
        if number is not None and "epoch" in self.times:
            seconds = at_s - self.times.pop("epoch")
            self.book.run.epoch(int(number), seconds=seconds, samples=self.train_samples)

    def _eval_start(self, _value: Any, at_s: float, about: dict[str, Any]) -> None:
        if "eval" in self.times:
            return
        self.times["eval"] = at_s
        samples = self._samples(about)
        seconds = at_s - self.training_from_s
        if samples is not None and samples > self.done and seconds > 0:
            self.spans.append((samples - self.done, seconds))
            self.done = samples

    def _eval_stop(self, _value: Any, at_s: float, about: dict[str, Any]) -> None:
        began = self.times.pop("eval", None)
        if began is None:
            return
        self.training_from_s = at_s
        epoch = _float(about.get("epoch_num"))
        seconds = at_s - began
        self.book.run.event(
            "evaluation", When(began), None if math.isnan(seconds) else seconds, epoch=epoch
        )

    def _eval_accuracy(self, value: Any, at_s: float, about: dict[str, Any]) -> None:
        if isinstance(value, dict):
            about, value = {**about, "epoch_num": value.get("epoch")}, value.get("value")
        reached = _float(value)
        if reached is not None:
            self.evaluations.append((self._point(at_s, about), reached))

    def _train_loss(self, value: Any, at_s: float, about: dict[str, Any]) -> None:
        self.book.run.metric("loss", _float(value), self._point(at_s, about), over="interval")

    def _throughput(self, value: Any, at_s: float, about: dict[str, Any]) -> None:
        if not self.has_tracked:
            rate = _float(value)
            self.book.run.metric("samples_per_s", rate, self._point(at_s, about), over="interval")

    def _tracked_stats(self, value: Any, at_s: float, about: dict[str, Any]) -> None:
        if not isinstance(value, dict):
            return
        point = self._point(at_s, about)
        for key, text in value.items():
            found = _float(text)
            if key in _MLPERF_RATES:
                self.has_tracked = True
                self.book.run.metric("samples_per_s", found, point, over="interval")
            elif key.endswith("tokens_per_sec_per_gpu"):
                self.book.run.metric("tokens_per_s", found, point, scope="device", over="interval")
            elif found is not None:
                name = "loss" if key in ("reduced_train_loss", "train_loss") else key
                self.book.run.metric(name, found, point, over="interval")

    def _point(self, at_s: float, about: dict[str, Any]) -> LogPoint:
        epoch = _float(about.get("epoch_num"))
        samples = self._samples(about)
        batch = self.book.run.facts.global_batch
        steps = samples / batch if samples is not None and batch else math.nan
        return LogPoint(
            steps,
            math.nan if epoch is None else epoch,
            at_s,
            math.nan if samples is None else samples,
        )

    def _samples(self, about: dict[str, Any]) -> float | None:
        samples, epoch = _float(about.get("samples_count")), _float(about.get("epoch_num"))
        if samples is not None:
            return samples
        return epoch * self.train_samples if epoch is not None and self.train_samples else None

    def _flush(self) -> None:
        run = self.book.run
        facts = run.facts
        facts.train_samples = self.train_samples
        facts.batch_per_device = self.device_batch
        if self.device_batch and facts.global_batch:
            each = self.device_batch * (facts.accumulation or 1)
            facts.devices = facts.world_size = round(facts.global_batch / each) or None
        if not facts.world_size and self.starts > 1:
            facts.devices = facts.world_size = self.starts
        name = self._metric_name()
        for point, value in self.evaluations:
            run.metric(name, value, point, over="run")
        if self.target is not None:
            run.measure(f"target_{name}", self.target, Unit.NUMBER)
        self._time_to_train()
        self._throughput_of_spans()

    def _metric_name(self) -> str:
        """Return what the quality is; language models have the logarithm of the perplexity."""
        if self.benchmark in ("resnet", "resnet50"):
            return "top1"
        values = [value for _, value in self.evaluations]
        if self.target is not None and len(values) > 1:
            is_lower = values[0] > self.target >= values[-1] or values[0] > values[-1] > self.target
        else:
            is_lower = bool(_LOWER.search(self.benchmark)) and "grpo" not in self.benchmark
        return "eval_loss" if is_lower else "eval_accuracy"

    def _time_to_train(self) -> None:
        run = self.book.run
        began, ended = self.times.get("run_start"), self.times.get("run_stop")
        if began is None or ended is None:
            return
        if math.isnan(ended - began):
            run.say("the log has no times: there is no time to train")
            return
        name = "time_to_train_ns" if self.status == "success" else "run_ns"
        run.measure(name, round((ended - began) * 1e9), Unit.NS, better="lower", source="computed")
        if self.status != "success":
            run.say("the run ended as {status}: it reached no target", status=self.status or "–")

    def _throughput_of_spans(self) -> None:
        """Add the throughput between evaluations, without the first part, which holds warm-up."""
        run, spans = self.book.run, self.spans
        if not spans:
            return
        steady = spans[1:] if len(spans) >= 3 else spans
        seconds = sum(s for _, s in steady)
        run.measure(
            "samples_per_s",
            sum(n for n, _ in steady) / seconds,
            Unit.PER_S,
            better="higher",
            source="computed",
        )
        text = "throughput is of the time between evaluations"
        if len(spans) >= 3:
            text += ", without the first: {first:1/s} until then, later {later:1/s}"
        run.say(text, first=spans[0][0] / spans[0][1], later=sum(n for n, _ in steady) / seconds)
        printed = [v for _, series in run.of("samples_per_s") for v in series.steady()]
        if printed:
            rate = sorted(printed)[len(printed) // 2]
            whole = Evidence(sum(n for n, _ in spans), sum(s for _, s in spans))
            disagree(run, "samples", rate, whole, "all between evaluations")


def _event_of(text: str, clock: LogClock) -> tuple[str, Any, float, dict[str, Any]] | None:
    match = _MLPERF_LINE.search(text)
    if match is not None:
        try:
            event = json.loads(match["json"])
        except (ValueError, RecursionError):
            return None
        about = event.get("metadata")
        time_ms = _float(event.get("time_ms"))
        at_s = math.nan
        if time_ms is not None and math.isfinite(time_ms):
            at_s = clock.since(int(time_ms // 1000), time_ms % 1000 / 1e3)
        about = about if isinstance(about, dict) else {}
        return str(event.get("key", "")), event.get("value"), at_s, about
    old = _OLD.search(text)
    if old is None:
        return None
    try:
        value = json.loads(old["value"]) if old["value"] else None
    except (ValueError, RecursionError):
        value = old["value"]
    about = {}
    if old["key"] == "run_stop" and isinstance(value, dict):
        about = {"status": "success" if value.get("success") else "aborted"}
    whole, _, part = old["time"].partition(".")
    return old["key"], value, clock.since(int(whole), float(f"0.{part}")), about


def _float(value: Any) -> float | None:
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


MLPERF: Final = LogSource("mlperf", "MLPerf Training", (_MLPERF_LINE, _OLD), MlperfReader)


_DLLOGGER_LINE: Final = re.compile(r"\bDLL (?P<stamp>\d{4}-\d\d-\d\d [\d:.]+) - (?P<rest>.*)")
_EPOCH: Final = re.compile(r"^epoch\s+(?P<epoch>\d+)$|^Epoch: (?P<other>\d+)$")
_ITER: Final = re.compile(r"^iter\s+(?P<n>\d+)/(?P<total>\d+)$|^Iteration: (?P<other>\d+)$")
_RATE: Final = re.compile(r"^(?P<value>[\d.]+) (?P<what>\w+)/s$")
_TOOK: Final = re.compile(r"^took (?P<value>[\d.]+) (?P<unit>s|ms|min)$")
_CELL: Final = re.compile(
    r"^(?P<key>[A-Za-z][\w .@/-]*?)\s*:?\s+(?P<value>-?[\d.]+(?:e[+-]?\d+)?|nan)(?: \S+)?$"
)
_DLLOGGER_RATES: Final = {
    "frames": "frames_per_s",
    "samples": "samples_per_s",
    "images": "samples_per_s",
    "imgs": "samples_per_s",
    "tokens": "tokens_per_s",
}
_SKIPPED: Final = frozenset({"lrate", "lr", "learning rate", "epoch", "Epoch", "Iteration"})
_SECONDS: Final = {"s": 1.0, "ms": 1e-3, "min": 60.0}


class DlloggerReader(LogReader):
    """Lines with an iteration are of that one, lines with an epoch alone are its means."""

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        match = _DLLOGGER_LINE.search(line.text)
        if match is None:
            return
        cells = [cell.strip() for cell in match["rest"].split("|")]
        epoch = total = None
        step = math.nan
        for cell in cells[:2]:
            if (found := _EPOCH.match(cell)) is not None:
                epoch = int(found["epoch"] or found["other"])
            elif (found := _ITER.match(cell)) is not None:
                n = int(found["n"] or found["other"])
                total = int(found["total"]) if found["total"] else None
                step = n if total is None or epoch is None else (epoch - 1) * total + n
        if math.isfinite(step):
            self.book.position(step)
        self._cells(cells, epoch, step, line)

    def _cells(self, cells: list[str], epoch: int | None, step: float, line: LogLine) -> None:
        run = self.book.run
        is_step = math.isfinite(step)
        over = "step" if is_step else "epoch"
        is_valid = any("val" in cell.lower() for cell in cells[:3])
        prefix = "val_" if is_valid else ""
        point = LogPoint(step, math.nan if epoch is None else epoch, self.book.when(line).seconds)
        for cell in cells:
            if (rate := _RATE.match(cell)) is not None:
                name = _DLLOGGER_RATES.get(rate["what"], f"{rate['what']}_per_s")
                run.metric(prefix + name, float(rate["value"]), point, over=over)
            elif (took := _TOOK.match(cell)) is not None:
                seconds = float(took["value"]) * _SECONDS[took["unit"]]
                if is_step:
                    run.metric("step_period_ns", seconds * 1e9, point)
                elif epoch is not None and not is_valid:
                    run.epoch(epoch, seconds=seconds)
            elif (found := _CELL.match(cell)) is not None and found["key"] not in _SKIPPED:
                name = prefix + found["key"].strip().replace(" ", "_")
                run.metric(name, number(found["value"]), point, over=over)


DLLOGGER: Final = LogSource("dllogger", "NVIDIA DLLogger", (_DLLOGGER_LINE,), DlloggerReader)
