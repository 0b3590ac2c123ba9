"""The timeline of a job whose ranks come and go, as SVG that needs no script."""

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
_MOST_LANES: Final = 64
_LETTERS: Final = 18
_LABELLED: Final = 22  # pixels that the number of an epoch takes

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
"""Color and legend by what happened."""
_JOB: Final = {"epoch": "epochs", "time lost": "time lost", "evaluation": "epochs"}
_SPENT: Final = "phases"


def elastic_style() -> str:
    """Return the style of the chart, light and dark."""
    more = ".job rect{stroke:var(--card,none);stroke-width:.6}"
    more += ".job .told{fill:#fff;pointer-events:none}"
    return chart_style("job", (key for key, _ in _COLORS.values()), more)


def elastic_chart(result: Result) -> str:
    """Return the chart of a result of ``traceprof elastic``; "" where no times are known.

    Jobs stand one below the other on one scale: lanes for lost time and of what it was made, for
    epochs, and for each rank.
    """
    rows = [row for row in result.table.rows() if _is_long(row)]
    if not rows:
        return ""
    last_ns = max(float(row["at_ns"]) + float(row["duration_ns"]) for row in rows)
    runs = dict.fromkeys(str(row.get("run", "")) for row in rows)
    used = {str(row["what"]) for row in rows}
    colors = (color for what, color in _COLORS.items() if what in used)
    charts = (
        _chart(run, [(_lane(row), row) for row in rows if row.get("run", "") == run], last_ns)
        for run in runs
    )
    return legend(((f"var(--job-{key})", words) for key, words in colors), "key") + "".join(charts)


def _is_long(row: Row) -> bool:
    values = (row.get("at_ns"), row.get("duration_ns"))
    return row["what"] in _COLORS and all(v is not None and isfinite(v) for v in values)


def _lane(row: Row) -> str:
    what = str(row["what"])
    if what == "rank runs":
        return f"rank {row['rank']:g}, {row['node']}"
    if isinstance(row.get("node"), str) and row["node"] and what == "agents meet":
        return f"agent {row['node']}"
    return _JOB.get(what, _SPENT)


def _chart(run: str, bars: Sequence[tuple[str, Row]], last_ns: float) -> str:
    used = {lane for lane, _ in bars}
    first = [name for name in ("time lost", _SPENT, "epochs") if name in used]
    others = sorted(used - set(first))
    lanes = [*first, *others][:_MOST_LANES]
    height = len(lanes) * _LANE + _AXIS
    scale = (_WIDTH - _LEFT - _RIGHT) / max(last_ns, 1.0)
    place = {name: number * _LANE for number, name in enumerate(lanes)}
    drawn = (_drawn(row, place[lane], scale) for lane, row in bars if lane in place)
    names = (
        text(_LEFT - 8, y + 13, plain_text(name, _LETTERS), "end") for name, y in place.items()
    )
    left_out = len(first) + len(others) - len(lanes)
    more = f'<p class="note">The table lists {left_out} more lanes.</p>' if left_out > 0 else ""
    title = f"<h3>{html_text(run)}</h3>" if run else ""
    axis = _axis(last_ns, scale, height)
    label = "Timeline of the job"
    return title + drawing((_WIDTH, height), "job", label, *axis, *names, *drawn) + more


def _drawn(row: Row, y: int, scale: float) -> str:
    key, _ = _COLORS[str(row["what"])]
    x, width = _LEFT + float(row["at_ns"]) * scale, max(0.8, float(row["duration_ns"]) * scale)
    number = ""
    epoch = row.get("epoch")
    if row["what"] == "epoch" and width > _LABELLED and epoch is not None and isfinite(epoch):
        number = text(x + 4, y + 13, f"{epoch:g}", class_="told")
    title = f"<title>{html_text(_words(row))}</title>"
    style = f"fill:var(--job-{key})"
    return element("rect", title, x=x, y=y, width=width, height=_BAR, style=style) + number


def _words(row: Row) -> str:
    said = [_COLORS[str(row["what"])][1]]
    for name in ("epoch", "attempt", "rank"):
        value = row.get(name)
        if value is not None and isfinite(value):
            said.append(f"{name} {value:g}")
    length = value_text(Unit.NS, row["duration_ns"])
    said.append(f"{length}, starting at {value_text(Unit.AT_NS, row['at_ns'])}")
    if row.get("text"):
        said.append(str(row["text"]))
    return ", ".join(said)


def _axis(last_ns: float, scale: float, height: int) -> Iterator[str]:
    """Yield lines at round times, some eight of them."""
    for time in round_ticks(0.0, last_ns, 8):
        x = _LEFT + time * scale
        yield element("line", x1=x, x2=x, y1=0, y2=height - _AXIS, class_="grid")
        yield text(x, height - 6, round_text(Unit.AT_NS, time), "middle")
