"""What a source of logs is: how it is recognised, and who reads it."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from traceprof.errors import UsageError
from traceprof.logs.gathered import Book, LogPoint
from traceprof.logs.lines import LogLine, seconds_of


class LogReader(ABC):
    """Reads the lines of one log, one at a time, into a `Book`. ``stem`` names its file."""

    def __init__(self, book: Book, stem: str = "") -> None:
        self.book = book
        self.stem = stem

    @abstractmethod
    def read(self, line: LogLine) -> None:
        """Note what ``line`` says; most lines say nothing."""

    def end(self) -> None:
        """Note what follows from a whole run, and forget it: another may follow in the log."""
        return


@dataclass(frozen=True, slots=True)
class LogSource:
    """A program whose logs can be read.

    ``marks`` match lines that it alone prints, anywhere in them; the more of a log they match, the
    more likely it is of this program. Launchers and what else stands beside a program's own lines
    are read with it.
    """

    name: str
    title: str
    marks: tuple[re.Pattern[str], ...]
    reader: type[LogReader]
    is_launcher: bool = False


def number(text: str | None) -> float | None:
    """Return a number as logs print it ("1,024", "3e-4", "nan", "9.5%"), None where it is none."""
    if text is None:
        return None
    text = text.strip().rstrip("%,").replace(",", "")
    if text.lower() in ("nan.0", "-nan"):
        text = "nan"
    try:
        return float(text)
    except ValueError:
        return None


def share(text: str | None) -> float | None:
    """Return what is printed in per cent as a share."""
    value = number(text)
    return None if value is None else value / 100


def first(match: re.Match[str] | Mapping[str, str | None], *names: str) -> str | None:
    """Return the first of the groups ``names`` that matched."""
    own = match.groupdict() if isinstance(match, re.Match) else match
    return next((own[name] for name in names if own.get(name) is not None), None)


_PLACES: Final = frozenset({"step", "epoch", "samples", "elapsed_s", "rank"})
_FACTS: Final = frozenset({"world_size", "devices", "nodes", "global_batch", "batch_per_device"})
_LENGTHS: Final = (("_ns", 1.0), ("_us", 1e3), ("_ms", 1e6), ("_s", 1e9), ("_min", 60e9))
_SCOPES: Final = (("_per_device", "device"), ("_per_rank", "rank"))


def compiled_patterns(patterns: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    """Return the patterns, by the scope and mean that their names say.

    Raises:
        UsageError: one is no regular expression, or has no named group that is a value.
    """
    found = {}
    for name, text in patterns.items():
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise UsageError(f"--pattern {text!r} is no regular expression: {error}") from error
        if not set(pattern.groupindex) - _PLACES:
            raise UsageError(
                f"--pattern {text!r}: name the groups that are values, such as "
                r"(?P<step>\d+) and (?P<samples_per_s>[\d.]+)"
            )
        found[name] = pattern
    return found


class PatternReader(LogReader):
    """Groups called step, epoch, samples, elapsed_s and rank place a value; others are values.

    A name ends with its unit: ``step_period_ms`` becomes step_period_ns, ``top1_percent`` top1.
    ``samples_per_s_per_device`` is of one device. world_size, devices, nodes, global_batch and
    batch_per_device are facts of the run, epoch_s the length of an epoch.
    """

    def __init__(self, book: Book, stem: str, patterns: Mapping[str, re.Pattern[str]]) -> None:
        super().__init__(book, stem)
        self.patterns = patterns
        self.count = 0

    def read(self, line: LogLine) -> None:
        """Note what one line says; a pattern may match it with or without its prefixes."""
        for pattern in self.patterns.values():
            match = pattern.search(line.text) or pattern.search(line.raw)
            if match is not None:
                self.count += 1
                self._match(match, line)

    def _match(self, match: re.Match[str], line: LogLine) -> None:
        texts = {name: text for name, text in match.groupdict().items() if text is not None}
        values = {
            name: value for name, text in texts.items() if (value := number(text)) is not None
        }
        rank = int(values["rank"]) if math.isfinite(values.get("rank", math.nan)) else line.rank
        step, epoch = values.get("step", math.nan), values.get("epoch", math.nan)
        if math.isfinite(step):
            self.book.position(step, 0.0, rank)
        when = self.book.when(line)
        elapsed = seconds_of(texts["elapsed_s"]) if "elapsed_s" in texts else None
        at_s = when.seconds if elapsed is None else elapsed
        point = LogPoint(step, epoch, at_s, values.get("samples", math.nan))
        for name, value in values.items():
            if name not in _PLACES:
                self._value(name, value, point, rank=rank, is_elapsed=elapsed is not None)

    def _value(
        self, name: str, value: float, point: LogPoint, *, rank: int | None, is_elapsed: bool
    ) -> None:
        run = self.book.run
        if name in _FACTS:
            self._fact(name, value)
            return
        if name.startswith("epoch_") and math.isfinite(point.epoch):
            run.epoch(int(point.epoch), seconds=_in_ns(name, value)[1] / 1e9)
            return
        scope = "run"
        for suffix, own in _SCOPES:
            if name.endswith(suffix):
                name, scope = name.removesuffix(suffix), own
        name, value = _in_ns(name, value)
        if name.endswith("_percent"):
            name, value = name.removesuffix("_percent"), value / 100
        over = "interval" if name.endswith(("_per_s", "_ns")) else "step"
        if name in ("top1", "top5", "accuracy") or name.startswith("val_"):
            over = "run"
        run.metric(
            name,
            value,
            point,
            scope=scope,
            over=over,
            rank=rank if scope != "run" else None,
            is_elapsed=is_elapsed,
        )

    def _fact(self, name: str, value: float) -> None:
        if math.isfinite(value):
            whole = name in ("world_size", "devices", "nodes")
            setattr(self.book.run.facts, name, int(value) if whole else value)


def _in_ns(name: str, value: float) -> tuple[str, float]:
    if name.endswith("_per_s"):
        return name, value
    for suffix, factor in _LENGTHS:
        if name.endswith(suffix):
            return name.removesuffix(suffix) + "_ns", value * factor
    return name, value
