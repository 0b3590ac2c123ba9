"""Read tables that programs write during training, with a row per step or epoch: CSV, JSON, JSONL.

``step_tables.toml`` declares the meanings of columns for each kind of table. An undeclared column
is a metric with that name. The user can declare more columns with the same words.
"""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from traceprof.errors import TraceError
from traceprof.logs.cells import find_rate, find_step_time
from traceprof.logs.gathered import CollectedRun, LogPoint, LogRuns
from traceprof.logs.lines import DAMAGED, RawLines, damage_of, seconds_of
from traceprof.logs.source import LogSource, declared, number
from traceprof.logs.sources import SOURCES
from traceprof.logs.sources.torch_loops import HfTrainerReader
from traceprof.logs.step_rows import (
    columns_of_text,
    rows_of_history,
    rows_of_lines,
    rows_of_scalars,
)
from traceprof.logs.summary import is_evaluation_metric, summary_of
from traceprof.logs.tensorboard import is_event_file, scalars_in
from traceprof.logs.typed_tables import TypedTable, tables_in
from traceprof.model.results import Note
from traceprof.model.summary import SourceFile, Summary

_DECLARED: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("step_tables.toml").read_text("utf-8")
)
_PLACES: Final = frozenset({"step", "_step", "epoch", "elapsed_s", "unix_s", "unix_ms"})
_MAX_READ_CHARS: Final = 1 << 26
_HEAD_CHARS: Final = 1 << 16
_MAX_COLUMNS: Final = 2_000
_MAX_CELLS: Final = 20_000_000
_MAX_TEXT_CHARS: Final = 1 << 22
_MAX_RESTART_RATIO: Final = 0.25
_ACCURACY: Final = re.compile(r"(?:train_)?(?:top[15]|accuracy|acc)")
_CHART_COLUMN: Final = re.compile(r"(?P<run>.+) - (?P<metric>.+)")
_RANGE_SUFFIXES: Final = ("__MIN", "__MAX")
_LAST_VALUES: Final = frozenset({"_step", "_runtime", "_timestamp"})
"""Names in wandb-summary.json, which contains the last value of each metric."""
_TAG: Final = re.compile(r".*tag-(?P<tag>.+)")
_LEARNING_RATE: Final = re.compile(r"(?:[^/]*/)?(?:lr|learning_rate)(?:[-/_].*)?")
_HF_RESULTS: Final = re.compile(r"(?:train|eval)_(?:runtime|loss|samples_per_second)")


class TableKind(NamedTuple):
    """A kind of table.

    It applies to tables that contain all columns ``has`` and at least one column of ``any``.
    ``over`` is the default span of its values. Rows without a value in the column ``trained`` are
    evaluations. The rows of a table with ``is_mixed`` are in no order of steps.
    """

    name: str
    title: str
    has: Sequence[str] = ()
    any: Sequence[str] = ()
    over: str = "step"
    trained: str = ""
    is_mixed: bool = False
    columns: Mapping[str, str] = {}

    def fits(self, names: frozenset[str]) -> bool:
        """Return whether a table with the columns ``names`` is of this kind."""
        return names.issuperset(self.has) and (not self.any or not names.isdisjoint(self.any))


_KINDS: Final = tuple(TableKind(**kind) for kind in _DECLARED["kinds"])
_WANDB, _TENSORBOARD = (
    next(kind for kind in _KINDS if kind.name == name) for name in ("wandb", "tensorboard")
)


@dataclass
class StepTable:
    """Numbers by column and row; NaN if a row has no value.

    ``run`` is the name of the run, if known.
    """

    run: str = ""
    columns: dict[str, array[float]] = field(default_factory=dict)
    count: int = 0
    is_cut: bool = False

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the numeric cells of a row; ignore the row if the table has too many cells."""
        if self.count * len(self.columns) > _MAX_CELLS:
            self.is_cut = True
            return
        for name, cell in row.items():
            value = number(cell)
            if value is None and "elapsed" in name:
                value = seconds_of(str(cell))
            if value is None or (name not in self.columns and len(self.columns) >= _MAX_COLUMNS):
                continue
            column = self.columns.setdefault(name, array("d"))
            column.extend([math.nan] * (self.count - len(column)))
            column.append(value)
        self.count += 1

    def at(self, name: str, row: int) -> float:
        """Return a cell; NaN if it has no value."""
        column = self.columns.get(name, ())
        return column[row] if row < len(column) else math.nan


def read_step_tables(path: Path, columns: Mapping[str, str] | None = None) -> list[Summary]:
    """Return the runs in a table of a program's training; an empty list if it is no such table.

    ``columns`` maps column names to meanings, in the words of `traceprof.logs.source`.

    Raises:
        TraceError: the file cannot be read.
    """
    columns = columns or {}
    if is_event_file(path):
        return _read_event_file(path, columns)
    runs = _read_text(path, columns)
    damage = damage_of(path) if runs else ""
    if damage:
        runs[0] = replace(runs[0], notes=(*runs[0].notes, Note.of(DAMAGED, why=damage)))
    return runs


def _read_text(path: Path, columns: Mapping[str, str]) -> list[Summary]:
    head = "".join(RawLines(path, limit=_HEAD_CHARS).text()[:_HEAD_CHARS]).lstrip("\ufeff \t\r\n")
    if head.startswith(("{", "[")):
        return _read_json(path, columns)
    names = next(csv.reader(head.splitlines()[:1], skipinitialspace=True), [])
    names = [name.strip() for name in names]
    if not _is_heading(names, columns):
        return _read_markdown(path, columns)
    lines = (line for line in RawLines(path, limit=_MAX_READ_CHARS) if line.strip())
    rows = csv.reader(lines, skipinitialspace=True)
    next(rows)
    found = (dict(zip(names, row, strict=False)) for row in rows if len(row) <= len(names))
    return _summaries(path, _tables_of(path, names, found), columns, _kind_of_heading(names))


def _read_markdown(path: Path, columns: Mapping[str, str]) -> list[Summary]:
    """Return the runs in the tables by step of a text, such as a model card."""
    lines = list(RawLines(path, limit=_MAX_TEXT_CHARS))
    names, rows = columns_of_text(lines)
    if _is_heading(names, columns):
        runs = _summaries(
            path, _tables_of(path, names, iter(rows)), columns, _kind_of_heading(names)
        )
        if runs:
            return runs
    marked = (typed for typed in tables_in(lines) if typed.is_markdown)
    return [run for typed in marked for run in read_typed_step_table(path, typed, columns)]


def read_typed_step_table(
    path: Path, typed: TypedTable, columns: Mapping[str, str] | None = None
) -> list[Summary]:
    """Return the runs in one table of a document; an empty list if its rows are no steps."""
    if not _is_heading(typed.heading, columns or {}):
        return []
    table = StepTable()
    for row in typed.rows:
        table.add(dict(zip(typed.heading, row, strict=True)))
    return _summaries(path, [table], columns or {})


def _is_heading(names: Sequence[str], columns: Mapping[str, str]) -> bool:
    """Return whether these columns of a CSV file are by step or epoch.

    Lightning's files are excluded.
    """
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
    """Return the kind of a CSV file; in Weights & Biases charts each column belongs to a run."""
    is_chart = any(_CHART_COLUMN.fullmatch(name) for name in names)
    return _WANDB if is_chart else _kind_of(frozenset(names))


def _meaning(kind: TableKind, name: str) -> str | None:
    if _LEARNING_RATE.fullmatch(name):
        return ""
    known: str | None = kind.columns.get(name, _DECLARED["columns"].get(name))
    return known


def _tables_of(
    path: Path, names: Sequence[str], rows: Iterator[Mapping[str, Any]]
) -> list[StepTable]:
    """Return the tables of a CSV file: one per run of a chart, otherwise one per run_id."""
    if any(_CHART_COLUMN.fullmatch(name) for name in names):
        return list(_tables_of_chart(names, rows))
    found: dict[str, StepTable] = {}
    is_long = {"key", "value", "step"} <= set(names)
    for row in rows:
        run_name, cells = str(row.get("run_id", "")) if is_long else "", row
        if is_long:
            cells = {str(row.get("key", "")): row.get("value"), **_places_of(row)}
        elif "Value" in row and "Step" in row:
            cells = {_tag_of(path): row["Value"], **_places_of(row)}
        found.setdefault(run_name, StepTable(run_name)).add(cells)
    return list(found.values())


def _tag_of(path: Path) -> str:
    """Return the metric of scalars that TensorBoard exported, by the name of their file."""
    tag = _TAG.fullmatch(path.stem)
    return "value" if tag is None else tag["tag"]


def _places_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("step", "timestamp", "Step", "Wall time") if name in row}


def _tables_of_chart(
    names: Sequence[str], rows: Iterator[Mapping[str, Any]]
) -> Iterator[StepTable]:
    """Yield a table per run of a Weights & Biases chart, with columns named "run - metric"."""
    all_rows = list(rows)
    matches = {n: match for n in names if (match := _CHART_COLUMN.fullmatch(n)) is not None}
    for run in dict.fromkeys(match["run"] for match in matches.values()):
        metrics = {
            name: match["metric"]
            for name, match in matches.items()
            if match["run"] == run
            and not name.endswith(_RANGE_SUFFIXES)
            and match["metric"] != "_step"
        }
        table = StepTable(run)
        for row in all_rows:
            if any(number(row.get(name)) is not None for name in metrics):
                cells = {metric: row.get(name) for name, metric in metrics.items()}
                table.add({**{n: row.get(n) for n in names if n not in matches}, **cells})
        yield table


def _read_json(path: Path, columns: Mapping[str, str]) -> list[Summary]:
    text = RawLines(path, limit=_MAX_READ_CHARS).text()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return _summaries_of_rows(path, rows_of_lines(text), columns)
    if isinstance(found, list):
        rows = rows_of_scalars(found, _tag_of(path)) or found
        return _summaries_of_rows(path, rows, columns, _TENSORBOARD if rows is not found else None)
    if not isinstance(found, dict):
        return []
    history = found.get("log_history")
    if isinstance(history, list):
        return [_read_hf_state(path, found, history)]
    if any(_HF_RESULTS.fullmatch(str(name)) for name in found):
        return [_read_hf_state(path, {}, [found])]
    if not _LAST_VALUES.isdisjoint(found):
        return _summaries_of_rows(path, [found], columns, _WANDB)
    return _summaries_of_rows(path, rows_of_history(found.get("history", found)), columns)


def _summaries_of_rows(
    path: Path, rows: Sequence[Any], columns: Mapping[str, str], given: TableKind | None = None
) -> list[Summary]:
    """Return the run of rows that have a step or an epoch; an empty list if they have neither."""
    table = StepTable()
    for row in rows:
        if isinstance(row, dict):
            table.add({str(name): cell for name, cell in row.items()})
    kind = given or _kind_of(frozenset(table.columns))
    places = {columns.get(name, _meaning(kind, name)) for name in table.columns}
    has_steps = table.count and places & {"step", "_step", "epoch"} and len(table.columns) > 1
    return _summaries(path, [table], columns, kind) if has_steps else []


def _read_event_file(path: Path, columns: Mapping[str, str]) -> list[Summary]:
    """Return the run of a TensorBoard event file.

    Raises:
        TraceError: the file contains no scalars.
    """
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


def _read_hf_state(path: Path, state: Mapping[str, Any], history: Sequence[Any]) -> Summary:
    """Return the run in a state file or a results file of the Hugging Face Trainer."""
    source = next(candidate for candidate in SOURCES if candidate.name == "hf-trainer")
    book = LogRuns()
    reader = HfTrainerReader(book, path.stem, source)
    book.run.facts.batch_per_device = number(state.get("train_batch_size"))
    for values in history:
        if isinstance(values, dict):
            reader.values({str(name): value for name, value in values.items()})
    reader.end()
    return _summary(path, book.run, source, path.stem)


def _summary(path: Path, run: CollectedRun, source: LogSource | TableKind, name: str) -> Summary:
    origin = f"log:{source.name}"
    if path.stat().st_size > _MAX_READ_CHARS:
        run.say("the file is large; only the first {n:bytes} were read", n=_MAX_READ_CHARS)
    return summary_of(run, name, origin, SourceFile(str(path), origin, path.stat().st_size))


def _summaries(
    path: Path,
    tables: Sequence[StepTable],
    columns: Mapping[str, str],
    given: TableKind | None = None,
) -> list[Summary]:
    found = []
    for table in tables:
        kind = given or _kind_of(frozenset(table.columns))
        book = LogRuns()
        _fill_book(book, table, kind, columns)
        runs = [run for run in book.runs if not run.is_empty]
        for run_number, run in enumerate(runs, 1):
            if table.is_cut:
                run.say(
                    "the table is large; only the first {n:count} rows were read", n=table.count
                )
            if table.run:
                run.labels["run"] = table.run
            name = table.run or path.stem
            name = f"{name}:{run_number}" if len(runs) > 1 else name
            found.append(_summary(path, run, kind, name))
    return found


def _is_in_step_order(steps: Sequence[float]) -> bool:
    """Return whether rows are in the order of steps, apart from some restarts."""
    known_steps = [step for step in steps if math.isfinite(step)]
    n_backward = sum(next_step < step for step, next_step in pairwise(known_steps))
    return n_backward <= max(1, len(known_steps) * _MAX_RESTART_RATIO)


def _fill_book(
    book: LogRuns, table: StepTable, kind: TableKind, columns: Mapping[str, str]
) -> None:
    """Store the values of all rows at their positions.

    Store nothing if rows are not in step order.
    """
    meanings = {name: columns.get(name, _meaning(kind, name)) for name in table.columns}
    places = {meaning: name for name, meaning in meanings.items() if meaning in _PLACES}
    values = {name: meaning for name, meaning in meanings.items() if meaning not in (*_PLACES, "")}
    counts = next((places[name] for name in ("step", "_step", "epoch") if name in places), "")
    if not kind.is_mixed and not _is_in_step_order(table.columns.get(counts, ())):
        return
    epochs = filter(math.isfinite, table.columns.get(places.get("epoch", ""), ()))
    starts_at_0 = counts == places.get("epoch") and min(epochs, default=1.0) == 0
    scales = {name: _scale_of_column(name, meaning, table) for name, meaning in values.items()}
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
            # The step of an evaluation counts epochs.
            point = point._replace(step=math.nan, epoch=point.step)
        for name, (metric, times, scope, over) in scales.items():
            value = table.at(name, row)
            if math.isfinite(value) and (is_trained or not metric.endswith(("_ns", "_bytes"))):
                value_over = over or ("run" if is_evaluation_metric(metric) else kind.over)
                options: dict[str, Any] = {"is_elapsed": True} if math.isfinite(elapsed_s) else {}
                run.metric(metric, value * times, point, scope=scope, over=value_over, **options)
        before_s = 0.0 if elapsed_s < before_s else before_s
        if kind.over == "epoch" and elapsed_s > before_s and math.isfinite(point.epoch):
            run.epoch(int(point.epoch), seconds=elapsed_s - before_s, is_elapsed=True)
            before_s = elapsed_s


def _point(cells: Mapping[str, float], clock: Any, *, starts_at_0: bool) -> tuple[LogPoint, float]:
    """Return the position of a row, and the seconds since the start (NaN if unknown)."""
    step = cells.get("step", cells.get("_step", math.nan) + 1)
    epoch = cells.get("epoch", math.nan) + starts_at_0
    elapsed_s = cells.get("elapsed_s", math.nan)
    at_s, unix_s = elapsed_s, cells.get("unix_s", cells.get("unix_ms", math.nan) / 1e3)
    if math.isnan(at_s) and math.isfinite(unix_s):
        at_s = clock.since(int(unix_s // 1), unix_s % 1)
    return LogPoint(step, epoch, at_s), elapsed_s


def _scale_of_column(
    name: str, meaning: str | None, table: StepTable
) -> tuple[str, float, str, str]:
    """Return metric, factor, scope, and span of a column; span "" is that of the table kind."""
    if meaning is None:
        if (rate := find_rate(name)) is not None:
            return rate.name, 1.0, rate.scope, "interval"
        if (length := find_step_time(name)) is not None:
            return length.name, length.times, length.scope, "interval"
        meaning = name
        if not _ACCURACY.fullmatch(name):
            return name, 1.0, "run", ""
    declaration = declared(meaning)
    times = declaration.times / declaration.by
    known = [value for value in table.columns[name] if math.isfinite(value)]
    if (
        _ACCURACY.fullmatch(declaration.metric)
        and declaration.by == 1
        and max(known, default=0.0) > 1
    ):
        times /= 100.0
    return declaration.metric, times, declaration.scope, declaration.over
