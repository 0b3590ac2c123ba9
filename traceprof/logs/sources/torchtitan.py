"""torchtitan."""

from __future__ import annotations

import math
import re
from functools import reduce
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number, share
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point

__all__ = ["SOURCE"]

_LINE: Final = re.compile(
    r"(?P<validate>validate )?\bstep:\s*(?P<step>\d{1,12})\s+(?P<pairs>.{0,400}?\btps:\s*[\d,.]+.*)"
)
_PAIR: Final = re.compile(r"(?P<key>[A-Za-z_/][\w/]*):\s*(?P<value>N/A|nan|-?inf|[-\d.,e+]+)")
_MESH: Final = re.compile(r"device mesh with \[[^\]]*\], \[(?P<sizes>[\d, ]+)\]")
_WORLD: Final = re.compile(r"(?:world[ _]size[:= ]+|WORLD_SIZE=)(?P<world>\d+)", re.IGNORECASE)
_BATCH: Final = re.compile(
    r"global batch size (?P<global>\d+)|sequence length (?P<sequence>\d+)"
    r"|local batch size (?P<local>\d+)"
)
_SAVED: Final = re.compile(r"Finished saving the checkpoint.*?in (?P<seconds>[\d.]+) seconds")
_GIB: Final = re.compile(r"memory:\s*(?P<gib>[\d.]+)GiB")


class TorchtitanReader(Reader):
    """Tokens per second are of one device; all ranks may print, and their loss is the same."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sequence: float | None = None

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if "tps:" in text and (match := _LINE.search(text)) is not None:
            self._step(match, line)
        elif (mesh := _MESH.search(text)) is not None:
            sizes = [int(size) for size in mesh["sizes"].replace(" ", "").split(",") if size]
            self.book.run.facts.world_size = reduce(lambda a, b: a * b, sizes, 1)
        elif "batch size" in text or "sequence length" in text:
            self._batch(text)
        elif (saved := _SAVED.search(text)) is not None:
            seconds = number(saved["seconds"])
            self.book.run.event("checkpoint", self.book.when(line), seconds, text="saved")
        elif (world := _WORLD.search(text)) is not None:
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

    def _step(self, match: re.Match[str], line: Line) -> None:
        step = int(match["step"])
        run = self.book.run
        values = {m["key"]: number(m["value"]) for m in _PAIR.finditer(match["pairs"])}
        point = Point(step, at_s=self.book.when(line).seconds)
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


SOURCE: Final = Source("torchtitan", "torchtitan", (_LINE,), TorchtitanReader)
