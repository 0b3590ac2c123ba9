"""Draw the pace of one or two logs over their steps as SVG, with lasting changes marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Final

import numpy as np

from traceprof.logs.gathered import unit_of
from traceprof.model.results import Note, Unit
from traceprof.model.summary import Summary
from traceprof.render.charts.curves import curves_style
from traceprof.render.charts.svg import (
    Axis,
    drawing,
    element,
    legend,
    points_text,
    round_ticks,
    text,
    value_grid,
)
from traceprof.render.escape import html_text
from traceprof.render.formatting import note_text, round_text

_METRICS: Final = ("step_period_ns", "samples_per_s", "tokens_per_s", "steps_per_s")
_SPANS: Final = ("step", "interval")
_SCOPES: Final = ("run", "device", "rank")
_MIN_POINTS: Final = 4
_COLORS: Final = ("compute", "communication")
_WIDTH, _HEIGHT = 960, 300
_X: Final = (62, _WIDTH - 16)
_Y: Final = (_HEIGHT - 42, 18)
_ROOM_RATIO: Final = 0.05
_Points = list[tuple[float, float]]


def pace_style() -> str:
    """Return the CSS of the chart for the light and the dark theme."""
    return curves_style() + ".sizes .change{stroke:var(--muted);stroke-dasharray:2 3}"


def pace_chart(runs: Sequence[Summary]) -> str:
    """Draw step times or rates over the steps of each run; return "" if no metric is known.

    A dashed vertical line marks a lasting change, and its title has both levels.
    """
    for metric, scope in product(_METRICS, _SCOPES):
        curves = [(run, points) for run in runs if len(points := _points(run, metric, scope))]
        if len(curves) == len(runs):
            return _draw(metric, curves)
    return ""


def _points(run: Summary, metric: str, scope: str) -> _Points:
    """Return (step, value) of a metric of one attempt, in the order of the steps."""
    table = run.table("metrics")
    if table.empty:
        return []
    is_metric = (table["metric"] == metric) & (table["scope"] == scope)
    for over in _SPANS:
        rows = table.take(is_metric & (table["over"] == over) & np.isfinite(table["step"]))
        points = list(zip(rows["step"].tolist(), rows["value"].tolist(), strict=True))
        if len(points) >= _MIN_POINTS and all(a < b for (a, _), (b, _) in pairwise(points)):
            return points
    return []


def _changes(run: Summary, metric: str) -> Iterator[Note]:
    """Yield the notes on lasting changes of a metric."""
    for note in run.notes:
        name, has_levels = note.values.get("name"), {"step", "before", "after"} <= {*note.values}
        if has_levels and str(name).startswith(metric):
            yield note


def _draw(metric: str, curves: Sequence[tuple[Summary, _Points]]) -> str:
    steps = [step for _, points in curves for step, _ in points]
    values = [value for _, points in curves for _, value in points]
    room = _ROOM_RATIO * (max(values) - min(values) or max(values))
    x, y = Axis(min(steps), max(steps), *_X), Axis(min(values) - room, max(values) + room, *_Y)
    parts = [*value_grid(y, _X, unit_of(metric))]
    parts += [
        text(x(step), _HEIGHT - 20, round_text(Unit.COUNT, step), "middle")
        for step in round_ticks(min(steps), max(steps), 8)
    ]
    parts.append(text((_X[0] + _X[1]) / 2, _HEIGHT - 3, "step", "middle"))
    for (run, points), color in zip(curves, _COLORS, strict=False):
        style = f"stroke:var(--sizes-{color})"
        for note in _changes(run, metric):
            at = x(float(note.values["step"]))
            title = f"<title>{html_text(note_text(note))}</title>"
            ends = {"x1": at, "x2": at, "y1": _Y[0], "y2": _Y[1]}
            parts.append(element("line", title, class_="change", style=style, **ends))
        name = f"<title>{html_text(run.name)}</title>"
        parts.append(element("polyline", name, points=points_text(x, y, points), style=style))
    colors = (f"var(--sizes-{color})" for color in _COLORS)
    names = legend(((c, run.name) for c, (run, _) in zip(colors, curves, strict=False)), "key")
    words = metric.removesuffix("_ns").replace("_", " ")
    return names + drawing((_WIDTH, _HEIGHT), "sizes", f"{words} over the steps", *parts)
