"""Draw the timeline of a job whose ranks join and leave, as SVG without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Final

from traceprof.model.results import Result, Unit
from traceprof.render.charts.svg import chart_style, drawing, element, legend, round_ticks, text
from traceprof.render.escape import html_text, plain_text
from traceprof.render.formatting import round_text, value_text
from traceprof.render.shown import Row

_WIDTH, _LEFT, _RIGHT = 960, 118, 12
_LANE, _BAR, _AXIS = 24, 17, 22
_MAX_LANES: Final = 64
_MAX_LABEL_CHARS: Final = 18
_MIN_EPOCH_LABEL_PX: Final = 22  # pixels that the number of an epoch takes

_COLORS: Final = {
    "epoch": ("compute", "epoch"),
    "time lost": ("communication", "time lost"),
    "steps made again": ("p2p", "lost: repeated steps"),
    "until agents noticed": ("copy", "lost: failure detection"),
    "starts that failed": ("range_data", "lost: failed starts"),
    "agents meet": ("d2d", "rendezvous"),
    "worker initialization": ("h2d", "worker initialization"),
    "loading of checkpoints": ("memset", "checkpoint loading"),
    "set-up": ("d2h", "set-up"),
    "evaluation": ("range", "evaluation"),
    "rank runs": ("h2h", "rank running"),
}
"""Color category and legend text by value of the column ``what``."""
_LANE_OF_EVENT: Final = {"epoch": "epochs", "time lost": "time lost", "evaluation": "epochs"}
_PHASES_LANE: Final = "phases"


def elastic_style() -> str:
    """Return the CSS of the chart for the light and the dark theme."""
    return chart_style(
        "job",
        (key for key, _ in _COLORS.values()),
        ".job rect{stroke:var(--card,none);stroke-width:.6}"
        ".job .told{fill:#fff;pointer-events:none}",
    )


def elastic_chart(result: Result) -> str:
    """Draw a result of ``traceprof elastic``; return "" if no times are known.

    Jobs are drawn one below the other, on one time scale. Each job has lanes for lost time and its
    parts, for epochs, and for each rank.
    """
    rows = [row for row in result.table.rows() if _has_times(row)]
    if not rows:
        return ""
    last_ns = max(float(row["at_ns"]) + float(row["duration_ns"]) for row in rows)
    runs = dict.fromkeys(str(row.get("run", "")) for row in rows)
    used = {str(row["what"]) for row in rows}
    colors = (color for what, color in _COLORS.items() if what in used)
    return legend(((f"var(--job-{key})", words) for key, words in colors), "key") + "".join(
        _chart(run, [(_lane(row), row) for row in rows if row.get("run", "") == run], last_ns)
        for run in runs
    )


def _has_times(row: Row) -> bool:
    """Return whether the chart can draw a row: its kind has a color and its times are finite."""
    times = (row.get("at_ns"), row.get("duration_ns"))
    return row["what"] in _COLORS and all(map(_is_finite, times))


def _is_finite(value: float | None) -> bool:
    return value is not None and isfinite(value)


def _lane(row: Row) -> str:
    """Return the name of the lane of a row."""
    what = str(row["what"])
    if what == "rank runs":
        return f"rank {row['rank']:g}, {row['node']}"
    if isinstance(row.get("node"), str) and row["node"] and what == "agents meet":
        return f"agent {row['node']}"
    return _LANE_OF_EVENT.get(what, _PHASES_LANE)


def _chart(run: str, bars: Sequence[tuple[str, Row]], last_ns: float) -> str:
    """Draw the lanes of one job; ``last_ns`` is the end of the time scale."""
    used = {lane for lane, _ in bars}
    first = [name for name in ("time lost", _PHASES_LANE, "epochs") if name in used]
    lanes = [*first, *sorted(used - set(first))][:_MAX_LANES]
    height = len(lanes) * _LANE + _AXIS
    scale = (_WIDTH - _LEFT - _RIGHT) / max(last_ns, 1.0)
    place = {name: number * _LANE for number, name in enumerate(lanes)}
    rects = (_bar(row, place[lane], scale) for lane, row in bars if lane in place)
    names = (
        text(_LEFT - 8, y + 13, plain_text(name, _MAX_LABEL_CHARS), "end")
        for name, y in place.items()
    )
    left_out = len(used) - len(lanes)
    omitted_note = (
        f'<p class="note">The table lists {left_out} more lanes.</p>' if left_out > 0 else ""
    )
    title = f"<h3>{html_text(run)}</h3>" if run else ""
    axis = _axis(last_ns, scale, height)
    return (
        title
        + drawing((_WIDTH, height), "job", "Timeline of the job", *axis, *names, *rects)
        + omitted_note
    )


def _bar(row: Row, y: int, scale: float) -> str:
    key, _ = _COLORS[str(row["what"])]
    x, width = _LEFT + float(row["at_ns"]) * scale, max(0.8, float(row["duration_ns"]) * scale)
    number, epoch = "", row.get("epoch")
    if row["what"] == "epoch" and width > _MIN_EPOCH_LABEL_PX and _is_finite(epoch):
        number = text(x + 4, y + 13, f"{epoch:g}", class_="told")
    title = f"<title>{html_text(_hover(row))}</title>"
    style = f"fill:var(--job-{key})"
    return element("rect", title, x=x, y=y, width=width, height=_BAR, style=style) + number


def _hover(row: Row) -> str:
    facts = [_COLORS[str(row["what"])][1]]
    numbers = ("epoch", "attempt", "rank")
    facts += [f"{name} {row[name]:g}" for name in numbers if _is_finite(row.get(name))]
    length = value_text(Unit.NS, row["duration_ns"])
    facts.append(f"{length}, starting at {value_text(Unit.AT_NS, row['at_ns'])}")
    facts += [str(row["text"])] if row.get("text") else []
    return ", ".join(facts)


def _axis(last_ns: float, scale: float, height: int) -> Iterator[str]:
    """Yield about eight grid lines at round times, with labels."""
    for time in round_ticks(0.0, last_ns, 8):
        x = _LEFT + time * scale
        yield element("line", x1=x, x2=x, y1=0, y2=height - _AXIS, class_="grid")
        yield text(x, height - 6, round_text(Unit.AT_NS, time), "middle")
