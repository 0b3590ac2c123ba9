"""Rooflines: what operators and kernels reach, over how much they compute for each byte.

A figure of plotly. Below the slope memory limits, below the roof of its precision the multipliers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from traceprof.comparison.difference import SIDES
from traceprof.measures.rows import ratio_of
from traceprof.model.results import Result
from traceprof.model.table import Table, is_known
from traceprof.render.charts.figure import color_of_line, figure_html, note
from traceprof.render.escape import plotly_text
from traceprof.units import format_duration, format_flop_rate, format_ratio

_MOST: Final = 200
_LARGEST, _SMALLEST = 30.0, 6.0
_T: Final = 1e12
_NAMES: Final = ("operator", "name")
"""Columns that say what a point is."""
_SYMBOLS: Final = ("circle-open", "circle")
"""Of the base, and of the new one; of one run alone the last."""
_DASHES: Final = ("dot", "solid")


class _Run(NamedTuple):
    """The points and roofs of one run; ``name`` is "" where there is no other.

    ``points`` has the columns of `show flops`; times are of ``per``.
    """

    name: str
    points: Table
    peaks: Table | None
    per: str = ""


def roofline_figure(result: Result, _around: object) -> str:
    """Return the roofline of a result by operator or kernel; "" where no point is known."""
    return _drawn([_Run("", _known(result.table), result.tables.get("peaks"))])


def roofline_of_two_runs(results: Mapping[str, Result]) -> str:
    """Return the roofline of the operators of two runs that are compared; "" without FLOPs."""
    if "flops" not in results:
        return ""
    of_both, peaks = results["flops"].table, results["flops"].tables["peaks"]
    per = results["difference"].scalars["per"] if "difference" in results else "step"
    runs = []
    for side in SIDES:
        points, roofs = (
            Table({own.removeprefix(f"{side}_"): table[own] for own in table})
            for table in (of_both, peaks)
        )
        peak = dict(zip(roofs["precision"], roofs["peak_flop_per_s"], strict=True))
        could = np.array([peak.get(one, np.nan) for one in points["precision"]], np.float64)
        ratio = ratio_of(points["achieved_flop_per_s"], could)
        points = points.assign(total_ns=points["ns"], peak_ratio=ratio)
        runs.append(_Run(side, _known(points), roofs, per))
    return _drawn(runs) if all(len(run.points) for run in runs) else ""


def _known(table: Table) -> Table:
    points = table.take(is_known(table["intensity"]) & is_known(table["achieved_flop_per_s"]))
    return points.take(points["intensity"] > 0).in_order("-total_ns").head(_MOST)


def _drawn(runs: Sequence[_Run]) -> str:
    if not any(len(run.points) for run in runs):
        return ""
    precisions = sorted({str(one) for run in runs for one in run.points["precision"]})
    colors = {name: color_of_line(place) for place, name in enumerate(precisions)}
    reached = np.concatenate([run.points["intensity"] for run in runs])
    span = min(0.1, float(reached.min()) / 2), max(1e4, float(reached.max()) * 2)
    log = {"type": "log", "dtick": 1}
    chart = figure_html(
        [*_roofs(runs, colors, span), *_all_points(runs, colors)],
        "Roofline: TFLOP/s by arithmetic intensity",
        x="arithmetic intensity (FLOP per byte, upper bound)",
        y="TFLOP/s",
        height=420,
        xaxis=log,
        yaxis=log,
    )
    told = (
        "Each point is an operator or a kernel; its size shows its time. The slope is the peak "
        "memory bandwidth. The roofs are the dense peaks of the precisions in use. The intensity "
        "uses the minimum number of bytes, so a point can be too far right but never too high."
    )
    both = " Open circles: base. Filled circles: new." if len(runs) > 1 else ""
    return chart + note(told + both)


def _roofs(
    runs: Sequence[_Run], colors: Mapping[str, str], span: tuple[float, float]
) -> Iterator[dict[str, Any]]:
    """Yield the roof of each precision whose peak is known, with the slope up to it.

    Of runs with the same roof it is one.
    """
    roofs: dict[tuple[str, float, float], list[str]] = {}
    for run in runs:
        own = set(run.points["precision"].tolist())
        for row in run.peaks.rows() if run.peaks is not None else ():
            if row["precision"] in own and row["peak_flop_per_s"] == row["peak_flop_per_s"]:
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
            "y": np.minimum(roof, x * memory if memory else roof) / _T,
            "line": {
                "color": colors[precision],
                "width": 1.5,
                "dash": _DASHES[len(names) == len(runs) or names == [runs[-1].name]],
            },
            "hoverinfo": "name",
            "legendgroup": precision,
        }


def _all_points(runs: Sequence[_Run], colors: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    whole = max(float(run.points["total_ns"].max()) for run in runs if len(run.points)) or 1.0
    for run, symbol in zip(runs, _SYMBOLS[-len(runs) :], strict=True):
        for precision, color in colors.items():
            own = run.points.take([one == precision for one in run.points["precision"]])
            if own.empty:
                continue
            column = next(name for name in _NAMES if name in own)
            sizes = np.sqrt(own["total_ns"].astype(np.float64) / whole) * _LARGEST
            name = " ".join(filter(None, (run.name, precision or "unknown precision")))
            yield {
                "type": "scatter",
                "mode": "markers",
                "name": plotly_text(name, 40),
                "x": own["intensity"],
                "y": own["achieved_flop_per_s"] / _T,
                "text": [_hover(run, str(row[column]), row) for row in own.rows()],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {
                    "color": color,
                    "size": np.maximum(sizes, _SMALLEST),
                    "opacity": 0.75,
                    "symbol": symbol,
                    "line": {"width": 2 if symbol.endswith("open") else 0},
                },
                "legendgroup": precision,
            }


def _hover(run: _Run, name: str, row: Mapping[str, Any]) -> str:
    peak = row["peak_ratio"]
    of = f" per {run.per} and GPU"
    if not run.per:
        of = f", {format_ratio(row['share_ratio'])} of kernel time"
    told = [
        plotly_text(f"{run.name}: {name}" if run.name else name, 80),
        f"{format_flop_rate(row['achieved_flop_per_s'])}"
        + (f", {format_ratio(peak)} of peak" if peak == peak else ""),
        f"{row['intensity']:.4g} FLOP per byte",
        f"{row['count']:.4g} kernels, {format_duration(row['total_ns'])}{of}",
    ]
    return "<br>".join(told)
