"""The waterfall from the ideal step to the measured one, as SVG that needs no script."""

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

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR, _FOOT = 960, 290, 170, 26, 16, 24
_COLORS: Final[Mapping[str, str]] = {
    **dict.fromkeys((AT_PEAK, AT_BANDWIDTH), "compute"),
    **dict.fromkeys((WAVES, SHORT, BELOW_PEAK, BELOW_BANDWIDTH), "range_forward"),
    **dict.fromkeys((UNKNOWN_MATRIX, UNKNOWN), "range"),
    AT_LINK: "exposed_communication",
    **dict.fromkeys((BELOW_LINK, COMMUNICATION, WAITS), "exposed_communication"),
    "exposed transfers": "exposed_transfer",
    "copies inside the device": "device_memory",
}
_OTHER: Final = "idle"


def waterfall_chart(result: Result) -> str:
    """Return a bar for each part, each beginning where the one above ends; "" without any.

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
    until, step, top = float(row["cumulative_ns"]), float(row["step_ns"]), place * _ROW + 4
    words = f"{format_duration(step)}, {format_ratio(row['share_ratio'])}"
    name = str(row["part"])
    yield text(_LEFT - 8, top + _BAR - 3, name, "end")
    yield element(
        "rect",
        f"<title>{html_text(name)}: {html_text(words)}</title>",
        x=x(until - step),
        y=top,
        width=max(x(until) - x(until - step), 1.0),
        height=_BAR,
        style=f"fill:var(--{_COLORS.get(name, _OTHER)})",
    )
    yield text(max(x(until), float(_LEFT)) + 6, top + _BAR - 3, words)
