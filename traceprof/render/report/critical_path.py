"""The critical path as figures that one explores: of one step as it runs, and of every step."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.measures.path.path import PATH_PARTS, path_within
from traceprof.model.grouping import split_by
from traceprof.model.results import Result, Unit
from traceprof.model.table import Table
from traceprof.render.charts.figure import figure_html, note, scale_of
from traceprof.render.report.places import Around
from traceprof.render.report.steps import Pieces, bars_of_steps
from traceprof.units import format_count, format_duration

_PATH_LABELS: Final = {
    "compute": ("compute", "compute"),
    "communication": ("communication", "communication"),
    "transfer": ("transfer", "h2d"),
    "device_memory": ("device memory", "d2d"),
    "data": ("data loading", "range_data"),
    "launch": ("kernel launch", "api"),
    "host": ("other CPU work", "host_op"),
    "latency": ("latency", "overhead"),
    "synchronising": ("synchronization", "sync"),
}
_MOST_SEGMENTS: Final = 400


def path_figure(path: Result, around: Around) -> str:
    """Return the critical path of a typical step as it runs, and that of each step by part."""
    table = path.table
    if table.empty:
        return ""
    typical = int(np.abs(table["duration_ns"] - np.median(table["duration_ns"])).argmin())
    process, step = int(table["process"][typical]), int(table["step"][typical])
    found = around.whole.each(path_within, process, step, around.window)
    segments = next((own for own in found if own is not None), None)
    drawn = "" if segments is None else _path_drawn(segments, process, step, around)
    if len(table) < 2:
        return drawn
    pieces: Pieces = {f"{part}_ns": _PATH_LABELS[part] for part in PATH_PARTS}
    used = {column: own for column, own in pieces.items() if table[column].any()}
    bars, words = bars_of_steps(table, used, around, "step" if step >= 0 else "window")
    return drawn + bars + note(f"Critical path of {words} by activity.")


def _path_drawn(segments: Table, process: int, step: int, around: Around) -> str:
    left_out = len(segments) - _MOST_SEGMENTS
    longest = segments.in_order("-duration_ns").head(_MOST_SEGMENTS)
    begin = float(segments["at_ns"].min())
    scale = scale_of(Unit.NS, segments["at_ns"] + segments["duration_ns"] - begin)
    parts = dict(split_by(longest, "part"))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": _PATH_LABELS[part][0],
            "y": [_PATH_LABELS[part][0]] * len(parts[part]),
            "base": scale(parts[part]["at_ns"] - begin),
            "x": scale(parts[part]["duration_ns"]),
            "marker": {"color": f"var(--{_PATH_LABELS[part][1]})", "line": {"width": 0}},
            "customdata": [format_duration(ns) for ns in parts[part]["duration_ns"].tolist()],
            "hovertemplate": "%{customdata}",
            "meta": {
                "links": [
                    around.link(at, ns, process)
                    for at, ns in zip(
                        parts[part]["at_ns"].tolist(),
                        parts[part]["duration_ns"].tolist(),
                        strict=True,
                    )
                ]
            },
        }
        for part in PATH_PARTS
        if part in parts
    ]
    what = f"step {step}" if step >= 0 else "the window"
    words = f"Critical path of {what}, {around.who(process)}"
    more = f" The {format_count(left_out)} shortest segments are not shown." if left_out > 0 else ""
    figure = figure_html(
        traces,
        words,
        height=90 + 26 * len(traces),
        barmode="overlay",
        bargap=0.25,
        showlegend=False,
        xaxis={"title": {"text": f"time since start of {what}, {scale.unit}"}},
        yaxis={"type": "category", "autorange": "reversed", "fixedrange": True},
    )
    return figure + note(f"{words}.{more} Click a segment to show it in the timeline.")
