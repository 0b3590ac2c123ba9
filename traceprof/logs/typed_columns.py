"""Find out what the columns of a typed table contain: measures, labels, or remarks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from traceprof.logs.cells import (
    COLUMNS,
    SIZES,
    TypedCell,
    TypedMeasure,
    TypedUnit,
    failure_of,
    measure_by_name,
    measure_by_unit,
    number_of,
    plain_name,
    quantity_of,
    unit_named,
)
from traceprof.logs.typed_marks import without_marks
from traceprof.logs.typed_tables import TypedTable
from traceprof.logs.typed_text import rate_units_in, sizes_in

TEXTS: Final[dict[str, list[str]]] = COLUMNS["texts"]
_BATCHES: Final = frozenset(
    COLUMNS["sizes"]["global_batch_count"] + COLUMNS["sizes"]["batch_per_device_count"]
)
_BRACKETS: Final = re.compile(r"[\[(](?P<unit>[^\[\]()]*+)[\])]")
_WORD: Final = re.compile(r"[\w.+]+")
_IDENTIFIER: Final = re.compile(r"[a-z][a-z0-9_]*")
"""A name as programs write it. A duration under such a name counts seconds."""
_MAX_LABEL_CHARS: Final = 60
_COUNTED: Final = frozenset({"devices_count", "world_size", "nodes_count"})
_MAX_DEVIATION_RATIO: Final = 0.02
_UNKNOWN: Final = TypedCell(math.nan)


@dataclass(frozen=True)
class TypedColumn:
    """A column of a table: its index ``place``, its heading, and its cells."""

    table: TypedTable
    place: int

    @property
    def typed(self) -> str:
        """The heading as it was typed."""
        return without_marks(self.table.heading[self.place])

    @cached_property
    def name(self) -> str:
        """The normalized name, without a unit or a list in brackets."""
        bare = _BRACKETS.sub(lambda match: "" if " " in match["unit"] else match[0], self.typed)
        return plain_name(bare)

    @cached_property
    def cells(self) -> list[str]:
        """The cells from top to bottom; a label in the first column is valid until the next."""
        cells = [without_marks(cell) for cell in self.table.column(self.place)]
        is_label = self.place == 0 and cells[0] != "" and number_of(cells[0]) is None
        is_label &= self.name.split("_")[0] not in {*TEXTS["name"], *TEXTS["note"]}
        for i in range(1, len(cells) if is_label else 0):
            cells[i] = cells[i] or cells[i - 1]
        return cells

    @cached_property
    def quantities(self) -> list[TypedCell | None]:
        """The numbers of the cells in the unit that their unit names; None if unreadable."""
        has_commas = self.table.has_decimal_commas
        return [
            _UNKNOWN
            if failure_of(cell)
            else quantity_of(cell, self.name, has_decimal_commas=has_commas)
            for cell in self.cells
        ]

    @cached_property
    def sizes(self) -> list[dict[str, float]]:
        """The sizes in cells such as 2x8 or 8x A100."""
        return [
            {} if quantity is not None else sizes_in(cell.strip("*` "))
            for cell, quantity in zip(self.cells, self.quantities, strict=True)
        ]

    @cached_property
    def numbers(self) -> list[float] | None:
        """The numbers of the cells (NaN if unknown), or None if the column contains text."""
        return None if None in self.quantities else self.readable

    @property
    def readable(self) -> list[float]:
        """The numbers of the cells; NaN if unknown or unreadable."""
        return [math.nan if cell is None else cell.value for cell in self.quantities]

    @cached_property
    def unit_of_cells(self) -> str:
        """The kind of the unit that the cells share; "" if they have no unit or several."""
        names = {cell.unit for cell in self.quantities if cell is not None and cell.unit}
        return names.pop() if len(names) == 1 else ""

    @cached_property
    def texts(self) -> list[str]:
        """The cells that are not marked as unknown."""
        return [cell for cell in self.cells if not math.isnan(_value(cell))]

    @property
    def unreadable(self) -> list[int]:
        """The rows whose cells are neither numbers, nor sizes, nor marks of unknown values."""
        return [
            row
            for row, (quantity, sizes) in enumerate(zip(self.quantities, self.sizes, strict=True))
            if quantity is None and not sizes
        ]

    def measure(self) -> TypedMeasure | None:
        """Return the measure that the column contains; None if there is none or it is unknown.

        At least half of the known cells must be numbers. The other cells are unreadable.
        """
        n_numbers = sum(map(math.isfinite, self.readable))
        found = self._known_measure() if n_numbers else None
        if (
            found is not None
            and found.assumed == "seconds"
            and not _IDENTIFIER.fullmatch(self.typed)
        ):
            return None
        if found is not None and found.name in _COUNTED:
            if 0 in self.readable:
                return None  # the number of a GPU or rank
            return found if self.numbers is not None or not self._is_mixed_text else None
        n_texts = self.quantities.count(None)
        return None if n_texts > n_numbers or (n_texts and found is None) else found

    @property
    def why_unread(self) -> str:
        """Why traceprof does not read the column although its heading names a measure; or ""."""
        n_numbers = sum(map(math.isfinite, self.readable))
        words = {*TEXTS["note"], *TEXTS["label"]}
        found = None if self.name.split("_")[0] in words else self._known_measure()
        if self.measure() is not None or (found is not None and found.name in SIZES.values()):
            return ""
        if found is None:
            is_rate = self.numbers is not None and n_numbers and "/" in self.typed
            return "its unit is unknown" if is_rate else ""
        if n_numbers and found.assumed == "seconds":
            return "it has no unit"
        n_digits = sum(any(map(str.isdigit, self.cells[row])) for row in self.unreadable)
        return "its cells are not numbers" if n_digits > len(self.cells) / 2 else ""

    @property
    def _is_mixed_text(self) -> bool:
        return len(self.unreadable) > sum(map(math.isfinite, self.readable))

    def _known_measure(self) -> TypedMeasure | None:
        numbers = self.readable
        in_brackets = [
            unit_named(match["unit"], self.name) for match in _BRACKETS.finditer(self.typed)
        ]
        bracket_unit = next((unit for unit in in_brackets if unit is not None), None)
        if bracket_unit is not None and not self.unit_of_cells:
            return measure_by_unit(
                self.name_without_unit, bracket_unit.kind, bracket_unit.times, numbers
            )
        if self.typed == "Runtime" and "Created" in self.table.heading:
            # Weights & Biases exports the duration of a run under this name, in seconds.
            return measure_by_unit("runtime", "ns", 1e9, numbers)
        if self.unit_of_cells:
            return measure_by_unit(self.name, self.unit_of_cells, 1.0, numbers)
        whole = unit_named(self.typed.strip("*` "))
        if whole is not None and _is_rate(whole):
            return measure_by_unit("", whole.kind, whole.times, numbers)
        for name in (self.name, plain_name(self.typed), self.name_without_unit):
            measure = measure_by_name(name, numbers)
            if measure is not None:
                return self._in_unit_of_text(measure)
        in_words = map(unit_named, self.typed.strip("*` ").split())
        unit = next((unit for unit in in_words if unit is not None and _is_rate(unit)), None)
        return None if unit is None else measure_by_unit("", unit.kind, unit.times, numbers)

    def _in_unit_of_text(self, measure: TypedMeasure) -> TypedMeasure:
        """Return the measure of a throughput without a unit in the unit that the text names."""
        if measure.assumed != "samples per second":
            return measure
        units = rate_units_in(f"{self.table.title}\n{self.table.prose}")
        kinds = {unit for unit in units if not unit.startswith("steps")}
        if len(kinds) != 1:
            return measure
        found = measure_by_unit(self.name, kinds.pop(), 1.0, self.readable)
        return measure if found is None else found

    @property
    def name_without_unit(self) -> str:
        """The normalized name without anything in brackets."""
        return plain_name(_BRACKETS.sub("", self.typed))


def _is_rate(unit: TypedUnit) -> bool:
    """Return whether a unit names its measure: a rate, or a time per step or epoch."""
    return "_per_s" in unit.kind or unit.kind.endswith("_ns")


def _value(cell: str) -> float:
    number = number_of(cell)
    return 0.0 if number is None else number.value


@dataclass(frozen=True)
class Meanings:
    """What the columns of a table contain.

    ``measures`` are the measures by index of the column. ``variants`` are the columns of further
    runs by the text that distinguishes their headings: each row then has a run per variant.
    ``repeated`` are pairs of columns with the same measure; traceprof uses the first one.
    """

    columns: tuple[TypedColumn, ...]
    measures: dict[int, TypedMeasure]
    variants: dict[str, list[int]]
    repeated: list[tuple[int, int]]

    def names(self) -> set[str]:
        """The names of all measures."""
        return {measure.name for measure in self.measures.values()}

    def places(self, name: str) -> list[int]:
        """Return the indices of the columns with the measure ``name``."""
        return [place for place, measure in self.measures.items() if measure.name == name]


def meanings_of(table: TypedTable) -> Meanings:
    """Return what the columns of a table contain."""
    columns = tuple(TypedColumn(table, place) for place in range(len(table.heading)))
    found = {
        column.place: measure for column in columns if (measure := column.measure()) is not None
    }
    by_name: dict[str, list[int]] = {}
    for place, measure in found.items():
        by_name.setdefault(measure.name, []).append(place)
    variants: dict[str, list[int]] = {}
    repeated: list[tuple[int, int]] = []
    for name, places in by_name.items():
        different = [
            places[0],
            *(i for i in places[1:] if not _agree(columns[places[0]], columns[i], found)),
        ]
        for place in set(places) - set(different):
            del found[place]
        is_varied = len(different) > 1 and name not in SIZES.values()
        if is_varied and not name.startswith("printed_"):
            for place, text in zip(different, _distinguished(columns, different), strict=True):
                variants.setdefault(text, []).append(place)
        elif len(different) > 1:
            repeated += [(different[0], place) for place in different[1:]]
            for place in different[1:]:
                del found[place]
    return Meanings(columns, found, variants, repeated)


def _agree(first: TypedColumn, second: TypedColumn, found: dict[int, TypedMeasure]) -> bool:
    """Return whether two columns contain the same values, for example in seconds and minutes."""
    times, others = found[first.place].times, found[second.place].times
    pairs = [
        (times * a, others * b)
        for a, b in zip(first.readable, second.readable, strict=True)
        if math.isfinite(a) and math.isfinite(b)
    ]
    return bool(pairs) and all(abs(a - b) <= _MAX_DEVIATION_RATIO * abs(a) for a, b in pairs)


def _distinguished(columns: Sequence[TypedColumn], places: Sequence[int]) -> list[str]:
    """Return the words of each heading that the other headings do not contain."""
    words = [_WORD.findall(columns[place].typed) for place in places]
    common = set.intersection(*map(set, words))
    texts = [
        " ".join(word for word in heading if word not in common and not _is_unit(word))
        for heading in words
    ]
    texts = texts if len({*texts}) == len(texts) else [""] * len(texts)
    return [text or columns[place].typed for text, place in zip(texts, places, strict=True)]


def _is_unit(word: str) -> bool:
    """Return whether a word of a heading belongs to the unit of a rate, such as img in img/s."""
    unit = unit_named(f"{word}/s")
    return word == "s" or (unit is not None and _is_rate(unit))


def is_table_of_steps(meanings: Meanings) -> bool:
    """Return whether rows are the steps or epochs of one run, as a program writes them."""
    if meanings.names() & {*COLUMNS["sizes"]}:
        return False
    steps = [column for column in meanings.columns if column.name in TEXTS["steps"]]
    for column in steps:
        known = [number for number in column.readable if math.isfinite(number)]
        if len(known) > 1 and len(known) >= len(column.cells) / 2:
            return all(first < second for first, second in pairwise(known))
    return False


def label_columns(meanings: Meanings) -> Iterator[TypedColumn]:
    """Yield the columns that are labels, which group runs, and not remarks about single runs."""
    sizes = [
        meanings.columns[i]
        for i, measure in meanings.measures.items()
        if measure.name in SIZES.values()
    ]
    first = next((c for c in meanings.columns if c.place not in meanings.measures), None)
    for column in meanings.columns:
        if column.place not in meanings.measures and (
            _is_label(column, sizes)
            or (column is first and not sizes and meanings.measures and _tells_apart(column))
        ):
            yield column


def _tells_apart(column: TypedColumn) -> bool:
    """Return whether a column without sizes distinguishes the rows of a table without sizes."""
    texts = column.texts
    is_short = all(len(text) <= _MAX_LABEL_CHARS for text in texts)
    is_distinct = len(set(texts)) == len(texts) == len(column.cells) > 1
    has_no_sizes = not any(map(sizes_in, texts)) and column.name not in TEXTS["name"]
    return is_short and is_distinct and has_no_sizes


def _is_label(column: TypedColumn, sizes: Sequence[TypedColumn]) -> bool:
    name, texts = column.name, column.texts
    first_word = name.split("_")[0]
    if not texts or name in TEXTS["name"]:
        return False
    if name in TEXTS["label"] or first_word in TEXTS["label"]:
        return True
    if name in TEXTS["note"] or first_word in TEXTS["note"]:
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


def _follows_sizes(sizes: Sequence[tuple[str, ...]], column: TypedColumn) -> bool:
    """Return whether a column of numbers has one value per size, and groups nothing else."""
    pairs = zip(sizes, column.cells, strict=True)
    known = {(size, cell) for size, cell in pairs if cell in column.texts}
    known_cells, known_sizes = {cell for _, cell in known}, {size for size, _ in known}
    return len(known_cells) > 1 and len(known) == len(known_sizes) == len(known_cells)


def describing(meanings: Meanings) -> list[TypedColumn]:
    """Return the columns whose text describes the runs, such as "4 P100" or "8xA100, batch 64"."""
    return [
        column
        for column in meanings.columns
        if column.place not in meanings.measures
        and (column.name in TEXTS["described"] or not column.typed or column.name in SIZES)
    ]


GLOBAL: Final = "global"
DEVICE: Final = "device"


def scope_of_batches(
    batches: Sequence[float], devices: Sequence[float], step_samples: Sequence[float]
) -> str:
    """Return whether batch sizes of unknown scope count all GPUs or one; "" if undecided.

    ``step_samples`` are the samples per step that rate and step time give. Otherwise, batches that
    grow with the number of GPUs count all GPUs, and batches that shrink with it count one.
    """
    rows = [
        row
        for row in zip(batches, devices, step_samples, strict=True)
        if math.isfinite(row[0]) and math.isfinite(row[1])
    ]
    by_rate = [(batch, n, total) for batch, n, total in rows if math.isfinite(total) and n > 1]
    if by_rate:
        is_global = all(_are_close(batch, total) for batch, _, total in by_rate)
        is_local = all(_are_close(batch * n, total) for batch, n, total in by_rate)
        if is_global != is_local:
            return GLOBAL if is_global else DEVICE
    if len({n for _, n, _ in rows}) < 2:
        return ""
    if len({batch / n for batch, n, _ in rows}) == 1:
        return GLOBAL
    return DEVICE if len({batch * n for batch, n, _ in rows}) == 1 else ""


def _are_close(value: float, other: float) -> bool:
    return abs(value - other) <= 0.1 * abs(other)
