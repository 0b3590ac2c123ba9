"""MXNet: the Speedometer of its Module API, Gluon scripts and GluonCV."""

from __future__ import annotations

import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source, number
from traceprof.logs.cleaning import Line
from traceprof.logs.series import Point

__all__ = ["SOURCE"]

_SPEED: Final = re.compile(
    r"(?:(?:Epoch|Iter) ?\[(?P<epoch>\d+)\],? ?Batch ?\[(?:(?P<from>\d+)-)?(?P<batch>\d+)\]"
    r"|\[Epoch (?P<gepoch>\d+)\]\s*\[Batch (?P<gbatch>\d+)\],?)\s*"
    r"Speed: (?P<speed>[\d.]+|inf) samples/s(?:ec)?,?\s*(?P<metrics>.*)$"
)
_EPOCH: Final = re.compile(
    r"(?:Epoch ?\[(?P<epoch>\d+)\]|\[Epoch (?P<gepoch>\d+)\]) "
    r"(?P<key>Train-[\w-]+|Validation-[\w-]+|Time cost"
    r"|(?:training|validation|train|val): (?:[\w-]+))\s*[=:]\s*(?P<value>[\d.]+|nan)"
)
_GLUON: Final = re.compile(
    r"\[Epoch (?P<epoch>\d+)\] speed: (?P<speed>[\d.]+) samples/sec\s+time cost: (?P<cost>[\d.]+)"
)
_PAIR: Final = re.compile(r"(?P<key>[A-Za-z][\w-]*)=(?P<value>nan|-?inf|-?[\d.e+-]+)")
_SAVED: Final = re.compile(r"Saved checkpoint to \"?(?P<where>[^\"\s]+)")


class MxnetReader(Reader):
    """Speed is of the batch that the callback was given: that of one worker."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.before: tuple[int, int] | None = None
        self.per_epoch = 0

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if "Speed:" in text and (speed := _SPEED.search(text)) is not None:
            self._speed(speed, line)
        elif (epoch := _EPOCH.search(text)) is not None:
            self._epoch(epoch, line)
        elif (gluon := _GLUON.search(text)) is not None:
            number_of = int(gluon["epoch"])
            self.book.run.epoch(number_of, seconds=number(gluon["cost"]))
            self.book.run.metric(
                "samples_per_s",
                number(gluon["speed"]),
                Point(epoch=number_of + 1),
                scope="rank",
                over="epoch",
            )
        elif (saved := _SAVED.search(text)) is not None:
            self.book.run.event("checkpoint", self.book.when(line), text=saved["where"])

    def _speed(self, match: re.Match[str], line: Line) -> None:
        epoch = int(match["epoch"] or match["gepoch"])
        batch = int(match["batch"] or match["gbatch"])
        self.book.position(batch, epoch, line.rank)
        run = self.book.run
        point = Point(batch, epoch, self.book.when(line).seconds)
        rate = number(match["speed"])
        run.metric("samples_per_s", rate, point, scope="rank", rank=line.rank, over="interval")
        for pair in _PAIR.finditer(match["metrics"]):
            name = _named(pair["key"].lower().removeprefix("train-"))
            name = name if name.startswith("train_") or "loss" in name else f"train_{name}"
            run.metric(
                name, number(pair["value"]), point, scope="rank", rank=line.rank, over="interval"
            )

    def _epoch(self, match: re.Match[str], line: Line) -> None:
        run = self.book.run
        epoch = int(match["epoch"] or match["gepoch"])
        value, key = number(match["value"]), match["key"].lower()
        point = Point(epoch=epoch + 1, at_s=self.book.when(line).seconds)
        if ": err-" in key and value is not None:
            key, value = key.replace("err-", ""), 1 - value
        if key == "time cost":
            run.epoch(epoch, seconds=value)
        elif key.startswith("val"):
            name = _named(re.split(r"-|: ", key, maxsplit=1)[1])
            run.metric(name.replace("loss", "val_loss"), value, point, over="run")
        else:
            name = _named(re.split(r"-|: ", key, maxsplit=1)[1])
            run.metric(f"train_{name}", value, point, scope="rank", over="epoch")
        run.epoch(epoch)

    def end(self) -> None:
        """Say whose the speed is."""
        self.book.run.say(
            "the speed is that of one worker: it is not known how many trained together"
        )


def _named(key: str) -> str:
    if key in ("accuracy", "acc", "top-1", "top1"):
        return "top1"
    if key in ("top_k_accuracy_5", "top-5", "top5"):
        return "top5"
    return key.replace("-", "_")


SOURCE: Final = Source("mxnet", "MXNet", (_SPEED, _EPOCH, _GLUON), MxnetReader)
