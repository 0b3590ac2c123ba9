"""Curves of several runs, as SVG that needs no script: throughput by size, and a metric over time.

Below throughput stands where efficiency went.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import floor, isfinite, log2, log10
from typing import Final

from traceprof.model.grouping import split_by
from traceprof.model.results import Result, Unit
from traceprof.render.charts.svg import (
    Axis,
    chart_style,
    drawing,
    element,
    legend,
    round_factors,
    round_ticks,
    text,
)
from traceprof.render.escape import html_text
from traceprof.render.formatting import is_known, round_text, value_text
from traceprof.render.shown import Row

_COLORS: Final = ("compute", "communication", "h2d", "memset", "d2d", "overlap", "p2p", "d2h")
_MOST: Final = len(_COLORS)
_WIDTH, _HEIGHT = 960, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 18, 42
_X: Final = (_LEFT, _WIDTH - _RIGHT)
_Y: Final = (_HEIGHT - _BOTTOM, _TOP)
_TENFOLD: Final = 20
"""From such a ratio of times on their axis goes by factors of ten."""

_BAR: Final = 54
_NAMED: Final = 0.002
"""What is less has no place in the legend."""

_NO_LOSS: Final = "reached"
_LOSS_COLORS: Final[Mapping[str, str]] = {
    "exposed communication": "communication",
    "waiting for stragglers": "p2p",
    "slower compute": "compute",
    "exposed transfers": "h2d",
    "device memory": "d2d",
    "waiting for input": "memset",
    "other idle": "idle",
}
_REST: Final = "h2h"

_Points = list[tuple[float, float]]


def curves_style() -> str:
    """Return the style of the chart, light and dark."""
    names = dict.fromkeys((*_COLORS, *_LOSS_COLORS.values(), _REST))
    more = ".sizes{max-height:420px}.sizes .ideal{stroke:var(--muted);stroke-dasharray:5 4}"
    return chart_style("sizes", names, more + ".sizes polyline{fill:none;stroke-width:2}")


def accuracy_chart(result: Result) -> str:
    """Return the curves of a result of ``traceprof accuracy``; "" where no times are known."""
    runs = [
        (name, points)
        for name, own in split_by(result.table, "run")
        if len(points := _points(own.rows())) > 1
    ]
    if not runs:
        return ""
    left_out = len(runs) - _MOST
    words = f" The table lists {left_out} more runs." if left_out > 0 else ""
    target, metric = float(result.scalars["target"]), str(result.scalars["metric"])
    return (
        _over_time(runs[:_MOST], target, metric)
        + f'<p class="note">The dashed line is the target.{words}</p>'
    )


def _points(rows: Sequence[Row]) -> _Points:
    pairs = [(float(row["time_ns"]), float(row["value"])) for row in rows]
    return [(time, value) for time, value in pairs if isfinite(time) and time > 0]


def _over_time(runs: Sequence[tuple[str, _Points]], target: float, metric: str) -> str:
    times = [time for _, points in runs for time, _ in points]
    values = [value for _, points in runs for _, value in points] + [target]
    ends = [points[-1][0] for _, points in runs]
    if max(ends) > _TENFOLD * min(ends):
        x = Axis(log10(min(times)), log10(max(times)), *_X, base=10)
    else:
        x = Axis(min(times), max(times), *_X)
    y = Axis(min(values), max(values), *_Y)
    lines = (
        element(
            "polyline",
            f"<title>{html_text(name)}</title>",
            points=" ".join(f"{x(time):.1f},{y(value):.1f}" for time, value in points),
            style=f"stroke:var(--sizes-{color})",
        )
        for (name, points), color in zip(runs, _COLORS, strict=False)
    )
    ideal = element("line", class_="ideal", x1=_X[0], x2=_X[1], y1=y(target), y2=y(target))
    grid = _grid_over_time(x, y, metric)
    return _key(name for name, _ in runs) + drawing(
        (_WIDTH, _HEIGHT), "sizes", f"{metric} over time", *grid, ideal, *lines
    )


def _grid_over_time(x: Axis, y: Axis, metric: str) -> Iterator[str]:
    """Yield lines at round values, their numbers, and what the axes are."""
    for value in round_ticks(y.low, y.high):
        at = y(value)
        yield element("line", class_="grid", x1=_X[0], x2=_X[1], y1=at, y2=at)
        yield text(_LEFT - 6, at + 4, round_text(Unit.NUMBER, value), "end")
    ends = (x.value(0.0), x.value(1.0))
    for time in round_factors(*ends) if x.base else round_ticks(*ends, 8):
        yield text(x(time), _HEIGHT - 20, round_text(Unit.NS, time), "middle")
    scale = " (log scale)" if x.base else ""
    yield text((_X[0] + _X[1]) / 2, _HEIGHT - 3, f"training time{scale}", "middle")
    yield text(_LEFT, 10, metric)


def _key(names: Iterator[str]) -> str:
    colors = (f"var(--sizes-{key})" for key in _COLORS)
    return legend(((c, n or "all runs") for c, n in zip(colors, names, strict=False)), "key")


def scaling_charts(result: Result) -> str:
    """Return the charts of a result of ``traceprof scaling``; "" where there is but one size."""
    table = result.tables["scaling"]
    known = table.take(table["speedup"] > 0)
    groups = [(name, own.rows()) for name, own in split_by(known, "group") if len(own) > 1]
    if not groups:
        return ""
    left_out = len(groups) - _MOST
    shown = groups[:_MOST]
    words = f" The table lists {left_out} more groups." if left_out > 0 else ""
    losses = dict(split_by(result.tables["losses"], "group")) if "losses" in result.tables else {}
    bars = (_loss_bars(n, rows, losses[n].rows()) for n, rows in shown if n in losses)
    return (
        _against_ideal(shown, str(result.scalars["devices"]), by=str(result.scalars["by"]))
        + f'<p class="note">Throughput relative to one GPU of the base run. Both axes are log2. '
        f"The dashed line is ideal scaling.{words}</p>" + "".join(bars)
    )


def _size(row: Row, by: str) -> float:
    return float(row["nodes_count" if by == "nodes" else "devices_count"])


def _per_one(row: Row) -> float:
    """Return the throughput over that of one device of the base."""
    return float(row["speedup"]) * float(row["base_count"])


def _against_ideal(groups: Sequence[tuple[str, Sequence[Row]]], devices: str, by: str) -> str:
    every = [row for _, rows in groups for row in rows]
    reached = [v for row in every for v in (_size(row, by), _per_one(row))]
    low, high = floor(log2(min(reached))), log2(max(reached)) + 0.2
    x, y = (Axis(low, max(high, low + 1), *ends, base=2) for ends in (_X, _Y))
    bottom, top = 2.0**low, 2.0**high
    ideal = _line(x, y, (bottom, bottom), (top, top), "ideal")
    drawn = (
        _group(x, y, name, rows, key, by)
        for (name, rows), key in zip(groups, _COLORS, strict=False)
    )
    title = "nodes" if by == "nodes" else devices
    foot = text(round((_WIDTH + _LEFT) / 2), _HEIGHT - 4, title, "middle")
    grid = _grid_of_sizes(x, y, (low, high))
    label = "Throughput by job size, compared with ideal scaling"
    return _key(name for name, _ in groups) + drawing(
        (_WIDTH, _HEIGHT), "sizes", label, *grid, ideal, *drawn, foot
    )


def _group(x: Axis, y: Axis, name: str, rows: Sequence[Row], key: str, by: str) -> str:
    points = " ".join(f"{x(_size(row, by)):.1f},{y(_per_one(row)):.1f}" for row in rows)
    line = element("polyline", points=points, style="stroke:var(--own)")
    dots = "".join(_dot(x, y, name, row, by) for row in rows)
    return element("g", line + dots, style=f"--own:var(--sizes-{key})")


def _dot(x: Axis, y: Axis, name: str, row: Row, by: str) -> str:
    size, value = _size(row, by), _per_one(row)
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
    """Yield a line and its numbers at powers of two."""
    low, high = 2.0 ** ends[0], 2.0 ** ends[1]
    every = max(1, round((ends[1] - ends[0]) / 12))
    for power in range(ends[0], floor(ends[1]) + 1, every):
        mark = 2.0**power
        yield _line(x, y, (low, mark), (high, mark), "grid")
        yield text(_LEFT - 6, y(mark) + 4, f"{mark:g} ×", "end")
        yield text(x(mark), _HEIGHT - _BOTTOM + 16, f"{mark:g}", "middle")


def _loss_bars(name: str, rows: Sequence[Row], losses: Sequence[Row]) -> str:
    known = dict.fromkeys(str(one["loss"]) for one in losses)
    others = [loss for loss in known if loss not in _LOSS_COLORS]
    colors = {**_LOSS_COLORS, **{one: _COLORS[i % _MOST] for i, one in enumerate(others)}}
    bars, used = [], dict.fromkeys([_NO_LOSS])
    for row in rows:
        batch = row.get("global_batch_count")
        same = [
            one
            for one in losses
            if one["devices_count"] == row["devices_count"]
            and (not is_known(batch) or one.get("global_batch_count", batch) == batch)
        ]
        parts = [(_NO_LOSS, float(row["efficiency_ratio"]))]
        parts += [(str(one["loss"]), float(one["lost_ratio"])) for one in same]
        used |= dict.fromkeys(loss for loss, ratio in parts if ratio >= _NAMED)
        bars.append(_bar(f"{row['devices_count']:g}", parts, colors))
    key = legend(
        ((f"var(--sizes-{colors[loss]})", loss) for loss in used if loss != _NO_LOSS), "key"
    )
    title = html_text(name or "all runs")
    return f'<h3>Lost, share of ideal: {title}</h3>{key}<div class="lost">{"".join(bars)}</div>'


def _bar(size: str, parts: Sequence[tuple[str, float]], colors: Mapping[str, str]) -> str:
    """Return a bar from 0 to ideal; losses below 0 are gains and not drawn."""
    whole = max(1.0, sum(ratio for _, ratio in parts if ratio > 0))
    pieces, x = [], 0.0
    for loss, ratio in parts:
        if ratio <= 0:
            continue
        width = 100 * ratio / whole
        fill = "var(--line)" if loss == _NO_LOSS else f"var(--sizes-{colors[loss]})"
        title = f"<title>{html_text(f'{size}: {loss} {value_text(Unit.RATIO, ratio)}')}</title>"
        place = {"x": f"{x:.2f}%", "y": "0", "width": f"{width:.2f}%", "height": "18"}
        pieces.append(element("rect", title, **place, style=f"fill:{fill}"))
        x += width
    reached = value_text(Unit.RATIO, parts[0][1])
    return (
        f'<svg width="100%" height="22" role="img" aria-label="{html_text(size)}: {reached} of '
        f'ideal"><svg x="{_BAR}" width="88%" height="22">{"".join(pieces)}</svg>'
        + text(_BAR - 6, 14, size, "end", style="font-size:11px;fill:var(--muted)")
        + "</svg>"
    )
