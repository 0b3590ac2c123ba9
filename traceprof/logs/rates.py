"""Read tables of benchmark runs, with one run per row: Markdown, HTML, CSV, and aligned columns.

A column is recognized by its name (``columns.toml``), or by the unit in its heading or cells. All
cells of a row are also stored with its run as they were typed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from traceprof.errors import TraceError
from traceprof.logs.cells import COLUMNS, TypedMeasure, failure_of
from traceprof.logs.gathered import CollectedRun
from traceprof.logs.lines import RawLines
from traceprof.logs.summary import summary_table
from traceprof.logs.typed_columns import (
    DEVICE,
    GLOBAL,
    TEXTS,
    Meanings,
    TypedColumn,
    describing,
    is_table_of_steps,
    label_columns,
    meanings_of,
    scope_of_batches,
)
from traceprof.logs.typed_tables import TypedTable, tables_in
from traceprof.logs.typed_text import (
    BATCH_IN_TEXT,
    batches_in_prose,
    note_rate,
    note_sizes,
    sizes_in,
    sizes_in_prose,
    without_sizes,
)
from traceprof.model.results import Note, Unit
from traceprof.model.summary import UNREAD, SourceFile, Summary

_MIN_KNOWN_HEADINGS: Final = 2
_SIZES: Final = frozenset({"devices_count", "world_size", "nodes_count", "gpus_per_node_count"})
_BATCH_MEASURES: Final = frozenset({"global_batch_count", "batch_per_device_count"})
_RATES: Final = tuple(
    f"{prefix}{what}_per_s" for prefix in ("", "expected_") for what in COLUMNS["rates"]
)
_DURATIONS: Final = frozenset({"total_ns", "time_to_train_ns", "epoch_ns", "step_period_ns"})
_TIMES_TO_QUALITY: Final = ("time_to_train_ns", "total_ns")
_ACCURACY: Final = re.compile(r"(?:.*_)?(?:acc|accuracy|top[15]|acc_[15])")
_BATCH_NOTE: Final = (
    "{column} is assumed to be the batch size per GPU; rename the column to global_batch if it "
    "counts all GPUs"
)


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
    tables = tables_in(lines)
    found = [run for runs in runs_of_tables(path, tables).values() for run in runs]
    if not found:
        raise TraceError(
            f"{path}: not a table of rates; expected a column such as images_per_s, "
            f"samples_per_s or gpus{_seen(tables)}"
        )
    return [replace(run, name=run.name or f"{path.stem}:{i}") for i, run in enumerate(found, 1)]


def _seen(tables: Sequence[TypedTable]) -> str:
    headings = "; ".join(" | ".join(table.heading)[:80] for table in tables[:3])
    return f"; found {headings}" if headings else ""


def runs_of_tables(path: Path, tables: Sequence[TypedTable]) -> dict[int, list[Summary]]:
    """Return the runs in each table of a text, by the index of the table.

    Tables under the same heading get the line above them, or their number, as the label ``table``.
    """
    found = {i: list(_runs_in(path, table)) for i, table in enumerate(tables)}
    found = {i: runs for i, runs in found.items() if runs}
    by_title: dict[str, list[int]] = {}
    for i in found:
        by_title.setdefault(tables[i].title, []).append(i)
    for title, places in by_title.items():
        captions = [tables[i].caption for i in places]
        has_captions = all(captions) and len(set(captions)) == len(captions)
        for number, (i, caption) in enumerate(zip(places, captions, strict=True), 1):
            label = f"{title} ({number})" if title and number > 1 else title
            if len(places) > 1:
                label = caption if has_captions else label or f"{number}"
            if label:
                found[i] = [replace(run, labels={**run.labels, "table": label}) for run in found[i]]
    return found


@dataclass(frozen=True)
class _RowRuns:
    """The runs of one table: one per row and variant.

    ``batch`` is the scope of batch sizes whose columns do not name it.
    """

    table: TypedTable
    meanings: Meanings
    batch: str = ""

    def runs(self) -> Iterator[tuple[int, str, CollectedRun]]:
        """Yield the row, the variant, and the values of each run."""
        used = {place for places in self.meanings.variants.values() for place in places}
        for row in range(len(self.table.rows)):
            for variant in self.meanings.variants or {"": []}:
                others = used - {*self.meanings.variants.get(variant, ())}
                measures = {
                    place: measure
                    for place, measure in self.meanings.measures.items()
                    if place not in others and not (variant and _is_relative(measure.name))
                }
                run = self._gather(row, measures)
                if not variant or any(
                    place in measures and math.isfinite(self._value(place, row))
                    for place in self.meanings.variants[variant]
                ):
                    yield row, variant, run

    def _value(self, place: int, row: int) -> float:
        return self.meanings.columns[place].readable[row] * self.meanings.measures[place].times

    def _gather(self, row: int, measures: Mapping[int, TypedMeasure]) -> CollectedRun:
        """Return the values that the cells of a row and the text above the table contain."""
        run = CollectedRun()
        for place, measure in measures.items():
            name, scope = measure.name, measure.scope
            if name in _BATCH_MEASURES and self.batch == GLOBAL and self._is_unclear(place):
                name, scope = "global_batch_count", "run"
            value = self._value(place, row)
            run.measure(name, value, unit=measure.unit, scope=scope, better=measure.better)
        columns = self.meanings.columns
        for column in columns:
            note_sizes(run, column.sizes[row] if column.place in measures else {})
        for column in describing(self.meanings):
            note_sizes(run, sizes_in(column.cells[row].strip("*` ")))
            self._note_batch(run, column.cells[row])
        _note_gpus_per_node(run)
        self._note_prose(run)
        for column in columns:
            cell = column.cells[row]
            if why := failure_of(cell):
                run.event("failure", text=f"{why} ({column.typed}: {cell})")
            if column.place not in measures:
                note_rate(run, column.typed, cell)
        return run

    def _is_unclear(self, place: int) -> bool:
        return self.meanings.columns[place].name in COLUMNS["unclear"]["batch"]

    def _note_batch(self, run: CollectedRun, text: str) -> None:
        """Store the batch size in a description, such as "2 GPUs, batch128"."""
        found = BATCH_IN_TEXT.search(text)
        if found is None or not _BATCH_MEASURES.isdisjoint(run.measures):
            return
        name = "global_batch_count" if self.batch == GLOBAL else "batch_per_device_count"
        run.measure(name, float(found[1]), unit=Unit.COUNT, source="recorded")
        if not self.batch:
            run.say(_BATCH_NOTE, column=found[0])

    def _note_prose(self, run: CollectedRun) -> None:
        """Store sizes and batch sizes of the text above the table that the row does not contain."""
        prose = self.table.prose
        sizes = {} if _SIZES & {*run.measures} else sizes_in_prose(prose)
        batches = batches_in_prose(prose)
        known = {
            "global_batch_count": batches.get(GLOBAL),
            "batch_per_device_count": batches.get(DEVICE),
        }
        if _BATCH_MEASURES.isdisjoint(run.measures):
            sizes |= {name: value for name, value in known.items() if value}
            if "" in batches and not any(known.values()):
                text = (
                    "the text above the table has a batch size of {n:count} without its scope; "
                    "add a column global_batch or batch_per_gpu"
                )
                run.say(text, n=batches[""])
        for name in note_sizes(run, sizes):
            run.say(
                "{name} {n:count} comes from the text above the table", name=name, n=sizes[name]
            )


def _is_relative(measure: str) -> bool:
    """Return whether a measure compares runs, so that its variant is not known."""
    return measure.startswith("printed_") or measure.endswith(("_percent", "_factor"))


def _note_gpus_per_node(run: CollectedRun) -> None:
    """Store the number of GPUs that nodes and GPUs per node give."""
    each, nodes = run.measures.get("gpus_per_node_count"), run.measures.get("nodes_count")
    if each is not None and nodes is not None:
        note_sizes(run, {"devices_count": each["value"] * nodes["value"]})


def _runs_in(path: Path, table: TypedTable) -> Iterator[Summary]:
    """Yield the runs of a table; nothing if its rows and columns are not runs."""
    for oriented in _orientations(table):
        meanings = meanings_of(oriented)
        is_distinct = len(set(oriented.heading)) == len(oriented.heading) or meanings.variants
        if not is_distinct or not _is_table_of_runs(oriented, meanings):
            continue
        if not is_table_of_steps(meanings):
            yield from _summaries(path, oriented, meanings)
        return


def _orientations(table: TypedTable) -> Iterator[TypedTable]:
    """Yield the table, and with rows and columns exchanged if its rows may be measures."""
    turned = (
        table.transposed() if table.heading[0].strip("*` ").lower() in TEXTS["measures"] else None
    )
    if turned is not None:
        first = TypedColumn(table, 0)
        is_sizes = first.numbers is not None or any(sizes_in(cell) for cell in first.cells)
        n_turned = len(meanings_of(turned).measures)
        if not is_sizes and n_turned >= len(meanings_of(table).measures):
            yield turned
            return
    yield table


def _summaries(path: Path, table: TypedTable, meanings: Meanings) -> Iterator[Summary]:
    batch = _scope_of_batches(table, meanings)
    rows = _RowRuns(table, meanings, batch)
    notes = [*_notes_of(table, meanings, batch), *_notes_on_unread(meanings)]
    labels = list(label_columns(meanings))
    descriptions = {
        column: without_sizes(column.cells)
        for column in describing(meanings)
        if column.name in TEXTS["described"]
    }
    for row, variant, run in rows.runs():
        run.labels |= {
            column.name: column.cells[row].strip("*` ")
            for column in labels
            if column.cells[row] in column.texts
        }
        run.labels |= {
            column.name: texts[row]
            for column, texts in descriptions.items()
            if texts and texts[row]
        }
        if variant:
            note_sizes(run, sizes_in(variant))
            run.labels["variant"] = variant
        run.notes[:0] = notes
        run.notes += _unreadable_cells(meanings, row)
        yield _summary_of(path, run, rows, row, variant)


def _is_table_of_runs(table: TypedTable, meanings: Meanings) -> bool:
    """Return whether rows are runs: a column is a size or rate, or headings describe runs."""
    names = meanings.names()
    if names & {*_SIZES, *_BATCH_MEASURES, "printed_speedup", "time_to_train_ns"}:
        return True
    if any(name.startswith(_RATES) for name in names):
        return True
    is_measured = names & _DURATIONS
    if is_measured and (
        len(names) > 1 or any(sizes_in(cell) for row in table.rows for cell in row)
    ):
        return True
    column_names = [column.name for column in meanings.columns]
    if any(any(column.sizes) for column in meanings.columns) and names:
        return True
    words = {*TEXTS["label"], *TEXTS["note"]}
    known_headings = [name for name in column_names if name.split("_")[0] in words or name in words]
    return len(known_headings) >= _MIN_KNOWN_HEADINGS and not table.heading[0].lower().startswith(
        "step"
    )


def _scope_of_batches(table: TypedTable, meanings: Meanings) -> str:
    """Return whether the batch sizes of unknown scope count all GPUs or one; "" if undecided."""
    runs = [run for _, _, run in _RowRuns(table, meanings, DEVICE).runs()]

    def of(name: str) -> list[float]:
        return [float(run.measures.get(name, {}).get("value", math.nan)) for run in runs]

    batches, devices = of("batch_per_device_count"), of("devices_count")
    total = batches_in_prose(table.prose).get(GLOBAL)
    products = [b * n for b, n in zip(batches, devices, strict=True) if math.isfinite(b * n)]
    if total and products and all(product == total for product in products):
        return DEVICE
    if total and products and all(b == total for b in batches if math.isfinite(b)):
        return GLOBAL
    samples = [
        rate * ns / 1e9 for rate, ns in zip(of("samples_per_s"), of("step_period_ns"), strict=True)
    ]
    return scope_of_batches(batches, devices, samples)


def _notes_of(table: TypedTable, meanings: Meanings, batch: str) -> Iterator[Note]:
    """Yield notes about assumptions on the whole table."""
    if table.has_decimal_commas:
        yield Note.of("commas are read as decimal points, because no number contains a point")
    for place, measure in meanings.measures.items():
        column = meanings.columns[place]
        if column.name in COLUMNS["unclear"]["batch"] and measure.name in _BATCH_MEASURES:
            text = {
                GLOBAL: "{column} counts the samples of all GPUs, as the other columns show",
                DEVICE: "{column} counts the samples of one GPU, as the other columns show",
            }.get(batch, _BATCH_NOTE)
            yield Note.of(text, column=column.typed)
        if measure.assumed:
            yield Note.of(
                "{column} has no unit; traceprof assumes {unit}",
                column=column.typed,
                unit=measure.assumed,
            )
    for first, place in meanings.repeated:
        yield Note.of(
            "columns {first} and {column} both mean {name}; traceprof uses {first}",
            first=table.heading[first],
            column=table.heading[place],
            name=meanings.measures[first].name,
        )
    if meanings.variants:
        yield Note.of(
            "each row is {n:count} runs, because {n:count} columns have the same measure: {names}",
            n=len(meanings.variants),
            names=", ".join(meanings.variants),
        )


def _notes_on_unread(meanings: Meanings) -> Iterator[Note]:
    """Yield a note for each column whose heading names a measure, but whose cells do not."""
    for column in meanings.columns:
        if why := column.why_unread:
            text = f"{UNREAD} column {{column}}, because {{why}}: {{cell}}"
            yield Note.of(text, column=column.typed, why=why, cell=repr(column.texts[0][:40]))


def _unreadable_cells(meanings: Meanings, row: int) -> Iterator[Note]:
    """Yield a note for each cell of a measure that is neither a number nor an unknown value."""
    for place in meanings.measures:
        column = meanings.columns[place]
        if row in column.unreadable:
            yield Note.of(
                f"{UNREAD} {{cell}} in column {{column}}; it read the other cells",
                cell=repr(column.cells[row][:40]),
                column=column.typed,
            )


def _quality_rows(run: CollectedRun, epochs: float) -> list[dict[str, Any]]:
    """Return accuracies and losses as the last values of metrics, at the duration of the run."""
    lengths = (run.measures[name]["value"] for name in _TIMES_TO_QUALITY if name in run.measures)
    at_ns = next(lengths, math.nan)
    values: dict[str, float] = {}
    for name, measure in run.measures.items():
        metric = _metric_of(name)
        if metric:
            values.setdefault(metric, measure["value"])
    return [
        {"metric": metric, "attempt": 0, "epoch": epochs, "at_ns": at_ns, "value": value}
        | {"scope": "run", "over": "run"}
        for metric, value in values.items()
    ]


def _metric_of(measure: str) -> str:
    """Return the metric of an accuracy or a loss, in the names that logs have; "" for others."""
    prefix = "train_" if measure.startswith("train") else ""
    if _ACCURACY.fullmatch(measure):
        return f"{prefix}top{'5' if '5' in measure else '1'}"
    if measure.endswith("loss") and not measure.startswith("printed_"):
        is_validation = any(word in measure for word in ("val", "eval", "test"))
        return "val_loss" if is_validation else "loss"
    return ""


def _summary_of(path: Path, run: CollectedRun, rows: _RowRuns, row: int, variant: str) -> Summary:
    """Return the stored summary of the run in ``row``, with the typed cells."""
    columns, cells = rows.meanings.columns, rows.table.rows[row]
    tables: dict[str, list[dict[str, Any]]] = {"measures": [*run.measures.values()]}
    epochs = (column.readable[row] for column in columns if column.name in TEXTS["epochs"])
    if quality := _quality_rows(run, next(epochs, math.nan)):
        tables["metrics"] = quality
    if run.events:
        events = (
            {name: event[name] for name in ("kind", "text", "attempt")} for event in run.events
        )
        tables["events"] = [{"event": i, **event} for i, event in enumerate(events)]
    tables["typed"] = [
        {"place": column.place, "heading": column.typed, "cell": cells[column.place]}
        for column in columns
    ]
    named = (cells[column.place] for column in columns if column.name in TEXTS["name"])
    name = next((name.strip("*` ") for name in named if name), "")
    return Summary(
        f"{name} {variant}".strip() if name else "",
        origin="table",
        labels=run.labels,
        sources=(SourceFile(str(path), "table", path.stat().st_size),),
        tables={name: summary_table(name, rows) for name, rows in tables.items()},
        notes=tuple(run.notes),
    )
