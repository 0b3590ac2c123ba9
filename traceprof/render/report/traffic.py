"""Draw interactive figures of data movement: rates over time, and bandwidth over size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from traceprof.model.grouping import codes_of, groups_of, split_by
from traceprof.model.results import Result, Unit
from traceprof.model.table import Table
from traceprof.render.charts.figure import (
    MOST_LINES,
    Scale,
    Trace,
    color_of_line,
    figure_html,
    note,
    scale_of,
)
from traceprof.render.escape import plotly_text
from traceprof.render.formatting import round_text
from traceprof.render.report.places import PageContext
from traceprof.units import format_bytes, format_count, format_duration, format_rate

_MAX_POINTS: Final = 2_000


def bandwidth_figure(bandwidth: Result, context: PageContext) -> str:
    """Return the bandwidth of copies over time, one line per device and route."""
    groups = _largest_groups(bandwidth.table, "device", "route")
    lines = [(f"GPU {name}", rows) for name, rows in groups]
    return _rates_over_time(lines, context, "Copy bandwidth over time")


def network_figure(network: Result, context: PageContext) -> str:
    """Return the rates of network interfaces, sockets, and links over time."""
    lines = _largest_groups(network.table, "source", "link", "direction")
    return _rates_over_time(lines, context, "Network traffic over time")


def _largest_groups(table: Table, *keys: str) -> list[tuple[str, Table]]:
    """Return name and rows of the groups with the most bytes, grouped by the columns ``keys``."""
    table = table.take(table["size_bytes"] > 0)
    by_key = groups_of(*(codes_of(table[key]) for key in keys))
    groups = [table.take(rows) for rows in by_key.rows]
    groups.sort(key=lambda group: -int(group["size_bytes"].sum()))
    return [(" ".join(str(group[key][0]) for key in keys), group) for group in groups[:MOST_LINES]]


def _rates_over_time(lines: Sequence[tuple[str, Table]], context: PageContext, label: str) -> str:
    """Return a figure of rates over time; ``lines`` are names and samples. "" without lines."""
    if not lines:
        return ""
    rate = scale_of(Unit.BYTES_PER_S, *(samples["rate_bytes_per_s"] for _, samples in lines))
    time = scale_of(Unit.NS, *(samples["at_ns"] for _, samples in lines))
    traces: list[Trace] = []
    for place, (name, samples) in enumerate(lines):
        at, values, links = _levels(samples, context)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plotly_text(name, 60),
                "x": time(at),
                "y": rate(values),
                "line": {"shape": "hv", "width": 1.5, "color": color_of_line(place)},
                "hovertemplate": f"{rate.hover('y')} from {time.hover('x')}",
                "meta": {"links": links},
            }
        )
    return figure_html(
        traces,
        label,
        x=f"time since start of run, {time.unit}",
        yaxis={"title": {"text": rate.unit}, "rangemode": "tozero"},
    )


def _levels(rows: Table, context: PageContext) -> tuple[list[float], list[float], list[str]]:
    """Return times (ns), rates (bytes/s), and links of a step line through ``rows``.

    The rate is 0 between two rows, where no bytes moved or nothing was sampled.
    """
    rows = rows.in_order("at_ns")
    if len(rows) > _MAX_POINTS:
        rows = rows.take(np.linspace(0, len(rows) - 1, _MAX_POINTS).astype(np.int64))
    points: list[tuple[float, float, str]] = []
    end: float | None = None
    names = ("at_ns", "duration_ns", "rate_bytes_per_s")
    for start, length, rate in zip(*(rows[name].tolist() for name in names), strict=True):
        if end is not None and start > end + 1:
            points.append((end, 0.0, ""))
        points.append((start, rate, context.link(start, length)))
        end = start + length
    points.append((end or 0.0, points[-1][1] if points else 0.0, ""))
    times, rates, links = map(list, zip(*points, strict=True))
    return times, rates, links


def sizes_of_copies(transfers: Result, _: PageContext) -> str:
    """Return copy bandwidth over copy size, with the peak bandwidth of each route."""
    classes = transfers.table.take(np.array(transfers.table["sizes"]) != "all")
    lines = _largest_groups(classes, "route", "memory")
    if not lines or len(classes) < 2:
        return ""
    rate = scale_of(Unit.BYTES_PER_S, classes["rate_bytes_per_s"], classes["peak_bytes_per_s"])
    traces: list[Trace] = []
    for place, (route, copies) in enumerate(lines):
        sizes = copies["size_bytes"] / np.maximum(copies["count"], 1)
        order = np.argsort(sizes, kind="stable")
        hover = [
            f"GPU {row['device']}, {row['sizes']}: {format_count(row['count'])} copies, "
            f"{format_rate(row['rate_bytes_per_s'])}"
            for row in copies.take(order).rows()
        ]
        name, color = plotly_text(route, 60), color_of_line(place)
        rates = rate(copies["rate_bytes_per_s"][order])
        traces.append(_points(name, sizes[order], rates, color, hover))
        traces += _peak(name, copies["peak_bytes_per_s"], (sizes.min(), sizes.max()), rate, color)
    return _bandwidth_by_size(traces, rate, "Copy bandwidth by size")


def sizes_of_collectives(events: Result, context: PageContext) -> str:
    """Return the bus bandwidth of each collective over its size."""
    known = events.table
    for name in ("busbw_bytes_per_s", "size_bytes"):
        known = known.take(np.nan_to_num(known[name].astype(np.float64)) > 0)
    if len(known) < 2:
        return ""
    left_out = len(known) - _MAX_POINTS
    if left_out > 0:
        known = known.in_order("-duration_ns").head(_MAX_POINTS)
    rate = scale_of(Unit.BYTES_PER_S, known["busbw_bytes_per_s"].astype(np.float64))
    traces = []
    for place, (op, collectives) in enumerate(split_by(known, "op")[:MOST_LINES]):
        rows = collectives.rows()
        hover = [
            ", ".join(
                filter(
                    None,
                    (
                        format_bytes(row["size_bytes"]),
                        f"duration {format_duration(row['duration_ns'])}",
                        str(row.get("phase") or ""),
                        plotly_text(row.get("caller") or "", 60),
                    ),
                )
            )
            for row in rows
        ]
        links = [context.link(row["at_ns"], row["duration_ns"], row["process"]) for row in rows]
        busbw = rate(collectives["busbw_bytes_per_s"].astype(np.float64))
        points = _points(
            plotly_text(op, 60), collectives["size_bytes"], busbw, color_of_line(place), hover
        )
        traces.append({**points, "mode": "markers", "meta": {"links": links}})
    more = f" The {format_count(left_out)} shortest are not shown." if left_out > 0 else ""
    figure = _bandwidth_by_size(traces, rate, "Bus bandwidth of collectives by size")
    return figure + note(
        "Bus bandwidth of each collective by bytes per rank. The time includes waiting for ranks."
        f"{more} Click a point to show it in the timeline."
    )


def _points(name: str, x: Any, y: Any, color: str, hover: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": np.asarray(x, np.float64),
        "y": y,
        "marker": {"size": 7, "color": color, "opacity": 0.7},
        "line": {"color": color, "width": 1.5},
        "customdata": hover,
        "hovertemplate": "%{customdata}",
    }


def _peak(
    name: str, peaks: Any, ends: tuple[float, float], rate: Scale, color: str
) -> Iterator[Trace]:
    """Yield a dashed line at the highest of ``peaks``; nothing if no peak is known."""
    known = np.asarray(peaks, np.float64)
    known = known[np.isfinite(known) & (known > 0)]
    if len(known):
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": f"peak {name}",
            "x": list(ends),
            "y": rate([known.max()] * 2),
            "line": {"color": color, "width": 1, "dash": "dash"},
            "hovertemplate": f"peak {rate.hover('y')}",
        }


def _bandwidth_by_size(traces: Sequence[Trace], rate: Scale, label: str) -> str:
    """Return a figure of bandwidth (on scale ``rate``) over size, with logarithmic axes."""
    sizes = [size for trace in traces for size in np.asarray(trace["x"]).tolist()]
    return figure_html(
        traces,
        label,
        height=340,
        xaxis={"type": "log", "title": {"text": "size"}, **_size_ticks(min(sizes), max(sizes))},
        yaxis={"type": "log", "title": {"text": rate.unit}, "dtick": 1},
    )


def _size_ticks(low: float, high: float) -> dict[str, Any]:
    """Return axis ticks at powers of ten from ``low`` to ``high`` bytes, labeled with units."""
    first, last = int(np.floor(np.log10(max(low, 1)))), int(np.ceil(np.log10(max(high, 1))))
    exponents = range(first, max(last, first + 1) + 1)
    values = [10.0**exponent for exponent in exponents]
    return {"tickvals": values, "ticktext": [round_text(Unit.BYTES, value) for value in values]}
