"""Time to accuracy as SVG that needs no script: the metric of each run over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, log10
from typing import Final

from traceprof.model.results import Result, Unit
from traceprof.render.escape import html_text
from traceprof.render.formatting import value_text
from traceprof.render.shown import Row, rows_of

_COLOURS: Final = ("compute", "communication", "h2d", "memset", "d2d", "overlap", "p2p", "d2h")
_WIDTH, _HEIGHT = 960, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 12, 40
_GRID: Final = 4
_TENFOLD: Final = 20
"""From such a ratio of times on the axis goes by factors of ten."""

_Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Axes:
    """Pixels of both axes; ``is_log``: time by factors of ten."""

    times: tuple[float, float]
    values: tuple[float, float]
    is_log: bool

    def x(self, time_ns: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * self._share(time_ns)

    def y(self, value: float) -> float:
        low, high = self.values
        share = (value - low) / (high - low) if high > low else 0.5
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - share)

    def time(self, share: float) -> float:
        """Return the time at a share of the axis."""
        low, high = self.times
        return low * (high / low) ** share if self.is_log else low + share * (high - low)

    def _share(self, time_ns: float) -> float:
        low, high = self.times
        if high <= low:
            return 0.5
        if self.is_log:
            return log10(time_ns / low) / log10(high / low)
        return (time_ns - low) / (high - low)


def curve_chart(result: Result) -> str:
    """Return the curves of a result of ``traceprof accuracy``; "" where no times are known."""
    table = result.table
    runs = [
        (str(name), points)
        for name, own in table.groupby("run", sort=False)
        if len(points := _points(rows_of(own))) > 1
    ]
    if not runs:
        return ""
    shown = runs[: len(_COLOURS)]
    left_out = len(runs) - len(shown)
    words = f"; {left_out} more runs are in the table" if left_out else ""
    target = float(result.scalars["target"])
    return (
        _picture(shown, target, str(result.scalars["metric"]))
        + f'<p class="note">The dashed line is the target{words}.</p>'
    )


def _points(rows: Sequence[Row]) -> _Points:
    pairs = [(float(row["time_ns"]), float(row["value"])) for row in rows]
    return [(time, value) for time, value in pairs if isfinite(time) and time > 0]


def _picture(runs: Sequence[tuple[str, _Points]], target: float, metric: str) -> str:
    times = [time for _, points in runs for time, _ in points]
    values = [value for _, points in runs for _, value in points] + [target]
    ends = [points[-1][0] for _, points in runs]
    is_log = max(ends) > _TENFOLD * min(ends)
    axes = _Axes((min(times), max(times)), (min(values), max(values)), is_log)
    lines = "".join(
        f'<polyline points="{_pixels(axes, points)}" style="stroke:var(--s-{colour})">'
        f"<title>{html_text(name)}</title></polyline>"
        for (name, points), colour in zip(runs, _COLOURS, strict=False)
    )
    key = "".join(
        f'<li><i style="background:var(--s-{colour})"></i>{html_text(name)}</li>'
        for (name, _), colour in zip(runs, _COLOURS, strict=False)
    )
    label = html_text(f"{metric} over time")
    y = axes.y(target)
    return (
        f'<ul class="key">{key}</ul><svg class="sizes" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(_grid(axes))}'
        f'<line class="ideal" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f"{lines}</svg>"
    )


def _pixels(axes: _Axes, points: _Points) -> str:
    return " ".join(f"{axes.x(time):.1f},{axes.y(value):.1f}" for time, value in points)


def _grid(axes: _Axes) -> Iterator[str]:
    low, high = axes.values
    for i in range(_GRID + 1):
        value, time = low + (high - low) * i / _GRID, axes.time(i / _GRID)
        y, x = axes.y(value), axes.x(time)
        anchor = "end" if i == _GRID else "middle"
        yield (
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{html_text(value_text(Unit.NUMBER, value))}</text>"
            f'<text x="{x:.1f}" y="{_HEIGHT - 14}" text-anchor="{anchor}">'
            f"{html_text(value_text(Unit.NS, time))}</text>"
        )
