"""Scaling as SVG that needs no script: throughput against ideal, and where efficiency went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log2
from typing import Final

import pandas as pd

from traceprof.model.results import Result, Unit
from traceprof.render.escape import html_text
from traceprof.render.formatting import value_text
from traceprof.render.palette import category_of
from traceprof.render.shown import Row, rows_of

_COLOURS: Final = ("compute", "communication", "h2d", "memset", "d2d", "overlap", "p2p", "d2h")
_MOST_GROUPS: Final = len(_COLOURS)
_WIDTH, _HEIGHT = 960, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 12, 40
_BAR: Final = 54
_NAMED: Final = 0.002
"""What is less has no place in the legend."""

_NO_LOSS: Final = "reached"
_LOSS_COLOURS: Final = (
    ("exposed communication", "communication"),
    ("waiting for stragglers", "p2p"),
    ("slower compute", "compute"),
    ("exposed transfers", "h2d"),
    ("device memory", "d2d"),
    ("waiting for input", "memset"),
    ("other idle", "idle"),
)
_REST: Final = "h2h"


def scaling_style() -> str:
    """Return the style of the charts, light and dark."""
    names = dict.fromkeys((*_COLOURS, *(key for _, key in _LOSS_COLOURS), _REST))

    def variables(theme: str) -> str:
        return "".join(f"--s-{key}:{getattr(category_of(key), theme)};" for key in names)

    return (
        f":root{{{variables('light')}}}[data-theme=dark]{{{variables('dark')}}}"
        ".sizes{width:100%;height:auto;max-height:420px}"
        ".sizes text{font-size:11px;fill:var(--muted)}"
        ".sizes .grid{stroke:var(--line)}.sizes .ideal{stroke:var(--muted);stroke-dasharray:5 4}"
        ".sizes polyline{fill:none;stroke-width:2}"
        ".key{display:flex;flex-wrap:wrap;gap:4px 14px;list-style:none;margin:0 0 8px;padding:0;"
        "font-size:12px;color:var(--muted)}"
        ".key i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:5px}"
    )


def scaling_charts(result: Result) -> str:
    """Return the charts of a result of ``traceprof scaling``; "" where there is but one size."""
    table = result.to_frame("scaling")
    table = table[table["speedup"].notna() & (table["speedup"] > 0)]
    groups = [
        (str(name), rows_of(own))
        for name, own in table.groupby("group", sort=False)
        if len(own) > 1
    ]
    if not groups:
        return ""
    left_out = len(groups) - _MOST_GROUPS
    shown = groups[:_MOST_GROUPS]
    words = f"; {left_out} more groups are in the table" if left_out > 0 else ""
    return (
        _against_ideal(shown, str(result.scalars["devices"]), by=str(result.scalars["by"]))
        + f'<p class="note">Throughput over that of one device of the base, both axes by '
        f"factors of two; the dashed line is ideal{words}.</p>" + "".join(_losses(result, shown))
    )


@dataclass(frozen=True, slots=True)
class _Axes:
    """Pixels of both axes, by factors of two from ``low`` to ``high``."""

    low: float
    high: float

    def x(self, value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * self._share(value)

    def y(self, value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - self._share(value))

    def _share(self, value: float) -> float:
        return (log2(value) - self.low) / max(1.0, self.high - self.low)

    @property
    def marks(self) -> list[float]:
        """The powers of two."""
        every = max(1, round((self.high - self.low) / 12))
        return [2.0**i for i in range(floor(self.low), floor(self.high) + 1, every)]


def _size(row: Row, by: str) -> float:
    return float(row["nodes_count" if by == "nodes" else "devices_count"])


def _per_one(row: Row) -> float:
    """Return the throughput over that of one device of the base."""
    return float(row["speedup"]) * float(row["base_count"])


def _against_ideal(groups: Sequence[tuple[str, list[Row]]], devices: str, by: str) -> str:
    every = [row for _, rows in groups for row in rows]
    reached = [v for row in every for v in (_size(row, by), _per_one(row))]
    axes = _Axes(floor(log2(min(reached))), log2(max(reached)) + 0.2)
    top = 2.0**axes.high
    ideal = _line(axes, [(2.0**axes.low, 2.0**axes.low), (top, top)], "ideal")
    drawn = "".join(
        _group(axes, name, rows, key, by)
        for (name, rows), key in zip(groups, _COLOURS, strict=False)
    )
    label = "Throughput by size, against ideal"
    title = "nodes" if by == "nodes" else devices
    foot = (
        f'<text x="{(_WIDTH + _LEFT) / 2:.0f}" y="{_HEIGHT - 4}" text-anchor="middle">'
        f"{html_text(title)}</text>"
    )
    legend = _legend(
        (name or "all runs", key) for (name, _), key in zip(groups, _COLOURS, strict=False)
    )
    return (
        f'{legend}<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" class="sizes" role="img" '
        f'aria-label="{label}">{_grid(axes)}{ideal}{drawn}{foot}</svg>'
    )


def _group(axes: _Axes, name: str, rows: Sequence[Row], key: str, by: str) -> str:
    points = [(_size(row, by), _per_one(row)) for row in rows]
    line = "".join(f"{axes.x(x):.1f},{axes.y(y):.1f} " for x, y in points)
    dots = "".join(_dot(axes, name, row, by) for row in rows)
    return (
        f'<g style="--own:var(--s-{key})"><polyline points="{line.strip()}" '
        f'style="stroke:var(--own)"/>{dots}</g>'
    )


def _dot(axes: _Axes, name: str, row: Row, by: str) -> str:
    x, value = _size(row, by), _per_one(row)
    words = f"{name or 'all runs'}, {x:g}: {value_text(Unit.RATIO, row['efficiency_ratio'])}"
    words += f" of ideal, {value:.4g} times one"
    low, high = (float(row[f"{end}_ratio"]) * x for end in ("low", "high"))
    interval = ""
    if isfinite(low) and isfinite(high) and low > 0:
        ends = (axes.y(max(low, 2.0**axes.low)), axes.y(high))
        interval = (
            f'<line x1="{axes.x(x):.1f}" x2="{axes.x(x):.1f}" y1="{ends[0]:.1f}" '
            f'y2="{ends[1]:.1f}" style="stroke:var(--own)"/>'
        )
    return (
        f'{interval}<circle cx="{axes.x(x):.1f}" cy="{axes.y(value):.1f}" r="4" '
        f'style="fill:var(--own)"><title>{html_text(words)}</title></circle>'
    )


def _line(axes: _Axes, points: Sequence[tuple[float, float]], kind: str) -> str:
    (x1, y1), (x2, y2) = ((axes.x(x), axes.y(y)) for x, y in points)
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _grid(axes: _Axes) -> str:
    low, high = 2.0**axes.low, 2.0**axes.high
    pieces = []
    for mark in axes.marks:
        x, y = axes.x(mark), axes.y(mark)
        pieces += [
            _line(axes, [(low, mark), (high, mark)], "grid"),
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{mark:g} ×</text>',
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{mark:g}</text>',
        ]
    return "".join(pieces)


def _legend(entries: Iterator[tuple[str, str]]) -> str:
    items = "".join(
        f'<li><i style="background:var(--s-{key})"></i>{html_text(name)}</li>'
        for name, key in entries
    )
    return f'<ul class="key">{items}</ul>'


def _losses(result: Result, groups: Sequence[tuple[str, list[Row]]]) -> Iterator[str]:
    """Yield bars of what was reached and what was lost to what, of each group that tells."""
    losses = result.tables.get("losses")
    if losses is None or losses.empty:
        return
    for name, rows in groups:
        own = losses[losses["group"] == name]
        if len(own):
            yield _loss_bars(name, rows, own)


def _loss_bars(name: str, rows: Sequence[Row], losses: pd.DataFrame) -> str:
    known = dict(_LOSS_COLOURS)
    others = [str(loss) for loss in losses["loss"].unique() if loss not in known]
    colours = known | {loss: _COLOURS[i % _MOST_GROUPS] for i, loss in enumerate(others)}
    bars, used = [], dict.fromkeys([_NO_LOSS])
    for row in rows:
        same = losses[losses["devices_count"].eq(row["devices_count"])]
        if "global_batch_count" in losses and row.get("global_batch_count") is not None:
            batch = row["global_batch_count"]
            same = same[same["global_batch_count"].eq(batch) | pd.isna(batch)]
        parts = [(_NO_LOSS, float(row["efficiency_ratio"]))]
        parts += [(str(one["loss"]), float(one["lost_ratio"])) for one in rows_of(same)]
        used |= dict.fromkeys(loss for loss, ratio in parts if ratio >= _NAMED)
        bars.append(_bar(f"{row['devices_count']:g}", parts, colours))
    legend = _legend((loss, colours.get(loss, "h2d")) for loss in used if loss != _NO_LOSS)
    title = html_text(name or "all runs")
    return f'<h3>Lost, of ideal: {title}</h3>{legend}<div class="lost">{"".join(bars)}</div>'


def _bar(size: str, parts: Sequence[tuple[str, float]], colours: dict[str, str]) -> str:
    """Return a bar from 0 to ideal; losses below 0 are gains and not drawn."""
    whole = max(1.0, sum(ratio for _, ratio in parts if ratio > 0))
    pieces, x = [], 0.0
    for loss, ratio in parts:
        if ratio <= 0:
            continue
        width = 100 * ratio / whole
        fill = "var(--line)" if loss == _NO_LOSS else f"var(--s-{colours[loss]})"
        words = html_text(f"{size}: {loss} {value_text(Unit.RATIO, ratio)}")
        pieces.append(
            f'<rect x="{x:.2f}%" y="0" width="{width:.2f}%" height="18" style="fill:{fill}">'
            f"<title>{words}</title></rect>"
        )
        x += width
    reached = value_text(Unit.RATIO, parts[0][1])
    return (
        f'<svg width="100%" height="22" role="img" aria-label="{html_text(size)}: {reached} of '
        f'ideal"><svg x="{_BAR}" width="88%" height="22">{"".join(pieces)}</svg>'
        f'<text x="{_BAR - 6}" y="14" text-anchor="end" style="font-size:11px;fill:var(--muted)">'
        f"{html_text(size)}</text></svg>"
    )
