"""Draw the waterfall from the ideal step time to the measured one, as SVG without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from traceprof.measures.compute.ideal import (
    AT_BANDWIDTH,
    AT_LINK,
    AT_PEAK,
    BELOW_BANDWIDTH,
    BELOW_LINK,
    BELOW_PEAK,
    COMMUNICATION,
    SHORT,
    UNKNOWN,
    UNKNOWN_MATRIX,
    WAITS,
    WAVES,
)
from traceprof.model.results import Result
from traceprof.render.charts.svg import Axis, drawing, element, text
from traceprof.render.escape import html_text
from traceprof.render.shown import Row
from traceprof.units import format_duration, format_ratio

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR, _FOOT = 960, 330, 150, 26, 16, 24
_COLORS: Final[Mapping[str, str]] = {
    **dict.fromkeys((AT_PEAK, AT_BANDWIDTH), "compute"),
    **dict.fromkeys((WAVES, SHORT, BELOW_PEAK, BELOW_BANDWIDTH), "range_forward"),
    **dict.fromkeys((UNKNOWN_MATRIX, UNKNOWN), "range"),
    AT_LINK: "exposed_communication",
    **dict.fromkeys((BELOW_LINK, COMMUNICATION, WAITS), "exposed_communication"),
    "exposed transfers": "exposed_transfer",
    "copies inside the device": "device_memory",
}
_OTHER_COLOR: Final = "idle"


def waterfall_chart(result: Result) -> str:
    """Draw a bar for each part; each bar starts where the bar above ends. Return "" without parts.

    Colors are the variables of the report's categories.
    """
    rows = result.table.rows()
    if not rows:
        return ""
    length = int(result.scalars["length_ns"])
    x = Axis(0.0, float(max(1, length)), _LEFT, _WIDTH - _RIGHT)
    bars = "".join(part for place, row in enumerate(rows) for part in _bar(x, place, row))
    height = len(rows) * _ROW + _FOOT
    label = f"From ideal to measured time: {result.scalars['base']}, {format_duration(length)}"
    foot = text(x(float(length)), height - 6, format_duration(length), "middle")
    end = element("line", x1=x(float(length)), x2=x(float(length)), y1=0, y2=height - _FOOT)
    return drawing((_WIDTH, height), "chart", label, end, bars, foot)


def _bar(x: Axis, place: int, row: Row) -> Iterator[str]:
    """Yield the name of a part, its bar, and its duration with its share."""
    cumulative_ns, step_ns, top = (
        float(row["cumulative_ns"]),
        float(row["step_ns"]),
        place * _ROW + 4,
    )
    words = f"{format_duration(step_ns)}, {format_ratio(row['share_ratio'])}"
    name = str(row["part"])
    yield text(_LEFT - 8, top + _BAR - 3, name, "end")
    yield element(
        "rect",
        f"<title>{html_text(name)}: {html_text(words)}</title>",
        x=x(cumulative_ns - step_ns),
        y=top,
        width=max(x(cumulative_ns) - x(cumulative_ns - step_ns), 1.0),
        height=_BAR,
        style=f"fill:var(--{_COLORS.get(name, _OTHER_COLOR)})",
    )
    yield text(max(x(cumulative_ns), float(_LEFT)) + 6, top + _BAR - 3, words)
