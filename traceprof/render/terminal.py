"""Results in a terminal: tables and bars that read well in 80 columns, with or without colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traceprof.analysis.base import Result
from traceprof.analysis.breakdown import Breakdown
from traceprof.render.columns import format_cell, is_number, title_of
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


def result_view(result: Result, rows: int, width: int) -> RenderableType:
    """Return a result for the terminal: the ``rows`` most important rows and the notes."""
    return Group(table_view(result.to_frame(), rows, width), notes_view(result.notes))


def table_view(frame: pd.DataFrame, rows: int, width: int) -> RenderableType:
    """Return the first ``rows`` rows of ``frame``, and how many more there are."""
    if frame.empty:
        return Text("nothing in this window", style="dim")
    cells = {
        str(column): [format_cell(str(column), value) for value in frame[column].head(rows)]
        for column in frame
        if frame[column].notna().any()
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


def breakdown_view(result: Breakdown) -> RenderableType:
    """Return the five parts of each device as a bar and in numbers."""
    if result.total is None:
        return notes_view(result.notes)
    lines: list[RenderableType] = []
    for row in result.devices:
        heading = Text(f"GPU {row.device} ", style="bold")
        heading.append(plain_text(row.name), style="dim")
        heading.append(f"  {format_duration(row.duration_ns)}", style="dim")
        shares = [(label, getattr(row, column)) for column, label, _, _ in _PARTS]
        lines += [heading, _bar([ns for _, ns in shares], row.duration_ns)]
        lines.append(_legend(shares, row.duration_ns))
        lines.append(_overlaps(row.communication_overlap_ratio, row.utilisation_ratio))
    if len(result.devices) > 1:
        total = result.total
        means = [
            f"{label} {format_ratio(getattr(total, column) / total.duration_ns)}"
            for column, label, _, _ in _PARTS
        ]
        lines.append(Text.assemble(("mean of devices  ", "bold"), ", ".join(means)))
    return Group(*lines, notes_view(result.notes))


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


def _bar(parts_ns: Sequence[int], whole_ns: int) -> Text:
    """Return a bar of `_BAR_WIDTH` cells; a part that is there gets at least one."""
    cells = [round(_BAR_WIDTH * ns / whole_ns) if ns else 0 for ns in parts_ns]
    cells = [max(1, n) if ns else 0 for n, ns in zip(cells, parts_ns, strict=True)]
    cells[cells.index(max(cells))] += _BAR_WIDTH - sum(cells)
    bar = Text("  ")
    for n, (_, _, category, glyph) in zip(cells, _PARTS, strict=True):
        bar.append(glyph * n, style=CATEGORIES[category_index(category)].dark)
    return bar


def _legend(shares: Sequence[tuple[str, int]], whole_ns: int) -> Table:
    legend = Table.grid(padding=(0, 2))
    for _ in range(3):
        legend.add_column(no_wrap=True)
    for (label, ns), (_, _, category, glyph) in zip(shares, _PARTS, strict=True):
        name = Text(f"  {glyph} ", style=CATEGORIES[category_index(category)].dark)
        name.append(label, style="default")
        legend.add_row(name, format_duration(ns).rjust(9), format_ratio(ns / whole_ns).rjust(7))
    return legend


def _overlaps(communication: float | None, utilisation: float | None) -> Text:
    line = Text("  ", style="dim")
    if communication is not None:
        line.append(f"{format_ratio(communication)} of communication hidden, ")
    line.append(f"GPU-Util {format_ratio(utilisation)}")
    return line
