"""The five parts of the devices' time as bars in a terminal, and the heat map of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pandas as pd
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traceprof.model.results import Result
from traceprof.render.escape import plain_text
from traceprof.render.formatting import is_known
from traceprof.render.heat import HeatLines, HeatMap, find_lines, format_more, make_heat_map
from traceprof.render.palette import HEAT, PART_STYLES
from traceprof.render.shown import Row, rows_of
from traceprof.units import format_duration, format_ratio

_BAR_WIDTH: Final = 60
_SHORT_BAR_WIDTH: Final = 36
_DEVICES_IN_FULL: Final = 2


def breakdown_view(result: Result, _rows: int, _width: int) -> RenderableType:
    """Return the five parts of each device as a bar, and in numbers (of all, where many)."""
    devices = rows_of(result.to_frame("devices"))
    if len(devices) <= _DEVICES_IN_FULL:
        shown: list[RenderableType] = [line for row in devices for line in _in_full(row)]
    else:
        shown = [_in_a_line(row) for row in devices]
    if len(devices) > 1:
        (total,) = rows_of(result.to_frame("total"))
        shown += _mean(total, len(devices))
    return Group(*shown)


def stacked_bar(parts: Mapping[str, float], width: int, least_share: float) -> Iterator[Text]:
    """Return the shares of the five parts as one bar, and what it shows in a line or two.

    Parts of less than ``least_share`` are not written below it.
    """
    yield _bar([parts[part.key] for part in PART_STYLES], width - 2)
    line = Text("  ")
    for part in PART_STYLES:
        ratio = parts[part.key]
        if ratio >= least_share:
            line.append(f"{part.glyph} ", style=part.category.dark)
            line.append(f"{part.label} {format_ratio(ratio)}  ", style="default")
    yield line


def _in_full(row: Row) -> Iterator[RenderableType]:
    title = Text(f"GPU {row['device']} ", style="bold")
    title.append(plain_text(row["name"]), style="dim")
    title.append(f"  {format_duration(row['duration_ns'])}", style="dim")
    yield title
    yield _bar(_shares(row), _BAR_WIDTH)
    yield _legend(row, 1)
    yield _overlaps(row)


def _in_a_line(row: Row) -> RenderableType:
    line = Text(f"GPU {row['device']:>3} ", style="bold")
    line.append_text(_bar(_shares(row), _SHORT_BAR_WIDTH))
    for part in (PART_STYLES[0], PART_STYLES[-1]):
        ratio = format_ratio(_share(row, part.column))
        line.append(f"{'  ' if part is PART_STYLES[0] else ' '}{ratio:>7} {part.label}", "dim")
    return line


def _mean(total: Row, n_devices: int) -> Iterator[RenderableType]:
    yield Text(f"mean of {n_devices} devices", style="bold")
    yield _legend(total, n_devices)
    yield _overlaps(total)


def _shares(row: Row) -> list[float]:
    return [_share(row, part.column) for part in PART_STYLES]


def _share(row: Row, column: str) -> float:
    """Return the share of the time; NaN where nothing was recorded of the device in the window."""
    return row[column] / row["duration_ns"] if row["duration_ns"] else math.nan


def _bar(shares: Sequence[float], width: int) -> Text:
    """Return a bar of ``width`` cells; a part that is there gets at least one.

    Of shares that are not known it is blank.
    """
    if not all(map(is_known, shares)):
        return Text(" " * (2 + width))
    cells = [max(1, round(width * share)) if share else 0 for share in shares]
    cells[cells.index(max(cells))] += width - sum(cells)
    bar = Text("  ")
    for n, part in zip(cells, PART_STYLES, strict=True):
        bar.append(part.glyph * n, style=part.category.dark)
    return bar


def _legend(row: Row, n_devices: int) -> Table:
    """Return the parts in numbers; those of several devices as the time of one of them."""
    legend = Table.grid(padding=(0, 2))
    for _ in range(3):
        legend.add_column(no_wrap=True)
    for part in PART_STYLES:
        ns = row[part.column]
        name = Text(f"  {part.glyph} ", style=part.category.dark)
        name.append(part.label, style="default")
        duration = format_duration(ns / n_devices).rjust(9)
        legend.add_row(name, duration, format_ratio(_share(row, part.column)).rjust(7))
    return legend


def _overlaps(row: Row) -> Text:
    line = Text("  ", style="dim")
    hidden = row["communication_overlap_ratio"]
    if is_known(hidden):
        line.append(f"{format_ratio(hidden)} of communication hidden, ")
    line.append(f"GPU-Util {format_ratio(row['utilisation_ratio'])}")
    return line


_WIDEST_HOST: Final = 16
_MORE_WIDTH: Final = 10
_FEWEST_CELLS: Final = 8
_UNKNOWN: Final = " "
_NOTABLE_RATIO: Final = 0.03


def heat_lines(table: pd.DataFrame, most_rows: int, width: int) -> list[Text]:
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
    steps = f"step {first}" if first == last else f"steps {first}..{last}"
    title = f"own time of {len(found.ranks)} ranks in {steps}, against their median"
    lines = [Text(title, style="dim")]
    for label, row, levels in zip(labels, heat.rows, heat.levels, strict=True):
        line = Text(label.ljust(left), style="dim")
        for level in levels:
            if level < 0:
                line.append(_UNKNOWN * wide)
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
