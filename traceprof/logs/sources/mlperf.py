"""Logs of MLPerf Training: ``:::MLLOG {json}``, before that ``:::MLL …`` and ``:::MLPv0.5 …``."""

from __future__ import annotations

import math
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from re import IGNORECASE
from re import compile as rx
from typing import Any, Final, NamedTuple

from traceprof.logs.checks import Evidence, disagree
from traceprof.logs.gathered import LogPoint, When
from traceprof.logs.source import LogReader, json_in, number
from traceprof.logs.sources.mlperf_rates import COUNTS_FROM, LogCounter, Progress, TrainedSpan

_BENCHMARKS: Final[dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("mlperf.toml").read_text("utf-8")
)
_QUALITIES: Final = {
    "accuracy": "",
    "bbox": "bbox/AP",
    "segm": "segm/AP",
    "wer": "word_error_rate",
    "clip": "clip_score",
    "mean_dice": "dice",
}
"""Names of qualities where an evaluation has several or says which; others are called as there.

"": as the rules call it.
"""
_MOST_SPANS: Final = 20_000
_NODES: Final = rx(r"^(\d+)\s*x", IGNORECASE)
_LOWER: Final = rx(r"gpt|llama|deepseek|mixtral|flux|moe|lora|diffusion", IGNORECASE)
_RATES: Final = ("imgs_sec", "samples_sec", "samples_per_sec", "throughput", "seqs_per_sec")
_SETTINGS: Final = frozenset(
    {"d_batch_size", "train_samples", "samples_per_epoch", "max_sequence_length"}
    | {"target_accuracy", "quality_target"}
)
_BEGINNINGS: Final = ("init_start", "run_start")
_FOLLOWS: Final = ("cache_clear", "submission_benchmark")
_ENVIRONMENT: Final = {
    "submission_platform": "platform",
    "submission_org": "organization",
    "submission_division": "division",
    "submission_benchmark": "benchmark",
}
"""What of a submission is kept; contact data is not."""


class _Event(NamedTuple):
    """One event; NaN and None: not known."""

    key: str
    value: Any
    at_s: float
    about: dict[str, Any]

    @property
    def number(self) -> float | None:
        """Its value, where it is a finite number."""
        found = number(self.value)
        return found if found is not None and math.isfinite(found) else None

    @property
    def epoch(self) -> float | None:
        """The number of the epoch; None: not known, or what counts samples."""
        epoch = number(self.about.get("epoch_num"))
        return epoch if epoch is not None and epoch < COUNTS_FROM else None


class _Evaluated(NamedTuple):
    """A quality and where it was measured."""

    metric: str
    value: float
    event: _Event


class MlperfReader(LogReader):
    """The rules of the benchmark say what most keys mean; rates are each submitter's own."""

    def begin(self) -> None:
        """Know nothing."""
        self.times: dict[str, float] = {}
        self.starts = 0
        self.known: dict[str, float | None] = {}
        self.status = ""
        self.benchmark = ""
        self.evaluations: list[_Evaluated] = []
        self.behind: list[_Event] = []
        self.open: dict[str, _Event] = {}
        self.spans: dict[str, list[TrainedSpan]] = {"block": [], "epoch": [], "eval": []}
        self.step = math.nan
        self.iterations = (0.0, 0.0)
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

    def timed_event(self, match: re.Match[str], *_: object) -> None:
        """Note one event of version 0.6."""
        event, time_s = json_in(match["_json"]), number(match["_time"])
        if isinstance(event, dict) and time_s is not None:
            at_s = self.book.clock.since(int(time_s), time_s % 1)
            about = event.get("metadata")
            about = about if isinstance(about, dict) else {}
            self._note(_Event(match["_key"], event.get("value"), at_s, about))

    def old_event(self, match: re.Match[str], *_place: object) -> None:
        """Note one event of the first versions."""
        value, about = json_in(match["_of"]) if match["_of"] else None, dict[str, Any]()
        if match["_key"] == "run_stop" and isinstance(value, dict):
            about = {"status": "success" if value.get("success") else "aborted"}
        whole, _, part = match["_time"].partition(".")
        at_s = self.book.clock.since(int(whole), float(f"0.{part}"))
        self._note(_Event(match["_key"], value, at_s, about))

    def _note(self, event: _Event) -> None:
        """Note an event; what follows a run may be of the next one, until that begins, or not."""
        is_next = event.key in _FOLLOWS or bool(self.behind)
        if "run_stop" in self.times and event.key in _BEGINNINGS:
            behind, self.behind = self.behind, []
            self.book.begin_run()
            for one in behind:
                self._take(one)
        elif "run_stop" in self.times and is_next and len(self.behind) < _MOST_SPANS:
            self.behind.append(event)
            return
        self._take(event)

    def _take(self, event: _Event) -> None:
        handler = getattr(self, f"_on_{event.key}", None)
        if handler is not None:
            handler(event)
        elif event.key in _SETTINGS:
            self.known[event.key] = event.number
        elif event.key in _ENVIRONMENT:
            self.run.environment[_ENVIRONMENT[event.key]] = value = str(event.value)
            if event.key == "submission_benchmark":
                self.benchmark = self.run.workload = value
            elif event.key == "submission_platform" and (nodes := _NODES.match(value)) is not None:
                self.run.facts.nodes = int(nodes[1])

    def end(self) -> None:
        """Note what follows from the whole."""
        for event in self.behind:
            self._take(event)
        facts = self.run.facts
        facts.train_samples = self.known.get("train_samples")
        facts.batch_per_device = each = self.known.get("d_batch_size")
        if each and facts.global_batch:
            each *= facts.accumulation or 1
            facts.devices = facts.world_size = round(facts.global_batch / each) or None
        if not facts.world_size and self.starts > 1:
            facts.devices = facts.world_size = self.starts
        progress = self._progress()
        self._qualities(progress)
        if progress.unit == progress.epoch_samples:
            for own in (one for one in self.run.epochs.values() if "seconds" in one):
                own["samples"] = progress.unit or math.nan
        self._time_to_train()
        self._throughput(progress)
        if self._rules.get("batch") == "tokens":
            facts.tokens_per_step, facts.global_batch = facts.global_batch, None
        elif "sequence" in self._rules or _LOWER.search(self.benchmark):
            facts.sequence = progress.sequence
        self.begin()

    @property
    def _rules(self) -> dict[str, Any]:
        return _BENCHMARKS.get(self.benchmark, {})

    def _progress(self) -> Progress:
        run, rules = self.run, self._rules
        spans = self.spans
        if not spans["eval"]:
            points = [(one.event.at_s, LogCounter.of(one.event.about)) for one in self.evaluations]
            spans["eval"] = [TrainedSpan(at_s, at_s, at, at) for at_s, at in points]
        printed = [v for _, series in run.of("samples_per_s") for v in series.steady()]
        return Progress(
            batch=run.facts.global_batch,
            sequence=rules.get("sequence") or self.known.get("max_sequence_length"),
            world_size=run.facts.world_size,
            train_samples=self.known.get("train_samples"),
            samples_per_epoch=self.known.get("samples_per_epoch"),
            sizes=rules.get("epoch_samples", ()),
            printed=sorted(printed)[len(printed) // 2] if printed else None,
            began_s=self.times.get("run_start", math.nan),
            ended_s=self.times.get("run_stop", math.inf),
            blocks=spans["block"],
            epochs=spans["epoch"],
            evaluations=[one for one in spans["eval"] if math.isfinite(one.start_s)],
            iterations=self.iterations,
        )

    def _qualities(self, progress: Progress) -> None:
        """Note the evaluations; what was evaluated behind the run counts when it was trained."""
        run, found = self.run, self.evaluations
        trained = {progress.position(block.stop): block.stop_s for block in self.spans["block"]}
        general = self._metric_name()
        times = defaultdict(set)
        for metric, value, event in found:
            times[metric, LogCounter.of(event.about)].add(value)
        for metric, value, event in found:
            point = self._point(event)
            samples = progress.position(LogCounter.of(event.about))
            if len(times[metric, LogCounter.of(event.about)]) > 1 and event.at_s < progress.ended_s:
                # All evaluations say the same epoch: their time tells them apart.
                point = LogPoint(at_s=event.at_s)
            elif math.isfinite(samples):
                step = samples / progress.batch if progress.batch else math.nan
                point = point._replace(samples=samples, step=step)
            if event.at_s > progress.ended_s:
                point = point._replace(at_s=trained.get(samples, math.nan))
            run.metric(metric or general, value, point, over="run")
        for name in dict.fromkeys(metric or general for metric, _, _ in found):
            target = self.known.get("target_accuracy", self.known.get("quality_target"))
            run.measure(f"target_{name}", target)

    def _on_init_start(self, event: _Event) -> None:
        self.starts += 1
        self.times.setdefault("init_start", event.at_s)

    def _on_init_stop(self, event: _Event) -> None:
        began = self.times.get("init_start", event.at_s)
        self.run.event("initialization", When(began), _known(event.at_s - began))

    def _on_run_start(self, event: _Event) -> None:
        run, at_s = self.run, event.at_s
        self.times["run_start"] = self.training_from_s = at_s
        run.utc_of_zero_s = self.book.clock.base_s if math.isfinite(at_s) else None
        if math.isfinite(at_s):
            run.training_from_s = at_s
        run.event("start", When(at_s), text="run_start: start of the benchmark clock")

    def _on_run_stop(self, event: _Event) -> None:
        self.times["run_stop"] = event.at_s
        self.status = str(event.about.get("status", ""))
        self.run.event("end", When(event.at_s), text=f"run_stop: {self.status or 'no status'}")

    def _on_global_batch_size(self, event: _Event) -> None:
        self.run.facts.global_batch = event.number

    def _on_gradient_accumulation_steps(self, event: _Event) -> None:
        self.run.facts.accumulation = int(event.number) if event.number else None

    def _on_block_start(self, event: _Event) -> None:
        self.open.setdefault("block", event)

    def _on_block_stop(self, event: _Event) -> None:
        self._span("block", event)

    def _on_epoch_start(self, event: _Event) -> None:
        self.open.setdefault("epoch", event)
        if event.epoch is not None:
            self.run.epoch(int(event.epoch), at_s=event.at_s)

    def _on_epoch_stop(self, event: _Event) -> None:
        seconds = self._span("epoch", event)
        if seconds is not None:
            if event.epoch is not None:
                self.run.epoch(int(event.epoch), seconds=_known(seconds))
            self.iterations = (self.step, len(self.spans["epoch"]))

    def _on_eval_start(self, event: _Event) -> None:
        self.open.setdefault("eval", event)

    def _on_eval_stop(self, event: _Event) -> None:
        began = self.open.get("eval")
        seconds = self._span("eval", event)
        if began is not None and seconds is not None:
            self.run.event("evaluation", When(began.at_s), _known(seconds), epoch=event.epoch)

    def _span(self, kind: str, stop: _Event) -> float | None:
        """Note a block, an epoch or an evaluation that ends; return its seconds, None: of none."""
        start, own = self.open.pop(kind, None), self.spans[kind]
        if start is None:
            return None
        begun, done = LogCounter.of(start.about), LogCounter.of(stop.about)
        epochs = number(start.about.get("epoch_count")) if kind == "block" else 1.0
        if kind == "eval":
            pairs = zip(begun, done, strict=True)
            done = LogCounter(*(b if math.isfinite(b) else d for b, d in pairs))
        if len(own) < _MOST_SPANS:
            count = math.nan if epochs is None else epochs
            own.append(TrainedSpan(start.at_s, stop.at_s, begun, done, count))
        return stop.at_s - start.at_s

    def _on_eval_accuracy(self, event: _Event) -> None:
        values = {str(event.about.get("metric", "")): event.value}
        if isinstance(event.value, dict):
            inner = event.value.get("accuracy")
            values = inner if isinstance(inner, dict) else event.value
            if "value" in values:
                epoch = values.get("epoch")
                event = event._replace(about={**event.about, "epoch_num": epoch})
                values = {"": values["value"]}
        for name, text in values.items():
            value, key = number(text), name.lower()
            if value is not None and len(self.evaluations) < _MOST_SPANS:
                self.evaluations.append(_Evaluated(_QUALITIES.get(key, key), value, event))

    def _on_train_loss(self, event: _Event) -> None:
        self.run.metric("loss", event.number, self._point(event), over="interval")

    def _on_throughput(self, event: _Event) -> None:
        if not self.has_tracked:
            self.run.metric("samples_per_s", event.number, self._point(event), over="interval")

    def _on_tracked_stats(self, event: _Event) -> None:
        values = event.value if isinstance(event.value, dict) else {}
        run, point = self.run, self._point(event)
        step = number(event.about.get("step"))
        self.step = self.step if step is None else step
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
        """Return how many samples were trained, where the event itself counts them."""
        at, batch = LogCounter.of(event.about), self.run.facts.global_batch
        steps = number(event.about.get("step_num"))
        if math.isfinite(at.samples):
            return at.samples
        return steps * batch if steps is not None and batch else None

    def _metric_name(self) -> str:
        """Return what the quality is; language models have the logarithm of the perplexity."""
        if "metric" in self._rules:
            return str(self._rules["metric"])
        values, target = [one.value for one in self.evaluations], self.known.get("target_accuracy")
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
            run.say("the log contains no timestamps, so the time to train is unknown")
            return
        name = "time_to_train_ns" if self.status == "success" else "run_ns"
        run.measure(name, round((ended - began) * 1e9), source="computed")
        if self.status != "success":
            run.say(
                "the run ended with status {status} and did not reach the target",
                status=self.status or "–",
            )

    def _throughput(self, progress: Progress) -> None:
        """Add the throughput that blocks, epochs or evaluations give, else none."""
        run, rate = self.run, progress.throughput()
        if rate is None:
            run.renamed("samples_per_s", "printed_samples_per_s")
            if progress.printed:
                text = "no throughput, because the log does not define the unit of its rate"
                run.say(text)
            return
        run.measure("samples_per_s", rate.per_s, source="computed")
        size, said = progress.unit, progress.train_samples
        if size == progress.epoch_samples and size and said and size != said:
            text = "train_samples is {said:count}, but an epoch is {n:count} samples according to "
            text += "the rest of the log and the benchmark rules"
            run.say(text, n=round(size), said=round(said))
        text = "throughput was measured over {what}"
        if rate.is_without_first:
            text += ", without the first one: {first:1/s} at the start, {later:1/s} later"
        first = rate.amounts[0].samples / rate.amounts[0].seconds
        run.say(text, what=rate.what, first=first, later=rate.per_s)
        if progress.prints_tokens(rate):
            run.renamed("samples_per_s", "printed_tokens_per_s")
        elif progress.printed:
            whole = Evidence(*rate.whole)
            disagree(run, "samples", progress.printed, whole, f"all of {rate.what}")


def _known(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds
