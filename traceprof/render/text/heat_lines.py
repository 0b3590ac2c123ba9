"""The heat map of a run in a terminal: a block per rank and step, readable without colour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd
from rich.text import Text

from traceprof.render.escape import plain_text
from traceprof.render.heat import HeatLines, HeatMap, find_lines, format_more, make_heat_map
from traceprof.render.palette import HEAT

__all__ = ["heat_lines"]

_WIDEST_HOST: Final = 16
_MORE_WIDTH: Final = 10
_FEWEST_CELLS: Final = 8
_UNKNOWN: Final = " "
_NOTABLE_RATIO: Final = 0.03


def heat_lines(table: pd.DataFrame, most_rows: int, width: int) -> list[Text]:
    """Return the map of ``table`` (that of `RankSteps`) in at most ``width`` columns.

    Nothing where there is but one rank.
    """
    found = find_lines(table, most_rows)
    if found is None:
        return []
    labels = _labels(found)
    left = max(map(len, labels)) + 2
    is_shared = len(found) < len(found.ranks)
    right = _MORE_WIDTH + (2 + max(map(len, found.ranks["label"])) if is_shared else 0)
    n_cells = max(_FEWEST_CELLS, width - left - right)
    heat = make_heat_map(table, found, n_cells)
    wide = 2 if 2 * len(heat.steps) <= n_cells else 1
    first, last = heat.steps[0][0], heat.steps[-1][1]
    steps = f"step {first}" if first == last else f"steps {first}..{last}"
    title = f"own time of {len(found.ranks)} ranks in {steps}, against their median"
    lines = [Text(title, style="dim")]
    for label, row, levels in zip(labels, heat.rows, heat.levels, strict=True):
        line = Text(label.ljust(left), style="dim")
        for level in levels:
            if level < 0:
                line.append(_UNKNOWN * wide)
            else:
                line.append(HEAT[level].glyph * wide, style=HEAT[level].dark)
        line.append(format_more(row.slower_ratio).rjust(_MORE_WIDTH), style="default")
        if row.slowest and row.slower_ratio >= _NOTABLE_RATIO:
            line.append(f"  {row.slowest}", style="default")
        lines.append(line)
    return [*lines, *_legend(heat, width)]


def _labels(lines: HeatLines) -> list[str]:
    """Return the names of the lines; that of a host stands before its first rank only."""
    hosts = [plain_text(host, _WIDEST_HOST) for host in lines.hosts]
    if len(set(hosts)) < 2:
        return list(lines.labels)
    shown = [host if i == 0 or host != hosts[i - 1] else "" for i, host in enumerate(hosts)]
    widest = max(map(len, shown))
    return [
        f"{host.ljust(widest)}  {label}" for host, label in zip(shown, lines.labels, strict=True)
    ]


def _legend(heat: HeatMap, width: int) -> Iterator[Text]:
    shown = sorted(set(heat.levels[heat.levels >= 0].tolist()))
    line = Text()
    for level in shown:
        entry = Text(f"{HEAT[level].glyph}{HEAT[level].glyph}", style=HEAT[level].dark)
        entry.append(f" {HEAT[level].label}  ", style="dim")
        if line and len(line) + len(entry) > width:
            yield line
            line = Text()
        line.append_text(entry)
    yield line
    yield from (Text(f"note: {note}", style="dim italic") for note in heat.notes)
