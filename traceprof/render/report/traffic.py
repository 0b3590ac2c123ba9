"""Bytes on their way as figures that one explores: over time, and bandwidth over size."""

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
    colour_of_line,
    figure_html,
    note,
    scale_of,
)
from traceprof.render.escape import plotly_text
from traceprof.render.formatting import round_text
from traceprof.render.report.places import Around
from traceprof.units import format_bytes, format_count, format_duration, format_rate

_MOST_POINTS: Final = 2_000


def bandwidth_figure(bandwidth: Result, around: Around) -> str:
    """Return the bandwidth of copies over time, by device and route."""
    lines = [(f"GPU {name}", own) for name, own in _largest(bandwidth.table, "device", "route")]
    return _rates_over_time(lines, around, "Copy bandwidth over time")


def network_figure(network: Result, around: Around) -> str:
    """Return the rates of interfaces, sockets and links over time."""
    lines = _largest(network.table, "source", "link", "direction")
    return _rates_over_time(lines, around, "Network traffic over time")


def _largest(table: Table, *keys: str) -> list[tuple[str, Table]]:
    """Return the rows with the same ``keys``, which name them: those that move the most bytes."""
    table = table.take(table["size_bytes"] > 0)
    groups = groups_of(*(codes_of(table[key]) for key in keys))
    found = [table.take(rows) for rows in groups.rows]
    found.sort(key=lambda own: -int(own["size_bytes"].sum()))
    return [(" ".join(str(own[key][0]) for key in keys), own) for own in found[:MOST_LINES]]


def _rates_over_time(lines: Sequence[tuple[str, Table]], around: Around, label: str) -> str:
    if not lines:
        return ""
    rate = scale_of(Unit.BYTES_PER_S, *(own["rate_bytes_per_s"] for _, own in lines))
    time = scale_of(Unit.NS, *(own["at_ns"] for _, own in lines))
    traces: list[Trace] = []
    for place, (name, own) in enumerate(lines):
        at, values, links = _levels(own, around)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plotly_text(name, 60),
                "x": time(at),
                "y": rate(values),
                "line": {"shape": "hv", "width": 1.5, "color": colour_of_line(place)},
                "hovertemplate": f"{rate.hover('y')} from {time.hover('x')}",
                "meta": {"links": links},
            }
        )
    layout: dict[str, Any] = {"yaxis": {"title": {"text": rate.unit}, "rangemode": "tozero"}}
    return figure_html(traces, label, x=f"time since start of run, {time.unit}", **layout)


def _levels(rows: Table, around: Around) -> tuple[list[float], list[float], list[str]]:
    """Return the rates as levels: what lies between rows moved nothing, or was not sampled."""
    rows = rows.in_order("at_ns")
    if len(rows) > _MOST_POINTS:
        rows = rows.take(np.linspace(0, len(rows) - 1, _MOST_POINTS).astype(np.int64))
    at, values, links = [], [], []
    until = None
    for start, length, rate in zip(
        rows["at_ns"].tolist(),
        rows["duration_ns"].tolist(),
        rows["rate_bytes_per_s"].tolist(),
        strict=True,
    ):
        if until is not None and start > until + 1:
            at.append(until)
            values.append(0.0)
            links.append("")
        at.append(start)
        values.append(rate)
        links.append(around.link(start, length))
        until = start + length
    return [*at, until or 0.0], [*values, values[-1] if values else 0.0], [*links, ""]


def sizes_of_copies(transfers: Result, _: Around) -> str:
    """Return the bandwidth of copies over their size, against the peak of each link."""
    table = transfers.table
    classes = table.take(np.array(table["sizes"]) != "all")
    lines = _largest(classes, "route", "memory")
    if not lines or len(classes) < 2:
        return ""
    rate = scale_of(Unit.BYTES_PER_S, classes["rate_bytes_per_s"], classes["peak_bytes_per_s"])
    traces: list[Trace] = []
    for place, (about, own) in enumerate(lines):
        sizes = own["size_bytes"] / np.maximum(own["count"], 1)
        order = np.argsort(sizes, kind="stable")
        hover = [
            f"GPU {row['device']}, {row['sizes']}: {format_count(row['count'])} copies, "
            f"{format_rate(row['rate_bytes_per_s'])}"
            for row in own.take(order).rows()
        ]
        name = plotly_text(about, 60)
        colour = colour_of_line(place)
        traces.append(
            _points(name, sizes[order], rate(own["rate_bytes_per_s"][order]), colour, hover)
        )
        traces += _peak(name, own["peak_bytes_per_s"], (sizes.min(), sizes.max()), rate, colour)
    return _over_size(traces, rate, "Copy bandwidth by size")


def sizes_of_collectives(events: Result, around: Around) -> str:
    """Return the busbw of each collective over its size."""
    table = events.table
    known = table.take(np.nan_to_num(table["busbw_bytes_per_s"].astype(np.float64)) > 0)
    known = known.take(np.nan_to_num(known["size_bytes"].astype(np.float64)) > 0)
    if len(known) < 2:
        return ""
    left_out = len(known) - _MOST_POINTS
    if left_out > 0:
        known = known.in_order("-duration_ns").head(_MOST_POINTS)
    rate = scale_of(Unit.BYTES_PER_S, known["busbw_bytes_per_s"].astype(np.float64))
    traces = []
    for place, (op, own) in enumerate(split_by(known, "op")[:MOST_LINES]):
        rows = own.rows()
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
        links = [around.link(row["at_ns"], row["duration_ns"], row["process"]) for row in rows]
        busbw = rate(own["busbw_bytes_per_s"].astype(np.float64))
        points = _points(
            plotly_text(op, 60), own["size_bytes"], busbw, colour_of_line(place), hover
        )
        traces.append({**points, "mode": "markers", "meta": {"links": links}})
    more = f" The {format_count(left_out)} shortest are not shown." if left_out > 0 else ""
    words = (
        "Bus bandwidth of each collective by bytes per rank. The time includes waiting for ranks."
    )
    figure = _over_size(traces, rate, "Bus bandwidth of collectives by size")
    return figure + note(f"{words}{more} Click a point to show it in the timeline.")


def _points(name: str, x: Any, y: Any, colour: str, hover: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": np.asarray(x, np.float64),
        "y": y,
        "marker": {"size": 7, "color": colour, "opacity": 0.7},
        "line": {"color": colour, "width": 1.5},
        "customdata": hover,
        "hovertemplate": "%{customdata}",
    }


def _peak(
    name: str, peaks: Any, ends: tuple[float, float], rate: Scale, colour: str
) -> Iterator[Trace]:
    known = np.asarray(peaks, np.float64)
    known = known[np.isfinite(known) & (known > 0)]
    if len(known):
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": f"peak {name}",
            "x": list(ends),
            "y": rate([known.max()] * 2),
            "line": {"color": colour, "width": 1, "dash": "dash"},
            "hovertemplate": f"peak {rate.hover('y')}",
        }


def _over_size(traces: Sequence[Trace], rate: Scale, label: str) -> str:
    sizes = [size for trace in traces for size in np.asarray(trace["x"]).tolist()]
    axis = {"type": "log", "title": {"text": "size"}, **_ticks_of_sizes(min(sizes), max(sizes))}
    layout: dict[str, Any] = {"yaxis": {"type": "log", "title": {"text": rate.unit}, "dtick": 1}}
    return figure_html(traces, label, height=340, xaxis=axis, **layout)


def _ticks_of_sizes(low: float, high: float) -> dict[str, Any]:
    """Return ticks at factors of ten, with their units."""
    first, last = int(np.floor(np.log10(max(low, 1)))), int(np.ceil(np.log10(max(high, 1))))
    exponents = range(first, max(last, first + 1) + 1)
    values = [10.0**exponent for exponent in exponents]
    return {"tickvals": values, "ticktext": [round_text(Unit.BYTES, value) for value in values]}
