"""Read tables of benchmark runs, with one run per row: CSV files and Markdown.

A column is recognized by its name (``columns.toml``), or by the unit in its heading or cells. All
cells of a row are also stored with its run as they were typed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from traceprof.errors import TraceError
from traceprof.logs.cells import (
    COLUMNS,
    SIZES,
    TypedMeasure,
    TypedTable,
    failure_of,
    measure_by_name,
    measure_by_unit,
    number_of,
    plain_name,
    tables_in,
    unit_named,
)
from traceprof.logs.gathered import CollectedRun
from traceprof.logs.lines import RawLines
from traceprof.logs.summary import summary_table
from traceprof.model.results import Note, Unit
from traceprof.model.summary import SourceFile, Summary

_TEXTS: Final[dict[str, list[str]]] = COLUMNS["texts"]
_BATCHES: Final = frozenset(
    COLUMNS["sizes"]["global_batch_count"] + COLUMNS["sizes"]["batch_per_device_count"]
)
_BRACKETS: Final = re.compile(r"[\[(](?P<unit>[^\[\]()]*+)[\])]")
_GPU: Final = r"(?:gpus?|[pvtalkhb]\d{1,3}0?(?:[lst]|gb)?|m60|rtx\s?\d{4})"
_SIZES_IN_TEXT: Final = (
    (
        "nodes_count",
        re.compile(r"(?<![\w.])(\d{1,6}+)\s?x?\s?(?:nodes?|servers?|machines?)\b", re.I),
    ),
    ("devices_count", re.compile(rf"(?<![\w.])(\d{{1,6}}+)\s?x?\s?{_GPU}\b", re.I)),
)
_BATCH_IN_TEXT: Final = re.compile(r"\b(?:batch(?: ?size)?|bs) ?[=:]? ?\d{1,9}\b", re.I)
_RATE_IN_TEXT: Final = re.compile(
    r"(?:throughput|rate|speed)\b[^\d]{0,24}(?P<rate>\d[\d.,]{0,15}) ?"
    r"(?P<unit>[a-z]{2,9}/s(?:ec)?)\b"
    r"(?:[^\d]{0,4}expected\b[^\d]{0,8}(?P<expected>\d[\d.,]{0,15}) ?(?P=unit))?",
    re.I,
)
_MAX_LABEL_CHARS: Final = 60
_MIN_KNOWN_HEADINGS: Final = 2


@dataclass(frozen=True)
class _Column:
    """A column of a table: its index ``place``, its heading, and its cells."""

    table: TypedTable
    place: int

    @property
    def typed(self) -> str:
        """The heading as it was typed."""
        return self.table.heading[self.place]

    @cached_property
    def name(self) -> str:
        """The normalized name, without a unit or a list in brackets."""
        bare = _BRACKETS.sub(lambda match: "" if " " in match["unit"] else match[0], self.typed)
        return plain_name(bare)

    @cached_property
    def cells(self) -> list[str]:
        """The cells from top to bottom."""
        return self.table.column(self.place)

    @cached_property
    def numbers(self) -> list[float] | None:
        """The numbers of the cells (NaN if unknown), or None if the column contains text."""
        found = []
        for cell in self.cells:
            number = number_of(cell, has_decimal_commas=self.table.has_decimal_commas)
            if number is None and failure_of(cell):
                number = number_of("-")
            if number is None or (number.unit and unit_named(number.unit, self.name) is None):
                return None
            unit = unit_named(number.unit, self.name) if number.unit else None
            found.append(number.value * (unit.times if unit else 1.0))
        return found

    @cached_property
    def unit_of_cells(self) -> str:
        """The kind of the unit that the cells share; "" if they have no unit or several."""
        units = (number_of(cell) for cell in self.cells)
        kinds = {
            unit_named(cell_number.unit, self.name)
            for cell_number in units
            if cell_number is not None and cell_number.unit
        }
        names = {unit.kind for unit in kinds if unit is not None}
        return names.pop() if len(names) == 1 else ""

    @cached_property
    def texts(self) -> list[str]:
        """The cells that are not marked as unknown."""
        return [cell for cell in self.cells if not math.isnan(_value(cell))]

    def measure(self) -> TypedMeasure | None:
        """Return the measure that the column contains; None if there is none or it is unknown."""
        if self.numbers is None or not any(map(math.isfinite, self.numbers)):
            return None
        in_brackets = [
            unit_named(match["unit"], self.name) for match in _BRACKETS.finditer(self.typed)
        ]
        bracket_unit = next((unit for unit in in_brackets if unit is not None), None)
        if bracket_unit is not None and not self.unit_of_cells:
            return measure_by_unit(
                self.name_without_unit, bracket_unit.kind, bracket_unit.times, self.numbers
            )
        if self.typed == "Runtime" and "Created" in self.table.heading:
            # Weights & Biases exports the duration of a run under this name, in seconds.
            return measure_by_unit("runtime", "ns", 1e9, self.numbers)
        if self.unit_of_cells:
            return measure_by_unit(self.name, self.unit_of_cells, 1.0, self.numbers)
        return measure_by_name(plain_name(self.typed), self.numbers)

    @property
    def name_without_unit(self) -> str:
        """The normalized name without anything in brackets."""
        return plain_name(_BRACKETS.sub("", self.typed))


def _value(cell: str) -> float:
    number = number_of(cell)
    return 0.0 if number is None else number.value


def read_table(path: Path) -> list[Summary]:
    """Return the runs in the rows of typed tables, in order.

    Columns are recognized by name or unit. Numbers of GPUs, ranks, and nodes, rates (images_per_s,
    tokens/s …), durations, and batch sizes become measures. Columns "expected_…" and "printed_…"
    become measures that were not measured. "name" or "run" is the name of the run. Columns with a
    text that several rows share become labels, which group runs. All cells are also stored as they
    were typed.

    Raises:
        TraceError: the file cannot be read, or is not a table of runs.
    """
    lines = list(RawLines(path, limit=1 << 24))
    found = [run for table in tables_in(lines) for run in _runs_in(path, table)]
    if not found:
        raise TraceError(
            f"{path}: not a table of rates; expected a column such as images_per_s, "
            "samples_per_s or gpus"
        )
    return [replace(run, name=run.name or f"{path.stem}:{i}") for i, run in enumerate(found, 1)]


def _runs_in(path: Path, table: TypedTable) -> Iterator[Summary]:
    """Yield the runs of a table; nothing if its rows are not runs."""
    columns = [_Column(table, place) for place in range(len(table.heading))]
    names = [column.name for column in columns]
    measures: dict[int, TypedMeasure] = {}
    doubled: list[dict[str, str]] = []
    for column in columns:
        measure = column.measure()
        if measure is None:
            continue
        first = next((i for i, other in measures.items() if other.name == measure.name), None)
        if first is None:
            measures[column.place] = measure
        else:
            doubled.append(
                {"first": table.heading[first], "column": column.typed, "name": measure.name}
            )
    if not _is_table_of_runs(table, names, measures) or len(set(table.heading)) < len(names):
        return
    if _is_table_of_steps(columns, measures):
        return
    notes = list(_notes_of(table, names, measures))
    notes += (
        Note.of("columns {first} and {column} both mean {name}; traceprof uses {first}", **names_)
        for names_ in doubled
    )
    text_columns = [column for column in columns if column.place not in measures]
    sizes = [columns[i] for i, measure in measures.items() if measure.name in SIZES.values()]
    labels = [column for column in text_columns if _is_label(column, sizes)]
    descriptions = {
        column: _texts_without_sizes(column)
        for column in text_columns
        if column.name in _TEXTS["described"]
    }
    for i, row in enumerate(table.rows):
        run = _gather_row(row, i, columns, measures)
        run.labels |= {
            column.name: row[column.place].strip("*` ")
            for column in labels
            if row[column.place] in column.texts
        }
        run.labels |= {
            column.name: texts[i] for column, texts in descriptions.items() if texts and texts[i]
        }
        if table.title:
            run.labels["table"] = table.title
        run.notes[:0] = notes
        yield _summary_of(path, run, columns, row)


def _is_table_of_runs(
    table: TypedTable, names: Sequence[str], measures: dict[int, TypedMeasure]
) -> bool:
    """Return whether rows are runs: a column is a size or rate, or headings describe runs."""
    measure_names = {measure.name for measure in measures.values()}
    size_names = {"devices_count", "world_size", "nodes_count", "printed_speedup"}
    rates = {f"{prefix}{what}_per_s" for prefix in ("", "expected_") for what in COLUMNS["rates"]}
    has_size_or_rate = bool(measure_names & (size_names | rates)) or any(
        name.startswith(rate) for name in measure_names for rate in rates
    )
    has_size_or_rate = has_size_or_rate or bool(
        measure_names & {"global_batch_count", "batch_per_device_count"}
    )
    words = {*_TEXTS["label"], *_TEXTS["note"]}
    known_headings = [name for name in names if name.split("_")[0] in words or name in words]
    return has_size_or_rate or (
        len(known_headings) >= _MIN_KNOWN_HEADINGS
        and not table.heading[0].lower().startswith("step")
    )


def _is_table_of_steps(columns: Sequence[_Column], measures: dict[int, TypedMeasure]) -> bool:
    """Return whether rows are the steps or epochs of one run, as a program writes them."""
    sizes = {measure.name for measure in measures.values()} & {*COLUMNS["sizes"]}
    steps = [column.numbers for column in columns if column.name in COLUMNS["texts"]["steps"]]
    return not sizes and any(
        numbers is not None and numbers == sorted({*numbers}) for numbers in steps
    )


def _notes_of(
    table: TypedTable, names: Sequence[str], measures: dict[int, TypedMeasure]
) -> Iterator[Note]:
    """Yield notes about assumptions on the whole table."""
    if table.has_decimal_commas:
        yield Note.of("commas are read as decimal points because semicolons separate the cells")
    for place in measures:
        if names[place] in COLUMNS["unclear"]["batch"]:
            yield Note.of(
                "{column} is assumed to be the batch size per GPU; rename the column to "
                "global_batch if it counts all GPUs",
                column=table.heading[place],
            )


def _is_label(column: _Column, sizes: Sequence[_Column]) -> bool:
    """Return whether a column is a label, which groups runs, and not a remark about single runs."""
    name, texts = column.name, column.texts
    first_word = name.split("_")[0]
    if not texts or name in _TEXTS["name"]:
        return False
    if name in _TEXTS["label"] or first_word in _TEXTS["label"]:
        return True
    if name in _TEXTS["note"] or first_word in _TEXTS["note"]:
        return False
    if any(len(text) > _MAX_LABEL_CHARS or "](" in text or "://" in text for text in texts):
        return False
    size_cells = [size.cells for size in sizes if size.name not in _BATCHES]
    row_sizes = list(zip(*size_cells, strict=True)) or [()] * len(column.cells)
    if column.numbers is not None and _follows_sizes(row_sizes, column):
        return False
    if len(set(texts)) == 1 < len(texts) == len(column.cells):
        return False
    if len(set(texts)) < len(texts) or len(set(texts)) == 1:
        return True
    # All texts differ: a label if several runs have the same size, otherwise a remark.
    return bool(size_cells) and len(set(row_sizes)) < len(row_sizes)


def _follows_sizes(sizes: Sequence[tuple[str, ...]], column: _Column) -> bool:
    """Return whether a column of numbers has one value per size, and groups nothing else."""
    pairs = zip(sizes, column.cells, strict=True)
    known = {(size, cell) for size, cell in pairs if cell in column.texts}
    known_cells, known_sizes = {cell for _, cell in known}, {size for size, _ in known}
    return len(known_cells) > 1 and len(known) == len(known_sizes) == len(known_cells)


def _texts_without_sizes(column: _Column) -> list[str]:
    """Return the descriptions without sizes.

    An empty list if no two rows then share a description.
    """
    found = column.cells
    for pattern in (*(pattern for _, pattern in _SIZES_IN_TEXT), _BATCH_IN_TEXT):
        found = [pattern.sub("", text) for text in found]
    found = [re.sub(r"(?<!\s)\s*+[,;][\s,;]*+", ", ", text).strip(" ,;-") for text in found]
    return found if len(set(found)) < len(found) else []


def _gather_row(
    row: Sequence[str], i: int, columns: Sequence[_Column], measures: dict[int, TypedMeasure]
) -> CollectedRun:
    """Return the run that the cells of a row describe."""
    run = CollectedRun()
    for place, measure in measures.items():
        value = (columns[place].numbers or ())[i] * measure.times
        run.measure(
            measure.name, value, unit=measure.unit, scope=measure.scope, better=measure.better
        )
    for column, cell in zip(columns, row, strict=True):
        if column.name in _TEXTS["described"]:
            _note_sizes_in_text(run, cell)
        if why := failure_of(cell):
            run.event("failure", text=f"{why} ({column.typed}: {cell})")
        if column.place not in measures:
            _note_rate_in_text(run, column, cell)
    return run


def _summary_of(
    path: Path, run: CollectedRun, columns: Sequence[_Column], row: Sequence[str]
) -> Summary:
    """Return the stored summary of the run in ``row``, with the typed cells."""
    tables: dict[str, list[dict[str, Any]]] = {"measures": [*run.measures.values()]}
    if run.events:
        events = (
            {name: event[name] for name in ("kind", "text", "attempt")} for event in run.events
        )
        tables["events"] = [{"event": i, **event} for i, event in enumerate(events)]
    tables["typed"] = [
        {"place": column.place, "heading": column.typed, "cell": row[column.place]}
        for column in columns
    ]
    named = (row[column.place] for column in columns if column.name in _TEXTS["name"])
    return Summary(
        next((name for name in named if name), ""),
        origin="table",
        labels=run.labels,
        sources=(SourceFile(str(path), "table", path.stat().st_size),),
        tables={name: summary_table(name, rows) for name, rows in tables.items()},
        notes=tuple(run.notes),
    )


def _note_sizes_in_text(run: CollectedRun, text: str) -> None:
    """Store the sizes in a description such as "2 nodes, 8 GPUs" or "4 P100"."""
    for name, pattern in _SIZES_IN_TEXT:
        found = pattern.search(text)
        if found is not None and name not in run.measures:
            run.measure(name, float(found[1]), unit=Unit.COUNT, source="recorded")


def _note_rate_in_text(run: CollectedRun, column: _Column, text: str) -> None:
    """Store the rate that a text contains, unless a column contains it."""
    found = _RATE_IN_TEXT.search(text)
    if found is None:
        return
    unit = unit_named(found["unit"])
    rate = number_of(found["rate"].rstrip(".,"))
    if unit is None or rate is None or unit.kind in run.measures:
        return
    run.measure(unit.kind, rate.value)
    if found["expected"] and (expected := number_of(found["expected"].rstrip(".,"))) is not None:
        run.measure(f"expected_{unit.kind}", expected.value)
    run.say("the rate comes from the text in column {column}", column=column.typed)
