"""Charts of the report that need no script: parts of the time, who sends to whom."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from traceprof.model.results import Result
from traceprof.render.charts.svg import legend, theme_style
from traceprof.render.escape import html_text
from traceprof.render.formatting import is_known
from traceprof.render.palette import CATEGORIES, PART_STYLES, category_of, ink_on
from traceprof.render.shown import Row
from traceprof.units import format_bytes, format_rate, format_ratio

_PARTS: Final = {part.column: part.key for part in PART_STYLES}
_LABEL_RATIO: Final = 0.06


def category_style() -> str:
    """Return the colours of the palette as variables of the page, light and dark."""

    def variables(theme: str) -> str:
        colours = [(item.key, str(getattr(item, theme))) for item in CATEGORIES]
        return "".join(f"--{key}:{colour};--on-{key}:{ink_on(colour)};" for key, colour in colours)

    return theme_style(variables, is_light_on_paper=True)


def card(key: str, title: str, html: str) -> str:
    """Return a part of the page under its heading."""
    key = html_text(key)
    return (
        f'<section class="card" id="{key}" aria-labelledby="{key}-title">'
        f'<h2 id="{key}-title">{html_text(title)}</h2>{html}</section>'
    )


def breakdown_bars(breakdown: Result) -> str:
    """Return one bar per device: the shares of the five parts, which add up to 100%."""
    rows = breakdown.tables["devices"].rows()
    if len(rows) > 1:
        (total,) = breakdown.tables["total"].rows()
        rows.append({"name": f"all {len(rows)} GPUs", **total})
    bars = "".join(map(_bar, rows))
    return f"{parts_legend()}<div class='of-devices'>{bars}</div>"


def parts_bar(parts: Mapping[str, float]) -> str:
    """Return the shares of the five parts, by their keys, as one bar."""
    ratios = {part.column: parts[part.key] for part in PART_STYLES}
    shares = {_PARTS[column]: format_ratio(ratio) for column, ratio in ratios.items()}
    return f"{parts_legend(values=shares)}{_bar_of('GPU time', ratios)}"


def _bar(row: Row) -> str:
    ratios = {column: row[f"{key}_ratio"] for column, key in _PARTS.items()}
    name = f"GPU {row['device']} {row['name']}" if "device" in row else str(row["name"])
    title = name.strip()
    return f'<span class="who">{html_text(title, 80)}</span>{_bar_of(title, ratios)}'


def _bar_of(title: str, ratios: Mapping[str, float]) -> str:
    words = ", ".join(f"{_label(_PARTS[key])} {format_ratio(r)}" for key, r in ratios.items())
    parts = "".join(
        f'<i style="width:{100 * ratio:.3f}%;background:var(--{_PARTS[key]});'
        f'color:var(--on-{_PARTS[key]})" '
        f'class="{_PARTS[key]}" title="{html_text(_label(_PARTS[key]))} {format_ratio(ratio)}">'
        f"{format_ratio(ratio) if ratio >= _LABEL_RATIO else ''}</i>"
        for key, ratio in ratios.items()
        if ratio > 0
    )
    label = f"{html_text(title, 80)}: {html_text(words)}"
    return f'<div class="bar" role="img" aria-label="{label}">{parts}</div>'


def _label(category: str) -> str:
    return category_of(category).label


def parts_legend(
    categories: Iterable[str] = _PARTS.values(), values: Mapping[str, str] | None = None
) -> str:
    """Return what the colours mean (of the five parts), with a value behind each that has one."""
    keys = dict.fromkeys(categories)
    words = {key: f"{_label(key)} {(values or {}).get(key, '')}".strip() for key in keys}
    return legend((f"var(--{key})", told) for key, told in words.items())


_MOST_RANKS: Final = 32
_NUMBERS: Final = re.compile(r"\d+")


def peer_matrix(peers: Result) -> str:
    """Return the bytes from each rank (a row) to each other (a column), the more the darker.

    Nothing for a single pair, and for more than 32 ranks, where the table of pairs is better.
    """
    edges = peers.table.rows()
    names = sorted({str(edge[end]) for edge in edges for end in ("source", "target")}, key=_order)
    sized = [edge for edge in edges if _bytes_of(edge)]
    if not 2 < len(names) <= _MOST_RANKS or not sized:
        return ""
    by_pair: dict[tuple[str, str], list[Row]] = {}
    for edge in sized:
        by_pair.setdefault((edge["source"], edge["target"]), []).append(edge)
    top = max(sum(map(_bytes_of, own)) for own in by_pair.values())
    head = "".join(f'<th scope="col">{html_text(name, 40)}</th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row">{html_text(source, 40)}</th>'
        + "".join(_cell(by_pair.get((source, target), ()), top) for target in names)
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
    return int(edge["size_bytes"]) if is_known(edge["size_bytes"]) else 0


def _cell(edges: Sequence[Row], top: int) -> str:
    if not edges:
        return "<td></td>"
    n_bytes = sum(map(_bytes_of, edges))
    rates = [
        f"{edge['via']}: {format_rate(edge['rate_bytes_per_s'])}"
        for edge in edges
        if is_known(edge["rate_bytes_per_s"])
    ]
    share = round(100 * n_bytes / top)
    return (
        f'<td class="number" style="--part:{share}%" title="{html_text(", ".join(rates))}">'
        f"{format_bytes(n_bytes)}</td>"
    )


def _order(name: str) -> tuple[str, list[int]]:
    return _NUMBERS.sub("", name), [int(number) for number in _NUMBERS.findall(name)]
