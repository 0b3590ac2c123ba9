"""Read MLPerf Training logs: ``:::MLLOG {json}``, earlier ``:::MLL …`` and ``:::MLPv0.5 …``."""

from __future__ import annotations

import math
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from traceprof.logs.checks import Evidence, note_contradiction
from traceprof.logs.gathered import LogPoint, When
from traceprof.logs.source import LogReader, json_in, number
from traceprof.logs.sources.mlperf_rates import MIN_SAMPLE_COUNT, LogCounter, Progress, TrainedSpan
from traceprof.logs.typed_text import sizes_in

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
"""Metric names for qualities, if an evaluation reports several or names one.

"" means the name in the benchmark rules. A quality that is not listed keeps its own name.
"""
_MAX_SPANS: Final = 20_000
_NODES: Final = re.compile(r"^(\d+)\s*x", re.IGNORECASE)
_LANGUAGE_MODELS: Final = re.compile(
    r"gpt|llama|deepseek|mixtral|flux|moe|lora|diffusion", re.IGNORECASE
)
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
"""The properties of a submission that are stored; contact data is not stored."""


class _Event(NamedTuple):
    """One event; an unknown time is NaN, unknown numbers are None."""

    key: str
    value: Any
    at_s: float
    about: dict[str, Any]

    @property
    def number(self) -> float | None:
        """The value, if it is a finite number."""
        found = number(self.value)
        return found if found is not None and math.isfinite(found) else None

    @property
    def epoch(self) -> float | None:
        """The epoch number; None if it is unknown or counts samples."""
        epoch = number(self.about.get("epoch_num"))
        return epoch if epoch is not None and epoch < MIN_SAMPLE_COUNT else None


class _Evaluated(NamedTuple):
    """A quality, and the event that reported it."""

    metric: str
    value: float
    event: _Event


class MlperfReader(LogReader):
    """Read MLPerf events.

    The benchmark rules define most keys; every submitter defines its own rates.
    """

    def begin(self) -> None:
        """Reset the state at the start of a log or run."""
        self.times: dict[str, float] = {}
        self.starts = 0
        self.known: dict[str, float | None] = {}
        self.status = ""
        self.benchmark = ""
        self.evaluations: list[_Evaluated] = []
        self.held_events: list[_Event] = []
        self.open: dict[str, _Event] = {}
        self.spans: dict[str, list[TrainedSpan]] = {"block": [], "epoch": [], "eval": []}
        self.step = math.nan
        self.iterations = (0.0, 0.0)
        self.has_tracked = False
        self.platform_devices = 0

    def event(self, match: re.Match[str], *_: object) -> None:
        """Store one event."""
        event = json_in(match["_json"])
        if not isinstance(event, dict):
            return
        time_ms, at_s = number(event.get("time_ms")), math.nan
        if time_ms is not None and math.isfinite(time_ms):
            at_s = self.book.clock.since(int(time_ms // 1000), time_ms % 1000 / 1e3)
        self._note_json(str(event.get("key", "")), event, at_s)

    def timed_event(self, match: re.Match[str], *_: object) -> None:
        """Store one event of version 0.6."""
        event, time_s = json_in(match["_json"]), number(match["_time"])
        if isinstance(event, dict) and time_s is not None:
            self._note_json(match["_key"], event, self.book.clock.since(int(time_s), time_s % 1))

    def _note_json(self, key: str, event: dict[str, Any], at_s: float) -> None:
        about = event.get("metadata")
        about = about if isinstance(about, dict) else {}
        self._note(_Event(key, event.get("value"), at_s, about))

    def old_event(self, match: re.Match[str], *_place: object) -> None:
        """Store one event of the first versions."""
        value, about = json_in(match["_of"]) if match["_of"] else None, dict[str, Any]()
        if match["_key"] == "run_stop" and isinstance(value, dict):
            about = {"status": "success" if value.get("success") else "aborted"}
        whole, _, part = match["_time"].partition(".")
        at_s = self.book.clock.since(int(whole), float(f"0.{part}"))
        self._note(_Event(match["_key"], value, at_s, about))

    def _note(self, event: _Event) -> None:
        """Process an event.

        Hold it back if it follows ``run_stop`` and may belong to the next run.
        """
        is_next = event.key in _FOLLOWS or bool(self.held_events)
        if "run_stop" in self.times and event.key in _BEGINNINGS:
            behind, self.held_events = self.held_events, []
            self.book.begin_run()
            for held_event in behind:
                self._take(held_event)
        elif "run_stop" in self.times and is_next and len(self.held_events) < _MAX_SPANS:
            self.held_events.append(event)
            return
        self._take(event)

    def _take(self, event: _Event) -> None:
        """Pass an event to the method ``_on_KEY``, or store it as a setting or environment."""
        handler = getattr(self, f"_on_{event.key}", None)
        if handler is not None:
            handler(event)
        elif event.key in _SETTINGS:
            self.known[event.key] = event.number
        elif event.key in _ENVIRONMENT:
            self.run.environment[_ENVIRONMENT[event.key]] = value = str(event.value)
            if event.key == "submission_benchmark":
                self.benchmark = self.run.workload = value
            elif event.key == "submission_platform":
                self._note_platform(value)

    def _note_platform(self, value: str) -> None:
        """Store the sizes in a platform: 8xA100_80GB counts GPUs, 2xDGXA100 counts nodes."""
        sizes, nodes = sizes_in(value), _NODES.match(value)
        self.platform_devices = int(sizes.get("devices_count", 0))
        if "nodes_count" in sizes:
            self.run.facts.nodes = int(sizes["nodes_count"])
        elif nodes is not None and not sizes:
            self.run.facts.nodes = int(nodes[1])

    def end(self) -> None:
        """Compute qualities, time to train, and throughput of the run."""
        for event in self.held_events:
            self._take(event)
        facts = self.run.facts
        facts.train_samples = self.known.get("train_samples")
        facts.batch_per_device = each = self.known.get("d_batch_size")
        if each and facts.global_batch:
            each *= facts.accumulation or 1
            facts.devices = facts.world_size = round(facts.global_batch / each) or None
        if not facts.world_size and self.starts > 1:
            facts.devices = facts.world_size = self.starts
        facts.devices = facts.devices or self.platform_devices or None
        progress = self._progress()
        self._note_qualities(progress)
        if progress.unit == progress.epoch_samples:
            timed = [epoch for epoch in self.run.epochs.values() if "seconds" in epoch]
            for epoch in timed:
                epoch["samples"] = progress.unit or math.nan
        self._measure_time_to_train()
        self._measure_throughput(progress)
        if self._rules.get("batch") == "tokens":
            facts.tokens_per_step, facts.global_batch = facts.global_batch, None
        elif "sequence" in self._rules or _LANGUAGE_MODELS.search(self.benchmark):
            facts.sequence = progress.sequence
        self.begin()

    @property
    def _rules(self) -> dict[str, Any]:
        return _BENCHMARKS.get(self.benchmark, {})

    def _progress(self) -> Progress:
        run, rules = self.run, self._rules
        spans = self.spans
        if not spans["eval"]:
            events = [evaluation.event for evaluation in self.evaluations]
            points = [(event.at_s, LogCounter.of(event.about)) for event in events]
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
            evaluations=[span for span in spans["eval"] if math.isfinite(span.start_s)],
            iterations=self.iterations,
        )

    def _note_qualities(self, progress: Progress) -> None:
        """Store the evaluations.

        One after the end of the run gets the time at which training reached it.
        """
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
                # All evaluations report the same epoch; only their time differs.
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
        self.run.event("initialization", When(began), _or_none(event.at_s - began))

    def _on_run_start(self, event: _Event) -> None:
        run, at_s = self.run, event.at_s
        self.times["run_start"] = at_s
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
        self._close_span("block", event)

    def _on_epoch_start(self, event: _Event) -> None:
        self.open.setdefault("epoch", event)
        if event.epoch is not None:
            self.run.epoch(int(event.epoch), at_s=event.at_s)

    def _on_epoch_stop(self, event: _Event) -> None:
        seconds = self._close_span("epoch", event)
        if seconds is not None:
            if event.epoch is not None:
                self.run.epoch(int(event.epoch), seconds=_or_none(seconds))
            self.iterations = (self.step, len(self.spans["epoch"]))

    def _on_eval_start(self, event: _Event) -> None:
        self.open.setdefault("eval", event)

    def _on_eval_stop(self, event: _Event) -> None:
        began = self.open.get("eval")
        seconds = self._close_span("eval", event)
        if began is not None and seconds is not None:
            self.run.event("evaluation", When(began.at_s), _or_none(seconds), epoch=event.epoch)

    def _close_span(self, kind: str, stop: _Event) -> float | None:
        """End a block, an epoch, or an evaluation.

        Return its seconds, or None if it never started.
        """
        start, spans = self.open.pop(kind, None), self.spans[kind]
        if start is None:
            return None
        start_counter, stop_counter = LogCounter.of(start.about), LogCounter.of(stop.about)
        epochs = number(start.about.get("epoch_count")) if kind == "block" else 1.0
        if kind == "eval":
            pairs = zip(start_counter, stop_counter, strict=True)
            stop_counter = LogCounter(*(b if math.isfinite(b) else d for b, d in pairs))
        if len(spans) < _MAX_SPANS:
            count = math.nan if epochs is None else epochs
            spans.append(TrainedSpan(start.at_s, stop.at_s, start_counter, stop_counter, count))
        return stop.at_s - start.at_s

    def _on_eval_accuracy(self, event: _Event) -> None:
        values = {str(event.about.get("metric", "")): event.value}
        if isinstance(event.value, dict):
            inner = event.value.get("accuracy")
            values = inner if isinstance(inner, dict) else event.value
            if "value" in values:
                about = {**event.about, "epoch_num": values.get("epoch")}
                event = event._replace(about=about)
                values = {"": values["value"]}
        for name, text in values.items():
            value, key = number(text), name.lower()
            if value is not None and len(self.evaluations) < _MAX_SPANS:
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
        """Return the position of an event."""
        epoch, samples, batch = event.epoch, self._samples(event), self.run.facts.global_batch
        return LogPoint(
            samples / batch if samples is not None and batch else math.nan,
            math.nan if epoch is None else epoch,
            event.at_s,
            math.nan if samples is None else samples,
        )

    def _samples(self, event: _Event) -> float | None:
        """Return the number of trained samples that the event counts, or None."""
        at, batch = LogCounter.of(event.about), self.run.facts.global_batch
        steps = number(event.about.get("step_num"))
        if math.isfinite(at.samples):
            return at.samples
        return steps * batch if steps is not None and batch else None

    def _metric_name(self) -> str:
        """Return the name of the quality.

        For language models it is the log perplexity (``eval_loss``).
        """
        if "metric" in self._rules:
            return str(self._rules["metric"])
        values, target = (
            [evaluation.value for evaluation in self.evaluations],
            self.known.get("target_accuracy"),
        )
        if target is not None and len(values) > 1:
            is_lower = values[0] > target >= values[-1] or values[0] > values[-1] > target
        else:
            is_lower = (
                bool(_LANGUAGE_MODELS.search(self.benchmark)) and "grpo" not in self.benchmark
            )
        return "eval_loss" if is_lower else "eval_accuracy"

    def _measure_time_to_train(self) -> None:
        """Store the time from run_start to run_stop."""
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

    def _measure_throughput(self, progress: Progress) -> None:
        """Store the throughput that blocks, epochs, or evaluations define, if any."""
        run, rate = self.run, progress.throughput()
        if rate is None:
            run.renamed("samples_per_s", "printed_samples_per_s")
            if progress.printed:
                text = "no throughput, because the log does not define the unit of its rate"
                run.say(text)
            return
        run.measure("samples_per_s", rate.per_s, source="computed")
        size, declared_size = progress.unit, progress.train_samples
        if size == progress.epoch_samples and size and declared_size and size != declared_size:
            text = (
                "train_samples is {said:count}, but an epoch is {n:count} samples according to "
                "the rest of the log and the benchmark rules"
            )
            run.say(text, n=round(size), said=round(declared_size))
        text = "throughput was measured over {what}"
        if rate.is_without_first:
            text += "; the first one ({first:1/s}) is excluded"
        first = rate.amounts[0].samples / rate.amounts[0].seconds
        run.say(text, what=rate.what, first=first)
        if progress.prints_tokens(rate):
            run.renamed("samples_per_s", "printed_tokens_per_s")
        elif progress.printed:
            whole = Evidence(*rate.whole)
            note_contradiction(run, "samples", progress.printed, whole, f"all of {rate.what}")


def _or_none(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds
