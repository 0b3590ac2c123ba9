"""Logs that are made for programs: MLPerf Training's, and those of NVIDIA's DLLogger.

MLPerf's lines are ``:::MLLOG {json}``, and were ``:::MLPv0.5.0 …``; DLLogger is what
DeepLearningExamples print with.
"""

from __future__ import annotations

import math
import re
from re import IGNORECASE
from re import compile as rx
from typing import Any, Final, NamedTuple

from traceprof.logs.checks import Evidence, disagree
from traceprof.logs.gathered import LogPoint, When
from traceprof.logs.lines import LogLine
from traceprof.logs.source import LogReader, json_in, number

_NODES: Final = rx(r"^(\d+)\s*x", IGNORECASE)
_LOWER: Final = rx(r"gpt|llama|deepseek|mixtral|flux|moe|lora|diffusion", IGNORECASE)
_RATES: Final = ("imgs_sec", "samples_sec", "samples_per_sec", "throughput", "seqs_per_sec")
_BEGINNINGS: Final = ("init_start", "run_start", "cache_clear", "submission_benchmark")
_ENVIRONMENT: Final = {
    "submission_platform": "platform",
    "submission_org": "organisation",
    "submission_division": "division",
    "submission_benchmark": "benchmark",
}
"""What of a submission is kept; contact data is not."""
_DLL_EPOCH: Final = rx(r"^(?:epoch\s+|Epoch: )(?P<epoch>\d+)$")
_DLL_STEP: Final = rx(r"^(?:iter\s+(?=\d+/)|Iteration: (?=\d+$))(?P<n>\d+)(?:/(?P<total>\d+))?$")
_DLL_RATE: Final = rx(r"^(?P<value>[\d.]+) (?P<what>\w+)/s$")
_DLL_TOOK: Final = rx(r"^took (?P<value>[\d.]+) (?P<unit>s|ms|min)$")
_DLL_CELL: Final = rx(
    r"^(?P<key>[A-Za-z][\w .@/-]*?)\s*:?\s+(?P<value>-?[\d.]+(?:e[+-]?\d+)?|nan)(?: \S+)?$"
)
_DLL_SKIPPED: Final = frozenset({"lrate", "lr", "learning rate", "epoch", "Epoch", "Iteration"})
_DLL_SECONDS: Final = {"s": 1.0, "ms": 1e-3, "min": 60.0}


class _Event(NamedTuple):
    """One event; NaN and None: not known."""

    key: str
    value: Any
    at_s: float
    about: dict[str, Any]

    @property
    def number(self) -> float | None:
        """Its value."""
        return number(self.value)

    @property
    def epoch(self) -> float | None:
        """The number of the epoch."""
        return number(self.about.get("epoch_num"))


class MlperfReader(LogReader):
    """The rules of the benchmark say what most keys mean; rates are each submitter's own."""

    def begin(self) -> None:
        """Know nothing."""
        self.times: dict[str, float] = {}
        self.starts = 0
        self.known: dict[str, float | None] = {}
        self.status = ""
        self.benchmark = ""
        self.evaluations: list[tuple[LogPoint, float]] = []
        self.spans: list[tuple[float, float]] = []
        self.seen_samples = 0.0
        self.training_from_s = math.nan
        self.has_tracked = False

    def event(self, match: re.Match[str], *_: object) -> None:
        """Note one event."""
        event = json_in(match["_json"])
        if not isinstance(event, dict):
            return
        about, time_ms = event.get("metadata"), number(event.get("time_ms"))
        at_s = math.nan
        if time_ms is not None and math.isfinite(time_ms):
            at_s = self.book.clock.since(int(time_ms // 1000), time_ms % 1000 / 1e3)
        about = about if isinstance(about, dict) else {}
        self._note(_Event(str(event.get("key", "")), event.get("value"), at_s, about))

    def old_event(self, match: re.Match[str], *_place: object) -> None:
        """Note one event of the first versions."""
        value, about = json_in(match["_of"]) if match["_of"] else None, dict[str, Any]()
        if match["_key"] == "run_stop" and isinstance(value, dict):
            about = {"status": "success" if value.get("success") else "aborted"}
        whole, _, part = match["_time"].partition(".")
        at_s = self.book.clock.since(int(whole), float(f"0.{part}"))
        self._note(_Event(match["_key"], value, at_s, about))

    def _note(self, event: _Event) -> None:
        if "run_stop" in self.times and event.key in _BEGINNINGS:
            self.book.begin_run()
        handler = getattr(self, f"_on_{event.key}", None)
        if handler is not None:
            handler(event)
        elif event.key in ("d_batch_size", "train_samples", "target_accuracy"):
            self.known[event.key] = event.number
        elif event.key in _ENVIRONMENT:
            self.run.environment[_ENVIRONMENT[event.key]] = value = str(event.value)
            if event.key == "submission_benchmark":
                self.benchmark = self.run.workload = value
            elif event.key == "submission_platform" and (nodes := _NODES.match(value)) is not None:
                self.run.facts.nodes = int(nodes[1])

    def end(self) -> None:
        """Note what follows from the whole."""
        run, facts = self.run, self.run.facts
        facts.train_samples = self.known.get("train_samples")
        facts.batch_per_device = each = self.known.get("d_batch_size")
        if each and facts.global_batch:
            each *= facts.accumulation or 1
            facts.devices = facts.world_size = round(facts.global_batch / each) or None
        if not facts.world_size and self.starts > 1:
            facts.devices = facts.world_size = self.starts
        name, target = self._metric_name(), self.known.get("target_accuracy")
        for point, value in self.evaluations:
            run.metric(name, value, point, over="run")
        run.measure(f"target_{name}", target)
        self._time_to_train()
        self._throughput_of_spans()
        self.begin()

    def _on_init_start(self, event: _Event) -> None:
        self.starts += 1
        self.times.setdefault("init_start", event.at_s)

    def _on_init_stop(self, event: _Event) -> None:
        began = self.times.get("init_start", event.at_s)
        self.run.event("initialisation", When(began), _known(event.at_s - began))

    def _on_run_start(self, event: _Event) -> None:
        run, at_s = self.run, event.at_s
        self.times["run_start"] = self.training_from_s = at_s
        run.utc_of_zero_s = self.book.clock.base_s if math.isfinite(at_s) else None
        if math.isfinite(at_s):
            run.training_from_s = at_s
        run.event("start", When(at_s), text="run_start: the clock of the benchmark")

    def _on_run_stop(self, event: _Event) -> None:
        self.times["run_stop"] = event.at_s
        self.status = str(event.about.get("status", ""))
        self.run.event("end", When(event.at_s), text=f"run_stop: {self.status or 'no status'}")

    def _on_global_batch_size(self, event: _Event) -> None:
        self.run.facts.global_batch = event.number

    def _on_gradient_accumulation_steps(self, event: _Event) -> None:
        self.run.facts.accumulation = int(event.number) if event.number else None

    def _on_epoch_start(self, event: _Event) -> None:
        if event.epoch is not None:
            self.times["epoch"] = event.at_s
            self.run.epoch(int(event.epoch), at_s=event.at_s)

    def _on_epoch_stop(self, event: _Event) -> None:
        if event.epoch is not None and "epoch" in self.times:
            seconds, samples = event.at_s - self.times.pop("epoch"), self.known.get("train_samples")
            self.run.epoch(int(event.epoch), seconds=seconds, samples=samples)

    def _on_eval_start(self, event: _Event) -> None:
        if "eval" in self.times:
            return
        self.times["eval"] = event.at_s
        samples = self._samples(event)
        seconds = event.at_s - self.training_from_s
        if samples is not None and samples > self.seen_samples and seconds > 0:
            self.spans.append((samples - self.seen_samples, seconds))
            self.seen_samples = samples

    def _on_eval_stop(self, event: _Event) -> None:
        began = self.times.pop("eval", None)
        if began is not None:
            self.training_from_s = event.at_s
            seconds = _known(event.at_s - began)
            self.run.event("evaluation", When(began), seconds, epoch=event.epoch)

    def _on_eval_accuracy(self, event: _Event) -> None:
        if isinstance(event.value, dict):
            about = {**event.about, "epoch_num": event.value.get("epoch")}
            event = event._replace(about=about, value=event.value.get("value"))
        if event.number is not None:
            self.evaluations.append((self._point(event), event.number))

    def _on_train_loss(self, event: _Event) -> None:
        self.run.metric("loss", event.number, self._point(event), over="interval")

    def _on_throughput(self, event: _Event) -> None:
        if not self.has_tracked:
            self.run.metric("samples_per_s", event.number, self._point(event), over="interval")

    def _on_tracked_stats(self, event: _Event) -> None:
        values = event.value if isinstance(event.value, dict) else {}
        run, point = self.run, self._point(event)
        for key, text in values.items():
            found = number(text)
            if key in _RATES:
                self.has_tracked = True
                run.metric("samples_per_s", found, point, over="interval")
            elif key.endswith("tokens_per_sec_per_gpu"):
                run.metric("tokens_per_s", found, point, scope="device", over="interval")
            else:
                name = "loss" if key in ("reduced_train_loss", "train_loss") else key
                run.metric(name, found, point, over="interval")

    def _point(self, event: _Event) -> LogPoint:
        epoch, samples, batch = event.epoch, self._samples(event), self.run.facts.global_batch
        return LogPoint(
            samples / batch if samples is not None and batch else math.nan,
            math.nan if epoch is None else epoch,
            event.at_s,
            math.nan if samples is None else samples,
        )

    def _samples(self, event: _Event) -> float | None:
        samples, whole = number(event.about.get("samples_count")), self.known.get("train_samples")
        if samples is not None:
            return samples
        return event.epoch * whole if event.epoch is not None and whole else None

    def _metric_name(self) -> str:
        """Return what the quality is; language models have the logarithm of the perplexity."""
        if self.benchmark in ("resnet", "resnet50"):
            return "top1"
        values, target = [value for _, value in self.evaluations], self.known.get("target_accuracy")
        if target is not None and len(values) > 1:
            is_lower = values[0] > target >= values[-1] or values[0] > values[-1] > target
        else:
            is_lower = bool(_LOWER.search(self.benchmark)) and "grpo" not in self.benchmark
        return "eval_loss" if is_lower else "eval_accuracy"

    def _time_to_train(self) -> None:
        run = self.run
        began, ended = self.times.get("run_start"), self.times.get("run_stop")
        if began is None or ended is None:
            return
        if math.isnan(ended - began):
            run.say("the log has no times: there is no time to train")
            return
        name = "time_to_train_ns" if self.status == "success" else "run_ns"
        run.measure(name, round((ended - began) * 1e9), source="computed")
        if self.status != "success":
            run.say("the run ended as {status}: it reached no target", status=self.status or "–")

    def _throughput_of_spans(self) -> None:
        """Add the throughput between evaluations, without the first part, which holds warm-up."""
        run, spans = self.run, self.spans
        if not spans:
            return
        steady = spans[1:] if len(spans) >= 3 else spans
        rate = sum(n for n, _ in steady) / sum(s for _, s in steady)
        run.measure("samples_per_s", rate, source="computed")
        text = "throughput is of the time between evaluations"
        if len(spans) >= 3:
            text += ", without the first: {first:1/s} until then, later {later:1/s}"
        run.say(text, first=spans[0][0] / spans[0][1], later=rate)
        printed = [v for _, series in run.of("samples_per_s") for v in series.steady()]
        if printed:
            whole = Evidence(sum(n for n, _ in spans), sum(s for _, s in spans))
            middle = sorted(printed)[len(printed) // 2]
            disagree(run, "samples", middle, whole, "all between evaluations")


def _known(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds


class DlloggerReader(LogReader):
    """Lines with an iteration are of that one, lines with an epoch alone are its means."""

    def of_line(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Note what the cells of one line say."""
        cells = [cell.strip() for cell in match["_rest"].split("|")]
        epoch, step = None, math.nan
        for cell in cells[:2]:
            if (found := _DLL_EPOCH.match(cell)) is not None:
                epoch = int(found["epoch"])
            elif (found := _DLL_STEP.match(cell)) is not None:
                step, total = float(found["n"]), found["total"]
                step += 0 if total is None or epoch is None else (epoch - 1) * int(total)
        if math.isfinite(step):
            self.book.position(step)
        self._cells(cells, epoch, step, line)

    def _cells(self, cells: list[str], epoch: int | None, step: float, line: LogLine) -> None:
        run, is_step = self.run, math.isfinite(step)
        over = "step" if is_step else "epoch"
        is_valid = any("val" in cell.lower() for cell in cells[:3])
        prefix = "val_" if is_valid else ""
        point = LogPoint(step, math.nan if epoch is None else epoch, self.at_s(line))
        for cell in cells:
            if (rate := _DLL_RATE.match(cell)) is not None:
                name = "samples" if rate["what"] in ("images", "imgs") else rate["what"]
                run.metric(f"{prefix}{name}_per_s", float(rate["value"]), point, over=over)
            elif (took := _DLL_TOOK.match(cell)) is not None:
                seconds = float(took["value"]) * _DLL_SECONDS[took["unit"]]
                if is_step:
                    run.metric("step_period_ns", seconds * 1e9, point)
                elif epoch is not None and not is_valid:
                    run.epoch(epoch, seconds=seconds)
            elif (found := _DLL_CELL.match(cell)) is not None and found["key"] not in _DLL_SKIPPED:
                name = prefix + found["key"].strip().replace(" ", "_")
                run.metric(name, number(found["value"]), point, over=over)
