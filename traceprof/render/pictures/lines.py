"""Choose the lines of a picture, its bars for long events, and its pixels for other events."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traceprof.render.escape import plotly_text
from traceprof.render.palette import category_of
from traceprof.render.timeline.channels import Channel, LaneGroup, LaneRow, Lanes
from traceprof.units import format_bytes, format_duration, format_rate

_MAX_LINES: Final = 48
_NESTED: Final = frozenset({"range", "host_op"})
"""Kinds whose further lines are nesting depths; further lines of other kinds are overlaps.

The timeline page uses the same words (`assets/lines.mjs`).
"""
_KINDS_BY_PRIORITY: Final = ("range", "collective", "host_op", "sync", "api")
"""Kinds of thread lines by descending priority. Device lines have a higher priority."""


@dataclass(frozen=True, slots=True)
class PictureLine:
    """One line of the figure: a row of events, the states of a device, or the name of a process."""

    label: str
    row: LaneRow | None
    states: tuple[Channel, ...] = ()
    section: str = ""


def choose_lines(lanes: Lanes) -> tuple[list[PictureLine], int]:
    """Return the lines to draw, in screen order, and the number of rows of events left out.

    If not all lines fit, the lines of devices of all processes take precedence over lines of
    threads.
    """
    ranked_lines = [(rank, line) for group in lanes.groups for rank, line in _lines_of(group)]
    n_sections = len({line.section for _, line in ranked_lines})
    best = sorted(range(len(ranked_lines)), key=lambda i: (ranked_lines[i][0], i))[
        : _MAX_LINES - n_sections
    ]
    lines = list(_with_headings([ranked_lines[i][1] for i in sorted(best)]))
    n_rows = sum(len(group.rows) for group in lanes.groups)
    return lines or [PictureLine("", None)], n_rows - sum(line.row is not None for line in lines)


def _with_headings(lines: list[PictureLine]) -> Iterator[PictureLine]:
    """Yield the lines of each process below its name."""
    section = ""
    for line in lines:
        if line.section != section:
            section = line.section
            yield PictureLine(section, None)
        yield line


def _lines_of(group: LaneGroup) -> Iterator[tuple[tuple[int, int], PictureLine]]:
    """Yield the lines of a thread or device, each with its priority (low values first)."""
    if group.states:
        yield (0, 0), PictureLine(group.label, None, group.states, group.section)
    title = group.label
    for depth, row in enumerate(group.rows):
        label = row.label
        if label.isdigit():
            label = f"└ {'depth' if row.kind in _NESTED else 'overlap'} {label}"
        if not group.states and depth == 0:
            label = f"{title} · {label}"
        yield (_priority(group, row), depth), PictureLine(label, row, (), group.section)


def _priority(group: LaneGroup, row: LaneRow) -> int:
    """Return the priority of a row; low values are drawn first if not all rows fit."""
    if group.kind == "device":
        return 1
    if group.kind == "threads":
        return 9
    return 2 + (
        _KINDS_BY_PRIORITY.index(row.kind)
        if row.kind in _KINDS_BY_PRIORITY
        else len(_KINDS_BY_PRIORITY)
    )


MAX_BARS: Final = 1_500
_BAR_MIN_PX: Final = 2.5


class EventBar(NamedTuple):
    """One bar: line, times in ns after the origin, name, and number of bytes (-1: unknown)."""

    line: int
    start: int
    end: int
    name: str
    n_bytes: int


def shortest_bar(lines: Sequence[PictureLine], duration: int, width: int) -> float:
    """Return the minimum length in ns of events drawn as bars.

    Bars are wide enough to see, and there are at most `MAX_BARS`.
    """
    lengths = [
        _visible_lengths(c, duration) for line in lines if line.row for c in line.row.channels
    ]
    readable = _BAR_MIN_PX * duration / width
    longest = np.sort(np.concatenate(lengths or [np.empty(0, np.int64)]))[::-1]
    return max(readable, float(longest[MAX_BARS]) + 1) if len(longest) > MAX_BARS else readable


def _visible_lengths(channel: Channel, duration: int) -> np.ndarray:
    """Return the length in ns of each event inside ``[0, duration)``."""
    return np.asarray(np.minimum(channel.ends, duration) - np.maximum(channel.starts, 0))


def find_bars(
    names: Sequence[str], lines: Sequence[PictureLine], shortest: float, duration: int
) -> dict[str, list[EventBar]]:
    """Return the bars of each category."""
    bars_by_category: dict[str, list[EventBar]] = {}
    for place, line in enumerate(lines):
        for channel in line.row.channels if line.row else ():
            chosen = np.flatnonzero(_visible_lengths(channel, duration) >= shortest)
            sizes = channel.n_bytes
            bars_by_category.setdefault(channel.category, []).extend(
                EventBar(
                    place,
                    int(channel.starts[i]),
                    int(channel.ends[i]),
                    names[channel.names[i]],
                    -1 if sizes is None else int(sizes[i]),
                )
                for i in chosen
            )
    return {category: bars for category, bars in bars_by_category.items() if bars}


def without_bars(channel: Channel, shortest: float, duration: int) -> Channel:
    """Return the channel without the events that are drawn as bars."""
    short = _visible_lengths(channel, duration) < shortest
    return channel.changed(
        starts=channel.starts[short],
        ends=channel.ends[short],
        names=channel.names[short],
        n_bytes=None,
        correlations=None,
    )


def bar_trace(
    category: str, bars: Sequence[EventBar], colors: tuple[str, str], offset_ns: int
) -> dict[str, Any]:
    """Return the arguments of a plotly bar trace; ``colors`` are the fill and the edge color."""
    starts = np.array([bar.start for bar in bars])
    return {
        "orientation": "h",
        "base": (starts + offset_ns) / 1e6,
        "x": (np.array([bar.end for bar in bars]) - starts) / 1e6,
        "y": np.array([bar.line for bar in bars]),
        "width": 0.76,
        "name": category_of(category).label,
        "marker": {"color": colors[0], "line": {"width": 0.4, "color": colors[1]}},
        "hovertext": [_hover(bar) for bar in bars],
        "hovertemplate": "%{hovertext}<extra>%{fullData.name}</extra>",
    }


def state_legend(category: str, color: str) -> dict[str, Any]:
    """Return the arguments of a bar trace that adds only an entry to the legend."""
    return {
        "x": [None],
        "y": [0],
        "orientation": "h",
        "name": category_of(category).label,
        "marker": {"color": color},
    }


def _hover(bar: EventBar) -> str:
    duration = bar.end - bar.start
    text = f"{plotly_text(bar.name)}<br>{format_duration(duration)}"
    if bar.n_bytes < 0 or duration == 0:
        return text
    return f"{text} · {format_bytes(bar.n_bytes)} · {format_rate(1e9 * bar.n_bytes / duration)}"


Pixels = npt.NDArray[np.uint8]
Ratios = npt.NDArray[np.float64]
_MIN_ALPHA = 70


def busy_ratios(channel: Channel, t0: int, t1: int, n_bins: int) -> Ratios:
    """Return the exact busy share of each of ``n_bins`` equal parts of ``[t0, t1)``."""
    edges = t0 + np.arange(n_bins + 1) * ((t1 - t0) / n_bins)
    busy_until = np.concatenate(([0], np.cumsum(channel.ends - channel.starts)))
    started = np.searchsorted(channel.starts, np.ceil(edges).astype(np.int64), side="left")
    last = np.maximum(started - 1, 0)
    cut = np.maximum(channel.ends[last] - edges, 0) if len(channel) else np.zeros(len(edges))
    before = np.where(started > 0, busy_until[started] - cut, 0.0)
    return np.asarray(np.diff(before) / ((t1 - t0) / n_bins), np.float64)


def _has_start(channel: Channel, t0: int, t1: int, n_bins: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the bins in which an event starts."""
    bins = ((channel.starts - t0) * n_bins) // max(1, t1 - t0)
    has_start = np.zeros(n_bins, bool)
    has_start[bins[(bins >= 0) & (bins < n_bins)]] = True
    return has_start


def strip(layers: Sequence[tuple[Channel, str]], window: tuple[int, int], n_bins: int) -> Pixels:
    """Return ``n_bins`` RGBA pixels: color of the busiest layer, opacity by the busy share of all.

    ``layers`` are channels without the events drawn as bars, each with its color ("#rrggbb"). A bin
    in which an event starts always stays visible.
    """
    pixels = np.zeros((n_bins, 4), np.uint8)
    best, total = np.zeros(n_bins), np.zeros(n_bins)
    for channel, color in layers:
        if len(channel) == 0:
            continue
        ratios = busy_ratios(channel, *window, n_bins)
        wins = (ratios > best) | (_has_start(channel, *window, n_bins) & (best == 0))
        pixels[wins, :3] = list(bytes.fromhex(color[1:]))
        pixels[wins, 3] = _MIN_ALPHA
        best = np.maximum(best, ratios)
        total += ratios
    shown = pixels[:, 3] > 0
    strength = _MIN_ALPHA + (255 - _MIN_ALPHA) * np.sqrt(np.clip(total, 0, 1))
    pixels[shown, 3] = strength[shown].astype(np.uint8)
    return pixels


def state_strip(
    layers: Sequence[tuple[Channel, str]], window: tuple[int, int], size: tuple[int, int]
) -> Pixels:
    """Return (height, n_bins) RGBA pixels: the states of a device, stacked in each bin."""
    n_bins, height = size
    pixels = np.zeros((height, n_bins, 4), np.uint8)
    lower = np.zeros(n_bins)
    level = (np.arange(height)[::-1, None] + 0.5) / height
    for channel, color in layers:
        upper = lower + busy_ratios(channel, *window, n_bins)
        pixels[(level >= lower) & (level < upper)] = (*bytes.fromhex(color[1:]), 255)
        lower = upper
    return pixels


def png_data_url(pixels: Pixels) -> str:
    """Return (height, width, 4) pixels as the data URL of a PNG."""
    height, width, _ = pixels.shape
    raw = np.zeros((height, width * 4 + 1), np.uint8)
    raw[:, 1:] = pixels.reshape(height, width * 4)
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    chunks = (b"IHDR" + head, b"IDAT" + zlib.compress(raw.tobytes(), 6), b"IEND")
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in chunks
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
