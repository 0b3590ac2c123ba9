"""Programs that train language models: Megatron-LM, torchtitan, fairseq and others."""

from __future__ import annotations

import json
import math
import re
from functools import reduce
from typing import Any, Final

from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine
from traceprof.logs.source import LogReader, LogSource, number, share
from traceprof.model.results import Unit

_MEGATRON_LINE: Final = re.compile(
    r"iteration\s+(?P<step>\d+)\s*/\s*(?P<total>\d+|infinity) \|"
    r"(?P<cells>.*elapsed time per iteration.*)"
)
_MEGATRON_CELL: Final = re.compile(
    r"^(?P<key>.*?[A-Za-z)])\s*:?\s+(?P<value>[-+]?(?:nan|inf|[\d.]+(?:E[-+]?\d+)?))$", re.I
)
_MEGATRON_WORLD: Final = re.compile(
    r"using world size:\s*(?P<world>\d+)|^\s*world_size \.{2,} (?P<argument>\d+)"
)
_ARGUMENT: Final = re.compile(r"^\s*(?P<key>[a-z_]+) \.{2,} (?P<value>\S+)\s*$")
_VALIDATION: Final = re.compile(
    r"(?P<set>validation|test) loss at (?:iteration (?P<step>\d+)|the end of training[^|]*)"
    r"[^|]*\|(?P<cells>.*)"
)
_MEGATRON_SAVED: Final = re.compile(
    r"successfully saved checkpoint (?:at|from) iteration\s+(?P<step>\d+)"
)
_KNOWN: Final = {
    "lm loss": "loss",
    "loss": "loss",
    "grad norm": "grad_norm",
    "TFLOPs": "tflop_per_s",
    "throughput per GPU (TFLOP/s/GPU)": "tflop_per_s",
}
_SKIPPED: Final = frozenset({"consumed samples", "consumed tokens", "global batch size"})


class MegatronReader(LogReader):
    """The last rank prints; the time is the mean since the line before."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sequence: float | None = None

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if "elapsed time per iteration" in text:
            match = _MEGATRON_LINE.search(text)
            if match is not None:
                self._step(match, line)
        elif " loss at " in text and (found := _VALIDATION.search(text)) is not None:
            self._evaluated(found, line)
        elif "world" in text and (world := _MEGATRON_WORLD.search(text)) is not None:
            self.book.run.facts.world_size = int(world["world"] or world["argument"])
        elif " .." in text and (argument := _ARGUMENT.search(text)) is not None:
            self._argument(argument["key"], argument["value"])
        elif "saved checkpoint" in text and (saved := _MEGATRON_SAVED.search(text)) is not None:
            self.book.run.event(
                "checkpoint", self.book.when(line), value=int(saved["step"]), text=text.strip()
            )

    def _argument(self, key: str, value: str) -> None:
        if key == "seq_length":
            self.sequence = number(value)
        elif key == "global_batch_size":
            self.book.run.facts.global_batch = number(value)

    def _step(self, match: re.Match[str], line: LogLine) -> None:
        step = int(match["step"])
        self.book.position(step)
        run = self.book.run
        cells = _cells(match["cells"])
        batch = cells.get("global batch size")
        if batch:
            run.facts.global_batch = batch
            run.facts.tokens_per_step = batch * self.sequence if self.sequence else None
        point = LogPoint(
            step, at_s=self.book.when(line).seconds, samples=cells.get("consumed samples", math.nan)
        )
        for key, value in cells.items():
            if key.startswith("elapsed time per iteration"):
                factor = 1e9 if "(s)" in key else 1e6
                run.metric("step_period_ns", value * factor, point, over="interval")
                self._rates(cells, value * factor, point)
            elif key == "samples per second":
                run.metric("samples_per_s", value, point, over="interval")
            elif key in _KNOWN:
                scope = "device" if _KNOWN[key] == "tflop_per_s" else "run"
                run.metric(_KNOWN[key], value, point, scope=scope, over="interval")
            elif key.endswith("loss"):
                run.metric(key.replace(" ", "_"), value, point, over="interval")
        skipped = cells.get("number of skipped iterations")
        if skipped:
            run.say("some iterations were skipped: these have no loss")

    def _rates(self, cells: dict[str, float], period_ns: float, point: LogPoint) -> None:
        """Note the rate of each line: the batch may grow (--rampup-batch-size)."""
        batch = cells.get("global batch size")
        if batch and period_ns and "samples per second" not in cells:
            self.book.run.computed.add("samples_per_s")
            rate = batch * 1e9 / period_ns
            self.book.run.metric("samples_per_s", rate, point, over="interval")

    def _evaluated(self, match: re.Match[str], line: LogLine) -> None:
        for key, value in _cells(match["cells"]).items():
            name = {"lm loss value": "val_loss", "lm loss PPL": "val_ppl"}.get(key)
            if name is not None:
                step = math.nan if match["step"] is None else float(match["step"])
                point = LogPoint(step, at_s=self.book.when(line).seconds)
                name = name if match["set"] == "validation" else name.replace("val", "test")
                self.book.run.metric(name, value, point, over="run")


def _cells(text: str) -> dict[str, float]:
    found = {}
    for cell in text.split("|"):
        match = _MEGATRON_CELL.match(cell.strip())
        value = None if match is None else number(match["value"])
        if match is not None and value is not None:
            found[match["key"].strip()] = value
    return found


MEGATRON: Final = LogSource("megatron", "Megatron-LM", (_MEGATRON_LINE,), MegatronReader)


_TORCHTITAN_LINE: Final = re.compile(
    r"(?P<validate>validate )?\bstep:\s*(?P<step>\d{1,12})\s+(?P<pairs>.{0,400}?\btps:\s*[\d,.]+.*)"
)
_TORCHTITAN_PAIR: Final = re.compile(
    r"(?P<key>[A-Za-z_/][\w/]*):\s*(?P<value>N/A|nan|-?inf|[-\d.,e+]+)"
)
_MESH: Final = re.compile(r"device mesh with \[[^\]]*\], \[(?P<sizes>[\d, ]+)\]")
_TORCHTITAN_WORLD: Final = re.compile(
    r"(?:world[ _]size[:= ]+|WORLD_SIZE=)(?P<world>\d+)", re.IGNORECASE
)
_BATCH: Final = re.compile(
    r"global batch size (?P<global>\d+)|sequence length (?P<sequence>\d+)"
    r"|local batch size (?P<local>\d+)"
)
_TORCHTITAN_SAVED: Final = re.compile(
    r"Finished saving the checkpoint.*?in (?P<seconds>[\d.]+) seconds"
)
_GIB: Final = re.compile(r"memory:\s*(?P<gib>[\d.]+)GiB")


class TorchtitanReader(LogReader):
    """Tokens per second are of one device; all ranks may print, and their loss is the same."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sequence: float | None = None

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if "tps:" in text and (match := _TORCHTITAN_LINE.search(text)) is not None:
            self._step(match, line)
        elif (mesh := _MESH.search(text)) is not None:
            sizes = [int(size) for size in mesh["sizes"].replace(" ", "").split(",") if size]
            self.book.run.facts.world_size = reduce(lambda a, b: a * b, sizes, 1)
        elif "batch size" in text or "sequence length" in text:
            self._batch(text)
        elif (saved := _TORCHTITAN_SAVED.search(text)) is not None:
            seconds = number(saved["seconds"])
            self.book.run.event("checkpoint", self.book.when(line), seconds, text="saved")
        elif (world := _TORCHTITAN_WORLD.search(text)) is not None:
            self.book.run.facts.world_size = int(world["world"])

    def _batch(self, text: str) -> None:
        facts = self.book.run.facts
        for match in _BATCH.finditer(text):
            if match["global"]:
                facts.global_batch = float(match["global"])
            elif match["local"]:
                facts.batch_per_device = float(match["local"])
            else:
                self.sequence = float(match["sequence"])
        if self.sequence and facts.global_batch:
            facts.tokens_per_step = self.sequence * facts.global_batch

    def _step(self, match: re.Match[str], line: LogLine) -> None:
        step = int(match["step"])
        run = self.book.run
        values = {m["key"]: number(m["value"]) for m in _TORCHTITAN_PAIR.finditer(match["pairs"])}
        point = LogPoint(step, at_s=self.book.when(line).seconds)
        if match["validate"]:
            run.metric("val_loss", values.get("loss"), point, over="run")
            return
        self.book.position(step)
        run = self.book.run
        run.metric("loss", values.get("loss"), point, over="interval")
        run.metric("grad_norm", values.get("grad_norm"), point, over="interval")
        run.metric("tokens_per_s", values.get("tps"), point, scope="device", over="interval")
        run.metric("tflop_per_s", values.get("tflops"), point, scope="device", over="interval")
        if values.get("mfu") is not None:
            mfu = re.search(r"mfu:\s*([\d.]+%)", match["pairs"])
            run.metric(
                "mfu_ratio", share(mfu[1]) if mfu else None, point, scope="device", over="interval"
            )
        memory = _GIB.search(match["pairs"])
        gib = math.nan if memory is None else float(memory["gib"])
        if math.isfinite(gib):
            run.metric("memory_bytes", gib * 2**30, point, scope="rank")

    def end(self) -> None:
        """Say whose the rate is where the number of devices is not known."""
        run = self.book.run
        if not run.facts.world_size and next(run.of("tokens_per_s"), None) is not None:
            run.say("tokens per second are of one device; how many there were is not printed")


TORCHTITAN: Final = LogSource("torchtitan", "torchtitan", (_TORCHTITAN_LINE,), TorchtitanReader)


_JSON: Final = re.compile(r"\| (?P<tag>train_inner|train|valid|test)\w* \| (?P<json>\{.*\})")
_SIMPLE: Final = re.compile(
    r"epoch (?P<epoch>\d+):?\s+(?P<n>\d+) / (?P<total>\d+) (?P<pairs>loss=.*)$"
)
_EPOCH: Final = re.compile(
    r"\| epoch (?P<epoch>\d+) \| (?P<tag>train|valid)(?: on '[^']*' subset)? \|? ?(?P<cells>.*)"
)
_FAIRSEQ_PAIR: Final = re.compile(r"(?P<key>\w+)=(?P<value>-?[\d.e+-]+|nan|inf)")
_FAIRSEQ_CELL: Final = re.compile(r"(?P<key>[\w/ ]+?)\s+(?P<value>-?[\d.e+-]+|nan|inf)$")
_FAIRSEQ_WORLD: Final = re.compile(r"training on (?P<world>\d+) (?:devices|GPUs)")
_DONE: Final = re.compile(r"done training in (?P<seconds>[\d.]+) seconds")
_OVERFLOW: Final = re.compile(r"gradient overflow detected")
_FAIRSEQ_SAVED: Final = re.compile(r"[Ss]aved checkpoint (?P<where>\S+)")


class FairseqReader(LogReader):
    """Words per second are tokens of all GPUs; lines of an epoch hold start-up and validation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.overflows = 0
        self.updates = math.nan

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if "{" in text and (match := _JSON.search(text)) is not None:
            self._json(match, line)
        elif (simple := _SIMPLE.search(text)) is not None:
            values = {m["key"]: number(m["value"]) for m in _FAIRSEQ_PAIR.finditer(simple["pairs"])}
            if "num_updates" not in values:
                per_epoch = int(simple["total"])
                values["num_updates"] = (int(simple["epoch"]) - 1) * per_epoch + int(simple["n"])
                self._inner(values, int(simple["epoch"]), line, over="ema")
            else:
                self._inner(values, int(simple["epoch"]), line)
        elif (epoch := _EPOCH.search(text)) is not None:
            cells = (_FAIRSEQ_CELL.search(cell.strip()) for cell in epoch["cells"].split("|"))
            values = {m["key"].strip(): number(m["value"]) for m in cells if m is not None}
            self._of_epoch(epoch["tag"], int(epoch["epoch"]), values, line)
        else:
            self._other(text, line)

    def _other(self, text: str, line: LogLine) -> None:
        run = self.book.run
        if (world := _FAIRSEQ_WORLD.search(text)) is not None:
            run.facts.world_size = int(world["world"])
        elif (done := _DONE.search(text)) is not None:
            seconds = float(done["seconds"])
            run.measure("total_ns", seconds * 1e9, Unit.NS, better="lower")
            run.event("end", self.book.when(line), text=text.split("|")[-1].strip())
        elif _OVERFLOW.search(text) is not None:
            self.overflows += 1
        elif (saved := _FAIRSEQ_SAVED.search(text)) is not None:
            run.event("checkpoint", self.book.when(line), text=saved["where"])

    def _json(self, match: re.Match[str], line: LogLine) -> None:
        try:
            found = json.loads(match["json"])
        except (ValueError, RecursionError):
            return
        values = {str(key): number(str(value)) for key, value in found.items()}
        epoch = int(values.get("epoch") or 0)
        if match["tag"] == "train_inner":
            self._inner(values, epoch, line)
            return
        prefix = match["tag"] + "_"
        values = {key.removeprefix(prefix): value for key, value in values.items()}
        self._of_epoch(match["tag"], epoch, values, line)

    def _inner(
        self, values: dict[str, float | None], epoch: int, line: LogLine, over: str = "interval"
    ) -> None:
        updates = values.get("num_updates")
        self.updates = math.nan if updates is None else updates
        if updates is not None:
            self.book.position(updates)
        run = self.book.run
        wall, done = values.get("wall"), values.get("update")
        when = self.book.when(line)
        is_elapsed = math.isnan(when.seconds) and wall is not None
        point = LogPoint(
            self.updates,
            epoch - 1 if done is None else done,
            wall if is_elapsed and wall is not None else when.seconds,
        )
        run.metric("loss", values.get("loss"), point, over=over, is_elapsed=is_elapsed)
        batch = values.get("bsz")
        if batch:
            run.metric("batch_count", batch, point, over=over, is_elapsed=is_elapsed)
        words, per_update = values.get("wps"), values.get("wpb")
        if not words:
            return  # The first line of a run prints 0: nothing was measured yet.
        run.metric("tokens_per_s", words, point, over=over, is_elapsed=is_elapsed)
        if per_update:
            run.computed |= {"step_period_ns", "samples_per_s"}
            # Updates per second have two decimals: none are left of slow models.
            run.metric(
                "step_period_ns", 1e9 * per_update / words, point, over=over, is_elapsed=is_elapsed
            )
            if batch:
                run.metric(
                    "samples_per_s",
                    batch * words / per_update,
                    point,
                    over=over,
                    is_elapsed=is_elapsed,
                )

    def _of_epoch(
        self, tag: str, epoch: int, values: dict[str, float | None], line: LogLine
    ) -> None:
        run = self.book.run
        updates = values.get("num_updates")
        point = LogPoint(
            self.updates if updates is None else updates, epoch, self.book.when(line).seconds
        )
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
            self.book.run.say(
                "{n:count} update(s) were skipped for overflows of gradients: they took time",
                n=self.overflows,
            )
        self.overflows = 0


FAIRSEQ: Final = LogSource("fairseq", "fairseq", (_JSON, _SIMPLE, _EPOCH), FairseqReader)


_NANOGPT_LINE: Final = re.compile(
    r"iter (?P<step>\d+): loss (?P<loss>nan|-?inf|-?[\d.]+), time (?P<ms>[\d.]+) ?ms"
    r"(?:, mfu (?P<mfu>-?[\d.]+)%)?"
)
_EVALUATED: Final = re.compile(
    r"step (?P<step>\d+): train loss (?P<train>nan|inf|[\d.]+), val loss (?P<val>nan|inf|[\d.]+)"
)
_TOKENS: Final = re.compile(r"tokens per iteration will be: (?P<tokens>[\d,]+)")
_NANOGPT_SAVED: Final = re.compile(r"saving checkpoint to (?P<where>\S+)")


class NanoGptReader(LogReader):
    """The time is that of one iteration; one that evaluates holds the evaluation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.evaluated = -1

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if (match := _NANOGPT_LINE.search(text)) is not None:
            self._step(match, line)
        elif (found := _EVALUATED.search(text)) is not None:
            self.evaluated = int(found["step"])
            point = LogPoint(self.evaluated, at_s=self.book.when(line).seconds)
            for name, group in (("val_loss", "val"), ("eval_train_loss", "train")):
                self.book.run.metric(name, number(found[group]), point, over="run")
            self.book.run.event("evaluation", self.book.when(line), value=self.evaluated)
        elif (tokens := _TOKENS.search(text)) is not None:
            self.book.run.facts.tokens_per_step = number(tokens["tokens"])
        elif (saved := _NANOGPT_SAVED.search(text)) is not None:
            self.book.run.event("checkpoint", self.book.when(line), text=saved["where"])

    def _step(self, match: re.Match[str], line: LogLine) -> None:
        step = int(match["step"])
        self.book.position(step)
        run = self.book.run
        point = LogPoint(step, at_s=self.book.when(line).seconds)
        run.metric("loss", number(match["loss"]), point, scope="rank")
        period_ns = (number(match["ms"]) or 0.0) * 1e6
        if step == self.evaluated:
            run.metric("step_with_evaluation_ns", period_ns, point)
            run.say("iterations that evaluate are left out of the length of a step")
        else:
            run.metric("step_period_ns", period_ns, point)
        mfu = share(match["mfu"])
        if mfu is not None and mfu >= 0:
            run.metric("mfu_ratio", mfu, point, scope="device", over="ema")
            run.say("mfu is relative to the 312 TFLOP/s of an A100, whatever the GPU")


NANOGPT: Final = LogSource("nanogpt", "nanoGPT", (_NANOGPT_LINE, _EVALUATED), NanoGptReader)


_DEEPSPEED_LINE: Final = re.compile(
    r"(?:epoch=|(?<!\d))(?P<epoch>\d{1,9})/(?:micro_step=\d+/global_step=)?(?P<step>\d+), "
    r"(?P<running>RunningAvg)?SamplesPerSec=(?P<mean>[\d.e+-]+|nan|inf)"
    r"(?:, CurrSamplesPerSec=(?P<now>[\d.e+-]+|nan|inf))?"
    r"(?:, MemAllocated=[\d.]+ ?GB, MaxMemAllocated=(?P<memory>[\d.]+) ?GB)?"
)
_HYBRID: Final = re.compile(
    r"\|CurSamplesPerSec=(?P<now>[\d.e+-]+)\s*\|AvgSamplesPerSec=(?P<mean>[\d.e+-]+)"
)
_STEP: Final = re.compile(r"\[Rank (?P<rank>\d+)\] step=(?P<step>\d+), skipped=(?P<skipped>\d+)")
_SETTING: Final = re.compile(
    r"^\s*(?:\[[^\]]*\] *)*\"?(?P<key>train_batch_size|train_micro_batch_size_per_gpu|world_size"
    r"|gradient_accumulation_steps)\"?[ .:=]+(?P<value>\d+)\b"
)
_PERPLEXITY: Final = re.compile(r"^\s*(?:ppl|perplexity): (?P<ppl>[\d.e+]+|nan|inf)", re.I)
_EVALUATING: Final = re.compile(r"Evaluating perplexity, Epoch (?P<epoch>\d+)/(?P<of>\d+)")
_ACCURACY: Final = re.compile(
    r"Accuracy of the network on the (?P<n>\d+) test images: (?P<value>[\d.]+) ?%"
)
_ONLY_ONE: Final = (
    "versions of DeepSpeed before 0.7.7 print the samples of one GPU by this name: "
    "{rate:1/s} are of all GPUs or of one"
)


class DeepSpeedReader(LogReader):
    """The mean is since the second step of the run, and times steps alone: no loading of data."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.step = math.nan
        self.evaluating: float = math.nan
        self.is_old = False

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if "SamplesPerSec=" in text and (match := _DEEPSPEED_LINE.search(text)) is not None:
            self._rate(match, line)
        elif "SamplesPerSec=" in text and (match := _HYBRID.search(text)) is not None:
            run, at_s = self.book.run, self.book.when(line).seconds
            run.metric("samples_per_s", number(match["now"]), LogPoint(at_s=at_s))
        elif (setting := _SETTING.search(text)) is not None:
            self._setting(setting["key"], int(setting["value"]))
        elif (found := _EVALUATING.search(text)) is not None:
            self.evaluating = float(found["epoch"])
        elif (found := _PERPLEXITY.search(text)) is not None:
            step = 0.0 if math.isnan(self.step) else self.step
            point = LogPoint(step, self.evaluating)
            self.book.run.metric("val_ppl", number(found["ppl"]), point, over="run")
        elif (found := _ACCURACY.search(text)) is not None:
            self.book.run.metric("top1", share(found["value"]), LogPoint(self.step), over="run")

    def _setting(self, key: str, value: int) -> None:
        facts = self.book.run.facts
        if key == "train_batch_size":
            facts.global_batch = value
        elif key == "world_size":
            facts.world_size = value
        elif key == "gradient_accumulation_steps":
            facts.accumulation = value
        else:
            facts.batch_per_device = value

    def _rate(self, match: re.Match[str], line: LogLine) -> None:
        step = int(match["step"])
        self.book.position(step)
        self.step = step
        run = self.book.run
        run.facts.has_warmup = False
        point = LogPoint(step, at_s=self.book.when(line).seconds)
        run.metric("samples_per_s", number(match["mean"]), point, over="run")
        run.metric("samples_per_s", number(match["now"]), point, over="step")
        memory = number(match["memory"])
        if memory is not None:
            run.metric("memory_bytes", memory * 2**30, point, scope="rank")
        if "micro_step" not in match[0]:
            self.is_old = True

    def end(self) -> None:
        """Say what old versions print."""
        run = self.book.run
        rates = [s.values[-1] for _, s in run.of("samples_per_s") if len(s.values)]
        if self.is_old and rates and run.facts.world_size != 1:
            run.say(_ONLY_ONE, rate=rates[-1])
        self.is_old = False


DEEPSPEED: Final = LogSource(
    "deepspeed", "DeepSpeed", (_DEEPSPEED_LINE, _STEP, _HYBRID), DeepSpeedReader
)


_HEAD: Final = re.compile(
    r"^\s*\[(?:epoch=(?P<epoch>\d+)(?:/\d+)?\]\[)?(?P<eval>Eval )?(?P<unit>batch|sample|token|epoch"
    r"|iteration|second|ep|ba|tok|sp)=(?P<n>\d+)(?:/(?P<total>\d+))?\]"
)
_METRIC: Final = re.compile(r"^\s*(?P<phase>Train|Eval) (?P<key>\S.*): (?P<value>\S+)\s*$")
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
_COUNTERS: Final = re.compile(r"^time/|^memory/|^trainer/|^throughput/|^lr|alloc_retries")


class ComposerReader(LogReader):
    """Only what changed since the block before is printed: what is absent is not known."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.head: re.Match[str] | None = None
        self.point = LogPoint()
        self.last: dict[str, float] = {}
        self.place: tuple[float, float] | None = None

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if (head := _HEAD.search(text)) is not None:
            self.head = head
            n = float(head["n"])
            epoch = math.nan if head["epoch"] is None else float(head["epoch"])
            if not head["eval"]:
                if head["unit"] in ("batch", "ba"):
                    self.book.position(n, 0 if math.isnan(epoch) else epoch)
                self.point = LogPoint(
                    n if head["unit"] in ("batch", "ba") and math.isnan(epoch) else math.nan,
                    epoch,
                    self.book.when(line).seconds,
                )
        elif self.head is not None and (metric := _METRIC.search(text)) is not None:
            self._metric(metric["phase"], metric["key"], number(metric["value"]))

    def _metric(self, phase: str, key: str, value: float | None) -> None:
        if value is None:
            return
        run = self.book.run
        if key == "time/batch":
            self._count(value)
        self.last[key] = value
        if key in _GLOBAL:
            run.metric(_GLOBAL[key], value, self.point, over="interval")
        elif key in _DEVICE:
            run.metric(_DEVICE[key], value, self.point, scope="device", over="interval")
            self._world()
        elif not _COUNTERS.search(key):
            name = "loss" if key == "loss/train/total" else key.removeprefix("metrics/")
            if phase == "Eval":
                run.metric(f"val_{name.removeprefix('eval/')}", value, self.point, over="run")
            else:
                run.metric(name, value, self.point, over="step")

    def _count(self, batches: float) -> None:
        """Take the counter of batches as the step, and how samples grow with it as the batch."""
        self.point = self.point._replace(step=batches)
        samples = self.last.get("time/sample")
        if samples is None:
            return
        if self.place is not None and batches > self.place[0] and samples > self.place[1]:
            batch = (samples - self.place[1]) / (batches - self.place[0])
            self.book.run.facts.global_batch = batch
        self.place = (batches, samples)
        self.point = self.point._replace(samples=samples)

    def _world(self) -> None:
        for name in ("samples_per_sec", "tokens_per_sec"):
            whole, each = (self.last.get(f"throughput/{where}{name}") for where in ("", "device/"))
            if whole and each:
                self.book.run.facts.world_size = round(whole / each) or None

    def end(self) -> None:
        """Say why there is no throughput."""
        run = self.book.run
        if next(run.of("samples_per_s"), None) is None and not run.is_empty:
            run.say(
                "no throughput: it is printed by SpeedMonitor, once its window is full (100 "
                "batches unless set)"
            )


COMPOSER: Final = LogSource("composer", "MosaicML Composer", (_HEAD, _METRIC), ComposerReader)
