"""Results in a terminal: tables and bars that read well in 80 columns, with or without colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traceprof.analysis.base import Result
from traceprof.analysis.device.breakdown import Breakdown, DeviceBreakdown
from traceprof.model.trace import Trace
from traceprof.render.columns import format_cell, is_number, shown_table, title_of
from traceprof.render.escape import plain_text
from traceprof.render.palette import CATEGORIES, category_index
from traceprof.units import format_duration, format_ratio

__all__ = ["breakdown_view", "notes_view", "result_view", "table_view"]

_PARTS: Final = (
    ("compute_ns", "compute", "compute", "█"),
    ("exposed_communication_ns", "exposed communication", "exposed_communication", "▓"),
    ("exposed_transfer_ns", "exposed transfer", "exposed_transfer", "▒"),
    ("device_memory_ns", "device memory", "device_memory", "▪"),
    ("idle_ns", "idle", "idle", "░"),
)
_BAR_WIDTH: Final = 60
_SHORT_BAR_WIDTH: Final = 36
_DEVICES_IN_FULL: Final = 2
_LESS_TELLING: Final = (
    "overhead_ns",
    "peak_bytes_per_s",
    "min_ns",
    "max_ns",
    "median_ns",
    "busy_ns",
    "mean_ns",
    "share_ratio",
    "kind",
    "exposed_ns",
    "count",
)
_NAME_WIDTH: Final = 28
_TEXT_WIDTH: Final = 16
_GAP: Final = 2


def result_view(result: Result, trace: Trace, rows: int, width: int) -> RenderableType:
    """Return a result for the terminal: the ``rows`` most important rows and the notes."""
    return Group(table_view(shown_table(result, trace), rows, width), notes_view(result.notes))


def table_view(frame: pd.DataFrame, rows: int, width: int) -> RenderableType:
    """Return the first ``rows`` rows of ``frame``, and how many more there are."""
    if frame.empty:
        return Text("nothing in this window", style="dim")
    cells = {
        str(column): [format_cell(str(column), value) for value in frame[column].head(rows)]
        for column in frame
        if _says_anything(frame[column])
    }
    layout = _layout(frame, cells, width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column, cell_width in layout.items():
        table.add_column(
            title_of(column),
            justify="right" if is_number(frame, column) else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=cell_width,
        )
    for row in zip(*(cells[column] for column in layout), strict=True):
        table.add_row(*map(Text, row))
    hidden = []
    if len(frame) > rows:
        hidden.append(f"{len(frame) - rows} more rows")
    if len(layout) < len(frame.columns):
        hidden.append(f"{len(frame.columns) - len(layout)} more columns")
    if not hidden:
        return table
    remark = f"… {' and '.join(hidden)} (--rows, --csv, --json)"
    return Group(table, Text(remark, style="dim"))


def _says_anything(column: pd.Series) -> bool:
    return not bool((column.isna() | (column.astype(object) == "")).all())


def breakdown_view(result: Breakdown) -> RenderableType:
    """Return the five parts of each device as a bar, and in numbers (of all, where many)."""
    if result.total is None:
        return notes_view(result.notes)
    if len(result.devices) <= _DEVICES_IN_FULL:
        shown = [line for row in result.devices for line in _in_full(row)]
    else:
        shown = [_in_a_line(row) for row in result.devices]
    if len(result.devices) > 1:
        shown += _mean(result.total, len(result.devices))
    return Group(*shown, notes_view(result.notes))


def _in_full(row: DeviceBreakdown) -> Iterator[RenderableType]:
    heading = Text(f"GPU {row.device} ", style="bold")
    heading.append(plain_text(row.name), style="dim")
    heading.append(f"  {format_duration(row.duration_ns)}", style="dim")
    yield heading
    yield _bar(row, _BAR_WIDTH)
    yield _legend(row, 1)
    yield _overlaps(row.communication_overlap_ratio, row.utilisation_ratio)


def _in_a_line(row: DeviceBreakdown) -> RenderableType:
    line = Text(f"GPU {row.device:>3} ", style="bold")
    line.append_text(_bar(row, _SHORT_BAR_WIDTH))
    compute, idle = row.compute_ns / row.duration_ns, row.idle_ns / row.duration_ns
    line.append(f"  {format_ratio(compute):>7} compute {format_ratio(idle):>7} idle", style="dim")
    return line


def _mean(total: DeviceBreakdown, n_devices: int) -> Iterator[RenderableType]:
    yield Text(f"mean of {n_devices} devices", style="bold")
    yield _legend(total, n_devices)
    yield _overlaps(total.communication_overlap_ratio, total.utilisation_ratio)


def notes_view(notes: Sequence[str]) -> RenderableType:
    """Return remarks, one per line."""
    return Group(*(Text(f"note: {plain_text(note)}", style="dim italic") for note in notes))


def _layout(frame: pd.DataFrame, cells: Mapping[str, list[str]], width: int) -> dict[str, int]:
    """Return the columns that fit into ``width``, and their widths.

    Numbers are never cut. The first column of text gives way, down to `_NAME_WIDTH`; then the
    less telling columns go, then those furthest to the right.
    """
    widths = {
        column: max(len(title_of(column)), *map(len, values)) for column, values in cells.items()
    }
    texts = [column for column in widths if not is_number(frame, column)]
    for column in texts[1:]:
        widths[column] = min(widths[column], _TEXT_WIDTH)
    first = texts[0] if texts else next(iter(widths))
    others = [column for column in widths if column != first]
    dispensable = [
        *(column for column in _LESS_TELLING if column in others),
        *(column for column in reversed(others) if column not in _LESS_TELLING),
    ]
    for column in dispensable:
        if _rest(widths, first) + min(widths[first], _NAME_WIDTH) <= width:
            break
        del widths[column]
    widths[first] = min(widths[first], max(_NAME_WIDTH, width - _rest(widths, first)))
    return widths


def _rest(widths: Mapping[str, int], first: str) -> int:
    """Return the width of all columns but ``first``, with the gaps before them."""
    return sum(width + _GAP for column, width in widths.items() if column != first)


def _bar(row: DeviceBreakdown, width: int) -> Text:
    """Return a bar of ``width`` cells; a part that is there gets at least one."""
    parts_ns = [getattr(row, column) for column, _, _, _ in _PARTS]
    cells = [max(1, round(width * ns / row.duration_ns)) if ns else 0 for ns in parts_ns]
    cells[cells.index(max(cells))] += width - sum(cells)
    bar = Text("  ")
    for n, (_, _, category, glyph) in zip(cells, _PARTS, strict=True):
        bar.append(glyph * n, style=CATEGORIES[category_index(category)].dark)
    return bar


def _legend(row: DeviceBreakdown, n_devices: int) -> Table:
    """Return the parts in numbers; those of several devices as the time of one of them."""
    legend = Table.grid(padding=(0, 2))
    for _ in range(3):
        legend.add_column(no_wrap=True)
    for column, label, category, glyph in _PARTS:
        ns = getattr(row, column)
        name = Text(f"  {glyph} ", style=CATEGORIES[category_index(category)].dark)
        name.append(label, style="default")
        duration = format_duration(ns / n_devices).rjust(9)
        legend.add_row(name, duration, format_ratio(ns / row.duration_ns).rjust(7))
    return legend


def _overlaps(communication: float | None, utilisation: float | None) -> Text:
    line = Text("  ", style="dim")
    if communication is not None:
        line.append(f"{format_ratio(communication)} of communication hidden, ")
    line.append(f"GPU-Util {format_ratio(utilisation)}")
    return line
