"""What a source of logs is: its lines, declared as patterns whose groups say what values are.

Groups called step, epoch, samples, elapsed_s and rank place a value; world_size, devices, nodes,
global_batch, batch_per_device and their like are facts of the run; others are values, by a name
that ends with its unit: ``step_period_ms`` becomes step_period_ns, ``top1_percent`` top1.
``samples_per_s_per_device`` is of one device, ``loss__ema`` a smoothed one. ``epoch_s`` is the
length of an epoch, which may be printed as 1:02:03. The user's own patterns are the same.

In declared lines groups that begin with an underscore place a value, too (``_idx`` from 0 or
``_n`` from 1, of ``_total`` steps of an epoch; ``_step`` from 0), tell of an event (``_text``,
``_value``, ``_seconds``) or that values are of an average model (``_ema``), or hold ``_cells``; the
rest is for the method ``then``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from operator import itemgetter
from typing import Any, Final, NamedTuple

from traceprof.logs.gathered import Book, Gathered, LogPoint
from traceprof.logs.lines import LogLine, seconds_of

PLACES: Final = frozenset({"step", "epoch", "samples", "elapsed_s", "rank"})
_COUNTS: Final = frozenset({"world_size", "devices", "nodes", "accumulation"})
_FACTS: Final = _COUNTS | {"global_batch", "batch_per_device", "tokens_per_step", "sequence"}
_SCOPES: Final = (("_per_device", "device"), ("_per_rank", "rank"))
_LAST: Final = 1 << 30
_IN_S: Final = 1e9
_UNITS: Final = (
    ("_ns", "_ns", 1.0, 1.0),
    ("_us", "_ns", 1e3, 1.0),
    ("_ms", "_ns", 1e6, 1.0),
    ("_s", "_ns", _IN_S, 1.0),
    ("_min", "_ns", 60e9, 1.0),
    ("_percent", "", 1.0, 100.0),
    ("_in_mib", "_bytes", 2.0**20, 1.0),
    ("_in_gib", "_bytes", 2.0**30, 1.0),
)


class Declared(NamedTuple):
    """What a value is: of which metric, times what, of whom, and over what ("": by its name)."""

    metric: str
    times: float = 1.0
    by: float = 1.0
    scope: str = "run"
    over: str = ""


@dataclass(frozen=True)
class Pattern:
    """One kind of line: what it matches. ``holds`` is a text without which it is not tried.

    ``over`` is what values are over that do not say it themselves; a line over the whole run tells
    of an evaluation, and does not move the run on. ``at`` is where its values belong: "step", the
    last step that was seen, "epoch", the end of that epoch, else where its groups say.
    ``cells`` matches "key" and "value" (and "mean") in the group ``_cells``, once in each part
    ``between`` separators; ``names`` says what each key is ("": nothing), ``others`` matches those
    of the other keys that are values, too. ``event`` is what happened, ``text`` what is said of it.
    With ``is_first`` facts that are known already stay. ``is_mark``: no other program prints such a
    line. ``then`` is the method of the reader that goes on.
    """

    line: str
    holds: str = ""
    over: str = ""
    at: str = ""
    cells: str = ""
    between: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    others: str = ""
    event: str = ""
    text: str = ""
    then: str = ""
    is_first: bool = False
    is_mark: bool = False

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """What a line of this kind matches."""
        return re.compile(self.line)

    @cached_property
    def values(self) -> tuple[tuple[str, Declared], ...]:
        """The groups that are values, and what they are."""
        groups = self.regex.groupindex
        return tuple(
            (name, declared(name)) for name in groups if name[0] != "_" and name not in PLACES
        )

    @cached_property
    def cell(self) -> re.Pattern[str]:
        """What a cell of such a line matches."""
        return re.compile(self.cells)

    @cached_property
    def known(self) -> dict[str, tuple[int, Declared] | None]:
        """What the cells are that have a name, in the order of these; None: nothing."""
        return {
            key: (place, declared(name)) if name else None
            for place, (key, name) in enumerate(self.names.items())
        }


@cache
def declared(name: str) -> Declared:
    """Return what a value of that name is; see the module."""
    name, _, over = name.partition("__")
    scope, times, by = "run", 1.0, 1.0
    for suffix, own in _SCOPES:
        if name.endswith(suffix) and name not in _FACTS:
            name, scope = name.removesuffix(suffix), own
    if not name.endswith("_per_s"):
        for suffix, unit, times_, by_ in _UNITS:
            if name.endswith(suffix):
                name, times, by = name.removesuffix(suffix) + unit, times_, by_
                break
    return Declared(name, times, by, scope, over)


def _over(name: str) -> str:
    """Return what values of that name are over where nothing says it."""
    if name in ("top1", "top5", "accuracy") or name.startswith("val_"):
        return "run"
    return "interval" if name.endswith(("_per_s", "_ns")) else "step"


class LogReader:
    """Reads the lines of one log, one at a time, into a `Book`. ``stem`` names its file.

    It does so as they are declared: the first pattern that matches says what a line tells. With
    ``by_rank`` values of one rank are kept apart, by the rank that prefixes of lines name.
    ``step``, ``epoch`` and ``total`` are the last of the training that were seen.
    """

    by_rank = False
    step = math.nan
    epoch: int | None = None
    total = 0

    def __init__(self, book: Book, stem: str, source: LogSource) -> None:
        self.book = book
        self.stem = stem
        self.source = source
        self._means: dict[int | None, tuple[int, int, float]] = {}
        self.begin()

    @property
    def run(self) -> Gathered:
        """The run that is at work."""
        return self.book.run

    def period_s(self, rank: int | None, epoch: int, done: int, mean_s: float) -> float | None:
        """Return the s of a step since the line before; None where that was of another epoch.

        Of lines that print means since their epoch began: such a mean holds the first step of the
        epoch, which is longer than others.
        """
        before = self._means.get(rank)
        self._means[rank] = (epoch, done, mean_s)
        if before is None or before[0] != epoch or done <= before[1]:
            return None
        spent = done * mean_s - before[1] * before[2]
        return spent / (done - before[1]) if spent > 0 else None

    def at_s(self, line: LogLine) -> float:
        """Return when ``line`` was written, in s of the log's clock; NaN where it does not say."""
        return self.book.when(line).seconds

    def begin(self) -> None:
        """Know nothing: a log begins, or another run in it."""

    def end(self) -> None:
        """Note what follows from a whole run, and forget it: another may follow in the log."""

    def look_ahead(self, lines: Sequence[LogLine]) -> None:
        """Know the lines that are read next."""

    def read(self, line: LogLine) -> None:
        """Note what ``line`` says; most lines say nothing."""
        for pattern in self.source.patterns:
            if pattern.holds in line.text and (match := pattern.regex.search(line.text)):
                self.take(pattern, match, line)
                return

    def take(self, pattern: Pattern, match: re.Match[str], line: LogLine) -> None:
        """Note what a line of the kind ``pattern`` says."""
        texts = {name: text for name, text in match.groupdict().items() if text is not None}
        point = self.take_groups(pattern, texts, line, match[0])
        if pattern.then:
            getattr(self, pattern.then)(match, point, line)

    def take_groups(
        self, pattern: Pattern, texts: Mapping[str, str], line: LogLine, matched: str
    ) -> LogPoint:
        """Note what the groups of a pattern hold; return where that belongs."""
        values = [(value, texts[name]) for name, value in pattern.values if name in texts]
        if "_cells" in texts:
            values += self._values_in(pattern, texts["_cells"])
        rank = self._rank(texts, line)
        point = self._place(pattern, texts, rank)
        if values or pattern.event:
            elapsed = texts.get("elapsed_s")
            at_s = self.at_s(line) if elapsed is None else seconds_of(elapsed)
            point = point._replace(at_s=self.at_s(line) if at_s is None else at_s)
        of: dict[str, Any] = {"is_elapsed": True} if "elapsed_s" in texts else {}
        if "_ema" in texts:
            values = [(value._replace(metric=f"{value.metric}_ema"), own) for value, own in values]
        for value, text in values:
            self._value(pattern, value, text, point, rank, of)
        if pattern.event and (values or not pattern.cells):
            self._event(pattern, matched, texts, line)
        return point

    def other(self, _pattern: Pattern, key: str) -> Declared:
        """Return what a cell is whose key has no name of ours."""
        return Declared(key)

    def _values_in(self, pattern: Pattern, cells: str) -> list[tuple[Declared, str]]:
        """Return what the cells of a line hold: those with a name in that order, then others."""
        parts = cells.split(pattern.between) if pattern.between else [cells]
        found = []
        for match in (one for part in parts for one in pattern.cell.finditer(part.strip())):
            key = match["key"].strip()
            own = pattern.known.get(key)
            if pattern.others and own is None and key not in pattern.names:
                is_value = re.fullmatch(pattern.others, key) is not None
                own = (_LAST, self.other(pattern, key)) if is_value else None
            if own is not None:
                text = match["value"]
                if own[1].over == "epoch" and "mean" in pattern.cell.groupindex:
                    text = match["mean"] or text
                found.append((*own, text))
        found.sort(key=itemgetter(0))
        return [(value, text) for _, value, text in found]

    def done(self, idx: int, _total: int) -> int:
        """Return how many steps of an epoch are done at step ``idx`` of it, counted from 0."""
        return idx + 1

    def _rank(self, texts: Mapping[str, str], line: LogLine) -> int | None:
        own = number(texts.get("rank"))
        if own is not None and math.isfinite(own):
            return int(own)
        return line.rank if self.by_rank else None

    def _place(self, pattern: Pattern, texts: Mapping[str, str], rank: int | None) -> LogPoint:
        step, epoch, samples = (
            math.nan if (found := number(texts.get(name))) is None else found
            for name in ("step", "epoch", "samples")
        )
        if "_step" in texts:
            step = float(texts["_step"]) + 1
        if "_idx" in texts or "_n" in texts:
            step, epoch = self._place_in_epoch(texts, int(epoch), rank)
        elif pattern.at == "step":
            step = self.step
        elif pattern.at == "epoch":
            last = self.epoch if math.isnan(epoch) else epoch
            epoch = math.nan if last is None else last + 1
            step = epoch * self.total if self.total else math.nan
        elif math.isfinite(step) and pattern.over != "run":
            self.book.position(step, 0.0, rank)
            self.step = step
        return LogPoint(step, epoch, samples=samples)

    def _place_in_epoch(
        self, texts: Mapping[str, str], epoch: int, rank: int | None
    ) -> tuple[float, float]:
        """Return step and epoch, both as how much is done, of a line that counts anew in each.

        Where the steps of an epoch are not told, those of the first epoch alone have a place.
        """
        first = 1 if "_n" in texts else 0
        at = int(texts["_n" if first else "_idx"])
        self.book.position(at, epoch, rank)
        if "_total" not in texts:
            self.epoch = epoch if self.epoch is None else self.epoch
            return (float(at + 1 - first) if epoch == self.epoch else math.nan), math.nan
        total = int(texts["_total"])
        done = at if first else self.done(at, total)
        self.epoch, self.total = epoch, total
        self.step = float((epoch - first) * total + done)
        self.run.epoch(epoch, steps=total)
        return self.step, epoch - first + done / total

    def _value(
        self,
        pattern: Pattern,
        value: Declared,
        text: str,
        point: LogPoint,
        rank: int | None,
        of: dict[str, Any],
    ) -> None:
        name = value.metric
        if name == "workload":
            self.run.workload = text.strip("'")
            return
        found = _length_s(text) if value.times == _IN_S else number(text)
        if found is None:
            return
        found = found * value.times / value.by
        if name in _FACTS:
            self._fact(name, found, is_first=pattern.is_first)
        elif name == "total_ns":
            self.run.measure(name, found)
        elif name == "epoch_ns" and math.isfinite(point.epoch):
            self.run.epoch(int(point.epoch) - (pattern.at == "epoch"), seconds=found / 1e9)
        else:
            over = value.over or pattern.over or _over(name)
            if rank is not None and value.scope != "run":
                of = of | {"rank": rank}
            self.note(name, found, point, scope=value.scope, over=over, **of)

    def note(self, name: str, value: float, point: LogPoint, **of: Any) -> None:
        """Note a value of a metric, and what must be read with it."""
        self.run.metric(name, value, point, **of)
        if name in self.source.says:
            self.run.say(self.source.says[name])

    def _fact(self, name: str, value: float, *, is_first: bool) -> None:
        known = getattr(self.run.facts, name)
        if math.isfinite(value) and not (is_first and known):
            setattr(self.run.facts, name, int(value) if name in _COUNTS else value)

    def _event(
        self, pattern: Pattern, matched: str, texts: Mapping[str, str], line: LogLine
    ) -> None:
        seconds, value = texts.get("_seconds"), texts.get("_value")
        said = texts.get("_text") or pattern.text.format(match=matched, line=line.text.strip())
        epoch = number(texts.get("epoch")) or self.epoch
        self.run.event(
            pattern.event,
            self.book.when(line),
            None if seconds is None else _length_s(seconds),
            epoch=epoch if pattern.event == "evaluation" else None,
            value=None if value is None else int(value),
            text=said.strip(),
        )


@dataclass(frozen=True, slots=True)
class LogSource:
    """A program whose logs can be read.

    ``marks``, and the patterns that are marks, match lines that it alone prints, anywhere in them;
    the more of a log they match, the more likely it is of this program. ``says`` is what must be
    read with a metric, ``reader`` the module and the class that read what lines do not say.
    Launchers and what else stands beside a program's own lines are read with it. A source that
    ``is_decisive`` has lines that are made for programs: one of them says what a log is, whatever
    else is printed beside it.
    """

    name: str
    title: str
    patterns: tuple[Pattern, ...] = ()
    reader: str = ""
    marks: tuple[str, ...] = ()
    says: Mapping[str, str] = field(default_factory=dict)
    is_launcher: bool = False
    is_decisive: bool = False

    def all_marks(self) -> tuple[re.Pattern[str], ...]:
        """Return what only its lines match."""
        own = (one.regex for one in self.patterns if one.is_mark)
        return (*own, *map(re.compile, self.marks))


def source_of(name: str, table: Mapping[str, Any]) -> LogSource:
    """Return a source as it is declared: texts that are split into parts are joined."""
    own = {key: value for key, value in table.items() if key not in ("lines", "marks")}
    patterns = [
        Pattern(**one | {key: "".join(one.get(key, "")) for key in ("line", "cells")})
        for one in table.get("lines", ())
    ]
    marks = tuple("".join(parts) for parts in table.get("marks", ()))
    return LogSource(name, patterns=tuple(patterns), marks=marks, **own)


def number(printed: object) -> float | None:
    """Return a number as logs print it ("1,024", "3e-4", "nan", "9.5%"), None where it is none."""
    if printed is None or isinstance(printed, bool):
        return None
    text = str(printed)
    try:
        return float(text)
    except ValueError:
        text = text.strip().rstrip("%,").replace(",", "")
    if text.lower() in ("nan.0", "-nan"):
        return math.nan
    try:
        return float(text)
    except ValueError:
        return None


def json_in(text: str) -> Any:
    """Return what a text is in JSON; itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _length_s(text: str) -> float | None:
    return seconds_of(text) if ":" in text else number(text)
