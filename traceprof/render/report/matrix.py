"""Who sends how much to whom, as a table of ranks by ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from traceprof.model.results import Result
from traceprof.render.escape import html_text
from traceprof.render.formatting import is_known
from traceprof.render.shown import Row, rows_of
from traceprof.units import format_bytes, format_rate

__all__ = ["peer_matrix"]

_MOST_RANKS: Final = 32
_NUMBERS: Final = re.compile(r"\d+")


def peer_matrix(peers: Result) -> str:
    """Return the bytes from each rank (a row) to each other (a column), the more the darker.

    Nothing for a single pair, and for more than 32 ranks, where the table of pairs is better.
    """
    edges = rows_of(peers.table)
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
        '<div class="scroll" tabindex="0" role="region" aria-label="Who sends how much to whom">'
        "<table><caption>Bytes from each rank to each other"
        f'</caption><thead><tr><th scope="col">from, to</th>{head}</tr></thead>'
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
