"""Comparisons in a terminal: the difference of two, throughput by size, ranks step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from traceprof.comparison.scaling.laws import CUT_OFF, NOT_FROM_RATES, ROUNDED
from traceprof.model.activity import IDLE
from traceprof.model.grouping import split_by
from traceprof.model.results import Column, Result, Unit
from traceprof.model.table import Table
from traceprof.render.escape import plain_text
from traceprof.render.formatting import is_known, signed_duration, value_text
from traceprof.render.heat import HeatLines, HeatMap, find_lines, format_more, make_heat_map
from traceprof.render.palette import HEAT, PART_STYLES
from traceprof.render.shown import Row
from traceprof.render.text.tables import rows_left_view
from traceprof.units import format_duration, format_number

_BAR_WIDTH: Final = 10
_TIME_WIDTH: Final = 10
_LEAST_NAME_WIDTH: Final = 28
_MOST_NAME_WIDTH: Final = 120
_LEAST_SHARE: Final = 0.02
"""What is less of the largest difference has no line of its own."""

_PARTS: Final = {part.key: part.label for part in PART_STYLES}
_BARE: Final = ("kernel", "copy", "collective")
"""Kinds that their names tell."""

_UNCOUNTED: Final = ("waiting", "rest")


class _Sides(NamedTuple):
    """What the two are called in columns, in the order in which they stand; ``new`` is told of."""

    first: str
    second: str
    new: str
    base: str


_OF_WINDOWS: Final = _Sides("own", "against", "own", "against")
_OF_RUNS: Final = _Sides("base", "new", "new", "base")


def difference_view(result: Result, rows: int, width: int) -> RenderableType:
    """Return the parts of the difference of two runs, each with its largest ``rows`` causes."""
    return Group(*_waterfall(result, rows, width, _OF_RUNS))


def waterfall_view(result: Result, rows: int, width: int) -> RenderableType:
    """Return the parts of the difference, each with its largest ``rows`` causes and the rest."""
    return Group(_headline(result), *_waterfall(result, rows, width, _OF_WINDOWS))


def _waterfall(result: Result, rows: int, width: int, sides: _Sides) -> Iterator[Text]:
    parts = sorted(result.tables["parts"].rows(), key=lambda row: -abs(row["difference_ns"]))
    causes = result.tables["causes"].rows()
    phases = result.tables["phases"].rows() if "phases" in result.tables else []
    scaled = (*parts, *causes) or phases
    scale = max((abs(row["difference_ns"]) for row in scaled), default=0)
    longest = max((len(f"  {_named(row)}{_counted(row, sides)}") for row in causes), default=0)
    lines = _Lines(width, longest, scale, sides)
    scalars = result.scalars
    names = [str(scalars[name]) for name in sides[:2]] if sides is _OF_WINDOWS else sides[:2]
    yield lines.head(names)
    for part in parts:
        if not part[f"{sides.new}_ns"] and not part[f"{sides.base}_ns"]:
            continue
        yield lines.line(_PARTS[part["part"]], part, style="bold")
        yield from _below([row for row in causes if row["part"] == part["part"]], rows, lines)
    if parts:
        yield lines.line("total", scalars, style="bold")
    if phases:
        what = ", from the start of a step to the start of the next" if sides is _OF_WINDOWS else ""
        yield Text(f"\nhost phases{what}", style="dim")
        named = [(f"  {plain_text(row['phase']).strip('()')}", row) for row in phases[:rows]]
        yield from (lines.line(name, row) for name, row in named)
        yield from lines.rest(phases[rows:])


def _headline(result: Result) -> Text:
    own, against, ns = (result.scalars[name] for name in ("own", "against", "difference_ns"))
    by = f"{format_duration(abs(ns))} {'longer' if ns > 0 else 'shorter'} than"
    text = f"{own} is {by if ns else 'as long as'} {against}"
    n_devices = result.scalars["devices_count"]
    return Text(text + (f", mean of {n_devices} GPUs" if n_devices > 1 else "") + "\n")


def _below(causes: Sequence[Row], rows: int, lines: _Lines) -> Iterator[Text]:
    """Yield the causes that are worth a line, and the others together: they add up to the part."""
    large = [row for row in causes if abs(row["difference_ns"]) >= _LEAST_SHARE * lines.scale > 0]
    listed = large[:rows]
    for row in listed:
        yield lines.line(f"  {_named(row)}", row, suffix=_counted(row, lines.sides))
    if listed:
        yield from lines.rest(causes[len(listed) :])


def _named(row: Row) -> str:
    name, kind = plain_text(row["name"]).removeprefix("void "), row["kind"]
    if kind in _BARE:
        return name
    if kind == "waiting":
        return f"waiting for {name}" if not name.startswith("(") else f"waiting for {name[1:-1]}"
    if kind == "rest":
        return "unknown"
    return f"{kind}: {name}" if name else str(kind)


def _counted(row: Row, sides: _Sides) -> str:
    """Return how many there were, on which device most of the difference is, what became of it."""
    device = row.get("device")
    where = f" (GPU {int(device)})" if device is not None and is_known(device) else ""
    if row.get("state") in ("new", "gone", "renamed"):
        where += f" ({row['state']})"
    if row["part"] == IDLE or row["kind"] in _UNCOUNTED:
        return where
    count, other_count = (format_number(row[f"{name}_count"]) for name in (sides.new, sides.base))
    return (
        f" ×{count}" if count == other_count else f" ×{count} instead of ×{other_count}"
    ) + where


class _Lines:
    """Lines of one width: a name, the two times, their difference, and that as a bar."""

    def __init__(self, width: int, longest: int, scale: int, sides: _Sides) -> None:
        self.scale = scale
        self.sides = sides
        self._left = width - 3 * (_TIME_WIDTH + 1) - _BAR_WIDTH - 1
        # Where names stay whole, those of a thousand characters stand out: times stay in sight.
        self._name_width = min(self._left, max(_LEAST_NAME_WIDTH, longest), _MOST_NAME_WIDTH)

    def rest(self, rows: Sequence[Row]) -> Iterator[Text]:
        """Yield the times of several rows together, if there are any."""
        if rows:
            names = (f"{self.sides.first}_ns", f"{self.sides.second}_ns", "difference_ns")
            sums = {name: sum(row[name] for row in rows) for name in names}
            yield self.line(f"  other ({len(rows)})", sums, style="dim")

    def head(self, names: Sequence[str]) -> Text:
        """Return the headings."""
        # "iteration 9 of the pattern" is written out in the headline.
        short = [title.partition(" of ")[0] for title in names]
        titles = [plain_text(title, _TIME_WIDTH).rjust(_TIME_WIDTH) for title in short]
        return Text(" ".join([" " * self._name_width, *titles, "difference"]), style="dim")

    def line(self, name: str, row: Row, *, suffix: str = "", style: str = "default") -> Text:
        """Return a line; ``suffix`` stays whole where the name is cut."""
        whole = plain_text(name, max(2, self._left - len(suffix))) + suffix
        times = [format_duration(row[f"{side}_ns"]) for side in self.sides[:2]]
        ns = row["difference_ns"]
        times.append(signed_duration(ns) if ns else "0")
        text = Text(whole.ljust(self._name_width), style=style)
        text.append("".join(f" {time:>{_TIME_WIDTH}}" for time in times))
        cells = round(_BAR_WIDTH * min(1.0, abs(ns) / self.scale)) if self.scale else 0
        text.append(" " + "█" * cells, style="red" if ns > 0 else "green")
        return text


_LONG_BAR: Final = 20
_SHORT_BAR: Final = 10
_WIDE: Final = 100
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
"""The columns of numbers that have room in a line."""
_PRINTED: Final = {ROUNDED: "", CUT_OFF: " (truncated)", NOT_FROM_RATES: " (not from rates)"}
_BASE: Final = "base"
_WEAKEST: Final = 0.0005
_LAW: Final = "serial fraction (Amdahl's law) "


def scaling_view(result: Result, rows: int, width: int) -> RenderableType:
    """Return the sizes of each group (the first ``rows`` of all), what they lost, and the law."""
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
    """Lines of one layout: the numbers that are known of any size, a bar, what must be said."""

    def __init__(self, table: Table, result: Result, width: int) -> None:
        spec = result.spec.table("scaling")
        self.width = width
        # Where all are of one kind the sentences above say it, and a line has room for more.
        self.shows_kind = len({*table["scaling"].tolist()} - {_BASE}) > 1
        self.columns = [spec.column(name) for name in _TITLES if _has_column(table, name)]
        self.bar = _LONG_BAR if width >= _WIDE else _SHORT_BAR
        titles = {**_TITLES, "devices_count": str(result.scalars["devices"])}
        self.titles = {column: titles[column.name] for column in self.columns}
        self.widths = {
            column: max(len(title), *(len(_number(column, v)) for v in table[column.name].tolist()))
            for column, title in self.titles.items()
        }

    def head(self) -> Text:
        """Return the headings."""
        titles = (title.rjust(self.widths[column]) for column, title in self.titles.items())
        return Text(f"{_GAP}{_GAP.join(titles)}", style="dim")

    def line(self, row: Row) -> Text:
        """Return a size: its numbers, the efficiency as a bar, and remarks as far as they fit."""
        numbers = (
            _number(column, row[column.name]).rjust(self.widths[column]) for column in self.titles
        )
        text = Text(f"{_GAP}{_GAP.join(numbers)}{_GAP}")
        text.append(_bar(row["efficiency_ratio"], self.bar).ljust(self.bar), style="green")
        remarks = "; ".join(_remarks(row, shows_kind=self.shows_kind))
        if remarks:
            text.append(f"{_GAP}{plain_text(remarks)}", style="default")
        text.truncate(self.width, overflow="ellipsis")
        text.rstrip()
        return text


def _has_column(table: Table, name: str) -> bool:
    """Return whether a column has a place in the lines: known, and of nodes and batches not one."""
    known = {value for value in table[name].tolist() if is_known(value)} if name in table else ()
    return len(known) > (name in ("nodes_count", "global_batch_count"))


def _number(column: Column, value: Any) -> str:
    unit = Unit.NUMBER if column.unit is Unit.FACTOR else column.unit
    return value_text(unit, value).removesuffix(" /s")


def _bar(ratio: Any, width: int) -> str:
    """Return the efficiency as a bar: full is ideal, more than that ends in a plus."""
    if not is_known(ratio):
        return ""
    cells = round(width * min(1.0, float(ratio)))
    return "█" * (cells - 1) + "+" if ratio > 1 + 1 / width else "█" * cells


def _remarks(row: Row, *, shows_kind: bool) -> Iterator[str]:
    """Yield what must be said of a size: kinds, the interval, what was printed of it."""
    has_kind = row["scaling"] == _BASE or (shows_kind and row["scaling"] != "unknown")
    if row["scaling"] and has_kind:
        yield str(row["scaling"])
    if row["ranks"] == "independent":
        yield "mean of independent ranks"
    if is_known(row["low_ratio"]):
        ends = (value_text(Unit.RATIO, row[name]) for name in ("low_ratio", "high_ratio"))
        yield " to ".join(ends)
    if is_known(row["printed_ratio"]) and row["printed_is"]:
        printed = value_text(Unit.NUMBER, round(100 * row["printed_ratio"], 6))
        yield f"input file: {printed}%{_PRINTED[row['printed_is']]}"


def _losses(losses: Table, sizes: Table, width: int) -> Iterator[Text]:
    """Yield what was lost on each size, in % of ideal, a line for each cause and one for all."""
    keys = [k for k in ("devices_count", "nodes_count", "global_batch_count") if k in sizes]
    places = {_size_of(row, keys): place for place, row in enumerate(sizes.rows())}
    lost: dict[str, dict[int, float]] = {}
    for row in losses.rows():
        place = places.get(_size_of(row, keys))
        if place is not None:
            own = lost.setdefault(row["loss"], {})
            own[place] = own.get(place, 0.0) + row["lost_ratio"]
    columns = sorted({place for own in lost.values() for place in own})
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
        if any(abs(value) >= _WEAKEST for value in values):
            yield Text(_cells(name, [value_text(Unit.RATIO, v) for v in values], left))
    sums = [
        value_text(Unit.RATIO, sum(own.get(place, 0.0) for own in lost.values()))
        for place in columns
    ]
    yield Text(_cells("total lost", sums, left), style="bold")


def _size_of(row: Row, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[key] if is_known(row[key]) else None for key in keys)


def _cells(name: str, cells: Sequence[str], left: int) -> str:
    return f"{_GAP}{name.ljust(left)}" + "".join(cell.rjust(10) for cell in cells)


def _law(row: Row) -> Text:
    share, limit = row["serial_ratio"], row["limit_speedup"]
    if not is_known(share):
        return Text()
    text = f"{_GAP}{_LAW}{value_text(Unit.RATIO, share)}"
    if share > 1:
        text += " is above 100%: larger jobs are slower"
    elif is_known(limit) and row["is_exceeded"]:
        most = value_text(Unit.FACTOR, limit)
        text += f" does not fit: it limits the speedup to {most}"
    elif is_known(limit):
        text += f" limits the speedup to {value_text(Unit.FACTOR, limit)}"
    if row["sizes_count"] > 1:
        ends = (value_text(Unit.RATIO, row[f"karp_flatt_{at}_ratio"]) for at in ("first", "last"))
        text += f"; Karp–Flatt metric from {' to '.join(ends)}"
    return Text(text, style="dim")


_WIDEST_HOST: Final = 16
_MORE_WIDTH: Final = 10
_FEWEST_CELLS: Final = 8
_NO_STEP: Final = " "
_NOTABLE_RATIO: Final = 0.03


_MOST_RANKS: Final = 32


def heat_view(result: Result, _rows: int, width: int) -> RenderableType:
    """Return the map of a result of ``rank-steps``."""
    return Group(*heat_lines(result.table, _MOST_RANKS, width))


def heat_lines(table: Table, most_rows: int, width: int) -> list[Text]:
    """Return the map of ``table`` (that of `RankSteps`) in at most ``width`` columns.

    Nothing where there is but one rank.
    """
    found = find_lines(table, most_rows)
    if found is None:
        return []
    labels = _labels(found)
    left = max(map(len, labels)) + 2
    is_shared = len(found) < len(found.ranks)
    right = _MORE_WIDTH + (2 + max(map(len, found.ranks["label"])) if is_shared else 0)
    n_cells = max(_FEWEST_CELLS, width - left - right)
    heat = make_heat_map(table, found, n_cells)
    wide = 2 if 2 * len(heat.steps) <= n_cells else 1
    first, last = heat.steps[0][0], heat.steps[-1][1]
    steps = f"step {first}" if first == last else f"steps {first}–{last}"
    title = f"self time of {len(found.ranks)} ranks in {steps}, compared with the median rank"
    lines = [Text(title, style="dim")]
    for label, row, levels in zip(labels, heat.rows, heat.levels, strict=True):
        line = Text(label.ljust(left), style="dim")
        for level in levels:
            if level < 0:
                line.append(_NO_STEP * wide)
            else:
                line.append(HEAT[level].glyph * wide, style=HEAT[level].dark)
        line.append(format_more(row.slower_ratio).rjust(_MORE_WIDTH), style="default")
        if row.slowest and row.slower_ratio >= _NOTABLE_RATIO:
            line.append(f"  {row.slowest}", style="default")
        lines.append(line)
    return [*lines, *_heat_legend(heat, width)]


def _labels(lines: HeatLines) -> list[str]:
    """Return the names of the lines; that of a host stands before its first rank only."""
    hosts = [plain_text(host, _WIDEST_HOST) for host in lines.hosts]
    if len(set(hosts)) < 2:
        return list(lines.labels)
    shown = [host if i == 0 or host != hosts[i - 1] else "" for i, host in enumerate(hosts)]
    widest = max(map(len, shown))
    return [
        f"{host.ljust(widest)}  {label}" for host, label in zip(shown, lines.labels, strict=True)
    ]


def _heat_legend(heat: HeatMap, width: int) -> Iterator[Text]:
    shown = sorted(set(heat.levels[heat.levels >= 0].tolist()))
    line = Text()
    for level in shown:
        entry = Text(f"{HEAT[level].glyph}{HEAT[level].glyph}", style=HEAT[level].dark)
        entry.append(f" {HEAT[level].label}  ", style="dim")
        if line and len(line) + len(entry) > width:
            yield line
            line = Text()
        line.append_text(entry)
    yield line
    yield from (Text(f"note: {note}", style="dim italic") for note in heat.notes)
