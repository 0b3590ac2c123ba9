"""Draw rooflines: FLOP/s of operators and kernels over their arithmetic intensity.

The chart is a plotly figure. Below the slope, memory bandwidth is the limit. Below the roof of a
precision, the compute units are the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from traceprof.comparison.difference import SIDES
from traceprof.measures.rows import ratio_of
from traceprof.model.results import Result
from traceprof.model.table import Table, is_known
from traceprof.render.charts.figure import color_of_line, figure_html, note
from traceprof.render.escape import plotly_text
from traceprof.units import format_bytes, format_duration, format_flop_rate, format_ratio

_MAX_POINTS: Final = 200
_MAX_POINT_PX, _MIN_POINT_PX = 30.0, 6.0
_MAX_LABELS, _MIN_LABEL_RATIO = 6, 0.03
"""Points with a label: at most this many, with at least this share of the time of all points."""
_LABEL_DECADES, _LABEL_HEIGHT_RATIO = 1.2, 0.05
"""Size of a label: decades of intensity, and a share of the height of the chart."""
_TERA: Final = 1e12
_NAME_COLUMNS: Final = ("operator", "name")
"""Columns that can hold the name of a point; the first column that exists is used."""
_SYMBOLS: Final = ("circle-open", "circle")
"""Symbols of the base and the new run. A single run uses the last symbol."""
_DASHES: Final = ("dot", "solid")


Places: TypeAlias = Mapping[tuple[str, str], tuple[str, str]]
"""Name and precision of a point → the place of its longest kernel in words, and its address."""


class _Run(NamedTuple):
    """The points and roofs of one run; ``name`` is "" for a single run.

    ``points`` has the columns of `show flops`. Times are per ``per`` and GPU, or totals if ``per``
    is "". ``moving`` has the operators with known bytes and without FLOPs, such as norms.
    """

    name: str
    points: Table
    peaks: Table | None
    per: str = ""
    moving: Table | None = None
    places: Places = MappingProxyType({})

    def place_of(self, row: Mapping[str, Any]) -> tuple[str, str]:
        """Return the line of the hover text, and the address; two "" if the place is unknown."""
        words, address = self.places.get((name_of_point(row), str(row["precision"])), ("", ""))
        return f"<br>{words}" if words else "", address


def name_of_point(row: Mapping[str, Any]) -> str:
    """Return the operator or kernel of a row."""
    return str(row[next(name for name in _NAME_COLUMNS if name in row)])


def roofline_figure(result: Result, places: Places) -> str:
    """Return the roofline of a result by operator or kernel; "" if no point is known."""
    table = result.table
    moving = table.take(np.isnan(table["flop"]) & is_known(table["bandwidth_bytes_per_s"]))
    moving = moving.in_order("-total_ns").head(_MAX_POINTS)
    points = _known_points(table)
    return _draw([_Run("", points, result.tables.get("peaks"), moving=moving, places=places)])


def roofline_of_two_runs(results: Mapping[str, Result]) -> str:
    """Return the roofline of the operators of two compared runs; "" if FLOPs are missing."""
    if "flops" not in results:
        return ""
    of_both, peaks = results["flops"].table, results["flops"].tables["peaks"]
    per = results["difference"].scalars["per"] if "difference" in results else "step"
    runs = []
    for side in SIDES:
        points, roofs = (
            Table({column.removeprefix(f"{side}_"): table[column] for column in table})
            for table in (of_both, peaks)
        )
        peak = dict(zip(roofs["precision"], roofs["peak_flop_per_s"], strict=True))
        peaks_of_points = np.array(
            [peak.get(precision, np.nan) for precision in points["precision"]], np.float64
        )
        ratio = ratio_of(points["achieved_flop_per_s"], peaks_of_points)
        rate = np.where(np.isnan(points["flop"]), ratio_of(points["bytes"], points["ns"] / 1e9), 0)
        memory = roofs["memory_bytes_per_s"][is_known(roofs["memory_bytes_per_s"])]
        points = points.assign(
            total_ns=points["ns"],
            peak_ratio=ratio,
            bandwidth_bytes_per_s=rate,
            memory_ratio=rate / (memory.max() if len(memory) else np.nan),
        )
        moving = points.take(rate > 0).in_order("-total_ns").head(_MAX_POINTS)
        runs.append(_Run(side, _known_points(points), roofs, per, moving))
    return _draw(runs) if all(len(run.points) for run in runs) else ""


def _known_points(table: Table) -> Table:
    """Return the points with known coordinates, the longest first, at most `_MAX_POINTS`."""
    points = table.take(is_known(table["intensity"]) & is_known(table["achieved_flop_per_s"]))
    return points.take(points["intensity"] > 0).in_order("-total_ns").head(_MAX_POINTS)


def _draw(runs: Sequence[_Run]) -> str:
    if not any(len(run.points) for run in runs):
        return ""
    precisions = sorted({str(precision) for run in runs for precision in run.points["precision"]})
    colors = {name: color_of_line(place) for place, name in enumerate(precisions)}
    intensities = np.concatenate([run.points["intensity"] for run in runs])
    span = min(0.1, float(intensities.min()) / 2), max(1e4, float(intensities.max()) * 2)
    log_axis = {"type": "log", "dtick": 1}
    chart = figure_html(
        [
            *_draw_roofs(runs, colors, span),
            *_draw_points(runs, colors),
            *_draw_moving(runs, span[0], len(colors)),
        ],
        "Roofline: TFLOP/s by arithmetic intensity",
        x="arithmetic intensity (FLOP per byte, upper bound)",
        y="TFLOP/s",
        height=420,
        xaxis=log_axis,
        yaxis=log_axis,
        annotations=list(_labels(runs, span[0])),
    )
    words = (
        "Each point is an operator or a kernel; its size shows its time. The slope is the peak "
        "memory bandwidth. The roofs are the dense peaks of the precisions in use. The intensity "
        "uses the minimum number of bytes, so a point can be too far right but never too high. "
        "Diamonds at the left edge are operators without FLOPs, such as softmax and norms: their "
        "distance below the slope is unused memory bandwidth."
    )
    marker_words = " Open symbols: base. Filled symbols: new." if len(runs) > 1 else ""
    return chart + note(words + marker_words)


def _draw_roofs(
    runs: Sequence[_Run], colors: Mapping[str, str], span: tuple[float, float]
) -> Iterator[dict[str, Any]]:
    """Yield the roof of each precision whose peak is known, with its slope.

    Runs with equal peaks share one roof.
    """
    roofs: dict[tuple[str, float, float], list[str]] = {}
    for run in runs:
        precisions = set(run.points["precision"].tolist())
        for row in run.peaks.rows() if run.peaks is not None else ():
            if row["precision"] in precisions and row["peak_flop_per_s"] == row["peak_flop_per_s"]:
                memory = row["memory_bytes_per_s"]
                memory = memory if memory == memory else 0.0
                key = str(row["precision"]), float(row["peak_flop_per_s"]), float(memory)
                roofs.setdefault(key, []).append(run.name)
    for (precision, roof, memory), names in roofs.items():
        ridge = roof / memory if memory else span[0]
        x = np.array([span[0], ridge, span[1]])
        name = " ".join([*(names if len(names) < len(runs) else ()), f"{precision}:"])
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": plotly_text(f"{name} {format_flop_rate(roof)}", 60),
            "x": x,
            "y": np.minimum(roof, x * memory if memory else roof) / _TERA,
            "line": {
                "color": colors[precision],
                "width": 1.5,
                "dash": _DASHES[len(names) == len(runs) or names == [runs[-1].name]],
            },
            "hoverinfo": "name",
            "legendgroup": precision,
        }


def _draw_points(runs: Sequence[_Run], colors: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the points of each run and precision. The area of a point shows its time."""
    longest_ns = max(float(run.points["total_ns"].max()) for run in runs if len(run.points)) or 1.0
    for run, symbol in zip(runs, _SYMBOLS[-len(runs) :], strict=True):
        for precision, color in colors.items():
            points = run.points.take(
                [point_precision == precision for point_precision in run.points["precision"]]
            )
            if points.empty:
                continue
            sizes = np.sqrt(points["total_ns"].astype(np.float64) / longest_ns) * _MAX_POINT_PX
            name = " ".join(filter(None, (run.name, precision or "unknown precision")))
            yield {
                "type": "scatter",
                "mode": "markers",
                "name": plotly_text(name, 40),
                "x": points["intensity"],
                "y": points["achieved_flop_per_s"] / _TERA,
                "text": [_hover(run, name_of_point(row), row) for row in points.rows()],
                "meta": {"links": [run.place_of(row)[1] for row in points.rows()]},
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {
                    "color": color,
                    "size": np.maximum(sizes, _MIN_POINT_PX),
                    "opacity": 0.75,
                    "symbol": symbol,
                    "line": {"width": 2 if symbol.endswith("open") else 0},
                },
                "legendgroup": precision,
            }


def _draw_moving(runs: Sequence[_Run], x: float, n_colors: int) -> Iterator[dict[str, Any]]:
    """Yield the operators without FLOPs at the left edge, at the rate of their bytes."""
    for run, symbol in zip(runs, _SYMBOLS[-len(runs) :], strict=True):
        moving = run.moving
        if moving is None or moving.empty:
            continue
        rows = list(moving.rows())
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": " ".join(filter(None, (run.name, "memory-bound, no FLOPs"))),
            "x": np.full(len(moving), x),
            "y": moving["bandwidth_bytes_per_s"] * x / _TERA,
            "text": [_hover_of_moving(run, row) for row in rows],
            "meta": {"links": [run.place_of(row)[1] for row in rows]},
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {
                "color": color_of_line(n_colors),
                "size": 9,
                "symbol": symbol.replace("circle", "diamond"),
            },
        }


def _hover_of_moving(run: _Run, row: Mapping[str, Any]) -> str:
    ratio, name = row["memory_ratio"], name_of_point(row)
    share = f", {format_ratio(ratio)} of peak" if ratio == ratio else ""
    base = f" per {run.per} and GPU" if run.per else ""
    lines = [
        plotly_text(f"{run.name}: {name}" if run.name else name, 80),
        f"{format_bytes(row['bandwidth_bytes_per_s'])}/s{share}",
        f"{row['count']:.4g} kernels, {format_duration(row['total_ns'])}{base}",
    ]
    return "<br>".join(lines) + run.place_of(row)[0]


def _labels(runs: Sequence[_Run], edge: float) -> Iterator[dict[str, Any]]:
    """Yield the names of the points with the most time, as annotations on the logarithmic axes.

    ``edge`` is the place of operators without FLOPs.
    """
    found = []
    for run in runs:
        for table in (run.points, run.moving):
            rows = [] if table is None else table.rows()
            for row in rows:
                name = name_of_point(row)
                rate, x = row["achieved_flop_per_s"], row["intensity"]
                if table is run.moving:
                    rate, x = row["bandwidth_bytes_per_s"] * edge, edge
                found.append((float(row["total_ns"]), name, x, rate / _TERA))
    least_ns = _MIN_LABEL_RATIO * sum(ns for ns, *_ in found)
    places = [(np.log10(x), np.log10(y)) for *_, x, y in found if y > 0]
    min_gap = _LABEL_HEIGHT_RATIO * (1 + float(np.ptp([y for _, y in places]))) if places else 0
    labeled: list[tuple[float, float]] = []
    for ns, name, x, rate in sorted(found, key=lambda point: -point[0])[:_MAX_LABELS]:
        if ns < least_ns or rate <= 0:
            continue
        at, y = float(np.log10(x)), float(np.log10(rate))
        # A label that would be on top of the label of a longer operator is only in the hover text.
        if all(abs(at - a) > _LABEL_DECADES or abs(y - b) > min_gap for a, b in labeled):
            labeled.append((at, y))
            yield {
                "x": at,
                "y": y,
                "text": plotly_text(name.rpartition("::")[2], 30),
                "showarrow": False,
                "xanchor": "left",
                "yshift": 12,
                "font": {"size": 11},
            }


def _hover(run: _Run, name: str, row: Mapping[str, Any]) -> str:
    peak = row["peak_ratio"]
    base = f" per {run.per} and GPU"
    if not run.per:
        base = f", {format_ratio(row['share_ratio'])} of kernel time"
    lines = [
        plotly_text(f"{run.name}: {name}" if run.name else name, 80),
        f"{format_flop_rate(row['achieved_flop_per_s'])}"
        + (f", {format_ratio(peak)} of peak" if peak == peak else ""),
        f"{row['intensity']:.4g} FLOP per byte",
        f"{row['count']:.4g} kernels, {format_duration(row['total_ns'])}{base}",
    ]
    return "<br>".join(lines) + run.place_of(row)[0]
