"""Figures of the report that one explores: ranks, memory, durations of kernels, trees, idle time.

Each takes a result and what the page is about, and returns a piece of HTML; "" where there is
nothing to draw. What is drawn of a place leads to it in the timeline of the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from traceprof.measures.device.memory import memory_over_time
from traceprof.measures.host.tree import BETWEEN
from traceprof.model.grouping import split_by
from traceprof.model.results import Result, Unit
from traceprof.model.table import Table
from traceprof.model.table import is_known as are_known
from traceprof.names.kernels import short_name
from traceprof.names.ranges import phase_of
from traceprof.render.charts.figure import (
    MOST_LINES,
    choice,
    colour_of_line,
    figure_html,
    note,
    scale_of,
)
from traceprof.render.escape import plotly_text
from traceprof.render.formatting import is_known, round_text
from traceprof.render.palette import CATEGORY_INDEX, PART_STYLES
from traceprof.render.report.places import Around
from traceprof.units import format_count, format_duration

_MOST_POINTS: Final = 1_000


def ranks_figure(ranks: Result, _: Around) -> str:
    """Return the parts of the time of each rank's device as a bar for each rank that has one."""
    table = ranks.table.take(are_known(ranks.table["compute_ns"]))
    if len(table) < 2:
        return ""
    parts = {part.column: table[part.column].astype(np.float64) for part in PART_STYLES}
    scale = scale_of(Unit.NS, sum(parts.values()))
    names = [
        f"rank {rank:g}" if is_known(rank) else f"process {process}"
        for rank, process in zip(table["rank"].tolist(), table["process"].tolist(), strict=True)
    ]
    traces = [
        {
            "type": "bar",
            "name": part.category.label,
            "x": names,
            "y": scale(parts[part.column]),
            "marker": {"color": f"var(--{part.key})"},
            "hovertemplate": f"%{{x}}: {scale.hover('y')}",
        }
        for part in PART_STYLES
    ]
    waited = {
        "type": "scatter",
        "mode": "markers",
        "name": "waiting for other ranks",
        "x": names,
        "y": scale(table["waited_ns"]),
        "marker": {"symbol": "line-ew-open", "size": 12, "color": "var(--fg)"},
        "hovertemplate": f"%{{x}}: {scale.hover('y')}",
    }
    own: dict[str, Any] = {
        "barmode": "stack",
        "bargap": 0.15,
        "xaxis": {"type": "category", "showgrid": False},
        "yaxis": {"title": {"text": f"time in the window, {scale.unit}"}, "rangemode": "tozero"},
    }
    return figure_html([*traces, waited], "GPU time of each rank", **own)


def memory_figure(_: Result, around: Around) -> str:
    """Return how much memory was held over time, by what was sampled."""
    table = memory_over_time(around.whole, _MOST_POINTS)
    groups = [
        (f"{source} {str(metric).replace('_', ' ')}", own)
        for source, part in split_by(table, "source")
        for metric, own in split_by(part, "metric")
    ]
    groups.sort(key=lambda group: -float(group[1]["size_bytes"].max()))
    groups = groups[:MOST_LINES]
    if not groups:
        return ""
    size = scale_of(Unit.BYTES, *(own["size_bytes"] for _, own in groups))
    begin = around.run.start_ns
    time = scale_of(Unit.NS, *(own["start_ns"] - begin for _, own in groups))
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": plotly_text(name, 60),
            "x": time(own["start_ns"] - begin),
            "y": size(own["size_bytes"]),
            "line": {"shape": "hv", "width": 1.5, "color": colour_of_line(place)},
            "hovertemplate": f"{size.hover('y')} at {time.hover('x')}",
        }
        for place, (name, own) in enumerate(groups)
    ]
    ends = time([around.window.start_ns - begin, around.window.end_ns - begin]).tolist()
    window = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": ends[0], "x1": ends[1]}
    layout: dict[str, Any] = {
        "yaxis": {"title": {"text": size.unit}, "rangemode": "tozero"},
        "shapes": [
            {**window, "layer": "below", "line": {"width": 0}, "fillcolor": "var(--selected)"}
        ],
    }
    figure = figure_html(
        traces, "Memory usage over time", x=f"time since start of run, {time.unit}", **layout
    )
    return figure + note("Memory usage of the whole run. The analyzed window is highlighted.")


_MOST_KERNELS: Final = 24


def durations_figure(durations: Result, _: Around) -> str:
    """Return a histogram of each of the kernels that take the most time; one can be chosen."""
    names = dict.fromkeys(durations.table["name"].tolist())
    by_name = dict(split_by(durations.table, "name"))
    groups = [(name, by_name[name]) for name in list(names)[:_MOST_KERNELS]]
    if not groups:
        return ""
    traces = []
    for place, (_name, own) in enumerate(groups):
        scale = scale_of(Unit.NS, own["from_ns"])
        ends = own["up_to_ns"] - own["from_ns"]
        hover = [
            f"{format_duration(row['from_ns'])} to {format_duration(row['up_to_ns'])}: "
            f"{format_count(row['count'])} launches, {format_duration(row['total_ns'])} in total"
            for row in own.rows()
        ]
        traces.append(
            {
                "type": "bar",
                "x": scale(own["from_ns"] + ends / 2),
                "y": own["count"],
                "width": scale(ends),
                "marker": {"color": "var(--compute)", "line": {"width": 0}},
                "customdata": hover,
                "hovertemplate": "%{customdata}<extra></extra>",
                "showlegend": False,
                "visible": place == 0,
                "meta": {"unit": scale.unit},
            }
        )
    titles = [{"xaxis.title.text": f"kernel duration, {t['meta']['unit']}"} for t in traces]
    layout: dict[str, Any] = {"xaxis": {"title": {"text": titles[0]["xaxis.title.text"]}}}
    shown = [short_name(name) for name, _ in groups]
    menu: dict[str, Any] = choice(shown, [1] * len(groups), titles)
    figure = figure_html(traces, "Distribution of kernel durations", y="launches", **layout, **menu)
    left_out = len(names) - len(groups)
    more = f" The table lists {format_count(left_out)} more kernels." if left_out > 0 else ""
    return figure + note(f"Histogram of the durations of each kernel. Each bin is 9% wide.{more}")


_MOST_NODES: Final = 400


def tree_figure(tree: Result, _: Around) -> str:
    """Return ranges or operators inside one another, as wide as the time that they take."""
    times = {"device_ns": "GPU time", "host_ns": "CPU time"}
    shown = {
        column: words
        for column, words in times.items()
        if column in tree.table and tree.table[column].any()
    }
    if tree.table.empty or not shown:
        return ""
    traces = [
        {**_icicle(tree.table, column, words), "visible": place == 0}
        for place, (column, words) in enumerate(shown.items())
    ]
    depth = min(int(tree.table["depth"].max()) + 2, 12)
    menu: dict[str, Any] = choice(list(shown.values()), [1] * len(shown))
    label = "Flame graph of ranges or operators"
    figure = figure_html(
        traces,
        label,
        height=60 + 34 * depth,
        margin={"l": 8, "r": 8, "t": 44, "b": 8},
        uniformtext={"minsize": 9, "mode": "hide"},
        **menu,
    )
    words = (
        "The width of a box is the GPU time launched from it, or its CPU time. The parent is "
        "above its children. Click a box to zoom in; click the top box to zoom out."
    )
    return figure + note(words)


def _icicle(table: Table, column: str, words: str) -> dict[str, Any]:
    table = table.in_order(f"-{column}", "depth", "path").head(_MOST_NODES)
    table = table.take(table[column] > 0)
    paths = table["path"].tolist()
    above = [path.rpartition(BETWEEN)[0] for path in paths]
    place = {path: str(number) for number, path in enumerate(paths)}
    values = table[column].tolist()
    whole = sum(value for value, parent in zip(values, above, strict=True) if not parent)
    names = table["name"].tolist()
    return {
        "type": "icicle",
        "name": words,
        "ids": ["all", *(place[path] for path in paths)],
        "labels": [words, *(plotly_text(name, 80) for name in names)],
        "parents": ["", *(place.get(parent, "all") for parent in above)],
        "values": [whole, *values],
        "branchvalues": "total",
        "tiling": {"orientation": "v"},
        "pathbar": {"visible": False},
        "marker": {
            "colors": ["var(--line)", *_colours_of(paths, names)],
            "line": {"width": 1, "color": "var(--card)"},
        },
        "text": [format_duration(value) for value in (whole, *values)],
        "textinfo": "label+text",
        "customdata": ["", *(format_count(n) for n in table["count"].tolist())],
        "hovertemplate": "%{label}: %{text}, %{customdata}×<extra></extra>",
        "sort": False,
    }


def _colours_of(paths: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Yield the colour of the phase that a name, or the nearest around it, stands for."""
    colours: dict[str, str] = {}
    for path, name in zip(paths, names, strict=True):
        phase = phase_of(name, "")
        own = f"range_{phase}" if phase else ""
        if own not in CATEGORY_INDEX:
            own = colours.get(path.rpartition(BETWEEN)[0], "range")
        colours[path] = own
        yield f"var(--{own})"


def idle_figure(idle: Result, _: Around) -> str:
    """Return the idle time of the devices by the length of the gaps that it lies in."""
    table = idle.tables.get("histogram")
    if table is None or table.empty:
        return ""
    edges = sorted({*zip(table["from_ns"].tolist(), table["up_to_ns"].tolist(), strict=True)})
    names = [_between(*ends) for ends in edges]
    scale = scale_of(Unit.NS, table["total_ns"])
    traces = []
    for place, (device, own) in enumerate(split_by(table, "device")[:MOST_LINES]):
        rows = {row["from_ns"]: row for row in own.rows()}
        found = [rows.get(start, {"count": 0, "total_ns": 0}) for start, _ in edges]
        traces.append(
            {
                "type": "bar",
                "name": f"GPU {device}",
                "x": names,
                "y": scale([row["total_ns"] for row in found]),
                "marker": {"color": colour_of_line(place)},
                "customdata": [format_count(row["count"]) for row in found],
                "hovertemplate": f"gaps of %{{x}}: {scale.hover('y')} in %{{customdata}} gaps",
            }
        )
    label = "Idle time by gap length"
    axis = {"type": "category", "title": {"text": "gap length"}}
    return figure_html(traces, label, height=240, y=f"idle time, {scale.unit}", xaxis=axis)


_ENDLESS_NS: Final = 1 << 62


def _between(from_ns: int, up_to_ns: int) -> str:
    low, high = (round_text(Unit.NS, ns) for ns in (from_ns, up_to_ns))
    return f"{low} or more" if up_to_ns > _ENDLESS_NS else f"{low} to {high}"
