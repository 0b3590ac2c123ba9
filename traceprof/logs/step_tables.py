"""Tables that programs write as they train, a row a step or an epoch: CSV, JSON, lines of JSON.

What their columns are is declared in ``step_tables.toml``, by kinds of tables; names that stand
there nowhere are metrics by that name. The user may declare more columns, in the same words.
"""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from traceprof.errors import TraceError
from traceprof.logs.cells import tables_in
from traceprof.logs.gathered import Book, Gathered, LogPoint
from traceprof.logs.lines import RawLines
from traceprof.logs.rates import rate_named
from traceprof.logs.source import LogSource, declared, number
from traceprof.logs.sources import SOURCES
from traceprof.logs.sources.torch_loops import HfTrainerReader
from traceprof.logs.summary import is_of_evaluation, summary_of
from traceprof.logs.tensorboard import is_event_file, scalars_in
from traceprof.model.summary import SourceFile, Summary

_DECLARED: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("step_tables.toml").read_text("utf-8")
)
_PLACES: Final = frozenset({"step", "_step", "epoch", "elapsed_s", "unix_s", "unix_ms"})
_LIMIT: Final = 1 << 26
_HEAD: Final = 1 << 16
_MOST_COLUMNS: Final = 2_000
_MOST_CELLS: Final = 20_000_000
_MOST_OF_A_TEXT: Final = 1 << 22
_MOST_RESTARTS: Final = 0.25
_SHARES: Final = re.compile(r"(?:train_)?(?:top[15]|accuracy|acc)")
_OF_CHART: Final = re.compile(r"(?P<run>.+) - (?P<metric>.+)")
_RANGE: Final = ("__MIN", "__MAX")
_TAG: Final = re.compile(r".*tag-(?P<tag>.+)")
_RATES_OF_LEARNING: Final = re.compile(r"(?:[^/]*/)?(?:lr|learning_rate)(?:[-/_].*)?")
_HF_RESULTS: Final = re.compile(r"(?:train|eval)_(?:runtime|loss|samples_per_second)")


class TableKind(NamedTuple):
    """A kind of tables: columns that it has, what they are, and what values are over."""

    name: str
    title: str
    has: Sequence[str] = ()
    any: Sequence[str] = ()
    over: str = "step"
    trained: str = ""
    is_mixed: bool = False
    columns: Mapping[str, str] = {}

    def fits(self, names: frozenset[str]) -> bool:
        """Return whether a table with columns ``names`` is of this kind."""
        return names.issuperset(self.has) and (not self.any or not names.isdisjoint(self.any))


_KINDS: Final = tuple(TableKind(**kind) for kind in _DECLARED["kinds"])
_WANDB, _TENSORBOARD = (
    next(kind for kind in _KINDS if kind.name == name) for name in ("wandb", "tensorboard")
)


@dataclass
class StepTable:
    """Numbers by column and row; NaN: a row does not say it. ``run`` names the run, if anything."""

    run: str = ""
    columns: dict[str, array[float]] = field(default_factory=dict)
    count: int = 0
    is_cut: bool = False

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row; what is no number is left out, and rows are once there are too many."""
        if self.count * len(self.columns) > _MOST_CELLS:
            self.is_cut = True
            return
        for name, cell in row.items():
            value = number(cell)
            if value is None or (name not in self.columns and len(self.columns) >= _MOST_COLUMNS):
                continue
            column = self.columns.setdefault(name, array("d"))
            column.extend([math.nan] * (self.count - len(column)))
            column.append(value)
        self.count += 1

    def at(self, name: str, row: int) -> float:
        """Return a cell; NaN: not said."""
        column = self.columns.get(name, ())
        return column[row] if row < len(column) else math.nan


def read_step_tables(path: Path, columns: Mapping[str, str] | None = None) -> list[Summary]:
    """Return the runs of a table that a program wrote as it trained; none where it is no such.

    ``columns`` says what columns are, by their names, in the words of `traceprof.logs.source`.

    Raises:
        TraceError: the file cannot be read.
    """
    columns = columns or {}
    if is_event_file(path):
        return _of_events(path, columns)
    head = "".join(RawLines(path, limit=_HEAD).text()[:_HEAD]).lstrip("\ufeff \t\r\n")
    if head.startswith(("{", "[")):
        return _of_json(path, columns)
    names = next(csv.reader(head.splitlines()[:1], skipinitialspace=True), [])
    names = [name.strip() for name in names]
    if not _is_heading(names, columns):
        return _of_markdown(path, columns)
    lines = (line for line in RawLines(path, limit=_LIMIT) if line.strip())
    rows = csv.reader(lines, skipinitialspace=True)
    next(rows)
    found = (dict(zip(names, row, strict=False)) for row in rows if len(row) <= len(names))
    tables = _tables_of(path, names, found)
    return _summaries(path, tables, columns, _kind_of_heading(names))


def _of_markdown(path: Path, columns: Mapping[str, str]) -> list[Summary]:
    """Return the runs of the tables by steps in a text, such as the card of a model."""
    found = []
    for typed in tables_in(list(RawLines(path, limit=_MOST_OF_A_TEXT))):
        if typed.is_markdown and _is_heading(typed.heading, columns):
            table = StepTable()
            for row in typed.rows:
                table.add(dict(zip(typed.heading, row, strict=True)))
            found.append(table)
    return _summaries(path, found, columns)


def _is_heading(names: Sequence[str], columns: Mapping[str, str]) -> bool:
    """Return whether a CSV file with these columns is by steps or epochs, and not Lightning's."""
    if len(names) < 2 or len(set(names)) < len(names) or any(number(n) is not None for n in names):
        return False
    known = frozenset(names)
    kind = _kind_of_heading(names)
    if {"step", "epoch"} <= known and not columns:
        return False
    places = {columns.get(name, _meaning(kind, name)) for name in names}
    return bool(places & {"step", "_step", "epoch"}) and len(names) > len(known & {"step", "epoch"})


def _kind_of(names: frozenset[str]) -> TableKind:
    return next(kind for kind in _KINDS if kind.fits(names))


def _kind_of_heading(names: Sequence[str]) -> TableKind:
    """Return of which kind a CSV file is; charts of Weights & Biases have columns of runs."""
    is_chart = any(_OF_CHART.fullmatch(name) for name in names)
    return _WANDB if is_chart else _kind_of(frozenset(names))


def _meaning(kind: TableKind, name: str) -> str | None:
    if _RATES_OF_LEARNING.fullmatch(name):
        return ""
    known: str | None = kind.columns.get(name, _DECLARED["columns"].get(name))
    return known


def _tables_of(
    path: Path, names: Sequence[str], rows: Iterator[Mapping[str, Any]]
) -> list[StepTable]:
    """Return the tables in a CSV file: a chart of several runs has one for each."""
    if any(_OF_CHART.fullmatch(name) for name in names):
        return list(_of_chart(names, rows))
    found: dict[str, StepTable] = {}
    is_long = {"key", "value", "step"} <= set(names)
    tag = _TAG.fullmatch(path.stem)
    for row in rows:
        own, told = str(row.get("run_id", "")) if is_long else "", row
        if is_long:
            told = {str(row.get("key", "")): row.get("value"), **_places_of(row)}
        elif "Value" in row and "Step" in row:
            told = {"value" if tag is None else tag["tag"]: row["Value"], **_places_of(row)}
        found.setdefault(own, StepTable(own)).add(told)
    return list(found.values())


def _places_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("step", "timestamp", "Step", "Wall time") if name in row}


def _of_chart(names: Sequence[str], rows: Iterator[Mapping[str, Any]]) -> Iterator[StepTable]:
    """Yield the runs of a chart of Weights & Biases: columns are called "run - metric"."""
    every = list(rows)
    matches = {n: match for n in names if (match := _OF_CHART.fullmatch(n)) is not None}
    for run in dict.fromkeys(match["run"] for match in matches.values()):
        own = {
            name: match["metric"]
            for name, match in matches.items()
            if match["run"] == run and not name.endswith(_RANGE) and match["metric"] != "_step"
        }
        table = StepTable(run)
        for row in every:
            if any(number(row.get(name)) is not None for name in own):
                told = {metric: row.get(name) for name, metric in own.items()}
                table.add({**{n: row.get(n) for n in names if n not in matches}, **told})
        yield table


def _of_json(path: Path, columns: Mapping[str, str]) -> list[Summary]:
    text = RawLines(path, limit=_LIMIT).text()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return _by_steps(path, _rows_of_lines(text), columns)
    if not isinstance(found, dict):
        return _by_steps(path, found if isinstance(found, list) else [], columns)
    history = found.get("log_history")
    if isinstance(history, list):
        return [_of_hf(path, found, history)]
    if any(_HF_RESULTS.fullmatch(str(name)) for name in found):
        return [_of_hf(path, {}, [found])]
    return _by_steps(path, _rows_of_history(found.get("history", found)), columns)


def _rows_of_lines(text: str) -> list[dict[str, Any]]:
    """Return the objects in the lines of a text; none where a line is no object."""
    rows: list[dict[str, Any]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        row = _object(line)
        if row is None:
            # The last line may be cut off.
            return rows if len(rows) > 1 and text.rstrip().endswith(line.strip()) else []
        rows.append(row)
    return rows


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _rows_of_history(history: Any) -> list[dict[str, Any]]:
    """Return the epochs of Keras's history: a list of values, or an object by epoch, a metric."""
    if not isinstance(history, dict) or not history:
        return []
    lists = {
        str(name): list(own.values()) if isinstance(own, dict) else own
        for name, own in history.items()
    }
    if not all(isinstance(own, list) for own in lists.values()):
        return []
    length = max(map(len, lists.values()))
    rows = ({name: own[i] for name, own in lists.items() if i < len(own)} for i in range(length))
    return [{"epoch": i, **row} for i, row in enumerate(rows)]


def _by_steps(path: Path, rows: Sequence[Any], columns: Mapping[str, str]) -> list[Summary]:
    """Return the run of rows that have a step or an epoch; nothing where they have none."""
    table = StepTable()
    for row in rows:
        if isinstance(row, dict):
            table.add({str(name): cell for name, cell in row.items()})
    kind = _kind_of(frozenset(table.columns))
    places = {columns.get(name, _meaning(kind, name)) for name in table.columns}
    is_such = table.count and places & {"step", "_step", "epoch"} and len(table.columns) > 1
    return _summaries(path, [table], columns) if is_such else []


def _of_events(path: Path, columns: Mapping[str, str]) -> list[Summary]:
    """Return the run of an event file of TensorBoard: a row for each number."""
    table, row = StepTable(), dict[str, Any]()
    for tag, step, unix_s, value in scalars_in(path):
        if row and (row["Step"] != step or tag in row):
            table.add(row)
            row = {}
        row |= {"Step": step, "Wall time": row.get("Wall time", unix_s), tag: value}
    table.add(row)
    found = _summaries(path, [table], columns, _TENSORBOARD) if table.count else []
    if not found:
        raise TraceError(f"{path}: the TensorBoard event file contains no scalars")
    return found


def _of_hf(path: Path, state: Mapping[str, Any], history: Sequence[Any]) -> Summary:
    """Return what the files of Hugging Face's Trainer say: its state, or its results."""
    source = next(one for one in SOURCES if one.name == "hf-trainer")
    book = Book()
    reader = HfTrainerReader(book, path.stem, source)
    facts = book.run.facts
    facts.batch_per_device = number(state.get("train_batch_size"))
    for values in history:
        if isinstance(values, dict):
            reader.values({str(name): value for name, value in values.items()})
    reader.end()
    return _summary(path, book.run, source, path.stem)


def _summary(path: Path, run: Gathered, source: LogSource | TableKind, name: str) -> Summary:
    origin = f"log:{source.name}"
    if path.stat().st_size > _LIMIT:
        run.say("the file is large; only the first {n:bytes} were read", n=_LIMIT)
    return summary_of(run, name, origin, SourceFile(str(path), origin, path.stat().st_size))


def _summaries(
    path: Path,
    tables: Sequence[StepTable],
    columns: Mapping[str, str],
    given: TableKind | None = None,
) -> list[Summary]:
    found = []
    for table in tables:
        names = frozenset(table.columns)
        kind = given or _kind_of(names)
        book = Book()
        _fill(book, table, kind, columns)
        runs = [run for run in book.runs if not run.is_empty]
        for number_, run in enumerate(runs, 1):
            name = table.run or path.stem
            if table.is_cut:
                run.say(
                    "the table is large; only the first {n:count} rows were read", n=table.count
                )
            if table.run:
                run.labels["run"] = table.run
            name = f"{name}:{number_}" if len(runs) > 1 else name
            found.append(_summary(path, run, kind, name))
    return found


def _goes_on(steps: Sequence[float]) -> bool:
    """Return whether rows are in the order of steps, but for some restarts."""
    known = [step for step in steps if math.isfinite(step)]
    back = sum(later < step for step, later in pairwise(known))
    return back <= max(1, len(known) * _MOST_RESTARTS)


def _fill(book: Book, table: StepTable, kind: TableKind, columns: Mapping[str, str]) -> None:
    """Note the values of all rows, where they belong; nothing of rows that are no steps."""
    told = {name: columns.get(name, _meaning(kind, name)) for name in table.columns}
    places = {meaning: name for name, meaning in told.items() if meaning in _PLACES}
    values = {name: meaning for name, meaning in told.items() if meaning not in (*_PLACES, "")}
    counts = next((places[name] for name in ("step", "_step", "epoch") if name in places), "")
    if not kind.is_mixed and not _goes_on(table.columns.get(counts, ())):
        return
    epochs = filter(math.isfinite, table.columns.get(places.get("epoch", ""), ()))
    starts_at_0 = counts == places.get("epoch") and min(epochs, default=1.0) == 0
    scales = {name: _scale(name, meaning, table) for name, meaning in values.items()}
    before_s = 0.0
    for row in range(table.count):
        is_trained = not kind.trained or math.isfinite(table.at(kind.trained, row))
        cells = {meaning: table.at(name, row) for meaning, name in places.items()}
        point, elapsed_s = _point(cells, book.clock, starts_at_0=starts_at_0)
        if is_trained and not kind.is_mixed and math.isfinite(table.at(counts, row)):
            book.position(table.at(counts, row))
        run = book.run
        run.facts.has_warmup = kind.over != "epoch"
        if not is_trained and "epoch" in places:
            # Of an evaluation the step is that of the epochs.
            point = point._replace(step=math.nan, epoch=point.step)
        for name, (metric, times, scope, over) in scales.items():
            value = table.at(name, row)
            if math.isfinite(value) and (is_trained or not metric.endswith(("_ns", "_bytes"))):
                over_ = over or ("run" if is_of_evaluation(metric) else kind.over)
                of: dict[str, Any] = {"is_elapsed": True} if math.isfinite(elapsed_s) else {}
                run.metric(metric, value * times, point, scope=scope, over=over_, **of)
        before_s = 0.0 if elapsed_s < before_s else before_s
        if kind.over == "epoch" and elapsed_s > before_s and math.isfinite(point.epoch):
            run.epoch(int(point.epoch), seconds=elapsed_s - before_s, is_elapsed=True)
            before_s = elapsed_s


def _point(cells: Mapping[str, float], clock: Any, *, starts_at_0: bool) -> tuple[LogPoint, float]:
    """Return where a row belongs, and the s since the start, NaN where they are not told."""
    step = cells.get("step", cells.get("_step", math.nan) + 1)
    epoch = cells.get("epoch", math.nan) + starts_at_0
    elapsed_s = cells.get("elapsed_s", math.nan)
    at_s, unix_s = elapsed_s, cells.get("unix_s", cells.get("unix_ms", math.nan) / 1e3)
    if math.isnan(at_s) and math.isfinite(unix_s):
        at_s = clock.since(int(unix_s // 1), unix_s % 1)
    return LogPoint(step, epoch, at_s), elapsed_s


def _scale(name: str, meaning: str | None, table: StepTable) -> tuple[str, float, str, str]:
    """Return of which metric a column is, times what, of whom and over what ("": as its kind)."""
    if meaning is None:
        rate = rate_named(name)
        if rate is not None:
            return rate.name, 1.0, rate.scope, "interval"
        meaning = name
        if not _SHARES.fullmatch(name):
            return name, 1.0, "run", ""
    own = declared(meaning)
    times = own.times / own.by
    known = [value for value in table.columns[name] if math.isfinite(value)]
    if _SHARES.fullmatch(own.metric) and own.by == 1 and max(known, default=0.0) > 1:
        times /= 100.0
    return own.metric, times, own.scope, own.over
