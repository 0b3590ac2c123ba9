"""Draw the report's script-free charts: bars of the five parts, and bytes sent between ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from traceprof.model.results import Result
from traceprof.render.charts.parts import PART_KEYS, bar_of_parts, parts_legend
from traceprof.render.charts.svg import theme_style
from traceprof.render.escape import html_text
from traceprof.render.formatting import is_known
from traceprof.render.palette import CATEGORIES, ink_on
from traceprof.render.shown import Row
from traceprof.units import format_bytes, format_rate


def category_style() -> str:
    """Return CSS variables for the colors of all categories, in the light and dark theme."""

    def variables(theme: str) -> str:
        colors = [(item.key, str(getattr(item, theme))) for item in CATEGORIES]
        return "".join(f"--{key}:{color};--on-{key}:{ink_on(color)};" for key, color in colors)

    return theme_style(variables, is_light_on_paper=True)


def card(key: str, title: str, html: str, *, is_folded: bool = False) -> str:
    """Return a section of the page: a heading with ``title``, then ``html``, folded or not."""
    key = html_text(key)
    heading = f'<h2 id="{key}-title">{html_text(title)}</h2>'
    content = f"{heading}{html}"
    if is_folded:
        content = f'<details class="section"><summary>{heading}</summary>{html}</details>'
    return f'<section class="card" id="{key}" aria-labelledby="{key}-title">{content}</section>'


def breakdown_bars(breakdown: Result) -> str:
    """Return one bar per device that shows the shares of the five parts. They add up to 100%."""
    rows = breakdown.tables["devices"].rows()
    if len(rows) > 1:
        (total,) = breakdown.tables["total"].rows()
        rows.append({"name": f"all {len(rows)} GPUs", **total})
    return f"{parts_legend()}<div class='of-devices'>{''.join(map(_device_bar, rows))}</div>"


def _device_bar(row: Row) -> str:
    title = (f"GPU {row['device']} {row['name']}" if "device" in row else str(row["name"])).strip()
    bar = bar_of_parts(title, {key: row[f"{key}_ratio"] for key in PART_KEYS})
    return f'<span class="who">{html_text(title, 80)}</span>{bar}'


_MAX_RANKS: Final = 32
_NUMBERS: Final = re.compile(r"\d+")


def peer_matrix(peers: Result) -> str:
    """Return a table of bytes sent from each rank (row) to each rank (column), shaded by size.

    Returns "" for a single pair, and for more than 32 ranks, which the table of pairs shows better.
    """
    edges = peers.table.rows()
    names = sorted(
        {str(edge[end]) for edge in edges for end in ("source", "target")}, key=_natural_order
    )
    sized = [edge for edge in edges if _bytes_of(edge)]
    if not 2 < len(names) <= _MAX_RANKS or not sized:
        return ""
    by_pair: dict[tuple[str, str], list[Row]] = {}
    for edge in sized:
        by_pair.setdefault((edge["source"], edge["target"]), []).append(edge)
    max_bytes = max(sum(map(_bytes_of, pair_edges)) for pair_edges in by_pair.values())
    head = "".join(f'<th scope="col">{html_text(name, 40)}</th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row">{html_text(source, 40)}</th>'
        + "".join(_cell(by_pair.get((source, target), ()), max_bytes) for target in names)
        + "</tr>"
        for source in names
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Bytes sent between ranks">'
        "<table><caption>Bytes sent from each rank (row) to each other rank (column)"
        f'</caption><thead><tr><th scope="col">from / to</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _bytes_of(edge: Row) -> int:
    """Return the size of a row of "peers"; 0 if it is unknown."""
    return int(edge["size_bytes"]) if is_known(edge["size_bytes"]) else 0


def _cell(edges: Sequence[Row], max_bytes: int) -> str:
    """Return the table cell of one pair of ranks, shaded by its share of ``max_bytes``."""
    if not edges:
        return "<td></td>"
    n_bytes = sum(map(_bytes_of, edges))
    rates = [
        f"{edge['via']}: {format_rate(edge['rate_bytes_per_s'])}"
        for edge in edges
        if is_known(edge["rate_bytes_per_s"])
    ]
    share = round(100 * n_bytes / max_bytes)
    return (
        f'<td class="number" style="--part:{share}%" title="{html_text(", ".join(rates))}">'
        f"{format_bytes(n_bytes)}</td>"
    )


def _natural_order(name: str) -> tuple[str, list[int]]:
    """Return a sort key that compares the numbers in ``name`` by value: rank 2 before rank 10."""
    return _NUMBERS.sub("", name), [int(number) for number in _NUMBERS.findall(name)]
