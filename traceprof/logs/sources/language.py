"""Read logs of language model training: Megatron-LM, torchtitan, fairseq, and others."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine
from traceprof.logs.source import Declared, LogReader, Pattern, json_in, number

_TIMERS: Final = {
    "forward-backward": "forward_backward_ns",
    "forward-compute": "forward_ns",
    "backward-compute": "backward_ns",
    "batch-generator": "data_ns",
    "all-grads-sync": "gradient_sync_ns",
    "optimizer": "optimizer_ns",
}
"""Megatron's timers that traceprof reads; it prints their minimum and maximum over the ranks."""
_GLOBAL_RATES: Final = {
    "throughput/samples_per_sec": "samples_per_s",
    "throughput/tokens_per_sec": "tokens_per_s",
    "throughput/batches_per_sec": "steps_per_s",
    "samples/sec": "samples_per_s",
}
_DEVICE_RATES: Final = {
    "throughput/device/samples_per_sec": "samples_per_s",
    "throughput/device/tokens_per_sec": "tokens_per_s",
    "throughput/device/mfu": "mfu_ratio",
}
_COUNTERS: Final = re.compile(r"^time/|^memory/|^trainer/|^throughput/|^lr|alloc_retries")
_PAIR: Final = re.compile(r"(?<!\w)(?P<key>\w++)=(?P<value>-?[\d.e+-]+|nan|inf)")
_FAIRSEQ_CELL: Final = re.compile(
    r"(?<![\w/ ])(?P<key>[\w/ ]*[\w/]) ++(?P<value>-?[\d.e+-]+|nan|inf)$"
)


class MegatronReader(LogReader):
    """Read Megatron-LM logs. The last rank prints; the time is the mean since the previous line."""

    def other(self, _pattern: Pattern, key: str) -> Declared:
        """Return the meaning of a cell with an unknown key: a loss."""
        return Declared(key.replace(" ", "_"))

    def cells(self, match: re.Match[str], point: LogPoint, _line: LogLine) -> None:
        """Store the rate of each line, because the batch size may grow (--rampup-batch-size)."""
        run, parts = self.run, map(str.strip, match["_cells"].split("|"))
        found = map(self.source.patterns[0].cell.match, parts)
        cells = {cell["key"].strip(): number(cell["value"]) for cell in found if cell}
        batch, ms = cells.get("global batch size"), cells.get("elapsed time per iteration (ms)")
        if "elapsed time per iteration (s)" in cells:
            ms = 1e3 * (cells["elapsed time per iteration (s)"] or 0.0)
        if batch and ms and "samples per second" not in cells:
            run.computed.add("samples_per_s")
            run.metric("samples_per_s", batch * 1e9 / (ms * 1e6), point, over="interval")
        if cells.get("number of skipped iterations"):
            run.say("skipped iterations have no loss")

    def timer(self, match: re.Match[str], _point: LogPoint, _line: LogLine) -> None:
        """Store a timer of the slowest rank, per iteration, at the last iteration."""
        name = _TIMERS.get(match["_timer"])
        if name is not None:
            value = (number(match["_most"]) or 0.0) * 1e6
            self.run.metric(name, value, LogPoint(self.step), scope="rank", over="interval")


class TorchtitanReader(LogReader):
    """Read torchtitan logs.

    Tokens per second are per device; all ranks may print, with the same loss.
    """

    def mesh(self, match: re.Match[str], _point: LogPoint, _line: LogLine) -> None:
        """Store the number of ranks: the product of the mesh sizes."""
        self.run.facts.world_size = math.prod(map(int, re.findall(r"\d+", match["_sizes"])))

    def end(self) -> None:
        """Add a note if the number of devices is unknown, because the rate is per device."""
        run = self.run
        if not run.facts.world_size and next(run.of("tokens_per_s"), None) is not None:
            run.say("tokens per second are per GPU; the log does not contain the number of GPUs")


class DeepSpeedReader(LogReader):
    """Read DeepSpeed logs. The mean starts at step 2 of the run and excludes data loading."""

    evaluated = math.nan
    is_old = False

    def rate(self, match: re.Match[str], _point: LogPoint, _line: LogLine) -> None:
        """Record that rates exclude the first steps, and whether an old DeepSpeed printed them."""
        self.run.facts.has_warmup = False
        self.is_old = self.is_old or match["_new"] is None

    def evaluating(self, match: re.Match[str], _point: LogPoint, _line: LogLine) -> None:
        """Store the epoch that is evaluated."""
        self.evaluated = float(match["_epoch"])

    def perplexity(self, match: re.Match[str], _point: LogPoint, _line: LogLine) -> None:
        """Store the perplexity of an evaluation."""
        point = LogPoint(0.0 if math.isnan(self.step) else self.step, self.evaluated)
        self.run.metric("val_ppl", number(match["_ppl"]), point, over="run")

    def end(self) -> None:
        """Add the note that rates of old versions are ambiguous."""
        run = self.run
        rates = [s.values[-1] for _, s in run.of("samples_per_s") if len(s.values)]
        if self.is_old and rates and run.facts.world_size != 1:
            text = "DeepSpeed before 0.7.7 reports the rate of one GPU under this name, so "
            run.say(text + "{rate:1/s} may be for one GPU or for all GPUs", rate=rates[-1])
        self.is_old = False


class ComposerReader(LogReader):
    """Read Composer logs. They print only values that changed since the previous block."""

    def begin(self) -> None:
        """Reset the state at the start of a log or run."""
        self.has_head = False
        self.point = LogPoint()
        self.last: dict[str, float] = {}
        self.place: tuple[float, float] | None = None

    def head(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store the position of the metrics below a heading."""
        self.has_head = True
        if match["_eval"]:
            return
        n, epoch, step = float(match["_at"]), number(match["epoch"]), math.nan
        if match["_unit"] in ("batch", "ba"):
            self.book.position(n, epoch or 0)
            step = n if epoch is None else math.nan
        self.point = LogPoint(step, math.nan if epoch is None else epoch, self.at_s(line))

    def metric(self, match: re.Match[str], *_: object) -> None:
        """Store a metric below a heading."""
        key, value = match["_key"], number(match["_of"])
        if not self.has_head or value is None:
            return
        run, point = self.run, self.point
        if key == "time/batch":
            point = self._note_position(value)
        self.last[key] = value
        if key in _GLOBAL_RATES:
            run.metric(_GLOBAL_RATES[key], value, point, over="interval")
        elif key in _DEVICE_RATES:
            run.metric(_DEVICE_RATES[key], value, point, scope="device", over="interval")
            self._derive_world_size()
        elif not _COUNTERS.search(key):
            name = "loss" if key == "loss/train/total" else key.removeprefix("metrics/")
            is_eval = match["_phase"] == "Eval"
            name = f"val_{name.removeprefix('eval/')}" if is_eval else name
            run.metric(name, value, point, over="run" if is_eval else "step")

    def _note_position(self, batches: float) -> LogPoint:
        """Use the batch counter as the step.

        Derive the batch size from the growth of the sample counter.
        """
        samples = self.last.get("time/sample", math.nan)
        self.point = self.point._replace(step=batches)
        if math.isfinite(samples):
            place = self.place
            if place is not None and batches > place[0] and samples > place[1]:
                self.run.facts.global_batch = (samples - place[1]) / (batches - place[0])
            self.place = (batches, samples)
            self.point = self.point._replace(samples=samples)
        return self.point

    def _derive_world_size(self) -> None:
        """Store the number of ranks: the total rate divided by the rate per device."""
        for name in ("samples_per_sec", "tokens_per_sec"):
            whole, each = (self.last.get(f"throughput/{where}{name}") for where in ("", "device/"))
            if whole and each:
                self.run.facts.world_size = round(whole / each) or None

    def end(self) -> None:
        """Add a note that explains a missing throughput."""
        run = self.run
        if next(run.of("samples_per_s"), None) is None and not run.is_empty:
            why = "SpeedMonitor prints it when its window is full (100 batches by default)"
            run.say(f"the log contains no throughput; {why}")


class FairseqReader(LogReader):
    """Read fairseq logs.

    Words per second are tokens of all GPUs; epochs include validation and start-up.
    """

    overflows = 0
    updates = math.nan

    def of_json(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store the values of a JSON line."""
        found, tag = json_in(match["_json"]), match["_tag"]
        if not isinstance(found, dict):
            return
        prefix = "" if tag == "train_inner" else f"{tag}_"
        values = {str(key).removeprefix(prefix): number(str(value)) for key, value in found.items()}
        epoch = int(values.get("epoch") or 0)
        if tag == "train_inner":
            self._note_interval(values, epoch, line)
        else:
            self._note_epoch(tag, epoch, values, line)

    def simple(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store the values of a line in simple format.

        Versions of 2018 print no number of updates.
        """
        pairs = _PAIR.finditer(match["_pairs"])
        values = {pair["key"]: number(pair["value"]) for pair in pairs}
        epoch, over = int(match["epoch"]), "interval"
        if "num_updates" not in values:
            over = "ema"
            values["num_updates"] = (epoch - 1) * int(match["_of"]) + int(match["_at"])
        self._note_interval(values, epoch, line, over)

    def of_epoch(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store the cells of a line about an epoch."""
        cells = (_FAIRSEQ_CELL.search(cell.strip()) for cell in match["_parts"].split("|"))
        values = {m["key"].strip(): number(m["value"]) for m in cells if m is not None}
        self._note_epoch(match["_tag"], int(match["epoch"]), values, line)

    def overflow(self, *_of_match: Any) -> None:
        """Count a skipped update."""
        self.overflows += 1

    def _note_interval(
        self, values: dict[str, float | None], epoch: int, line: LogLine, over: str = "interval"
    ) -> None:
        """Store the values of one interval."""
        updates, wall, done = (values.get(key) for key in ("num_updates", "wall", "update"))
        self.updates = math.nan if updates is None else updates
        if updates is not None:
            self.book.position(updates)
        run, at_s = self.run, self.at_s(line)
        is_elapsed = math.isnan(at_s) and wall is not None
        at_s = wall if is_elapsed and wall is not None else at_s
        point = LogPoint(self.updates, epoch - 1 if done is None else done, at_s)

        def note(name: str, value: float | None) -> None:
            run.metric(name, value, point, over=over, is_elapsed=is_elapsed)

        note("loss", values.get("loss"))
        batch, words, per_update = (values.get(key) for key in ("bsz", "wps", "wpb"))
        if batch:
            note("batch_count", batch)
        if not words:
            return  # The first line of a run prints 0, because nothing was measured yet.
        note("tokens_per_s", words)
        if per_update:
            run.computed |= {"step_period_ns", "samples_per_s"}
            # ups has two decimals, which is too imprecise for slow models.
            note("step_period_ns", 1e9 * per_update / words)
            note("samples_per_s", batch * words / per_update if batch else None)

    def _note_epoch(
        self, tag: str, epoch: int, values: dict[str, float | None], line: LogLine
    ) -> None:
        """Store the values of an epoch or of an evaluation (``tag``)."""
        run = self.run
        updates = values.get("num_updates")
        point = LogPoint(self.updates if updates is None else updates, epoch, self.at_s(line))
        if tag in ("valid", "test"):
            for key in ("loss", "ppl", "nll_loss", "bleu", "accuracy"):
                value = values.get(key, values.get(f"valid {key}"))
                run.metric(f"val_{key}", value, point, over="run")
            return
        run.metric("epoch_loss", values.get("loss", values.get("train loss")), point, over="epoch")
        run.metric("tokens_per_s", values.get("wps", values.get("words/s")), point, over="epoch")
        run.epoch(epoch, steps=updates if epoch == 1 else None)

    def end(self) -> None:
        """Add a note about skipped updates."""
        if self.overflows:
            text = "{n:count} update(s) were skipped (gradient overflow) but still took time"
            self.run.say(text, n=self.overflows)
        self.overflows = 0


class ModdedNanoGptReader(LogReader):
    """Read modded-nanogpt logs. Their clock stops for validation and restarts after the warm-up."""

    timed_step, timed_ms = 0, 0.0

    def timed(self, match: re.Match[str], point: LogPoint, _line: LogLine) -> None:
        """Store the mean time per step since the previous line."""
        step, time_ms = int(match["step"]), number(match["_time"]) or 0.0
        if step > self.timed_step and time_ms > self.timed_ms > 0:
            period_ns = 1e6 * (time_ms - self.timed_ms) / (step - self.timed_step)
            self.run.metric("step_period_ns", period_ns, point, over="interval")
        self.timed_step, self.timed_ms = step, time_ms
