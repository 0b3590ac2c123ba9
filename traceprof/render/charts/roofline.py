"""Rooflines: what operators and kernels reach, over how much they compute for each byte.

A figure of plotly. Below the slope memory limits, below the roof of its precision the multipliers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from traceprof.model.results import Result
from traceprof.model.table import Table, is_known
from traceprof.render.charts.figure import colour_of_line, figure_html, note
from traceprof.render.escape import plotly_text
from traceprof.units import format_duration, format_flop_rate, format_ratio

_MOST: Final = 200
_LARGEST, _SMALLEST = 30.0, 6.0
_T: Final = 1e12
_NAMES: Final = ("operator", "name")
"""Columns that say what a point is."""


def roofline_figure(result: Result, _around: object) -> str:
    """Return the roofline of a result by operator or kernel; "" where no point is known."""
    table = result.table
    points = table.take(is_known(table["intensity"]) & is_known(table["achieved_flop_per_s"]))
    points = points.take(points["intensity"] > 0).head(_MOST)
    if points.empty:
        return ""
    precisions = sorted({str(one) for one in points["precision"]})
    colours = {name: colour_of_line(place) for place, name in enumerate(precisions)}
    low = min(0.1, float(points["intensity"].min()) / 2)
    high = max(1e4, float(points["intensity"].max()) * 2)
    roofs = list(_roofs(result.tables.get("peaks"), colours, (low, high)))
    traces = [*roofs, *(_points(points, name, colours[name]) for name in precisions)]
    log = {"type": "log", "dtick": 1}
    chart = figure_html(
        traces,
        "Roofline: TFLOP/s over FLOP per byte",
        x="FLOP per byte, at most",
        y="TFLOP/s",
        height=420,
        xaxis=log,
        yaxis=log,
    )
    told = (
        "Each point is an operator or a kernel, as large as its time. The slope is the memory's "
        "peak, the roofs are the dense peaks of the precisions that ran; bytes are the fewest that "
        "the operator can move, so that a point may stand too far to the right, never too high."
    )
    return chart + note(told)


def _roofs(
    peaks: Table | None, colours: Mapping[str, str], span: tuple[float, float]
) -> Iterator[dict[str, Any]]:
    """Yield the roof of each precision whose peak is known, with the slope up to it."""
    for row in peaks.rows() if peaks is not None else ():
        roof, memory = row["peak_flop_per_s"], row["memory_bytes_per_s"]
        if roof != roof or row["precision"] not in colours:
            continue
        name = f"{row['precision']}: {format_flop_rate(roof)}"
        ridge = roof / memory if memory == memory else span[0]
        x = np.array([span[0], ridge, span[1]])
        y = np.minimum(roof, x * memory if memory == memory else roof) / _T
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": plotly_text(name, 60),
            "x": x,
            "y": y,
            "line": {"color": colours[row["precision"]], "width": 1.5},
            "hoverinfo": "name",
            "legendgroup": row["precision"],
        }


def _points(points: Table, precision: str, colour: str) -> dict[str, Any]:
    own = points.take([one == precision for one in points["precision"]])
    column = next(name for name in _NAMES if name in own)
    whole = float(points["total_ns"].max()) or 1.0
    sizes = np.sqrt(own["total_ns"].astype(np.float64) / whole) * _LARGEST
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plotly_text(precision or "precision not known", 40),
        "x": own["intensity"],
        "y": own["achieved_flop_per_s"] / _T,
        "text": [_hover(str(row[column]), row) for row in own.rows()],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": colour, "size": np.maximum(sizes, _SMALLEST), "opacity": 0.75},
        "legendgroup": precision,
    }


def _hover(name: str, row: Mapping[str, Any]) -> str:
    peak = row["peak_ratio"]
    told = [
        plotly_text(name, 80),
        f"{format_flop_rate(row['achieved_flop_per_s'])}"
        + (f", {format_ratio(peak)} of the peak" if peak == peak else ""),
        f"{row['intensity']:.4g} FLOP per byte",
        f"{int(row['count'])} kernels, {format_duration(row['total_ns'])}, "
        f"{format_ratio(row['share_ratio'])} of the kernel time",
    ]
    return "<br>".join(told)
