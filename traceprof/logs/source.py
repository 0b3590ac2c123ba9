"""Define sources of logs: lines, declared as patterns whose named groups are values.

Groups named step, epoch, samples, elapsed_s, and rank are the position of a value. world_size,
devices, nodes, global_batch, batch_per_device, and so on are facts of the run. Every other group is
a value with a name that ends with its unit: ``step_period_ms`` becomes step_period_ns,
``top1_percent`` becomes top1. ``samples_per_s_per_device`` applies to one device, ``loss__ema`` is
a smoothed value. ``epoch_s`` is the duration of an epoch, which may be printed as 1:02:03. User
patterns have the same groups.

In declared lines, groups with a leading underscore have more meanings. ``_idx`` (from 0) or ``_n``
(from 1) of ``_total`` steps in an epoch and ``_step`` (from 0) are positions. ``_text``,
``_value``, and ``_seconds`` describe an event. ``_ema`` means that values belong to an averaged
model. ``_cells`` contains cells. The method ``then`` handles all other groups.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple

from traceprof.logs.gathered import CollectedRun, LogPoint, LogRuns
from traceprof.logs.lines import LogLine, seconds_of

PLACES: Final = frozenset({"step", "epoch", "samples", "elapsed_s", "rank"})
_COUNTS: Final = frozenset({"world_size", "devices", "nodes", "accumulation"})
_FACTS: Final = _COUNTS | {"global_batch", "batch_per_device", "tokens_per_step", "sequence"}
_SCOPES: Final = (("_per_device", "device"), ("_per_rank", "rank"))
_LAST_PLACE: Final = 1 << 30
_NS_PER_S: Final = 1e9
_UNITS: Final = (
    ("_ns", "_ns", 1.0, 1.0),
    ("_us", "_ns", 1e3, 1.0),
    ("_ms", "_ns", 1e6, 1.0),
    ("_s", "_ns", _NS_PER_S, 1.0),
    ("_min", "_ns", 60e9, 1.0),
    ("_percent", "", 1.0, 100.0),
    ("_in_mib", "_bytes", 2.0**20, 1.0),
    ("_in_gib", "_bytes", 2.0**30, 1.0),
)


class Declared(NamedTuple):
    """The meaning of a value.

    The printed number times ``times`` divided by ``by`` is the value of ``metric``. ``scope`` is
    run, device, or rank. ``over`` is the span of the value; "" selects the default of the metric.
    """

    metric: str
    times: float = 1.0
    by: float = 1.0
    scope: str = "run"
    over: str = ""


@dataclass(frozen=True)
class Pattern:
    """One kind of line.

    Attributes:
        line: the regular expression that the line matches.
        holds: a text that the line must contain; the regular expression is tried only if it does.
        over: the span of values that do not define their span. A line over the whole run belongs to
            an evaluation and does not change the position of the run.
        at: the position of its values: "step", the last step that was read; "epoch", the end of
            that epoch; "", the position in its groups.
        cells: a regular expression that matches "key" and "value" (and "mean") in the group
            ``_cells``, once in each part.
        between: the separator of these parts.
        names: the meaning of each key ("": ignored).
        others: a regular expression for other keys that are values, too.
        event: the kind of event that the line reports.
        text: the text of this event.
        then: the method of the reader that continues with the line.
        is_first: facts that are known already remain unchanged.
        is_mark: no other program prints this line.
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
        """The compiled regular expression of the line."""
        return re.compile(self.line)

    @cached_property
    def values(self) -> tuple[tuple[str, Declared], ...]:
        """The groups that are values, with their meanings."""
        groups = self.regex.groupindex
        return tuple(
            (name, declared(name)) for name in groups if name[0] != "_" and name not in PLACES
        )

    @cached_property
    def cell(self) -> re.Pattern[str]:
        """The compiled regular expression of a cell."""
        return re.compile(self.cells)

    @cached_property
    def known(self) -> dict[str, tuple[int, Declared] | None]:
        """The named cells: their place in the order of ``names`` and their meaning.

        None if ignored.
        """
        return {
            key: (place, declared(name)) if name else None
            for place, (key, name) in enumerate(self.names.items())
        }


@cache
def declared(name: str) -> Declared:
    """Return the meaning of a value by its name; the module docstring defines the names."""
    name, _, over = name.partition("__")
    scope, times, by = "run", 1.0, 1.0
    for suffix, named_scope in _SCOPES:
        if name.endswith(suffix) and name not in _FACTS:
            name, scope = name.removesuffix(suffix), named_scope
    if not name.endswith("_per_s"):
        for suffix, unit, times_, by_ in _UNITS:
            if name.endswith(suffix):
                name, times, by = name.removesuffix(suffix) + unit, times_, by_
                break
    return Declared(name, times, by, scope, over)


def _default_over(name: str) -> str:
    """Return the default span of values with this name."""
    if name in ("top1", "top5", "accuracy") or name.startswith("val_"):
        return "run"
    return "interval" if name.endswith(("_per_s", "_ns")) else "step"


class LogReader:
    """Read the lines of one log, one at a time, into a `LogRuns`.

    The first declared pattern that matches defines the meaning of a line. ``stem`` is the name of
    the log file without suffixes. With ``by_rank``, values of one rank are stored separately, by
    the rank in the prefix of the line. ``step``, ``epoch``, and ``total`` (steps per epoch) are the
    last ones that were read.
    """

    by_rank = False
    step = math.nan
    epoch: int | None = None
    total = 0

    def __init__(self, book: LogRuns, stem: str, source: LogSource) -> None:
        self.book = book
        self.stem = stem
        self.source = source
        self._means: dict[int | None, tuple[int, int, float]] = {}
        self.begin()

    @property
    def run(self) -> CollectedRun:
        """The current run."""
        return self.book.run

    def period_s(self, rank: int | None, epoch: int, done: int, mean_s: float) -> float | None:
        """Return the seconds per step since the previous line; None if that was in another epoch.

        Use it for lines that print a mean since the start of the epoch. This mean contains the
        first step of the epoch, which takes longer than others.
        """
        before = self._means.get(rank)
        self._means[rank] = (epoch, done, mean_s)
        if before is None or before[0] != epoch or done <= before[1]:
            return None
        spent = done * mean_s - before[1] * before[2]
        return spent / (done - before[1]) if spent > 0 else None

    def at_s(self, line: LogLine) -> float:
        """Return the timestamp of ``line`` in seconds of the log's clock; NaN if it has none."""
        return self.book.when(line).seconds

    def begin(self) -> None:
        """Reset the state at the start of a log or run."""

    def end(self) -> None:
        """Store what follows from a complete run, and reset the state for the next run."""

    def look_ahead(self, lines: Sequence[LogLine]) -> None:
        """Prepare for the lines that are read next."""

    def read(self, line: LogLine) -> None:
        """Store the values of ``line``; most lines have none."""
        for pattern in self.source.patterns:
            if pattern.holds in line.text and (match := pattern.regex.search(line.text)):
                self.take(pattern, match, line)
                return

    def take(self, pattern: Pattern, match: re.Match[str], line: LogLine) -> None:
        """Store the values of a line that matches ``pattern``."""
        texts = {name: text for name, text in match.groupdict().items() if text is not None}
        point = self.take_groups(pattern, texts, line, match[0])
        if pattern.then:
            getattr(self, pattern.then)(match, point, line)

    def take_groups(
        self, pattern: Pattern, texts: Mapping[str, str], line: LogLine, matched: str
    ) -> LogPoint:
        """Store the values of a pattern's groups; return their position."""
        values = [(value, texts[name]) for name, value in pattern.values if name in texts]
        if "_cells" in texts:
            values += self._values_in_cells(pattern, texts["_cells"])
        rank = self._rank(texts, line)
        point = self._place(pattern, texts, rank)
        if values or pattern.event:
            elapsed = texts.get("elapsed_s")
            at_s = self.at_s(line) if elapsed is None else seconds_of(elapsed)
            point = point._replace(at_s=self.at_s(line) if at_s is None else at_s)
        options: dict[str, Any] = {"is_elapsed": True} if "elapsed_s" in texts else {}
        if "_ema" in texts:
            values = [
                (value._replace(metric=f"{value.metric}_ema"), cell) for value, cell in values
            ]
        for value, text in values:
            self._note_value(pattern, value, text, point, rank, options)
        if pattern.event and (values or not pattern.cells):
            self._note_event(pattern, matched, texts, line)
        return point

    def other(self, _pattern: Pattern, key: str) -> Declared:
        """Return the meaning of a cell whose key has no declared name."""
        return Declared(key)

    def _values_in_cells(self, pattern: Pattern, cells: str) -> list[tuple[Declared, str]]:
        """Return the values in the cells of a line, named cells first, in declared order."""
        parts = cells.split(pattern.between) if pattern.between else [cells]
        found = []
        for match in chain.from_iterable(pattern.cell.finditer(part.strip()) for part in parts):
            key = match["key"].strip()
            known = pattern.known.get(key)
            if pattern.others and known is None and key not in pattern.names:
                is_value = re.fullmatch(pattern.others, key) is not None
                known = (_LAST_PLACE, self.other(pattern, key)) if is_value else None
            if known is not None:
                text = match["value"]
                if known[1].over == "epoch" and "mean" in pattern.cell.groupindex:
                    text = match["mean"] or text
                found.append((*known, text))
        found.sort(key=itemgetter(0))
        return [(value, text) for _, value, text in found]

    def done(self, idx: int, _total: int) -> int:
        """Return the number of finished steps of an epoch at step ``idx``, counted from 0."""
        return idx + 1

    def _rank(self, texts: Mapping[str, str], line: LogLine) -> int | None:
        rank = number(texts.get("rank"))
        if rank is not None and math.isfinite(rank):
            return int(rank)
        return line.rank if self.by_rank else None

    def _place(self, pattern: Pattern, texts: Mapping[str, str], rank: int | None) -> LogPoint:
        """Return the position of a line, and update the position of the run."""
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
        """Return finished steps and epochs for a line that counts the steps of each epoch.

        If the steps per epoch are unknown, only the steps of the first epoch have a position.
        """
        first_index = 1 if "_n" in texts else 0
        at = int(texts["_n" if first_index else "_idx"])
        self.book.position(at, epoch, rank)
        if "_total" not in texts:
            self.epoch = epoch if self.epoch is None else self.epoch
            return (float(at + 1 - first_index) if epoch == self.epoch else math.nan), math.nan
        total = int(texts["_total"])
        n_done = at if first_index else self.done(at, total)
        self.epoch, self.total = epoch, total
        self.step = float((epoch - first_index) * total + n_done)
        self.run.epoch(epoch, steps=total)
        return self.step, epoch - first_index + n_done / total

    def _note_value(
        self,
        pattern: Pattern,
        value: Declared,
        text: str,
        point: LogPoint,
        rank: int | None,
        options: dict[str, Any],
    ) -> None:
        """Store a value as the workload, a fact, a measure, an epoch, or a metric, by its name."""
        name = value.metric
        if name == "workload":
            self.run.workload = text.strip("'")
            return
        found = _duration_s(text) if value.times == _NS_PER_S else number(text)
        if found is None:
            return
        found = found * value.times / value.by
        if name in _FACTS:
            self._note_fact(name, found, is_first=pattern.is_first)
        elif name == "total_ns":
            self.run.measure(name, found)
        elif name == "epoch_ns" and math.isfinite(point.epoch):
            self.run.epoch(int(point.epoch) - (pattern.at == "epoch"), seconds=found / 1e9)
        else:
            over = value.over or pattern.over or _default_over(name)
            if rank is not None and value.scope != "run":
                options = options | {"rank": rank}
            self.note(name, found, point, scope=value.scope, over=over, **options)

    def note(self, name: str, value: float, point: LogPoint, **of: Any) -> None:
        """Store a value of a metric, and the note that its source declares for this metric."""
        self.run.metric(name, value, point, **of)
        if name in self.source.says:
            self.run.say(self.source.says[name])

    def _note_fact(self, name: str, value: float, *, is_first: bool) -> None:
        known = getattr(self.run.facts, name)
        if math.isfinite(value) and not (is_first and known):
            setattr(self.run.facts, name, int(value) if name in _COUNTS else value)

    def _note_event(
        self, pattern: Pattern, matched: str, texts: Mapping[str, str], line: LogLine
    ) -> None:
        seconds, value = texts.get("_seconds"), texts.get("_value")
        event_text = texts.get("_text") or pattern.text.format(
            match=matched, line=line.text.strip()
        )
        epoch = number(texts.get("epoch")) or self.epoch
        self.run.event(
            pattern.event,
            self.book.when(line),
            None if seconds is None else _duration_s(seconds),
            epoch=epoch if pattern.event == "evaluation" else None,
            value=None if value is None else int(value),
            text=event_text.strip(),
        )


@dataclass(frozen=True, slots=True)
class LogSource:
    """A program whose logs can be read.

    Attributes:
        name: the value of ``source``.
        title: the name for people.
        patterns: its lines.
        reader: "module:class" of the reader that handles what patterns cannot describe; "" if none.
        marks: regular expressions for lines that only this program prints, in addition to patterns
            with ``is_mark``. The program with the most matches in a log is the most likely one.
        says: notes, by the metric to which they apply.
        is_launcher: its lines are read with those of any program.
        fallback: above 0, lines of scripts, which also occur in logs of other programs. Sources
            with a smaller number are preferred.
        is_decisive: a single line identifies the log, because these lines are made for programs to
            read.
    """

    name: str
    title: str
    patterns: tuple[Pattern, ...] = ()
    reader: str = ""
    marks: tuple[str, ...] = ()
    says: Mapping[str, str] = field(default_factory=dict)
    is_launcher: bool = False
    fallback: int = 0
    is_decisive: bool = False

    def all_marks(self) -> tuple[re.Pattern[str], ...]:
        """Return all regular expressions that only lines of this program match."""
        patterns = (pattern.regex for pattern in self.patterns if pattern.is_mark)
        return (*patterns, *map(re.compile, self.marks))


def make_source(name: str, table: Mapping[str, Any]) -> LogSource:
    """Return a source from its declaration.

    Regular expressions that are lists of parts are joined.
    """
    options = {key: value for key, value in table.items() if key not in ("lines", "marks")}
    patterns = [
        Pattern(**line | {key: "".join(line.get(key, "")) for key in ("line", "cells")})
        for line in table.get("lines", ())
    ]
    marks = tuple("".join(parts) for parts in table.get("marks", ()))
    return LogSource(name, patterns=tuple(patterns), marks=marks, **options)


def number(printed: object) -> float | None:
    """Return a number as logs print it ("1,024", "3e-4", "nan", "9.5%").

    None if it is no number.
    """
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
    """Return the decoded JSON of a text, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _duration_s(text: str) -> float | None:
    return seconds_of(text) if ":" in text else number(text)
