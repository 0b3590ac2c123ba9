"""The events that are long enough for a bar of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from traceprof.render.escape import plotly_text
from traceprof.render.palette import CATEGORIES, category_index
from traceprof.render.pictures.lines import Line
from traceprof.render.timeline.channels import Channel
from traceprof.units import format_bytes, format_duration, format_rate

__all__ = ["MAX_BARS", "Bar", "bar_trace", "find_bars", "shortest_bar", "without_bars"]

MAX_BARS: Final = 1_500
_BAR_MIN_PX: Final = 2.5


class Bar(NamedTuple):
    """One bar: its line, its times in ns after the origin, its name and bytes (-1: none)."""

    line: int
    start: int
    end: int
    name: str
    n_bytes: int


def shortest_bar(lines: Sequence[Line], duration: int, width: int) -> float:
    """Return the length in ns from which an event is a bar: readable ones, never too many."""
    lengths = [_lengths(c, duration) for line in lines if line.row for c in line.row.channels]
    readable = _BAR_MIN_PX * duration / width
    longest = np.sort(np.concatenate(lengths or [np.empty(0, np.int64)]))[::-1]
    return max(readable, float(longest[MAX_BARS]) + 1) if len(longest) > MAX_BARS else readable


def _lengths(channel: Channel, duration: int) -> np.ndarray:
    """Return how much of each event lies inside ``[0, duration)``."""
    return np.asarray(np.minimum(channel.ends, duration) - np.maximum(channel.starts, 0))


def find_bars(
    names: Sequence[str], lines: Sequence[Line], shortest: float, duration: int
) -> dict[str, list[Bar]]:
    """Return the bars of each category."""
    found: dict[str, list[Bar]] = {}
    for place, line in enumerate(lines):
        for channel in line.row.channels if line.row else ():
            chosen = np.flatnonzero(_lengths(channel, duration) >= shortest)
            sizes = channel.n_bytes
            found.setdefault(channel.category, []).extend(
                Bar(
                    place,
                    int(channel.starts[i]),
                    int(channel.ends[i]),
                    names[channel.names[i]],
                    -1 if sizes is None else int(sizes[i]),
                )
                for i in chosen
            )
    return {category: bars for category, bars in found.items() if bars}


def without_bars(channel: Channel, shortest: float, duration: int) -> Channel:
    """Return the channel without the events that are bars."""
    short = _lengths(channel, duration) < shortest
    return replace(
        channel,
        starts=channel.starts[short],
        ends=channel.ends[short],
        names=channel.names[short],
        n_bytes=None,
        correlations=None,
    )


def bar_trace(
    category: str, bars: Sequence[Bar], colours: tuple[str, str], offset_ns: int
) -> dict[str, Any]:
    """Return the arguments of a plotly bar trace; ``colours`` are those of bars and of edges."""
    starts = np.array([bar.start for bar in bars])
    return {
        "orientation": "h",
        "base": (starts + offset_ns) / 1e6,
        "x": (np.array([bar.end for bar in bars]) - starts) / 1e6,
        "y": np.array([bar.line for bar in bars]),
        "width": 0.76,
        "name": CATEGORIES[category_index(category)].label,
        "marker": {"color": colours[0], "line": {"width": 0.4, "color": colours[1]}},
        "hovertext": [_hover(bar) for bar in bars],
        "hovertemplate": "%{hovertext}<extra>%{fullData.name}</extra>",
    }


def _hover(bar: Bar) -> str:
    duration = bar.end - bar.start
    text = f"{plotly_text(bar.name)}<br>{format_duration(duration)}"
    if bar.n_bytes < 0 or duration == 0:
        return text
    return f"{text} · {format_bytes(bar.n_bytes)} · {format_rate(1e9 * bar.n_bytes / duration)}"
