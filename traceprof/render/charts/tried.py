"""Draw the measured saving of each change of a program as SVG without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Final

from traceprof.model.results import Result, Unit
from traceprof.render.charts.svg import Axis, chart_style, drawing, element, text
from traceprof.render.escape import html_text
from traceprof.render.formatting import is_known, value_text
from traceprof.render.shown import Row

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR, _FOOT = 960, 300, 90, 30, 16, 26
_MAX_LABEL_CHARS: Final = 42
_COLORS: Final = {
    "faster": "h2d",
    "less memory": "h2d",
    "slower": "communication",
    "more memory": "communication",
}
_OTHER_COLOR: Final = "h2h"


def tried_style() -> str:
    """Return the CSS of the chart for the light and the dark theme."""
    return chart_style(
        "tried",
        (*dict.fromkeys(_COLORS.values()), _OTHER_COLOR),
        ".tried text{font-size:12px}.tried .zero{stroke:var(--muted)}"
        ".tried .span{stroke:var(--ink,currentColor)}",
    )


def tried_chart(result: Result) -> str:
    """Draw a bar for each measured change; return "" if no change was measured."""
    rows = [row for row in result.table.rows() if is_known(row.get("saving_ratio"))]
    if not rows:
        return ""
    values = [float(row["saving_ratio"]) for row in rows]
    ends = [float(row[name]) for row in rows for name in ("low_ratio", "high_ratio")]
    finite = [value for value in (*values, *ends, 0.0) if isfinite(value)]
    x = Axis(max(min(finite), -1.0), max(*finite, 0.01), _LEFT, _WIDTH - _RIGHT)
    bars = "".join(part for place, row in enumerate(rows) for part in _bar(x, place, row))
    height = len(rows) * _ROW + _FOOT
    zero = element("line", class_="zero", x1=x(0.0), x2=x(0.0), y1=0, y2=height - _FOOT)
    foot = text(x(0.0), height - 8, "0", "middle")
    goal = "peak memory" if is_known(rows[0].get("saving_bytes")) else "step time"
    return drawing(
        (_WIDTH, height),
        "tried",
        f"Share of {goal} that each change saves",
        bars,
        zero,
        foot,
    ) + (
        f'<p class="note">Share of {goal} that each change saves. The line through a bar is its '
        "95% confidence interval.</p>"
    )


def _bar(x: Axis, place: int, row: Row) -> Iterator[str]:
    """Yield the name of a change, its bar from zero, its interval, and its saving."""
    value, top = float(row["saving_ratio"]), place * _ROW + 4
    at, zero = x(max(value, x.low)), x(0.0)
    color = _COLORS.get(str(row["verdict"]), _OTHER_COLOR)
    name = str(row["change"])
    shown = name if len(name) <= _MAX_LABEL_CHARS else name[: _MAX_LABEL_CHARS - 1] + "…"
    yield text(_LEFT - 8, top + _BAR - 3, shown, "end")
    yield element(
        "rect",
        f"<title>{html_text(name)}: {html_text(str(row['verdict']))}</title>",
        x=min(at, zero),
        y=top,
        width=max(abs(at - zero), 1.0),
        height=_BAR,
        style=f"fill:var(--tried-{color})",
    )
    low, high = float(row["low_ratio"]), float(row["high_ratio"])
    if isfinite(low) and isfinite(high):
        middle = top + _BAR / 2
        yield element(
            "line", class_="span", x1=x(max(low, x.low)), x2=x(high), y1=middle, y2=middle
        )
    yield text(_WIDTH - _RIGHT + 8, top + _BAR - 3, value_text(Unit.RATIO, value))
