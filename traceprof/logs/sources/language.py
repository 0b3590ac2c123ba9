"""Programs that train language models: Megatron-LM, torchtitan, fairseq and others."""

from __future__ import annotations

import math
import re
from re import compile as rx
from typing import Any, Final

from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine
from traceprof.logs.source import Declared, LogReader, Pattern, json_in, number

_GLOBAL: Final = {
    "throughput/samples_per_sec": "samples_per_s",
    "throughput/tokens_per_sec": "tokens_per_s",
    "throughput/batches_per_sec": "steps_per_s",
    "samples/sec": "samples_per_s",
}
_DEVICE: Final = {
    "throughput/device/samples_per_sec": "samples_per_s",
    "throughput/device/tokens_per_sec": "tokens_per_s",
    "throughput/device/mfu": "mfu_ratio",
}
_COUNTERS: Final = rx(r"^time/|^memory/|^trainer/|^throughput/|^lr|alloc_retries")
_PAIR: Final = rx(r"(?<!\w)(?P<key>\w++)=(?P<value>-?[\d.e+-]+|nan|inf)")
_FAIRSEQ_CELL: Final = rx(r"(?<![\w/ ])(?P<key>[\w/ ]*[\w/]) ++(?P<value>-?[\d.e+-]+|nan|inf)$")


class MegatronReader(LogReader):
    """The last rank prints; the time is the mean since the line before."""

    def other(self, _pattern: Pattern, key: str) -> Declared:
        """Return what a cell is: some loss."""
        return Declared(key.replace(" ", "_"))

    def cells(self, match: re.Match[str], point: LogPoint, _line: LogLine) -> None:
        """Note the rate of each line, too: the batch may grow (--rampup-batch-size)."""
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


class TorchtitanReader(LogReader):
    """Tokens per second are of one device; all ranks may print, and their loss is the same."""

    def mesh(self, match: re.Match[str], _point: LogPoint, _line: LogLine) -> None:
        """Note the number of ranks, the product of the sides of the mesh."""
        self.run.facts.world_size = math.prod(map(int, re.findall(r"\d+", match["_sizes"])))

    def end(self) -> None:
        """Say whose the rate is where the number of devices is not known."""
        run = self.run
        if not run.facts.world_size and next(run.of("tokens_per_s"), None) is not None:
            run.say("tokens per second are per GPU; the log does not contain the number of GPUs")


class DeepSpeedReader(LogReader):
    """The mean is since the second step of the run, and times steps alone: no loading of data."""

    evaluated = math.nan
    is_old = False

    def rate(self, match: re.Match[str], _point: LogPoint, _line: LogLine) -> None:
        """Note that no rate holds the first steps, and which generation prints."""
        self.run.facts.has_warmup = False
        self.is_old = self.is_old or match["_new"] is None

    def evaluating(self, match: re.Match[str], _point: LogPoint, _line: LogLine) -> None:
        """Note the epoch that is evaluated."""
        self.evaluated = float(match["_epoch"])

    def perplexity(self, match: re.Match[str], _point: LogPoint, _line: LogLine) -> None:
        """Note the perplexity of an evaluation."""
        point = LogPoint(0.0 if math.isnan(self.step) else self.step, self.evaluated)
        self.run.metric("val_ppl", number(match["_ppl"]), point, over="run")

    def end(self) -> None:
        """Say what old versions print."""
        run = self.run
        rates = [s.values[-1] for _, s in run.of("samples_per_s") if len(s.values)]
        if self.is_old and rates and run.facts.world_size != 1:
            text = "DeepSpeed before 0.7.7 reports the rate of one GPU under this name, so "
            run.say(text + "{rate:1/s} may be for one GPU or for all GPUs", rate=rates[-1])
        self.is_old = False


class ComposerReader(LogReader):
    """Only what changed since the block before is printed: what is absent is not known."""

    def begin(self) -> None:
        """Know nothing."""
        self.has_head = False
        self.point = LogPoint()
        self.last: dict[str, float] = {}
        self.place: tuple[float, float] | None = None

    def head(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Note the place that the metrics behind a head belong to."""
        self.has_head = True
        if match["_eval"]:
            return
        n, epoch, step = float(match["_at"]), number(match["epoch"]), math.nan
        if match["_unit"] in ("batch", "ba"):
            self.book.position(n, epoch or 0)
            step = n if epoch is None else math.nan
        self.point = LogPoint(step, math.nan if epoch is None else epoch, self.at_s(line))

    def metric(self, match: re.Match[str], *_: object) -> None:
        """Note a metric behind a head."""
        key, value = match["_key"], number(match["_of"])
        if not self.has_head or value is None:
            return
        run, point = self.run, self.point
        if key == "time/batch":
            point = self._count(value)
        self.last[key] = value
        if key in _GLOBAL:
            run.metric(_GLOBAL[key], value, point, over="interval")
        elif key in _DEVICE:
            run.metric(_DEVICE[key], value, point, scope="device", over="interval")
            self._world()
        elif not _COUNTERS.search(key):
            name = "loss" if key == "loss/train/total" else key.removeprefix("metrics/")
            is_eval = match["_phase"] == "Eval"
            name = f"val_{name.removeprefix('eval/')}" if is_eval else name
            run.metric(name, value, point, over="run" if is_eval else "step")

    def _count(self, batches: float) -> LogPoint:
        """Take the counter of batches as the step, and how samples grow with it as the batch."""
        samples = self.last.get("time/sample", math.nan)
        self.point = self.point._replace(step=batches)
        if math.isfinite(samples):
            place = self.place
            if place is not None and batches > place[0] and samples > place[1]:
                self.run.facts.global_batch = (samples - place[1]) / (batches - place[0])
            self.place = (batches, samples)
            self.point = self.point._replace(samples=samples)
        return self.point

    def _world(self) -> None:
        for name in ("samples_per_sec", "tokens_per_sec"):
            whole, each = (self.last.get(f"throughput/{where}{name}") for where in ("", "device/"))
            if whole and each:
                self.run.facts.world_size = round(whole / each) or None

    def end(self) -> None:
        """Say why there is no throughput."""
        run = self.run
        if next(run.of("samples_per_s"), None) is None and not run.is_empty:
            why = "SpeedMonitor prints it when its window is full (100 batches by default)"
            run.say(f"the log contains no throughput; {why}")


class FairseqReader(LogReader):
    """Words per second are tokens of all GPUs; lines of an epoch hold start-up and validation."""

    overflows = 0
    updates = math.nan

    def of_json(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Note what a line in JSON says."""
        found, tag = json_in(match["_json"]), match["_tag"]
        if not isinstance(found, dict):
            return
        prefix = "" if tag == "train_inner" else f"{tag}_"
        values = {str(key).removeprefix(prefix): number(str(own)) for key, own in found.items()}
        epoch = int(values.get("epoch") or 0)
        if tag == "train_inner":
            self._inner(values, epoch, line)
        else:
            self._of_epoch(tag, epoch, values, line)

    def simple(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Note what a line of the simple form says: of 2018 without a number of updates."""
        pairs = _PAIR.finditer(match["_pairs"])
        values = {pair["key"]: number(pair["value"]) for pair in pairs}
        epoch, over = int(match["epoch"]), "interval"
        if "num_updates" not in values:
            over = "ema"
            values["num_updates"] = (epoch - 1) * int(match["_of"]) + int(match["_at"])
        self._inner(values, epoch, line, over)

    def of_epoch(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Note what the cells of the line of an epoch say."""
        cells = (_FAIRSEQ_CELL.search(cell.strip()) for cell in match["_parts"].split("|"))
        values = {m["key"].strip(): number(m["value"]) for m in cells if m is not None}
        self._of_epoch(match["_tag"], int(match["epoch"]), values, line)

    def overflow(self, *_of_match: Any) -> None:
        """Count an update that was skipped."""
        self.overflows += 1

    def _inner(
        self, values: dict[str, float | None], epoch: int, line: LogLine, over: str = "interval"
    ) -> None:
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
            return  # The first line of a run prints 0: nothing was measured yet.
        note("tokens_per_s", words)
        if per_update:
            run.computed |= {"step_period_ns", "samples_per_s"}
            # Updates per second have two decimals: none are left of slow models.
            note("step_period_ns", 1e9 * per_update / words)
            note("samples_per_s", batch * words / per_update if batch else None)

    def _of_epoch(
        self, tag: str, epoch: int, values: dict[str, float | None], line: LogLine
    ) -> None:
        run = self.run
        updates = values.get("num_updates")
        point = LogPoint(self.updates if updates is None else updates, epoch, self.at_s(line))
        if tag in ("valid", "test"):
            for key in ("loss", "ppl", "nll_loss", "bleu", "accuracy"):
                value = values.get(key, values.get(f"valid {key}"))
                run.metric(f"val_{key}", value, point, over="run")
            return
        run.metric("epoch_loss", values.get("loss", values.get("train loss")), point, over="epoch")
        rate = values.get("wps", values.get("words/s"))
        run.metric("tokens_per_s", rate, point, over="epoch")
        run.epoch(epoch, steps=updates if epoch == 1 else None)

    def end(self) -> None:
        """Say what was skipped."""
        if self.overflows:
            text = "{n:count} update(s) were skipped (gradient overflow) but still took time"
            self.run.say(text, n=self.overflows)
        self.overflows = 0
