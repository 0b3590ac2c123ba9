"""The heat map of a run in the report, as SVG that needs no script: rank by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.model.results import Result
from traceprof.render.escape import html_text
from traceprof.render.heat import HeatMap, find_lines, format_more, make_heat_map
from traceprof.render.palette import HEAT

__all__ = ["heat_chart", "heat_style"]

_MOST_ROWS: Final = 64
_MOST_COLUMNS: Final = 120
_MOST_CELLS: Final = 4096
_WIDTH: Final = 960
_RIGHT: Final = 62
_HOST_WIDTH: Final = 110
_LABEL_WIDTH: Final = 84
_WIDEST_CELL: Final = 40.0
_LEAST_GAPPED: Final = 5
_GAP: Final = 5
_BOTTOM: Final = 22
_LABELS: Final = 12
_HOST_LETTERS: Final = 15


def heat_style() -> str:
    """Return the colours of the levels as variables and classes of the page, light and dark."""

    def variables(theme: str) -> str:
        return "".join(f"--heat{i}:{getattr(level, theme)};" for i, level in enumerate(HEAT))

    classes = "".join(
        f".heat{i}{{fill:var(--heat{i});background:var(--heat{i})}}" for i in range(len(HEAT))
    )
    dark = f"@media screen{{[data-theme=dark]{{{variables('dark')}}}}}"
    return f":root{{{variables('light')}}}{dark}{classes}"


def heat_chart(result: Result) -> str:
    """Return the own time of each rank in each step as colours; "" for a single rank."""
    lines = find_lines(result.table, _MOST_ROWS)
    if lines is None:
        return ""
    most_columns = min(_MOST_COLUMNS, _MOST_CELLS // len(lines))
    heat = make_heat_map(result.table, lines, most_columns)
    layout = _Layout(heat)
    slowest = heat.slowest
    words = f"{slowest.host} {slowest.label}".strip()
    label = (
        f"Own time by rank and step against the median of the ranks; the slowest is {words}, "
        f"{format_more(slowest.slower_ratio)}"
    )
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in heat.notes)
    return (
        f"{_legend()}"
        '<div class="scroll" tabindex="0" role="region" aria-label="Heat map">'
        f'<svg viewBox="0 0 {_WIDTH} {layout.height:.0f}" '
        f'class="chart heat" role="img" aria-label="{html_text(label)}">'
        f"{_cells(heat, layout)}{_row_names(heat, layout)}{_step_names(heat, layout)}</svg></div>"
        '<p class="note">Own time of each rank in each step, without waiting for others, against '
        f"the median of the ranks in that step; on the right over all steps.{notes} "
        f"The slowest is <b>{html_text(words)}</b> ({format_more(slowest.slower_ratio)}).</p>"
    )


class _Layout:
    """Where the lines and columns of the map are, in pixels."""

    def __init__(self, heat: HeatMap) -> None:
        hosts = [row.host for row in heat.rows]
        self.has_hosts = len(set(hosts)) > 1
        self.left = _LABEL_WIDTH + (_HOST_WIDTH if self.has_hosts else 0)
        cell = min(_WIDEST_CELL, (_WIDTH - self.left - _RIGHT) / len(heat.steps))
        self.cell = float(int(cell)) if cell > _LEAST_GAPPED else cell
        self.line = 18 if len(hosts) <= 16 else 14 if len(hosts) <= 32 else 11
        self.is_first = [i == 0 or host != hosts[i - 1] for i, host in enumerate(hosts)]
        one_each = all(self.is_first)
        top, tops = 0, []
        for i, is_first in enumerate(self.is_first):
            top += _GAP if i and is_first and not one_each else 0
            tops.append(top)
            top += self.line
        self.tops = tops
        self.height = top + _BOTTOM

    def x(self, column: int) -> float:
        return self.left + column * self.cell


def _cells(heat: HeatMap, layout: _Layout) -> str:
    levels = heat.levels
    return "".join(
        f'<g class="heat{level}">{"".join(_cells_of(heat, layout, levels == level))}</g>'
        for level in range(len(HEAT))
        if (levels == level).any()
    )


def _cells_of(heat: HeatMap, layout: _Layout, chosen: object) -> Iterator[str]:
    gap = 1 if layout.cell > _LEAST_GAPPED else 0
    size = f'width="{layout.cell - gap:.2f}" height="{layout.line - 1}"'
    for row, column in zip(*chosen.nonzero(), strict=True):  # type: ignore[attr-defined]
        yield (
            f'<rect x="{layout.x(column):.2f}" y="{layout.tops[row]}" {size}>'
            f"<title>{html_text(heat.words[row][column])}</title></rect>"
        )


def _row_names(heat: HeatMap, layout: _Layout) -> str:
    right = layout.x(len(heat.steps)) + 6
    parts = []
    for row, top, is_first in zip(heat.rows, layout.tops, layout.is_first, strict=True):
        y = top + layout.line / 2 + 4
        if layout.has_hosts and is_first:
            host = html_text(row.host or "host not known", _HOST_LETTERS)
            parts.append(f'<text x="0" y="{y:.1f}">{host}</text>')
        parts.append(
            f'<text x="{layout.left - 6}" y="{y:.1f}" text-anchor="end">{html_text(row.label)}'
            f'</text><text x="{right:.1f}" y="{y:.1f}">{format_more(row.slower_ratio)}</text>'
        )
    return "".join(parts)


def _step_names(heat: HeatMap, layout: _Layout) -> str:
    every = max(1, -(-len(heat.steps) // _LABELS))
    y = layout.height - 6
    return "".join(
        f'<text x="{layout.x(column) + layout.cell / 2:.1f}" y="{y:.0f}" text-anchor="middle">'
        f"{first}</text>"
        for column, (first, _) in enumerate(heat.steps)
        if column % every == 0
    )


def _legend() -> str:
    items = "".join(
        f'<li><i class="heat{i}"></i>{html_text(level.label)}</li>' for i, level in enumerate(HEAT)
    )
    return f'<ul class="legend">{items}</ul>'
