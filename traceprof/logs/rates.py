"""Tables of runs, one in a row, as people keep them of their benchmarks: CSV files, Markdown.

Columns are known by their names (``columns.toml``), else by the unit in their heading or in their
cells. What a row says besides stays with its run as it was typed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from traceprof.errors import TraceError
from traceprof.logs.cells import COLUMNS, TypedTable, failure_of, number_of, tables_in, unit_named
from traceprof.logs.gathered import Gathered
from traceprof.logs.lines import RawLines
from traceprof.logs.summary import kept_rows
from traceprof.model.results import Note, Unit
from traceprof.model.summary import SourceFile, Summary

_SIZES: Final = {name: what for what, names in COLUMNS["sizes"].items() for name in names}
_TEXTS: Final[dict[str, list[str]]] = COLUMNS["texts"]
_BATCHES: Final = frozenset(
    COLUMNS["sizes"]["global_batch_count"] + COLUMNS["sizes"]["batch_per_device_count"]
)
_UNITS: Final = {"ns": Unit.NS, "bytes": Unit.BYTES}
_EFFICIENCY: Final = re.compile(
    r"(?:printed_)?(?:scaling_)?efficiency(?:_percent|_ratio|_in_percent)?"
)
_SPEEDUP: Final = re.compile(r"(?:printed_)?speed_?up(?:_factor)?")
_SHARES: Final = re.compile(r"(?:.*_)?(?:acc|accuracy|top_?[15])(?:_percent)?")
_BRACKETS: Final = re.compile(r"[\[(](?P<unit>[^\[\]()]*+)[\])]")
_OF_ONE: Final = re.compile(r"_per_(?:gpu|device|rank|worker|node)$")
_PER_S: Final = re.compile(r"(?:_per)?_s$|(?<=[a-z])ps$")
_LENGTH: Final = re.compile(r"(?P<base>.*?)_(?:in_)?(?P<unit>[a-z]+)")
_GPU: Final = r"(?:gpus?|[pvtalkhb]\d{1,3}0?(?:[lst]|gb)?|m60|rtx\s?\d{4})"
_DESCRIBED: Final = (
    (
        "nodes_count",
        re.compile(r"(?<![\w.])(\d{1,6}+)\s?x?\s?(?:nodes?|servers?|machines?)\b", re.I),
    ),
    ("devices_count", re.compile(rf"(?<![\w.])(\d{{1,6}}+)\s?x?\s?{_GPU}\b", re.I)),
)
_NO_SIZE: Final = re.compile(r"\b(?:batch(?: ?size)?|bs) ?[=:]? ?\d{1,9}\b", re.I)
_SAID: Final = re.compile(
    r"(?:throughput|rate|speed)\b[^\d]{0,24}(?P<rate>\d[\d.,]{0,15}) ?"
    r"(?P<unit>[a-z]{2,9}/s(?:ec)?)\b"
    r"(?:[^\d]{0,4}expected\b[^\d]{0,8}(?P<expected>\d[\d.,]{0,15}) ?(?P=unit))?",
    re.I,
)
_LONG_LABEL: Final = 60
_FEWEST_KNOWN: Final = 2


class TypedMeasure(NamedTuple):
    """What a column of numbers is: a measure, in the unit of its name, ``times`` what is typed."""

    name: str
    unit: Unit
    scope: str = "run"
    better: str = ""
    times: float = 1.0


@dataclass(frozen=True)
class _Column:
    """A column of a table: its place, what it is called, and its cells."""

    table: TypedTable
    place: int

    @property
    def typed(self) -> str:
        return self.table.heading[self.place]

    @cached_property
    def name(self) -> str:
        """The name as all are written here, without a unit or a list in brackets."""
        bare = _BRACKETS.sub(lambda match: "" if " " in match["unit"] else match[0], self.typed)
        return plain_name(bare)

    @cached_property
    def cells(self) -> list[str]:
        return self.table.column(self.place)

    @cached_property
    def numbers(self) -> list[float] | None:
        """The numbers in it; NaN: not known; None: it holds texts."""
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
    def of_cells(self) -> str:
        """The kind of the unit that its cells have; "" where they have none, or several."""
        units = (number_of(cell) for cell in self.cells)
        kinds = {unit_named(one.unit, self.name) for one in units if one is not None and one.unit}
        names = {unit.kind for unit in kinds if unit is not None}
        return names.pop() if len(names) == 1 else ""

    @cached_property
    def texts(self) -> list[str]:
        """What it says, where it says something."""
        return [cell for cell in self.cells if not math.isnan(_value(cell))]

    def measure(self) -> TypedMeasure | None:
        """Return which measure it is; None: it is none, or none that is known."""
        if self.numbers is None or not any(map(math.isfinite, self.numbers)):
            return None
        in_brackets = [
            unit_named(match["unit"], self.name) for match in _BRACKETS.finditer(self.typed)
        ]
        own = next((unit for unit in in_brackets if unit is not None), None)
        if own is not None and not self.of_cells:
            return _of_unit(self.name_without_unit, own.kind, own.times, self.numbers)
        if self.typed == "Runtime" and "Created" in self.table.heading:
            # So are the runs called that Weights & Biases exports: in seconds.
            return _of_unit("runtime", "ns", 1e9, self.numbers)
        if self.of_cells:
            return _of_unit(self.name, self.of_cells, 1.0, self.numbers)
        return _of_name(plain_name(self.typed), self.numbers)

    @property
    def name_without_unit(self) -> str:
        """The name without any brackets."""
        return plain_name(_BRACKETS.sub("", self.typed))


def _value(cell: str) -> float:
    number = number_of(cell)
    return 0.0 if number is None else number.value


def plain_name(name: str) -> str:
    """Return the name of a column as all are written here: small letters and underscores."""
    name = re.sub(r"[\[(]([^\[\]()]*)[\])]", r"_\1", name.strip().lower())
    name = name.replace("%", "percent").replace("/s", "_per_s").replace("#", "n_")
    name = re.sub(r"_per_s(?:ec|econd)?s?\b", "_per_s", name)
    return re.sub(r"_+", "_", re.sub(r"[^\w]+", "_", name)).strip("_")


def _of_name(name: str, values: Sequence[float]) -> TypedMeasure | None:
    """Return which measure a column of that name is; None: none that is known."""
    if name in _SIZES:
        scope = "device" if _SIZES[name].startswith("batch_per") else "run"
        return TypedMeasure(_SIZES[name], Unit.COUNT, scope)
    prefix = next((one for one in ("expected_", "printed_") if name.startswith(one)), "")
    own = _of_rate_or_length(name.removeprefix(prefix), values)
    if own is not None:
        return own if own.name.startswith(prefix) else own._replace(name=prefix + own.name)
    is_number = prefix or name.endswith(("_percent", "_ratio", "_count", "loss"))
    return TypedMeasure(name, Unit.NUMBER) if is_number else None


def _of_rate_or_length(name: str, values: Sequence[float]) -> TypedMeasure | None:
    quality = _of_quality(name, "", values)
    if quality is not None:
        return quality
    name = name.removeprefix("throughput_")
    each = match[0] if (match := _OF_ONE.search(name)) is not None else ""
    words = _PER_S.sub("/s", name.removesuffix(each))
    rate = unit_named(words + each.replace("_per_", "/"))
    if rate is not None and "_per_s" in rate.kind:
        return _of_unit(name, rate.kind, 1.0, values)
    length = _LENGTH.fullmatch(name)
    if length is None or not length["base"] or length["base"].endswith("_per"):
        return None
    unit = unit_named(length["unit"], length["base"])
    if unit is None or unit.kind not in _UNITS:
        return None
    return _of_unit(length["base"], unit.kind, unit.times, values)


def rate_named(name: str) -> TypedMeasure | None:
    """Return which rate a name is, such as perf/tokens_per_sec; None: none."""
    own = _of_rate_or_length(plain_name(name.rpartition("/")[2]), ())
    return own if own is not None and own.unit is Unit.PER_S else None


def _of_unit(name: str, kind: str, times: float, values: Sequence[float]) -> TypedMeasure | None:
    """Return which measure a column is whose unit is known."""
    prefix = next((one for one in ("expected_", "printed_") if name.startswith(one)), "")
    quality = _of_quality(name, kind, values)
    if quality is not None:
        return quality
    if kind in _UNITS:
        better = "lower" if kind == "ns" else ""
        return TypedMeasure(f"{name}_{kind}", _UNITS[kind], better=better, times=times)
    if kind in ("percent", "factor"):
        return TypedMeasure(f"{name}_{kind}", Unit.NUMBER)
    what, _, each = kind.partition("_per_s")
    each = each or ("_per_device" if _OF_ONE.search(name) and "node" not in name else "")
    scope = each.removeprefix("_per_") or "run"
    return TypedMeasure(f"{prefix}{what}_per_s{each}", Unit.PER_S, scope, "higher")


def _of_quality(name: str, kind: str, values: Sequence[float]) -> TypedMeasure | None:
    """Return what a column of efficiencies, speed-ups or accuracies is: in %, times, shares."""
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    if _EFFICIENCY.fullmatch(name):
        is_percent = kind == "percent" or "percent" in name or ("ratio" not in name and most > 2)
        times = 1.0 if is_percent else 100.0
        return TypedMeasure("printed_efficiency_percent", Unit.NUMBER, times=times)
    if _SPEEDUP.fullmatch(name):
        return TypedMeasure("printed_speedup", Unit.NUMBER)
    if _SHARES.fullmatch(name):
        is_percent = kind == "percent" or most > 1
        name = re.sub(r"top_([15])", r"top\1", name.removesuffix("_percent"))
        return TypedMeasure(name, Unit.NUMBER, better="higher", times=0.01 if is_percent else 1.0)
    return None


def read_table(path: Path) -> list[Summary]:
    """Return the runs that the rows of typed tables tell of, in their order.

    Columns are recognized by name or unit: how many GPUs, ranks or nodes, rates (images_per_s,
    tokens/s …), lengths of time and batch sizes become measures, "expected_…" and "printed_…" a
    measure that was not measured, "name" or "run" the name of the run. Columns with a text that
    several rows share are labels, by which runs are grouped; all is kept as it was typed, too.

    Raises:
        TraceError: the file cannot be read, or is no table of runs.
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
    columns = [_Column(table, place) for place in range(len(table.heading))]
    names = [column.name for column in columns]
    measures: dict[int, TypedMeasure] = {}
    doubled: list[tuple[str, str, str]] = []
    for column in columns:
        own = column.measure()
        if own is None:
            continue
        first = next((i for i, other in measures.items() if other.name == own.name), None)
        if first is None:
            measures[column.place] = own
        else:
            doubled.append((table.heading[first], column.typed, own.name))
    if not _is_of_runs(table, names, measures) or len(set(table.heading)) < len(names):
        return
    if _is_by_steps(columns, measures):
        return
    notes = list(_notes_of(table, names, measures))
    notes += (
        Note.of(
            "columns {first} and {column} both mean {name}; traceprof uses {first}", **dict(pairs)
        )
        for pairs in (zip(("first", "column", "name"), own, strict=True) for own in doubled)
    )
    texts = [column for column in columns if column.place not in measures]
    sizes = [columns[i] for i, own in measures.items() if own.name in _SIZES.values()]
    labels = [column for column in texts if _is_label(column, sizes)]
    described = {
        column: _without_sizes(column) for column in texts if column.name in _TEXTS["described"]
    }
    for i, row in enumerate(table.rows):
        run = _gathered(row, i, columns, measures)
        said_here = {own.name: row[own.place] for own in labels if row[own.place] in own.texts}
        run.labels |= {name: text.strip("*` ") for name, text in said_here.items()}
        run.labels |= {own.name: said[i] for own, said in described.items() if said and said[i]}
        if table.title:
            run.labels["table"] = table.title
        run.notes[:0] = notes
        yield _summary_of(path, run, columns, row)


def _is_of_runs(table: TypedTable, names: Sequence[str], measures: dict[int, TypedMeasure]) -> bool:
    """Return whether the rows are runs: a size or a rate is told, or what people say of runs."""
    told = {own.name for own in measures.values()}
    known = {"devices_count", "world_size", "nodes_count", "printed_speedup"}
    rates = {f"{prefix}{what}_per_s" for prefix in ("", "expected_") for what in COLUMNS["rates"]}
    is_told = bool(told & (known | rates)) or any(
        name.startswith(rate) for name in told for rate in rates
    )
    is_told = is_told or bool(told & {"global_batch_count", "batch_per_device_count"})
    words = {*_TEXTS["label"], *_TEXTS["note"]}
    said = [name for name in names if name.split("_")[0] in words or name in words]
    return is_told or (
        len(said) >= _FEWEST_KNOWN and not table.heading[0].lower().startswith("step")
    )


def _is_by_steps(columns: Sequence[_Column], measures: dict[int, TypedMeasure]) -> bool:
    """Return whether rows are the steps or epochs of one run, which a program wrote."""
    sizes = {own.name for own in measures.values()} & {*COLUMNS["sizes"]}
    steps = [own.numbers for own in columns if own.name in COLUMNS["texts"]["steps"]]
    return not sizes and any(one is not None and one == sorted({*one}) for one in steps)


def _notes_of(
    table: TypedTable, names: Sequence[str], measures: dict[int, TypedMeasure]
) -> Iterator[Note]:
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
    """Return whether a column tells runs apart; what is said of one run alone does not."""
    name, texts = column.name, column.texts
    first = name.split("_")[0]
    if not texts or name in _TEXTS["name"]:
        return False
    if name in _TEXTS["label"] or first in _TEXTS["label"]:
        return True
    if name in _TEXTS["note"] or first in _TEXTS["note"]:
        return False
    if any(len(text) > _LONG_LABEL or "](" in text or "://" in text for text in texts):
        return False
    told = [own.cells for own in sizes if own.name not in _BATCHES]
    same = list(zip(*told, strict=True)) or [()] * len(column.cells)
    if column.numbers is not None and _goes_with(same, column):
        return False
    if len(set(texts)) == 1 < len(texts) == len(column.cells):
        return False
    if len(set(texts)) < len(texts) or len(set(texts)) == 1:
        return True
    # All differ: they tell runs of one size apart, or say something of each.
    return bool(told) and len(set(same)) < len(same)


def _goes_with(sizes: Sequence[tuple[str, ...]], column: _Column) -> bool:
    """Return whether a column of numbers has one for each size, and so tells nothing else apart."""
    pairs = zip(sizes, column.cells, strict=True)
    known = {(size, cell) for size, cell in pairs if cell in column.texts}
    own, of = {cell for _, cell in known}, {size for size, _ in known}
    return len(own) > 1 and len(known) == len(of) == len(own)


def _without_sizes(column: _Column) -> list[str]:
    """Return what descriptions say besides sizes, where several rows say the same."""
    found = column.cells
    for pattern in (*(pattern for _, pattern in _DESCRIBED), _NO_SIZE):
        found = [pattern.sub("", text) for text in found]
    found = [re.sub(r"(?<!\s)\s*+[,;][\s,;]*+", ", ", text).strip(" ,;-") for text in found]
    return found if len(set(found)) < len(found) else []


def _gathered(
    row: Sequence[str], i: int, columns: Sequence[_Column], measures: dict[int, TypedMeasure]
) -> Gathered:
    """Return what the cells of a row tell of its run."""
    run = Gathered()
    for place, own in measures.items():
        value = (columns[place].numbers or ())[i] * own.times
        run.measure(own.name, value, unit=own.unit, scope=own.scope, better=own.better)
    for column, cell in zip(columns, row, strict=True):
        if column.name in _TEXTS["described"]:
            _describe(run, cell)
        if why := failure_of(cell):
            run.event("failure", text=f"{why} ({column.typed}: {cell})")
        if column.place not in measures:
            _said_in(run, column, cell)
    return run


def _summary_of(
    path: Path, run: Gathered, columns: Sequence[_Column], row: Sequence[str]
) -> Summary:
    tables: dict[str, list[dict[str, Any]]] = {"measures": [*run.measures.values()]}
    if run.events:
        told = ({name: event[name] for name in ("kind", "text", "attempt")} for event in run.events)
        tables["events"] = [{"event": i, **event} for i, event in enumerate(told)]
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
        tables={name: kept_rows(name, rows) for name, rows in tables.items()},
        notes=tuple(run.notes),
    )


def _describe(run: Gathered, text: str) -> None:
    """Note the sizes that a description tells, such as "2 nodes, 8 GPUs" or "4 P100"."""
    for name, pattern in _DESCRIBED:
        found = pattern.search(text)
        if found is not None and name not in run.measures:
            run.measure(name, float(found[1]), unit=Unit.COUNT, source="recorded")


def _said_in(run: Gathered, column: _Column, text: str) -> None:
    """Note the rate that a text tells, where no column does."""
    found = _SAID.search(text)
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
