"""The memory of a device over time, stacked by what it was for, as SVG that needs no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from traceprof.model.grouping import split_by
from traceprof.model.results import Result, Unit
from traceprof.model.table import Array, Table
from traceprof.render.charts.svg import (
    Axis,
    chart_style,
    drawing,
    element,
    legend,
    round_ticks,
    text,
)
from traceprof.render.escape import html_text
from traceprof.render.formatting import round_text

_WIDTH, _HEIGHT = 960, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 16, 12, 40
_GRID: Final = 5
_COLORS: Final = {
    "before_the_recording": "h2h",
    "parameters": "compute",
    "optimizer_state": "d2d",
    "gradients": "h2d",
    "activations": "communication",
    "communication": "p2p",
    "workspaces": "d2h",
    "temporary": "memset",
    "unknown": "idle",
}
"""Color by column, from the bottom up."""


def memory_style() -> str:
    """Return the style of the chart, light and dark."""
    more = ".memory{max-height:380px}.memory .held{fill:none;stroke:var(--muted);"
    more += "stroke-dasharray:5 4}"
    return chart_style("memory", _COLORS.values(), more)


def memory_chart(result: Result) -> str:
    """Return the curves of a result of ``traceprof memory``; "" where no event was recorded."""
    curve = result.tables.get("curve")
    if curve is None:
        return ""
    drawn = [
        _one(f"{name}, GPU {number}", rows)
        for name, own in split_by(curve, "snapshot")
        for number, rows in split_by(own, "device")
        if len(rows) > 1
    ]
    return "".join(drawn)


def _one(title: str, rows: Table) -> str:
    times = np.asarray(rows["after_ns"], np.float64)
    has_times = bool(np.isfinite(times).all()) and times[-1] > 0
    at = times if has_times else np.asarray(rows["event"], np.float64)
    top = float(max(np.max(rows["reserved_bytes"]), np.max(rows["allocated_bytes"]), 1))
    x = Axis(float(at[0]), float(at[-1]), _LEFT, _WIDTH - _RIGHT)
    y = Axis(0.0, top, _HEIGHT - _BOTTOM, _TOP)
    below = np.zeros(len(at))
    areas, named = [], []
    for name, color in _COLORS.items():
        held = np.asarray(rows[f"{name}_bytes"], np.float64)
        if not np.isfinite(held).any():
            continue
        above = below + held
        words = f"<title>{html_text(name.replace('_', ' '))}</title>"
        areas.append(
            element(
                "polygon",
                words,
                points=_points(x, y, at, above, below),
                style=f"fill:var(--memory-{color})",
            )
        )
        named.append((f"var(--memory-{color})", name.replace("_", " ")))
        below = above
    pairs = zip(at.tolist(), rows["reserved_bytes"].tolist(), strict=True)
    held_points = " ".join(f"{x(time):.1f},{y(value):.1f}" for time, value in pairs)
    reserved = element("polyline", points=held_points, class_="held")
    grid = _grid(x, y, Unit.NS if has_times else Unit.NUMBER)
    return (
        legend(reversed(named), "key")
        + drawing((_WIDTH, _HEIGHT), "memory", f"Memory usage: {title}", *grid, *areas, reserved)
        + f'<p class="note">{html_text(title)}: allocated memory by category. The dashed line is '
        "the memory that the allocator has reserved on the GPU.</p>"
    )


def _points(x: Axis, y: Axis, at: Array, above: Array, below: Array) -> str:
    """Return the corners of an area: levels hold until the next event."""
    there = list(_stairs(at, above))
    back = list(_stairs(at, below))[::-1]
    return " ".join(f"{x(time):.1f},{y(value):.1f}" for time, value in (*there, *back))


def _stairs(at: Array, values: Array) -> Iterator[tuple[float, float]]:
    pairs: Sequence[tuple[float, float]] = list(zip(at.tolist(), values.tolist(), strict=True))
    for (time, value), (later, _) in pairwise(pairs):
        yield time, value
        yield later, value
    yield pairs[-1]


def _grid(x: Axis, y: Axis, unit: Unit) -> Iterator[str]:
    for value in round_ticks(y.low, y.high, _GRID):
        at = y(value)
        yield element("line", class_="grid", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=at, y2=at)
        yield text(_LEFT - 6, at + 4, round_text(Unit.BYTES, value), "end")
    for place in round_ticks(x.low, x.high, _GRID):
        yield text(x(place), _HEIGHT - 14, round_text(unit, place), "middle")
