"""nanoGPT's train.py."""

from __future__ import annotations

import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number, share
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point

__all__ = ["SOURCE"]

_LINE: Final = re.compile(
    r"iter (?P<step>\d+): loss (?P<loss>nan|-?inf|-?[\d.]+), time (?P<ms>[\d.]+) ?ms"
    r"(?:, mfu (?P<mfu>-?[\d.]+)%)?"
)
_EVALUATED: Final = re.compile(
    r"step (?P<step>\d+): train loss (?P<train>nan|inf|[\d.]+), val loss (?P<val>nan|inf|[\d.]+)"
)
_TOKENS: Final = re.compile(r"tokens per iteration will be: (?P<tokens>[\d,]+)")
_SAVED: Final = re.compile(r"saving checkpoint to (?P<where>\S+)")


class NanoGptReader(Reader):
    """The time is that of one iteration; one that evaluates holds the evaluation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.evaluated = -1

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if (match := _LINE.search(text)) is not None:
            self._step(match, line)
        elif (found := _EVALUATED.search(text)) is not None:
            self.evaluated = int(found["step"])
            point = Point(self.evaluated, at_s=self.book.when(line).seconds)
            for name, group in (("val_loss", "val"), ("eval_train_loss", "train")):
                self.book.run.metric(name, number(found[group]), point, over="run")
            self.book.run.event("evaluation", self.book.when(line), value=self.evaluated)
        elif (tokens := _TOKENS.search(text)) is not None:
            self.book.run.facts.tokens_per_step = number(tokens["tokens"])
        elif (saved := _SAVED.search(text)) is not None:
            self.book.run.event("checkpoint", self.book.when(line), text=saved["where"])

    def _step(self, match: re.Match[str], line: Line) -> None:
        step = int(match["step"])
        self.book.position(step)
        run = self.book.run
        point = Point(step, at_s=self.book.when(line).seconds)
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


SOURCE: Final = Source("nanogpt", "nanoGPT", (_LINE, _EVALUATED), NanoGptReader)
