"""Draw interactive figures of the report: ranks, memory, kernel durations, flame graph, idle time.

Each function takes a result and the context of the page, and returns HTML, or "" if there is
nothing to draw. An element that stands for a time span links to it in the page's timeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from traceprof.measures.compute.rates import longest_executions
from traceprof.measures.device.memory import memory_over_time
from traceprof.measures.host.tree import BETWEEN
from traceprof.model.grouping import split_by
from traceprof.model.results import Result, Unit
from traceprof.model.table import Table
from traceprof.model.table import is_known as are_known
from traceprof.model.tables import ABSENT
from traceprof.names.kernels import short_name
from traceprof.names.ranges import phase_of
from traceprof.render.charts.figure import (
    MOST_LINES,
    choice,
    color_of_line,
    figure_html,
    note,
    scale_of,
)
from traceprof.render.charts.roofline import name_of_point, roofline_figure
from traceprof.render.escape import plotly_text
from traceprof.render.formatting import process_label, round_text
from traceprof.render.palette import CATEGORY_INDEX, PART_STYLES
from traceprof.render.report.places import PageContext
from traceprof.units import format_count, format_duration

_MAX_POINTS: Final = 1_000


def ranks_figure(ranks: Result, _: PageContext) -> str:
    """Return one stacked bar of the five parts of GPU time for each rank that has a GPU."""
    table = ranks.table.take(are_known(ranks.table["compute_ns"]))
    if len(table) < 2:
        return ""
    parts = {part.column: table[part.column].astype(np.float64) for part in PART_STYLES}
    scale = scale_of(Unit.NS, sum(parts.values()))
    names = [
        process_label(process, rank)
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
    waiting = {
        "type": "scatter",
        "mode": "markers",
        "name": "waiting for other ranks",
        "x": names,
        "y": scale(table["waited_ns"]),
        "marker": {"symbol": "line-ew-open", "size": 12, "color": "var(--fg)"},
        "hovertemplate": f"%{{x}}: {scale.hover('y')}",
    }
    return figure_html(
        [*traces, waiting],
        "GPU time of each rank",
        barmode="stack",
        bargap=0.15,
        xaxis={"type": "category", "showgrid": False},
        yaxis={"title": {"text": f"time in the window, {scale.unit}"}, "rangemode": "tozero"},
    )


def memory_figure(_: Result, context: PageContext) -> str:
    """Return the memory usage of the whole run over time, one line per source and metric."""
    table = memory_over_time(context.whole, _MAX_POINTS)
    groups = [
        (f"{source} {str(metric).replace('_', ' ')}", samples)
        for source, part in split_by(table, "source")
        for metric, samples in split_by(part, "metric")
    ]
    groups.sort(key=lambda group: -float(group[1]["size_bytes"].max()))
    groups = groups[:MOST_LINES]
    if not groups:
        return ""
    size = scale_of(Unit.BYTES, *(samples["size_bytes"] for _, samples in groups))
    run_start_ns = context.run.start_ns
    time = scale_of(Unit.NS, *(samples["start_ns"] - run_start_ns for _, samples in groups))
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": plotly_text(name, 60),
            "x": time(samples["start_ns"] - run_start_ns),
            "y": size(samples["size_bytes"]),
            "line": {"shape": "hv", "width": 1.5, "color": color_of_line(place)},
            "hovertemplate": f"{size.hover('y')} at {time.hover('x')}",
        }
        for place, (name, samples) in enumerate(groups)
    ]
    window = context.window
    ends = time([window.start_ns - run_start_ns, window.end_ns - run_start_ns]).tolist()
    highlight = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": ends[0], "x1": ends[1]}
    figure = figure_html(
        traces,
        "Memory usage over time",
        x=f"time since start of run, {time.unit}",
        yaxis={"title": {"text": size.unit}, "rangemode": "tozero"},
        shapes=[
            {**highlight, "layer": "below", "line": {"width": 0}, "fillcolor": "var(--selected)"}
        ],
    )
    return figure + note("Memory usage of the whole run. The analyzed window is highlighted.")


_MAX_KERNELS: Final = 24


def durations_figure(durations: Result, _: PageContext) -> str:
    """Return duration histograms of the kernels with the most time, with a menu to choose one."""
    by_name = dict(split_by(durations.table, "name"))
    names = list(dict.fromkeys(durations.table["name"].tolist()))
    shown = names[:_MAX_KERNELS]
    if not shown:
        return ""
    traces = []
    for place, name in enumerate(shown):
        bins = by_name[name]
        scale = scale_of(Unit.NS, bins["lower_bound_ns"])
        widths_ns = bins["upper_bound_ns"] - bins["lower_bound_ns"]
        hover = [
            f"{format_duration(row['lower_bound_ns'])} to "
            f"{format_duration(row['upper_bound_ns'])}: "
            f"{format_count(row['count'])} launches, {format_duration(row['total_ns'])} in total"
            for row in bins.rows()
        ]
        traces.append(
            {
                "type": "bar",
                "x": scale(bins["lower_bound_ns"] + widths_ns / 2),
                "y": bins["count"],
                "width": scale(widths_ns),
                "marker": {"color": "var(--compute)", "line": {"width": 0}},
                "customdata": hover,
                "hovertemplate": "%{customdata}<extra></extra>",
                "showlegend": False,
                "visible": place == 0,
                "meta": {"unit": scale.unit},
            }
        )
    titles = [{"xaxis.title.text": f"kernel duration, {t['meta']['unit']}"} for t in traces]
    menu: dict[str, Any] = choice([short_name(name) for name in shown], [1] * len(shown), titles)
    figure = figure_html(
        traces,
        "Distribution of kernel durations",
        y="launches",
        xaxis={"title": {"text": titles[0]["xaxis.title.text"]}},
        **menu,
    )
    left_out = len(names) - len(shown)
    more = f" The table lists {format_count(left_out)} more kernels." if left_out > 0 else ""
    return figure + note(f"Histogram of the durations of each kernel. Each bin is 9% wide.{more}")


_MAX_NODES: Final = 400


def tree_figure(tree: Result, _: PageContext) -> str:
    """Return a flame graph of nested ranges or operators, by GPU time or CPU time."""
    times = {"device_ns": "GPU time", "host_ns": "CPU time"}
    shown = {
        column: title
        for column, title in times.items()
        if column in tree.table and tree.table[column].any()
    }
    if tree.table.empty or not shown:
        return ""
    traces = [
        {**_icicle(tree.table, column, title), "visible": place == 0}
        for place, (column, title) in enumerate(shown.items())
    ]
    depth = min(int(tree.table["depth"].max()) + 2, 12)
    menu: dict[str, Any] = choice(list(shown.values()), [1] * len(shown))
    figure = figure_html(
        traces,
        "Flame graph of Python functions"
        if tree.name == "function-stacks"
        else "Flame graph of ranges or operators",
        height=60 + 34 * depth,
        margin={"l": 8, "r": 8, "t": 44, "b": 8},
        uniformtext={"minsize": 9, "mode": "hide"},
        **menu,
    )
    return figure + note(
        "The width of a box is the GPU time launched from it, or its CPU time. The parent is "
        "above its children. Click a box to zoom in; click the top box to zoom out."
    )


def _icicle(table: Table, column: str, title: str) -> dict[str, Any]:
    """Return a plotly icicle trace of the nodes with the most time in ``column``."""
    table = table.in_order(f"-{column}", "depth", "path").head(_MAX_NODES)
    table = table.take(table[column] > 0)
    paths = table["path"].tolist()
    parents = [path.rpartition(BETWEEN)[0] for path in paths]
    ids = {path: str(number) for number, path in enumerate(paths)}
    values = table[column].tolist()
    total = sum(value for value, parent in zip(values, parents, strict=True) if not parent)
    names = table["name"].tolist()
    return {
        "type": "icicle",
        "name": title,
        "ids": ["all", *(ids[path] for path in paths)],
        "labels": [title, *(plotly_text(name, 80) for name in names)],
        "parents": ["", *(ids.get(parent, "all") for parent in parents)],
        "values": [total, *values],
        "branchvalues": "total",
        "tiling": {"orientation": "v"},
        "pathbar": {"visible": False},
        "marker": {
            "colors": ["var(--line)", *_phase_colors(paths, names)],
            "line": {"width": 1, "color": "var(--card)"},
        },
        "text": [format_duration(value) for value in (total, *values)],
        "textinfo": "label+text",
        "customdata": ["", *(format_count(n) for n in table["count"].tolist())],
        "hovertemplate": "%{label}: %{text}, %{customdata}×<extra></extra>",
        "sort": False,
    }


def _phase_colors(paths: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Yield the color of each node: that of its phase, or of its parent if its name has none.

    ``paths`` lists parents before their children.
    """
    colors: dict[str, str] = {}
    for path, name in zip(paths, names, strict=True):
        phase = phase_of(name, "")
        category = f"range_{phase}" if phase else ""
        if category not in CATEGORY_INDEX:
            category = colors.get(path.rpartition(BETWEEN)[0], "range")
        colors[path] = category
        yield f"var(--{category})"


def idle_figure(idle: Result, _: PageContext) -> str:
    """Return the idle time of each GPU by the length of the gaps."""
    table = idle.tables.get("histogram")
    if table is None or table.empty:
        return ""
    edges = sorted(
        {*zip(table["lower_bound_ns"].tolist(), table["upper_bound_ns"].tolist(), strict=True)}
    )
    names = [_bin_label(*ends) for ends in edges]
    scale = scale_of(Unit.NS, table["total_ns"])
    traces = []
    for place, (device, gaps) in enumerate(split_by(table, "device")[:MOST_LINES]):
        rows = {row["lower_bound_ns"]: row for row in gaps.rows()}
        found = [rows.get(start, {"count": 0, "total_ns": 0}) for start, _ in edges]
        traces.append(
            {
                "type": "bar",
                "name": f"GPU {device}",
                "x": names,
                "y": scale([row["total_ns"] for row in found]),
                "marker": {"color": color_of_line(place)},
                "customdata": [format_count(row["count"]) for row in found],
                "hovertemplate": f"gaps of %{{x}}: {scale.hover('y')} in %{{customdata}} gaps",
            }
        )
    return figure_html(
        traces,
        "Idle time by gap length",
        height=240,
        y=f"idle time, {scale.unit}",
        xaxis={"type": "category", "title": {"text": "gap length"}},
    )


_UNBOUNDED_NS: Final = 1 << 62
"""A bin whose upper edge is above this has no upper edge."""


def _bin_label(lower_bound_ns: int, to_ns: int) -> str:
    low, high = (round_text(Unit.NS, ns) for ns in (lower_bound_ns, to_ns))
    return f"{low} or more" if to_ns > _UNBOUNDED_NS else f"{low} to {high}"


def rooflines(result: Result, context: PageContext) -> str:
    """Return the roofline of operators or kernels; each point leads to its longest kernel."""
    places = {}
    found = longest_executions(
        context.whole.within(context.window), by_kernel="name" in result.table
    )
    for row in found.rows():
        at_ns = row["start_ns"] - context.run.start_ns
        step = "" if row["step"] == ABSENT else f" (step {row['step']})"
        words = f"longest: {format_duration(row['length_ns'])} at {format_duration(at_ns)}{step}"
        address = context.link(at_ns, row["length_ns"], row["process"])
        places[name_of_point(row), str(row["precision"])] = words, address
    return roofline_figure(result, places)
