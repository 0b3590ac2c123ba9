"""fairseq, with its logs in JSON, simple, and as of 2018."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point
from traceprof.model.results import Unit

__all__ = ["SOURCE"]

_JSON: Final = re.compile(r"\| (?P<tag>train_inner|train|valid|test)\w* \| (?P<json>\{.*\})")
_SIMPLE: Final = re.compile(
    r"epoch (?P<epoch>\d+):?\s+(?P<n>\d+) / (?P<total>\d+) (?P<pairs>loss=.*)$"
)
_EPOCH: Final = re.compile(
    r"\| epoch (?P<epoch>\d+) \| (?P<tag>train|valid)(?: on '[^']*' subset)? \|? ?(?P<cells>.*)"
)
_PAIR: Final = re.compile(r"(?P<key>\w+)=(?P<value>-?[\d.e+-]+|nan|inf)")
_CELL: Final = re.compile(r"(?P<key>[\w/ ]+?)\s+(?P<value>-?[\d.e+-]+|nan|inf)$")
_WORLD: Final = re.compile(r"training on (?P<world>\d+) (?:devices|GPUs)")
_DONE: Final = re.compile(r"done training in (?P<seconds>[\d.]+) seconds")
_OVERFLOW: Final = re.compile(r"gradient overflow detected")
_SAVED: Final = re.compile(r"[Ss]aved checkpoint (?P<where>\S+)")


class FairseqReader(Reader):
    """Words per second are tokens of all GPUs; lines of an epoch hold start-up and validation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.overflows = 0
        self.updates = math.nan

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if "{" in text and (match := _JSON.search(text)) is not None:
            self._json(match, line)
        elif (simple := _SIMPLE.search(text)) is not None:
            values = {m["key"]: number(m["value"]) for m in _PAIR.finditer(simple["pairs"])}
            if "num_updates" not in values:
                per_epoch = int(simple["total"])
                values["num_updates"] = (int(simple["epoch"]) - 1) * per_epoch + int(simple["n"])
                self._inner(values, int(simple["epoch"]), line, over="ema")
            else:
                self._inner(values, int(simple["epoch"]), line)
        elif (epoch := _EPOCH.search(text)) is not None:
            cells = (_CELL.search(cell.strip()) for cell in epoch["cells"].split("|"))
            values = {m["key"].strip(): number(m["value"]) for m in cells if m is not None}
            self._of_epoch(epoch["tag"], int(epoch["epoch"]), values, line)
        else:
            self._other(text, line)

    def _other(self, text: str, line: Line) -> None:
        run = self.book.run
        if (world := _WORLD.search(text)) is not None:
            run.facts.world_size = int(world["world"])
        elif (done := _DONE.search(text)) is not None:
            seconds = float(done["seconds"])
            run.measure("total_ns", seconds * 1e9, Unit.NS, better="lower")
            run.event("end", self.book.when(line), text=text.split("|")[-1].strip())
        elif _OVERFLOW.search(text) is not None:
            self.overflows += 1
        elif (saved := _SAVED.search(text)) is not None:
            run.event("checkpoint", self.book.when(line), text=saved["where"])

    def _json(self, match: re.Match[str], line: Line) -> None:
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
        self, values: dict[str, float | None], epoch: int, line: Line, over: str = "interval"
    ) -> None:
        updates = values.get("num_updates")
        self.updates = math.nan if updates is None else updates
        if updates is not None:
            self.book.position(updates)
        run = self.book.run
        wall, done = values.get("wall"), values.get("update")
        when = self.book.when(line)
        is_elapsed = math.isnan(when.seconds) and wall is not None
        point = Point(
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

    def _of_epoch(self, tag: str, epoch: int, values: dict[str, float | None], line: Line) -> None:
        run = self.book.run
        updates = values.get("num_updates")
        point = Point(
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


SOURCE: Final = Source("fairseq", "fairseq", (_JSON, _SIMPLE, _EPOCH), FairseqReader)
