"""The timeline as a plain plotly figure of bounded size: for notebooks and for pictures.

Long events are bars with hover, at most 1,500 of them; all others are one picture behind them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow
from traceprof.render.escape import plotly_text
from traceprof.render.palette import CATEGORIES, STATES, category_index
from traceprof.render.picture.strips import Pixels, png_data_url, state_strip, strip
from traceprof.render.timeline.channels import Channel, Group, Lanes, Row
from traceprof.render.timeline.lanes import build_lanes
from traceprof.render.timeline.marks import describe_steps
from traceprof.render.timeline.states import with_states
from traceprof.units import format_bytes, format_duration, format_rate

__all__ = ["MAX_BARS", "timeline_figure"]

MAX_BARS: Final = 1_500
_MAX_LINES: Final = 48
_BAR_MIN_PX: Final = 2.5
_STRIP_PX: Final = 10
_LINE_PX: Final = 19
_LABEL_PX: Final = 62
_MAX_STEP_LINES: Final = 40
_INK: Final = {
    "light": ("#1b2330", "#ffffff", "#e3e7ec"),
    "dark": ("#e4e9f0", "#171e28", "#2a3442"),
}


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the figure: a row of events, or the states of a device."""

    label: str
    row: Row | None
    states: tuple[Channel, ...] = ()


def timeline_figure(
    trace: Trace,
    *,
    window: TimeWindow | None = None,
    title: str = "",
    theme: str = "light",
    width: int = 1_280,
) -> go.Figure:
    """Return the figure; its axis is in ms after the start of the trace.

    Args:
        trace: what to draw.
        window: draw only what has a part inside it; the whole trace by default.
        title: the heading; untrusted text is fine.
        theme: "light" or "dark".
        width: of the plot in pixels, which decides what is too short for a bar.
    """
    span = window or trace.span
    duration = max(1, span.duration_ns)
    lanes = with_states(build_lanes(trace, span), duration)
    lines, n_hidden = _choose_lines(lanes)
    shortest = _shortest_bar(lines, duration, width)
    figure = go.Figure()
    offset_ns = span.start_ns - trace.span.start_ns
    for category, bars in _bars(lanes, lines, shortest, duration).items():
        figure.add_bar(**_bar_trace(category, bars, theme, offset_ns))
    pixels = np.concatenate(
        [_line_pixels(line, shortest, duration, width, theme) for line in lines]
    )
    figure.update_layout(
        **_layout(lines, theme, width),
        title={"text": plotly_text(title), "x": 0.01},
        images=[_image(pixels, offset_ns, duration, len(lines))],
        shapes=_step_lines(trace, span, offset_ns, theme),
    )
    left, right = offset_ns / 1e6, (offset_ns + duration) / 1e6
    hidden = f" · {n_hidden} more lanes are not drawn" if n_hidden else ""
    figure.update_xaxes(range=[left, right], title={"text": f"ms after the start{hidden}"})
    return figure


def _choose_lines(lanes: Lanes) -> tuple[list[_Line], int]:
    """Return the lines to draw, most telling first, and how many rows are left out."""
    wanted = [group for group in lanes.groups if group.kind != "threads"] or list(lanes.groups)
    lines = [line for group in wanted for line in _lines_of(group)][:_MAX_LINES]
    n_rows = sum(len(group.rows) for group in lanes.groups)
    return lines or [_Line("", None)], n_rows - sum(line.row is not None for line in lines)


def _lines_of(group: Group) -> list[_Line]:
    head = [_Line(group.label, None, group.states)] if group.states else []
    names = [f"· {row.label}" if row.label.isdigit() else row.label for row in group.rows]
    if not head and names:
        names[0] = f"{group.label} · {names[0]}"
    return head + [_Line(name, row) for name, row in zip(names, group.rows, strict=True)]


def _shortest_bar(lines: list[_Line], duration: int, width: int) -> float:
    """Return the length in ns from which an event is a bar: readable ones, never too many."""
    lengths = [
        np.minimum(c.ends, duration) - np.maximum(c.starts, 0)
        for line in lines
        if line.row
        for c in line.row.channels
    ]
    readable = _BAR_MIN_PX * duration / width
    longest = np.sort(np.concatenate(lengths or [np.empty(0, np.int64)]))[::-1]
    return max(readable, float(longest[MAX_BARS]) + 1) if len(longest) > MAX_BARS else readable


def _is_bar(channel: Channel, shortest: float, duration: int) -> np.ndarray:
    inside = np.minimum(channel.ends, duration) - np.maximum(channel.starts, 0)
    return np.asarray(inside >= shortest)


def _bars(
    lanes: Lanes, lines: list[_Line], shortest: float, duration: int
) -> dict[str, list[tuple[int, int, int, str, int]]]:
    """Return, per category, (line, start, end, name, bytes) of each bar."""
    found: dict[str, list[tuple[int, int, int, str, int]]] = {}
    for place, line in enumerate(lines):
        for channel in line.row.channels if line.row else ():
            chosen = np.flatnonzero(_is_bar(channel, shortest, duration))
            n_bytes = channel.n_bytes
            found.setdefault(channel.category, []).extend(
                (
                    place,
                    int(channel.starts[i]),
                    int(channel.ends[i]),
                    lanes.names[channel.names[i]],
                    -1 if n_bytes is None else int(n_bytes[i]),
                )
                for i in chosen
            )
    return {category: bars for category, bars in found.items() if bars}


def _bar_trace(
    category: str, bars: list[tuple[int, int, int, str, int]], theme: str, offset_ns: int
) -> dict[str, Any]:
    lines, starts, ends, names, n_bytes = zip(*bars, strict=True)
    item = CATEGORIES[category_index(category)]
    durations = np.array(ends) - np.array(starts)
    return {
        "orientation": "h",
        "base": (np.array(starts) + offset_ns) / 1e6,
        "x": durations / 1e6,
        "y": np.array(lines),
        "width": 0.76,
        "name": item.label,
        "marker": {"color": getattr(item, theme), "line": {"width": 0.4, "color": _INK[theme][1]}},
        "hovertext": [
            _hover(name, int(ns), size)
            for name, ns, size in zip(names, durations, n_bytes, strict=True)
        ],
        "hovertemplate": "%{hovertext}<extra>%{fullData.name}</extra>",
    }


def _hover(name: str, duration_ns: int, n_bytes: int) -> str:
    text = f"{plotly_text(name)}<br>{format_duration(duration_ns)}"
    if n_bytes < 0 or duration_ns == 0:
        return text
    return f"{text} · {format_bytes(n_bytes)} · {format_rate(1e9 * n_bytes / duration_ns)}"


def _line_pixels(line: _Line, shortest: float, duration: int, width: int, theme: str) -> Pixels:
    """Return the (`_STRIP_PX`, width) pixels behind the bars of one line."""

    def colour(category: str) -> str:
        return str(getattr(CATEGORIES[category_index(category)], theme))

    pixels = np.zeros((_STRIP_PX, width, 4), np.uint8)
    if line.states:
        ordered = sorted(line.states, key=lambda c: STATES.index(c.category))
        layers = [(c, colour(c.category)) for c in ordered]
        pixels[1:-1] = state_strip(layers, (0, duration), (width, _STRIP_PX - 2))
    elif line.row:
        layers = [
            (_without_bars(c, shortest, duration), colour(c.category)) for c in line.row.channels
        ]
        pixels[1:-1] = strip(layers, (0, duration), width)[None]
    return pixels


def _without_bars(channel: Channel, shortest: float, duration: int) -> Channel:
    short = ~_is_bar(channel, shortest, duration)
    return replace(
        channel,
        starts=channel.starts[short],
        ends=channel.ends[short],
        names=channel.names[short],
        n_bytes=None,
        correlations=None,
    )


def _image(pixels: Pixels, offset_ns: int, duration: int, n_lines: int) -> dict[str, Any]:
    return {
        "source": png_data_url(pixels),
        "xref": "x",
        "yref": "y",
        "x": offset_ns / 1e6,
        "y": -0.5,
        "sizex": duration / 1e6,
        "sizey": n_lines,
        "sizing": "stretch",
        "xanchor": "left",
        "yanchor": "top",
        "layer": "below",
    }


def _layout(lines: list[_Line], theme: str, width: int) -> dict[str, Any]:
    ink, paper, grid = _INK[theme]
    labels = [
        f"<b>{plotly_text(line.label, 34)}</b>" if line.states else plotly_text(line.label, 34)
        for line in lines
    ]
    return {
        "barmode": "overlay",
        "template": "none",
        "paper_bgcolor": paper,
        "plot_bgcolor": paper,
        "font": {"color": ink, "size": 11},
        "width": width + 4 * _LABEL_PX,
        "height": len(lines) * _LINE_PX + 150,
        "margin": {"l": 4 * _LABEL_PX - 24, "r": 24, "t": 76, "b": 48},
        "hovermode": "closest",
        "dragmode": "pan",
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "xaxis": {"gridcolor": grid, "zeroline": False, "separatethousands": True},
        "yaxis": {
            "range": [len(lines) - 0.5, -0.5],
            "tickvals": list(range(len(lines))),
            "ticktext": labels,
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
    }


def _step_lines(trace: Trace, span: TimeWindow, offset_ns: int, theme: str) -> list[dict[str, Any]]:
    starts = [start for start in describe_steps(trace, span)["starts"] if start > 0]
    every = max(1, -(-len(starts) // _MAX_STEP_LINES))
    line = {"width": 1, "dash": "dot", "color": _INK[theme][0]}
    return [
        {
            "type": "line",
            "x0": (start + offset_ns) / 1e6,
            "x1": (start + offset_ns) / 1e6,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "line": line,
            "opacity": 0.35,
        }
        for start in starts[::every]
    ]
