"""Which lines a picture shows, top to bottom: bars of the long events, pixels of the others."""

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
"""Further lines of these are a depth, of others an overlap: as `assets/lines.mjs` calls them."""
_KINDS_FIRST: Final = ("range", "collective", "host_op", "sync", "api")
"""Which lanes of threads tell more than others; devices tell the most."""


@dataclass(frozen=True, slots=True)
class PictureLine:
    """One line of the figure: a row of events, the states of a device, or the name of a process."""

    label: str
    row: LaneRow | None
    states: tuple[Channel, ...] = ()
    section: str = ""


def choose_lines(lanes: Lanes) -> tuple[list[PictureLine], int]:
    """Return the lines to draw, as on the screen, and how many rows of events are left out.

    Where there are more than fit, every process is shown by its devices before any by its
    threads.
    """
    every = [(rank, line) for group in lanes.groups for rank, line in _lines_of(group)]
    n_sections = len({line.section for _, line in every})
    best = sorted(range(len(every)), key=lambda i: (every[i][0], i))[: _MAX_LINES - n_sections]
    lines = list(_with_headings([every[i][1] for i in sorted(best)]))
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
    """Yield the lines of a thread or device, each with its place in the order of what tells."""
    if group.states:
        yield (0, 0), PictureLine(group.label, None, group.states, group.section)
    title = group.label
    for depth, row in enumerate(group.rows):
        label = row.label
        if label.isdigit():
            label = f"└ {'depth' if row.kind in _NESTED else 'overlap'} {label}"
        if not group.states and depth == 0:
            label = f"{title} · {label}"
        yield (_rank(group, row), depth), PictureLine(label, row, (), group.section)


def _rank(group: LaneGroup, row: LaneRow) -> int:
    if group.kind == "device":
        return 1
    if group.kind == "threads":
        return 9
    return 2 + (_KINDS_FIRST.index(row.kind) if row.kind in _KINDS_FIRST else len(_KINDS_FIRST))


MAX_BARS: Final = 1_500
_BAR_MIN_PX: Final = 2.5


class EventBar(NamedTuple):
    """One bar: its line, its times in ns after the origin, its name and bytes (-1: none)."""

    line: int
    start: int
    end: int
    name: str
    n_bytes: int


def shortest_bar(lines: Sequence[PictureLine], duration: int, width: int) -> float:
    """Return the length in ns from which an event is a bar: readable ones, never too many."""
    lengths = [_lengths(c, duration) for line in lines if line.row for c in line.row.channels]
    readable = _BAR_MIN_PX * duration / width
    longest = np.sort(np.concatenate(lengths or [np.empty(0, np.int64)]))[::-1]
    return max(readable, float(longest[MAX_BARS]) + 1) if len(longest) > MAX_BARS else readable


def _lengths(channel: Channel, duration: int) -> np.ndarray:
    """Return how much of each event lies inside ``[0, duration)``."""
    return np.asarray(np.minimum(channel.ends, duration) - np.maximum(channel.starts, 0))


def find_bars(
    names: Sequence[str], lines: Sequence[PictureLine], shortest: float, duration: int
) -> dict[str, list[EventBar]]:
    """Return the bars of each category."""
    found: dict[str, list[EventBar]] = {}
    for place, line in enumerate(lines):
        for channel in line.row.channels if line.row else ():
            chosen = np.flatnonzero(_lengths(channel, duration) >= shortest)
            sizes = channel.n_bytes
            found.setdefault(channel.category, []).extend(
                EventBar(
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
    """Return the arguments of a plotly bar trace; ``colors`` are those of bars and of edges."""
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
    """Return the arguments of a bar trace that only the legend shows."""
    name = category_of(category).label
    return {"x": [None], "y": [0], "orientation": "h", "name": name, "marker": {"color": color}}


def _hover(bar: EventBar) -> str:
    duration = bar.end - bar.start
    text = f"{plotly_text(bar.name)}<br>{format_duration(duration)}"
    if bar.n_bytes < 0 or duration == 0:
        return text
    return f"{text} · {format_bytes(bar.n_bytes)} · {format_rate(1e9 * bar.n_bytes / duration)}"


Pixels = npt.NDArray[np.uint8]
Ratios = npt.NDArray[np.float64]
_FAINTEST = 70


def busy_ratios(channel: Channel, t0: int, t1: int, n_bins: int) -> Ratios:
    """Return the exact share of each of ``n_bins`` equal parts of ``[t0, t1)`` that is busy."""
    edges = t0 + np.arange(n_bins + 1) * ((t1 - t0) / n_bins)
    busy_until = np.concatenate(([0], np.cumsum(channel.ends - channel.starts)))
    started = np.searchsorted(channel.starts, np.ceil(edges).astype(np.int64), side="left")
    last = np.maximum(started - 1, 0)
    cut = np.maximum(channel.ends[last] - edges, 0) if len(channel) else np.zeros(len(edges))
    before = np.where(started > 0, busy_until[started] - cut, 0.0)
    ratios: Ratios = np.diff(before) / ((t1 - t0) / n_bins)
    return ratios


def _holds_start(channel: Channel, t0: int, t1: int, n_bins: int) -> npt.NDArray[np.bool_]:
    bins = ((channel.starts - t0) * n_bins) // max(1, t1 - t0)
    found = np.zeros(n_bins, bool)
    found[bins[(bins >= 0) & (bins < n_bins)]] = True
    return found


def strip(layers: Sequence[tuple[Channel, str]], window: tuple[int, int], n_bins: int) -> Pixels:
    """Return ``n_bins`` RGBA pixels: the color of the busiest layer, as strong as all are busy.

    ``layers`` are channels without what is drawn as bars, each with its color ("#rrggbb"). A bin
    in which anything starts stays visible.
    """
    pixels = np.zeros((n_bins, 4), np.uint8)
    best, total = np.zeros(n_bins), np.zeros(n_bins)
    for channel, color in layers:
        if len(channel) == 0:
            continue
        ratios = busy_ratios(channel, *window, n_bins)
        wins = (ratios > best) | (_holds_start(channel, *window, n_bins) & (best == 0))
        pixels[wins, :3] = list(bytes.fromhex(color[1:]))
        pixels[wins, 3] = _FAINTEST
        best = np.maximum(best, ratios)
        total += ratios
    shown = pixels[:, 3] > 0
    strength = _FAINTEST + (255 - _FAINTEST) * np.sqrt(np.clip(total, 0, 1))
    pixels[shown, 3] = strength[shown].astype(np.uint8)
    return pixels


def state_strip(
    layers: Sequence[tuple[Channel, str]], window: tuple[int, int], size: tuple[int, int]
) -> Pixels:
    """Return (height, n_bins) RGBA pixels: the states of a device, stacked in each bin."""
    n_bins, height = size
    pixels = np.zeros((height, n_bins, 4), np.uint8)
    below = np.zeros(n_bins)
    level = (np.arange(height)[::-1, None] + 0.5) / height
    for channel, color in layers:
        above = below + busy_ratios(channel, *window, n_bins)
        pixels[(level >= below) & (level < above)] = (*bytes.fromhex(color[1:]), 255)
        below = above
    return pixels


def png_data_url(pixels: Pixels) -> str:
    """Return (height, width, 4) pixels as the address of a PNG."""
    height, width, _ = pixels.shape
    raw = np.zeros((height, width * 4 + 1), np.uint8)
    raw[:, 1:] = pixels.reshape(height, width * 4)
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    chunks = (b"IHDR" + head, b"IDAT" + zlib.compress(raw.tobytes(), 6), b"IEND")
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in chunks
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
