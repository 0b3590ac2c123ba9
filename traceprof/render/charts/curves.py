"""Draw curves of runs as SVG without scripts: throughput by size, metrics over time, pace of logs.

Below the throughput chart, bars show the causes of lost efficiency.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import floor, isfinite, log2, log10
from typing import Final

from traceprof.logs.gathered import unit_of
from traceprof.model.grouping import split_by
from traceprof.model.results import Result, Unit
from traceprof.model.summary import Summary
from traceprof.render.charts.svg import (
    Axis,
    chart_style,
    drawing,
    element,
    legend,
    points_text,
    round_factors,
    round_ticks,
    text,
    value_grid,
)
from traceprof.render.escape import html_text
from traceprof.render.formatting import is_known, note_text, round_text, value_text
from traceprof.render.shown import Row

_COLORS: Final = ("compute", "communication", "h2d", "memset", "d2d", "overlap", "p2p", "d2h")
_MAX_CURVES: Final = len(_COLORS)
_WIDTH, _HEIGHT = 960, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 18, 42
_X: Final = (_LEFT, _WIDTH - _RIGHT)
_X_OF_SIZES: Final = (_LEFT + 28, _WIDTH - _RIGHT)
"""The smallest size is not at the edge, where its point would cover the labels of the axis."""
_Y: Final = (_HEIGHT - _BOTTOM, _TOP)
_LOG_TIME_RATIO: Final = 20
"""The time axis is logarithmic if the longest run is longer than the shortest by this factor."""

_BAR_X_PX: Final = 54
_MIN_NAMED_LOSS_RATIO: Final = 0.002
"""Losses below this share of ideal throughput are not in the legend."""

_REACHED: Final = "reached"
_LOSS_COLORS: Final[Mapping[str, str]] = {
    "exposed communication": "communication",
    "waiting for stragglers": "p2p",
    "slower compute": "compute",
    "exposed transfers": "h2d",
    "device memory": "d2d",
    "waiting for input": "memset",
    "other idle": "idle",
}
_OTHER_LOSS_COLOR: Final = "h2h"

_Points = list[tuple[float, float]]
_PACES: Final = ("step_period_ns", "samples_per_s", "tokens_per_s", "steps_per_s")
_MIN_PACE_POINTS: Final = 4


def curves_style() -> str:
    """Return the CSS of the charts for the light and the dark theme."""
    names = dict.fromkeys((*_COLORS, *_LOSS_COLORS.values(), _OTHER_LOSS_COLOR))
    return chart_style(
        "sizes",
        names,
        ".sizes{max-height:420px}.sizes .ideal{stroke:var(--muted);stroke-dasharray:5 4}"
        ".sizes polyline{fill:none;stroke-width:2}"
        ".sizes .change{stroke-dasharray:2 3}",
    )


def accuracy_chart(result: Result) -> str:
    """Draw the curves of a result of ``traceprof accuracy``; return "" if no times are known."""
    runs = [
        (name, points)
        for name, rows in split_by(result.table, "run")
        if len(points := _points(rows.rows())) > 1
    ]
    if not runs:
        return ""
    left_out = len(runs) - _MAX_CURVES
    words = f" The table lists {left_out} more runs." if left_out > 0 else ""
    target, metric = float(result.scalars["target"]), str(result.scalars["metric"])
    return (
        _draw_over_time(runs[:_MAX_CURVES], target, metric)
        + f'<p class="note">The dashed line is the target.{words}</p>'
    )


def _points(rows: Sequence[Row]) -> _Points:
    """Return (time in ns, value) of the rows with a positive, finite time."""
    pairs = [(float(row["time_ns"]), float(row["value"])) for row in rows]
    return [(time, value) for time, value in pairs if isfinite(time) and time > 0]


def _draw_over_time(runs: Sequence[tuple[str, _Points]], target: float, metric: str) -> str:
    """Draw the metric of each run over time, with a dashed line at ``target``."""
    times = [time for _, points in runs for time, _ in points]
    values = [value for _, points in runs for _, value in points] + [target]
    ends = [points[-1][0] for _, points in runs]
    if max(ends) > _LOG_TIME_RATIO * min(ends):
        x = Axis(log10(min(times)), log10(max(times)), *_X, base=10)
    else:
        x = Axis(min(times), max(times), *_X)
    y = Axis(min(values), max(values), *_Y)
    lines = (
        element(
            "polyline",
            f"<title>{html_text(name)}</title>",
            points=points_text(x, y, points),
            style=f"stroke:var(--sizes-{color})",
        )
        for (name, points), color in zip(runs, _COLORS, strict=False)
    )
    ideal = element("line", class_="ideal", x1=_X[0], x2=_X[1], y1=y(target), y2=y(target))
    return _curve_legend(name for name, _ in runs) + drawing(
        (_WIDTH, _HEIGHT),
        "sizes",
        f"{metric} over time",
        *_grid_over_time(x, y, metric),
        ideal,
        *lines,
    )


def _grid_over_time(x: Axis, y: Axis, metric: str) -> Iterator[str]:
    """Yield grid lines at round values, their labels, and the titles of the axes."""
    yield from value_grid(y, _X, Unit.NUMBER)
    ends = (x.value(0.0), x.value(1.0))
    for time in round_factors(*ends) if x.base else round_ticks(*ends, 8):
        yield text(x(time), _HEIGHT - 20, round_text(Unit.NS, time), "middle")
    scale = " (log scale)" if x.base else ""
    yield text((_X[0] + _X[1]) / 2, _HEIGHT - 3, f"training time{scale}", "middle")
    yield text(_LEFT, 10, metric)


def _curve_legend(names: Iterator[str]) -> str:
    """Return the legend of curves, in the order of their colors."""
    colors = (f"var(--sizes-{key})" for key in _COLORS)
    return legend(((c, n or "all runs") for c, n in zip(colors, names, strict=False)), "key")


def scaling_charts(result: Result) -> str:
    """Draw the charts of a result of ``traceprof scaling``; return "" if no group has two sizes."""
    table = result.tables["scaling"]
    measured = table.take(table["speedup"] > 0)
    groups = [
        (name, members.rows()) for name, members in split_by(measured, "group") if len(members) > 1
    ]
    if not groups:
        return ""
    left_out = len(groups) - _MAX_CURVES
    shown = groups[:_MAX_CURVES]
    words = f" The table lists {left_out} more groups." if left_out > 0 else ""
    losses = dict(split_by(result.tables["losses"], "group")) if "losses" in result.tables else {}
    bars = (_loss_bars(name, rows, losses[name].rows()) for name, rows in shown if name in losses)
    return (
        _draw_against_ideal(shown, str(result.scalars["devices"]), by=str(result.scalars["by"]))
        + f'<p class="note">Throughput relative to one GPU of the base run. Both axes are log2. '
        f"The dashed line is ideal scaling.{words}</p>"
        + _draw_efficiency(shown, by=str(result.scalars["by"]))
        + '<p class="note">Efficiency: the share of ideal scaling that each size reaches.</p>'
        + "".join(bars)
    )


def _draw_efficiency(groups: Sequence[tuple[str, Sequence[Row]]], by: str) -> str:
    """Draw the efficiency of each group by size; sizes are log2, shares are linear."""
    rows = [row for _, group_rows in groups for row in group_rows]
    sizes = [_size(row, by) for row in rows]
    low, high = floor(log2(min(sizes))), log2(max(sizes)) + 0.2
    x = Axis(low, max(high, low + 1), *_X_OF_SIZES, base=2)
    y = Axis(0.0, max(1.0, *(float(row["efficiency_ratio"]) for row in rows)), *_Y)
    lines = []
    for (name, group_rows), key in zip(groups, _COLORS, strict=False):
        points = [(_size(row, by), float(row["efficiency_ratio"])) for row in group_rows]
        title = f"<title>{html_text(name or 'all runs')}</title>"
        style = f"stroke:var(--sizes-{key})"
        lines.append(element("polyline", title, points=points_text(x, y, points), style=style))
        lines += [
            text(
                x(size),
                y(share) + (16 if share > 0.1 else -6),
                value_text(Unit.RATIO, share),
                "middle",
            )
            for size, share in points
        ]
    marks = (
        text(x(size), _HEIGHT - _BOTTOM + 16, f"{size:g}", "middle") for size in sorted({*sizes})
    )
    ideal = element("line", class_="ideal", x1=_X[0], x2=_X[1], y1=y(1.0), y2=y(1.0))
    label = "Efficiency by job size"
    grid = value_grid(y, _X, Unit.RATIO)
    return drawing((_WIDTH, _HEIGHT), "sizes", label, *grid, *marks, ideal, *lines)


def _size(row: Row, by: str) -> float:
    return float(row["nodes_count" if by == "nodes" else "devices_count"])


def _throughput_per_device(row: Row) -> float:
    """Return the throughput relative to one device of the base run."""
    return float(row["speedup"]) * float(row["base_count"])


def _draw_against_ideal(groups: Sequence[tuple[str, Sequence[Row]]], devices: str, by: str) -> str:
    """Draw the throughput of each group by size; both axes are log2."""
    rows = [row for _, group_rows in groups for row in group_rows]
    values = [value for row in rows for value in (_size(row, by), _throughput_per_device(row))]
    low, high = floor(log2(min(values))), log2(max(values)) + 0.2
    x, y = (Axis(low, max(high, low + 1), *ends, base=2) for ends in (_X_OF_SIZES, _Y))
    bottom, top = 2.0**low, 2.0**high
    ideal = _line(x, y, (bottom, bottom), (top, top), "ideal")
    drawn = (
        _group(x, y, name, group_rows, key, by)
        for (name, group_rows), key in zip(groups, _COLORS, strict=False)
    )
    title = "nodes" if by == "nodes" else devices
    foot = text(round((_WIDTH + _LEFT) / 2), _HEIGHT - 4, title, "middle")
    return _curve_legend(name for name, _ in groups) + drawing(
        (_WIDTH, _HEIGHT),
        "sizes",
        "Throughput by job size, compared with ideal scaling",
        *_grid_of_sizes(x, y, (low, high)),
        ideal,
        *drawn,
        foot,
    )


def _group(x: Axis, y: Axis, name: str, rows: Sequence[Row], key: str, by: str) -> str:
    points = points_text(x, y, ((_size(row, by), _throughput_per_device(row)) for row in rows))
    line = element("polyline", points=points, style="stroke:var(--own)")
    dots = "".join(_dot(x, y, name, row, by) for row in rows)
    return element("g", line + dots, style=f"--own:var(--sizes-{key})")


def _dot(x: Axis, y: Axis, name: str, row: Row, by: str) -> str:
    """Draw one measured size as a circle with its confidence interval and a tooltip."""
    size, value = _size(row, by), _throughput_per_device(row)
    words = f"{name or 'all runs'}, {size:g}: {value_text(Unit.RATIO, row['efficiency_ratio'])}"
    words += f" of ideal, {value:.4g}× the throughput of one"
    low, high = (float(row[f"{end}_ratio"]) * size for end in ("low", "high"))
    interval = ""
    if isfinite(low) and isfinite(high) and low > 0:
        top, at = y(high), x(size)
        bottom = y(max(low, 2.0**y.low))
        interval = element("line", x1=at, x2=at, y1=bottom, y2=top, style="stroke:var(--own)")
    title = f"<title>{html_text(words)}</title>"
    return interval + element(
        "circle", title, cx=x(size), cy=y(value), r="4", style="fill:var(--own)"
    )


def _line(x: Axis, y: Axis, begin: tuple[float, float], end: tuple[float, float], kind: str) -> str:
    return element("line", x1=x(begin[0]), y1=y(begin[1]), x2=x(end[0]), y2=y(end[1]), class_=kind)


def _grid_of_sizes(x: Axis, y: Axis, ends: tuple[int, float]) -> Iterator[str]:
    """Yield grid lines and labels at powers of two."""
    low, high = 2.0 ** ends[0], 2.0 ** ends[1]
    power_step = max(1, round((ends[1] - ends[0]) / 12))
    for power in range(ends[0], floor(ends[1]) + 1, power_step):
        mark = 2.0**power
        yield _line(x, y, (low, mark), (high, mark), "grid")
        yield text(_LEFT - 6, y(mark) + 4, f"{mark:g} ×", "end")
        yield text(x(mark), _HEIGHT - _BOTTOM + 16, f"{mark:g}", "middle")


def _loss_bars(name: str, rows: Sequence[Row], losses: Sequence[Row]) -> str:
    """Draw one bar per size, split into the reached share of ideal throughput and the losses.

    Losses are matched by number of devices and, if it is known, by global batch size.
    """
    loss_names = dict.fromkeys(str(loss_row["loss"]) for loss_row in losses)
    others = [loss for loss in loss_names if loss not in _LOSS_COLORS]
    colors = {
        **_LOSS_COLORS,
        **{loss: _COLORS[i % _MAX_CURVES] for i, loss in enumerate(others)},
    }
    bars, used = [], dict.fromkeys([_REACHED])
    for row in rows:
        batch = row.get("global_batch_count")
        size_losses = [
            loss_row
            for loss_row in losses
            if loss_row["devices_count"] == row["devices_count"]
            and (not is_known(batch) or loss_row.get("global_batch_count", batch) == batch)
        ]
        parts = [(_REACHED, float(row["efficiency_ratio"]))]
        parts += [
            (str(loss_row["loss"]), float(loss_row["lost_ratio"])) for loss_row in size_losses
        ]
        used |= dict.fromkeys(loss for loss, ratio in parts if ratio >= _MIN_NAMED_LOSS_RATIO)
        bars.append(_bar(f"{row['devices_count']:g}", parts, colors))
    key = legend(
        ((f"var(--sizes-{colors[loss]})", loss) for loss in used if loss != _REACHED), "key"
    )
    title = html_text(name or "all runs")
    return f'<h3>Lost, share of ideal: {title}</h3>{key}<div class="lost">{"".join(bars)}</div>'


def _bar(size: str, parts: Sequence[tuple[str, float]], colors: Mapping[str, str]) -> str:
    """Draw the losses of one size from 0 to ideal. Negative losses (gains) are not drawn."""
    full_ratio = max(1.0, sum(ratio for _, ratio in parts if ratio > 0))
    pieces, x = [], 0.0
    for loss, ratio in parts:
        if ratio <= 0:
            continue
        width = 100 * ratio / full_ratio
        fill = "var(--line)" if loss == _REACHED else f"var(--sizes-{colors[loss]})"
        title = f"<title>{html_text(f'{size}: {loss} {value_text(Unit.RATIO, ratio)}')}</title>"
        place = {"x": f"{x:.2f}%", "y": "0", "width": f"{width:.2f}%", "height": "18"}
        pieces.append(element("rect", title, **place, style=f"fill:{fill}"))
        x += width
    total = value_text(Unit.RATIO, parts[0][1])
    return (
        f'<svg width="100%" height="22" role="img" aria-label="{html_text(size)}: {total} of '
        f'ideal"><svg x="{_BAR_X_PX}" width="88%" height="22">{"".join(pieces)}</svg>'
        + text(_BAR_X_PX - 6, 14, size, "end", style="font-size:11px;fill:var(--muted)")
        + "</svg>"
    )


def pace_chart(runs: Sequence[Summary]) -> str:
    """Draw step times or rates of logs over their steps; return "" if no metric is known of all.

    A dashed vertical line marks a lasting change, and its title has both levels.
    """
    for metric, scope, over in product(_PACES, ("run", "device", "rank"), ("step", "interval")):
        curves = [_pace_of(run, metric, scope, over) for run in runs]
        if curves and all(curves):
            return _draw_pace(metric, runs, curves)
    return ""


def _pace_of(run: Summary, metric: str, scope: str, over: str) -> _Points:
    """Return (step, value) of a metric of one attempt; an empty list if there are too few."""
    found: _Points = []
    for row in run.table("metrics").rows():
        if (row["metric"], row["scope"], row["over"]) == (metric, scope, over):
            found.append((row["step"], row["value"]))
    is_ascending = all(first < second for (first, _), (second, _) in pairwise(found))
    return found if len(found) >= _MIN_PACE_POINTS and is_ascending else []


def _draw_pace(metric: str, runs: Sequence[Summary], curves: Sequence[_Points]) -> str:
    steps = [step for points in curves for step, _ in points]
    values = [value for points in curves for _, value in points]
    room = (max(values) - min(values) or max(values)) / 20
    x, y = Axis(min(steps), max(steps), *_X), Axis(min(values) - room, max(values) + room, *_Y)
    parts = [*value_grid(y, _X, unit_of(metric))]
    parts += [text(x(step), _HEIGHT - 20, f"{step:g}") for step in round_ticks(x.low, x.high, 8)]
    for run, points, color in zip(runs, curves, _COLORS, strict=False):
        style = f"stroke:var(--sizes-{color})"
        for note in run.notes:
            is_change = {"step", "before", "after"} <= note.values.keys()
            if is_change and str(note.values["name"]).startswith(metric):
                at, title = x(float(note.values["step"])), html_text(note_text(note))
                ends = {"x1": at, "x2": at, "y1": _Y[0], "y2": _Y[1]}
                mark = {"class_": "change", "style": style, **ends}
                parts.append(element("line", f"<title>{title}</title>", **mark))
        parts.append(element("polyline", points=points_text(x, y, points), style=style))
    words = f"{metric.removesuffix('_ns').replace('_', ' ')} over the steps"
    names = _curve_legend(run.name for run in runs)
    return names + drawing((_WIDTH, _HEIGHT), "sizes", words, *parts)
