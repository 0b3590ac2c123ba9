"""Format comparisons for a terminal: difference of two runs, scaling, heat map of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from traceprof.comparison.scaling.laws import ABSENT_BASE, CUT_OFF, NOT_FROM_RATES, ROUNDED
from traceprof.model.activity import IDLE
from traceprof.model.grouping import split_by
from traceprof.model.results import Column, Result, Unit
from traceprof.model.table import Table
from traceprof.render.escape import plain_text
from traceprof.render.formatting import is_known, signed_duration, value_text
from traceprof.render.heat import HeatLines, HeatMap, find_lines, format_excess, make_heat_map
from traceprof.render.palette import HEAT, PART_STYLES
from traceprof.render.shown import SELF_EXPLAINING_KINDS, Row, largest_causes
from traceprof.render.text.tables import rows_left_view
from traceprof.units import format_duration, format_number

_BAR_WIDTH: Final = 10
_TIME_WIDTH: Final = 10
_MIN_NAME_WIDTH: Final = 28
_MAX_NAME_WIDTH: Final = 120
_MAX_ANSWER_WIDTH: Final = 400
_PARTS: Final = {part.key: part.label for part in PART_STYLES}
_UNCOUNTED_KINDS: Final = ("waiting", "rest")


class _Sides(NamedTuple):
    """Column prefixes of the two sides.

    ``first`` and ``second`` are in the order of display. The difference is ``new`` minus ``base``.
    """

    first: str
    second: str
    new: str
    base: str


_OF_WINDOWS: Final = _Sides("explained", "reference", "explained", "reference")
_OF_RUNS: Final = _Sides("base", "new", "new", "base")


def difference_view(result: Result, rows: int, width: int) -> RenderableType:
    """Return the parts of the difference of two runs, each with its largest ``rows`` causes."""
    return Group(*_waterfall(result, rows, width, _OF_RUNS, _OF_RUNS[:2]))


def waterfall_view(result: Result, rows: int, width: int) -> RenderableType:
    """Return the difference of two windows in words, its parts, and the causes of each part.

    Each part has its largest ``rows`` causes and the sum of its other causes.
    """
    scalars = result.scalars
    names = (str(scalars["explained"]), str(scalars["reference"]))
    answer = str(scalars["answer"]).splitlines()
    headline = Text("\n".join(plain_text(line, _MAX_ANSWER_WIDTH) for line in answer) + "\n")
    phases_title = "host phases, from the start of a step to the start of the next"
    return Group(headline, *_waterfall(result, rows, width, _OF_WINDOWS, names, phases_title))


def _waterfall(
    result: Result,
    rows: int,
    width: int,
    sides: _Sides,
    names: Sequence[str],
    phases_title: str = "host phases",
) -> Iterator[Text]:
    """Yield the lines of a difference: parts with their causes, the total, and host phases.

    ``names`` are the headings of the two sides. Each part has at most ``rows`` causes.
    """
    parts = sorted(result.tables["parts"].rows(), key=lambda row: -abs(row["difference_ns"]))
    causes = result.tables["causes"].rows()
    phases = result.tables["phases"].rows() if "phases" in result.tables else []
    scaled = (*parts, *causes) or phases
    scale = max((abs(row["difference_ns"]) for row in scaled), default=0)
    if result.scalars.get("is_usual"):  # tiny differences have tiny bars
        scale = result.scalars["reference_ns"]
    longest = max((len(f"  {_cause(row)}{_details(row, sides)}") for row in causes), default=0)
    lines = _DifferenceLines(width, longest, scale, sides)
    yield lines.head(names)
    for part in parts:
        if part[f"{sides.new}_ns"] or part[f"{sides.base}_ns"]:
            yield lines.line(_PARTS[part["part"]], part, style="bold")
            of_part = [row for row in causes if row["part"] == part["part"]]
            yield from _causes(of_part, rows, lines)
    if parts:
        yield lines.line("total", result.scalars, style="bold")
    if phases:
        yield Text(f"\n{phases_title}", style="dim")
        for row in phases[:rows]:
            yield lines.line(f"  {plain_text(row['phase']).strip('()')}", row)
        yield from lines.rest(phases[rows:])


def _causes(causes: Sequence[Row], rows: int, lines: _DifferenceLines) -> Iterator[Text]:
    """Yield the largest causes of a part and the sum of the others: they add up to the part."""
    listed = largest_causes(causes, lines.scale, rows)
    for row in listed:
        yield lines.line(f"  {_cause(row)}", row, suffix=_details(row, lines.sides))
    if listed:
        yield from lines.rest(causes[len(listed) :])


def _cause(row: Row) -> str:
    """Return the name of a cause, with its kind if the name does not imply the kind."""
    name, kind = plain_text(row["name"]).removeprefix("void "), row["kind"]
    if kind in SELF_EXPLAINING_KINDS:
        return name
    if kind == "waiting":
        return f"waiting for {name}" if not name.startswith("(") else f"waiting for {name[1:-1]}"
    if kind == "rest":
        return "unknown"
    return f"{kind}: {name}" if name else str(kind)


def _details(row: Row, sides: _Sides) -> str:
    """Return counts of a cause on both sides, the device with most of the difference, its state."""
    device = row.get("device")
    details = f" (GPU {int(device)})" if device is not None and is_known(device) else ""
    if row.get("state") in ("new", "gone", "renamed"):
        details += f" ({row['state']})"
    if row["part"] == IDLE or row["kind"] in _UNCOUNTED_KINDS:
        return details
    new, base = (format_number(row[f"{side}_count"]) for side in (sides.new, sides.base))
    return (f" ×{new}" if new == base else f" ×{new} instead of ×{base}") + details


class _DifferenceLines:
    """Formats lines of one width: a name, both times, their difference, and a bar of it."""

    def __init__(self, width: int, longest: int, scale: int, sides: _Sides) -> None:
        self.scale = scale
        self.sides = sides
        self._left = width - 3 * (_TIME_WIDTH + 1) - _BAR_WIDTH - 1
        # In wide output names are not cut. The maximum keeps a name of a thousand characters
        # from moving all times out of sight.
        self._name_width = min(self._left, max(_MIN_NAME_WIDTH, longest), _MAX_NAME_WIDTH)

    def rest(self, rows: Sequence[Row]) -> Iterator[Text]:
        """Yield one line with the sums of ``rows``; nothing without rows."""
        if rows:
            names = (f"{self.sides.first}_ns", f"{self.sides.second}_ns", "difference_ns")
            sums = {name: sum(row[name] for row in rows) for name in names}
            yield self.line(f"  other ({len(rows)})", sums, style="dim")

    def head(self, names: Sequence[str]) -> Text:
        """Return the headings."""
        # The headline has the full name, for example "iteration 9 of the pattern".
        short = [name.partition(" of ")[0].replace("iteration ", "iter. ") for name in names]
        titles = [plain_text(title, _TIME_WIDTH).rjust(_TIME_WIDTH) for title in short]
        return Text(" ".join([" " * self._name_width, *titles, "difference"]), style="dim")

    def line(self, name: str, row: Row, *, suffix: str = "", style: str = "default") -> Text:
        """Return a line; a long name is cut, ``suffix`` is not."""
        label = plain_text(name, max(2, self._left - len(suffix))) + suffix
        times = [format_duration(row[f"{side}_ns"]) for side in self.sides[:2]]
        ns = row["difference_ns"]
        times.append(signed_duration(ns) if ns else "0")
        text = Text(label.ljust(self._name_width), style=style)
        text.append("".join(f" {time:>{_TIME_WIDTH}}" for time in times))
        cells = round(_BAR_WIDTH * min(1.0, abs(ns) / self.scale)) if self.scale else 0
        text.append(" " + "█" * cells, style="red" if ns > 0 else "green")
        return text


_LONG_BAR: Final = 20
_SHORT_BAR: Final = 10
_MIN_WIDTH_OF_LONG_BAR: Final = 100
_GAP: Final = "  "
_TITLES: Final[Mapping[str, str]] = {
    "devices_count": "GPUs",
    "nodes_count": "nodes",
    "global_batch_count": "batch",
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "steps_per_s": "steps/s",
    "speedup": "speedup",
    "efficiency_ratio": "of ideal",
    "time_to_train_ns": "time to train",
    "mfu_ratio": "MFU",
    "sample_joules": "J/sample",
    "million_samples_cost": "cost/1M",
}
"""The number columns of a scaling table that a line shows, with their headings."""
_PRINTED: Final = {
    ROUNDED: "",
    CUT_OFF: " (truncated)",
    NOT_FROM_RATES: " (not from rates)",
    ABSENT_BASE: " (of another base)",
}
_BASE: Final = "base"
_MIN_LOSS_RATIO: Final = 0.0005


def scaling_view(result: Result, rows: int, width: int) -> RenderableType:
    """Return, for each group of runs, its sizes, their losses, and the fitted scaling law.

    At most ``rows`` sizes are shown in all groups together.
    """
    table = result.tables["scaling"]
    losses, laws = (
        dict(split_by(result.tables[name], "group")) if name in result.tables else {}
        for name in ("losses", "laws")
    )
    lines = _SizeLines(table, result, width)
    shown: list[RenderableType] = [lines.head()]
    for name, sizes in split_by(table.head(rows), "group"):
        title = name or ("all runs" if len({*table["group"].tolist()}) > 1 else "")
        if title:
            shown.append(Text(plain_text(title, 400), style="bold"))
        shown += [lines.line(row) for row in sizes.rows()]
        shown += _losses(losses[name], sizes, width) if name in losses else ()
        shown += [_law(row) for row in laws[name].rows()] if name in laws else ()
    if len(table) > rows:
        shown.append(rows_left_view(len(table) - rows))
    return Group(*shown)


class _SizeLines:
    """Formats the lines of sizes in one layout: numbers, an efficiency bar, and remarks."""

    def __init__(self, table: Table, result: Result, width: int) -> None:
        spec = result.spec.table("scaling")
        self.width = width
        # If all sizes are of one kind, the sentences above the table state it.
        self.shows_kind = len({*table["scaling"].tolist()} - {_BASE}) > 1
        self.bar_width = _LONG_BAR if width >= _MIN_WIDTH_OF_LONG_BAR else _SHORT_BAR
        titles = {**_TITLES, "devices_count": str(result.scalars["devices"])}
        self.titles = {
            spec.column(name): title for name, title in titles.items() if _has_column(table, name)
        }
        self.widths = {
            column: max(len(title), *(len(_number(column, v)) for v in table[column.name].tolist()))
            for column, title in self.titles.items()
        }

    def head(self) -> Text:
        """Return the headings."""
        titles = (title.rjust(self.widths[column]) for column, title in self.titles.items())
        return Text(f"{_GAP}{_GAP.join(titles)}", style="dim")

    def line(self, row: Row) -> Text:
        """Return the line of a size: its numbers, a bar of its efficiency, remarks that fit."""
        numbers = (
            _number(column, row[column.name]).rjust(self.widths[column]) for column in self.titles
        )
        text = Text(f"{_GAP}{_GAP.join(numbers)}{_GAP}")
        bar = _bar(row["efficiency_ratio"], self.bar_width)
        text.append(bar.ljust(self.bar_width), style="green")
        remarks = "; ".join(_remarks(row, shows_kind=self.shows_kind))
        if remarks:
            text.append(f"{_GAP}{plain_text(remarks)}", style="default")
        text.truncate(self.width, overflow="ellipsis")
        text.rstrip()
        return text


def _has_column(table: Table, name: str) -> bool:
    """Return whether lines show a column: it has a known value, or two of nodes and batch sizes."""
    known = {value for value in table[name].tolist() if is_known(value)} if name in table else ()
    return len(known) > (name in ("nodes_count", "global_batch_count"))


def _number(column: Column, value: Any) -> str:
    unit = Unit.NUMBER if column.unit is Unit.FACTOR else column.unit
    return value_text(unit, value).removesuffix(" /s")


def _bar(ratio: Any, width: int) -> str:
    """Return the efficiency as a bar: ideal is full, better than ideal ends in a plus sign."""
    if not is_known(ratio):
        return ""
    cells = round(width * min(1.0, float(ratio)))
    return "█" * (cells - 1) + "+" if ratio > 1 + 1 / width else "█" * cells


def _remarks(row: Row, *, shows_kind: bool) -> Iterator[str]:
    """Yield the remarks on a size: kind of scaling, interval, efficiency in the input file."""
    has_kind = row["scaling"] == _BASE or (shows_kind and row["scaling"] != "unknown")
    if row["scaling"] and has_kind:
        yield str(row["scaling"])
    if row["ranks"] == "independent":
        yield "mean of independent ranks"
    if is_known(row["low_ratio"]):
        yield " to ".join(value_text(Unit.RATIO, row[name]) for name in ("low_ratio", "high_ratio"))
    if is_known(row["printed_ratio"]) and row["printed_is"]:
        printed = value_text(Unit.NUMBER, round(100 * row["printed_ratio"], 6))
        yield f"input file: {printed}%{_PRINTED[row['printed_is']]}"


def _losses(losses: Table, sizes: Table, width: int) -> Iterator[Text]:
    """Yield the losses of each size, in percent of ideal: one line per cause, and their sum.

    Each size is a column. The smallest sizes are left out if the lines are too narrow.
    """
    keys = [k for k in ("devices_count", "nodes_count", "global_batch_count") if k in sizes]
    places = {_size_of(row, keys): place for place, row in enumerate(sizes.rows())}
    lost: dict[str, dict[int, float]] = {}
    for row in losses.rows():
        place = places.get(_size_of(row, keys))
        if place is not None:
            by_place = lost.setdefault(row["loss"], {})
            by_place[place] = by_place.get(place, 0.0) + row["lost_ratio"]
    columns = sorted({place for by_place in lost.values() for place in by_place})
    if not columns:
        return
    order = sorted(sorted(lost), key=lambda name: -lost[name].get(columns[-1], -math.inf))
    left = max(len("lost (of ideal)"), *map(len, lost)) + 2
    columns = columns[-max(1, (width - left - 2) // 10) :]
    size = "devices_count" if all(map(is_known, sizes["devices_count"].tolist())) else "nodes_count"
    heads = [value_text(Unit.COUNT, sizes[size][place]) for place in columns]
    yield Text(_cells("lost (of ideal)", heads, left), style="dim")
    for name in order:
        values = [lost[name].get(place, math.nan) for place in columns]
        if any(abs(value) >= _MIN_LOSS_RATIO for value in values):
            yield Text(_cells(name, [value_text(Unit.RATIO, v) for v in values], left))
    totals = (sum(by_place.get(place, 0.0) for by_place in lost.values()) for place in columns)
    cells = [value_text(Unit.RATIO, total) for total in totals]
    yield Text(_cells("total lost", cells, left), style="bold")


def _size_of(row: Row, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[key] if is_known(row[key]) else None for key in keys)


def _cells(name: str, cells: Sequence[str], left: int) -> str:
    return f"{_GAP}{name.ljust(left)}" + "".join(cell.rjust(10) for cell in cells)


def _law(row: Row) -> Text:
    """Return the serial fraction of Amdahl's law, what it implies, and the Karp–Flatt metric."""
    share, limit = row["serial_ratio"], row["limit_speedup"]
    if not is_known(share):
        return Text()
    text = f"{_GAP}serial fraction (Amdahl's law) {value_text(Unit.RATIO, share)}"
    if share > 1:
        text += " is above 100%: larger jobs are slower"
    elif is_known(limit) and row["is_exceeded"]:
        text += f" does not fit: it limits the speedup to {value_text(Unit.FACTOR, limit)}"
    elif is_known(limit):
        text += f" limits the speedup to {value_text(Unit.FACTOR, limit)}"
    if row["sizes_count"] > 1:
        ends = (value_text(Unit.RATIO, row[f"karp_flatt_{at}_ratio"]) for at in ("first", "last"))
        text += f"; Karp–Flatt metric from {' to '.join(ends)}"
    return Text(text, style="dim")


_MAX_HOST_WIDTH: Final = 16
_EXCESS_WIDTH: Final = 10
_MIN_CELLS: Final = 8
_NO_STEP: Final = " "
_MIN_NAMED_RATIO: Final = 0.03
"""The slowest rank of a line is named from this excess on."""
_MAX_LINES: Final = 32


def heat_view(result: Result, _rows: int, width: int) -> RenderableType:
    """Return the heat map of a result of "rank-steps"."""
    return Group(*heat_lines(result.table, _MAX_LINES, width))


def heat_lines(table: Table, most_rows: int, width: int) -> list[Text]:
    """Return the heat map of the table of "rank-steps" in at most ``width`` columns.

    The list is empty for a single rank.
    """
    groups = find_lines(table, most_rows)
    if groups is None:
        return []
    labels = _labels(groups)
    left = max(map(len, labels)) + 2
    is_shared = len(groups) < len(groups.ranks)
    right = _EXCESS_WIDTH + (2 + max(map(len, groups.ranks["label"])) if is_shared else 0)
    n_cells = max(_MIN_CELLS, width - left - right)
    heat = make_heat_map(table, groups, n_cells)
    cell_width = 2 if 2 * len(heat.steps) <= n_cells else 1
    first, last = heat.steps[0][0], heat.steps[-1][1]
    steps = f"step {first}" if first == last else f"steps {first}–{last}"
    title = f"self time of {len(groups.ranks)} ranks in {steps}, compared with the median rank"
    lines = [Text(title, style="dim")]
    for label, row, levels in zip(labels, heat.rows, heat.levels, strict=True):
        line = Text(label.ljust(left), style="dim")
        for level in levels:
            if level < 0:
                line.append(_NO_STEP * cell_width)
            else:
                line.append(HEAT[level].glyph * cell_width, style=HEAT[level].dark)
        line.append(format_excess(row.slower_ratio).rjust(_EXCESS_WIDTH), style="default")
        if row.slowest and row.slower_ratio >= _MIN_NAMED_RATIO:
            line.append(f"  {row.slowest}", style="default")
        lines.append(line)
    return [*lines, *_heat_legend(heat, width)]


def _labels(lines: HeatLines) -> list[str]:
    """Return the labels of the lines; the first line of each host starts with its name."""
    hosts = [plain_text(host, _MAX_HOST_WIDTH) for host in lines.hosts]
    if len(set(hosts)) < 2:
        return list(lines.labels)
    shown = [host if i == 0 or host != hosts[i - 1] else "" for i, host in enumerate(hosts)]
    widest = max(map(len, shown))
    return [
        f"{host.ljust(widest)}  {label}" for host, label in zip(shown, lines.labels, strict=True)
    ]


def _heat_legend(heat: HeatMap, width: int) -> Iterator[Text]:
    """Yield the legend of the levels that occur in the map, and the notes on the map."""
    line = Text()
    for level in sorted(set(heat.levels[heat.levels >= 0].tolist())):
        entry = Text(f"{HEAT[level].glyph}{HEAT[level].glyph}", style=HEAT[level].dark)
        entry.append(f" {HEAT[level].label}  ", style="dim")
        if line and len(line) + len(entry) > width:
            yield line
            line = Text()
        line.append_text(entry)
    yield line
    yield from (Text(f"note: {note}", style="dim italic") for note in heat.notes)
