"""Draw a round of each rank, stacked by host phase, as SVG without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.model.results import Result, Unit
from traceprof.render.charts.svg import (
    Axis,
    chart_style,
    drawing,
    element,
    legend,
    round_ticks,
    text,
)
from traceprof.render.escape import html_text, plain_text
from traceprof.render.formatting import is_known, round_text, value_text
from traceprof.render.shown import Row

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR, _FOOT = 960, 260, 80, 26, 18, 26
_MAX_LABEL_CHARS: Final = 38
_MAX_BARS: Final = 64
_PHASES: Final = {
    "data": "range_data",
    "h2d": "range_h2d",
    "forward": "range_forward",
    "eval": "range_eval",
    "backward": "range_backward",
    "communication": "range_communication",
    "optimizer": "range_optimizer",
    "generation": "range_eval",
    "other": "range",
}
"""Color category by column (name without unit), from left to right."""
_ROUND_COLOR: Final = "idle"


def nodes_style() -> str:
    """Return the CSS of the chart for the light and the dark theme."""
    return chart_style(
        "nodes",
        (*_PHASES.values(), _ROUND_COLOR),
        ".nodes .name{fill:var(--fg)}.nodes .waited{stroke:var(--fg);stroke-width:3}",
    )


def nodes_chart(result: Result) -> str:
    """Draw a bar for each rank of each run: its round by phase, and its waiting time."""
    rows = [row for row in result.table.rows() if is_known(row.get("round_ns"))]
    if not rows:
        return ""
    shown = rows[:_MAX_BARS]
    longest = max(float(row["round_ns"]) for row in shown)
    x = Axis(0.0, longest, _LEFT, _WIDTH - _RIGHT)
    height = len(shown) * _ROW
    bars = "".join(part for place, row in enumerate(shown) for part in _bar(x, place, row))
    used = [name for name in _PHASES if any(_phase_ns(row, name) for row in shown)]
    entries = [(f"var(--nodes-{_PHASES[name]})", name) for name in used]
    omitted_words = (
        f" The table lists {len(rows) - _MAX_BARS} more ranks." if len(rows) > _MAX_BARS else ""
    )
    label = f"Mean round time of each rank, up to {value_text(Unit.NS, longest)}"
    return (
        legend(entries, "key")
        + drawing((_WIDTH, height + _FOOT), "nodes", label, *_grid(x, height), bars)
        + '<p class="note">Each bar is a round, split by host phase; gray is in no phase. The line '
        f"below a bar is the time that the rank waits for other ranks.{omitted_words}</p>"
    )


def _phase_ns(row: Row, name: str) -> float:
    """Return the duration of a phase in ns; 0 if it is unknown or negative."""
    value = row.get(f"{name}_ns")
    return max(float(value), 0.0) if value is not None and is_known(value) else 0.0


def _bar(x: Axis, place: int, row: Row) -> Iterator[str]:
    top, round_ns = place * _ROW + 2, float(row["round_ns"])
    label = f"{row['run']}, {'mean' if row['rank'] == 'mean' else 'rank ' + str(row['rank'])}"
    written = value_text(Unit.NS, round_ns)
    yield text(_LEFT - 8, top + 13, plain_text(label, _MAX_LABEL_CHARS), "end", class_="name")
    yield _piece(x, (0.0, round_ns), top, _ROUND_COLOR, f"{label}: round time {written}")
    phase_start = 0.0
    for name, color in _PHASES.items():
        if length := _phase_ns(row, name):
            words = f"{label}: {name} {value_text(Unit.NS, length)}"
            yield _piece(x, (phase_start, phase_start + length), top, color, words)
            phase_start += length
    if waited := _phase_ns(row, "waited"):
        words = html_text(f"{label}: waits for other ranks {value_text(Unit.NS, waited)}")
        y = float(top + _BAR + 1)
        yield element(
            "line",
            f"<title>{words}</title>",
            class_="waited",
            x1=x(0.0),
            x2=x(waited),
            y1=y,
            y2=y,
        )
    yield text(x(round_ns) + 6, top + 13, written)


def _piece(x: Axis, ends: tuple[float, float], top: int, color: str, words: str) -> str:
    return element(
        "rect",
        f"<title>{html_text(words)}</title>",
        x=x(ends[0]),
        y=top,
        width=x(ends[1]) - x(ends[0]),
        height=_BAR,
        style=f"fill:var(--nodes-{color})",
    )


def _grid(x: Axis, height: int) -> Iterator[str]:
    for value in round_ticks(0.0, x.high, 6):
        at = x(value)
        yield element("line", class_="grid", x1=at, x2=at, y1=0, y2=height)
        yield text(at, height + _FOOT - 10, round_text(Unit.NS, value), "middle")
