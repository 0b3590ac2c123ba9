"""Draw GPU memory over time, stacked by category, as SVG; a script shows the values of a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import pairwise
from typing import Final

import numpy as np

from traceprof.model.grouping import split_by
from traceprof.model.results import Result, Unit
from traceprof.model.table import Array, Table
from traceprof.render.charts.flame import FlameMeasure, flame_graph, table_of_leaves
from traceprof.render.charts.svg import (
    Axis,
    chart_style,
    drawing,
    element,
    legend,
    points_text,
    round_ticks,
    text,
    value_grid,
)
from traceprof.render.escape import html_text
from traceprof.render.formatting import round_text
from traceprof.snapshots.kinds import BELOW
from traceprof.snapshots.specs import STACKS

_WIDTH, _HEIGHT = 960, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 16, 12, 40
_GRID_LINES: Final = 5
_COLORS: Final = {
    "allocated_before_recording_began": "h2h",
    "parameters": "compute",
    "optimizer_state": "d2d",
    "gradients": "h2d",
    "activations": "communication",
    "communication": "p2p",
    "workspaces": "d2h",
    "temporary": "memset",
    "unknown": "idle",
}
"""Color category by column, from bottom to top."""


def memory_style() -> str:
    """Return the CSS of the chart for the light and the dark theme."""
    return chart_style(
        "memory",
        _COLORS.values(),
        ".memory{max-height:380px}.memory .held{fill:none;stroke:var(--muted);"
        "stroke-dasharray:5 4}",
    )


def memory_chart(result: Result) -> str:
    """Draw the curves of a result of ``traceprof memory``; return "" if no event was recorded."""
    curve = result.tables.get("curve")
    if curve is None:
        return ""
    return "".join(
        _draw_device(f"{name}, GPU {number}", rows)
        for name, snapshot_rows in split_by(curve, "snapshot")
        for number, rows in split_by(snapshot_rows, "device")
        if len(rows) > 1
    )


def memory_flame(holders: Result) -> str:
    """Draw the memory of each GPU by category, stack, and operator, at each time of the result."""
    table = holders.tables.get(STACKS)
    if table is None or table.empty:
        return ""
    moments: dict[str, int] = {}
    leaves = []
    for row in table.rows():
        title = f"{row['snapshot']}, GPU {row['device']}, {row['when']}"
        column = f"bytes_{moments.setdefault(title, len(moments))}"
        names = (row["kind"], *reversed(row["frames"].split(BELOW)), row["operator"])
        leaves.append(([*filter(None, names)], {column: row["held_bytes"]}))
    measures = [
        FlameMeasure(title, "bytes", f"bytes_{number}") for number, title in enumerate(moments)
    ]
    return flame_graph(table_of_leaves(leaves), "GPU memory by source line", measures, _ABOUT_FLAME)


_ABOUT_FLAME: Final = (
    "The width of a box is the allocated memory, as requested. Below each category are the source "
    "lines from the outermost to the innermost, then the operator."
)


def _draw_device(title: str, rows: Table) -> str:
    """Draw the memory of one device: stacked areas by category, and a line of reserved memory.

    The x axis is time if all times are known, otherwise the number of the event.
    """
    times = np.asarray(rows["after_ns"], np.float64)
    has_times = bool(np.isfinite(times).all()) and times[-1] > 0
    at = times if has_times else np.asarray(rows["event"], np.float64)
    top = float(max(np.max(rows["reserved_bytes"]), np.max(rows["allocated_bytes"]), 1))
    x = Axis(float(at[0]), float(at[-1]), _LEFT, _WIDTH - _RIGHT)
    y = Axis(0.0, top, _HEIGHT - _BOTTOM, _TOP)
    lower = np.zeros(len(at))
    areas, entries = [], []
    shown_levels = {}
    for name, color in _COLORS.items():
        held = np.asarray(rows[f"{name}_bytes"], np.float64)
        if not np.isfinite(held).any():
            continue
        upper = lower + held
        label = name.replace("_", " ")
        shown_levels[label] = np.nan_to_num(held).astype(np.int64).tolist()
        areas.append(
            element(
                "polygon",
                f"<title>{html_text(label)}</title>",
                points=_area_points(x, y, at, upper, lower),
                style=f"fill:var(--memory-{color})",
            )
        )
        entries.append((f"var(--memory-{color})", label))
        lower = upper
    levels = zip(at.tolist(), rows["reserved_bytes"].tolist(), strict=True)
    reserved = element("polyline", points=points_text(x, y, levels), class_="held")
    grid = _grid(x, y, Unit.NS if has_times else Unit.NUMBER)
    return (
        legend(reversed(entries), "key")
        + drawing((_WIDTH, _HEIGHT), "memory", f"Memory usage: {title}", *grid, *areas, reserved)
        + _levels_block(at, shown_levels, has_times=has_times)
        + f'<p class="note">{html_text(title)}: allocated memory by category. The dashed line is '
        "the memory that the allocator has reserved on the GPU.</p>"
    )


def _levels_block(at: Array, levels: dict[str, list[int]], *, has_times: bool) -> str:
    """Return the levels of a device for `memory_script`, behind the picture."""
    ends = {"left": _LEFT, "right": _WIDTH - _RIGHT, "isTime": bool(has_times)}
    data = json.dumps({**ends, "at": at.tolist(), "levels": levels}, separators=(",", ":"))
    return f'<script type="application/json" class="memory-levels">{data}</script>'


def memory_script() -> str:
    """Return the script that shows the levels at the pointer."""
    return (files(__package__) / "memory.js").read_text(encoding="utf-8")


def _area_points(x: Axis, y: Axis, at: Array, upper: Array, lower: Array) -> str:
    """Return the corners of an area. A level holds until the next event."""
    backwards = [*_stairs(at, lower)][::-1]
    return points_text(x, y, (*_stairs(at, upper), *backwards))


def _stairs(at: Array, values: Array) -> Iterator[tuple[float, float]]:
    """Yield the corners of a step function: a level holds until the next event."""
    pairs: Sequence[tuple[float, float]] = list(zip(at.tolist(), values.tolist(), strict=True))
    for (time, value), (next_time, _) in pairwise(pairs):
        yield time, value
        yield next_time, value
    yield pairs[-1]


def _grid(x: Axis, y: Axis, unit: Unit) -> Iterator[str]:
    yield from value_grid(y, (_LEFT, _WIDTH - _RIGHT), Unit.BYTES, _GRID_LINES)
    for place in round_ticks(x.low, x.high, _GRID_LINES):
        yield text(x(place), _HEIGHT - 14, round_text(unit, place), "middle")
