"""Who sends how much to whom, as a table of ranks by ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from traceprof.analysis.ranks.peers import Edge, Peers
from traceprof.render.escape import html_text
from traceprof.units import format_bytes, format_rate

__all__ = ["peer_matrix"]

_MOST_RANKS: Final = 32
_NUMBERS: Final = re.compile(r"\d+")


def peer_matrix(peers: Peers) -> str:
    """Return the bytes from each rank (a row) to each other (a column), the more the darker.

    Nothing for a single pair, and for more than 32 ranks, where the table of pairs is better.
    """
    names = sorted({end for edge in peers.edges for end in (edge.source, edge.target)}, key=_order)
    sized = [edge for edge in peers.edges if edge.size_bytes]
    if not 2 < len(names) <= _MOST_RANKS or not sized:
        return ""
    by_pair: dict[tuple[str, str], list[Edge]] = {}
    for edge in sized:
        by_pair.setdefault((edge.source, edge.target), []).append(edge)
    top = max(sum(edge.size_bytes or 0 for edge in own) for own in by_pair.values())
    head = "".join(f'<th scope="col">{html_text(name, 40)}</th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row">{html_text(source, 40)}</th>'
        + "".join(_cell(by_pair.get((source, target), ()), top) for target in names)
        + "</tr>"
        for source in names
    )
    return (
        '<div class="scroll"><table><caption>Bytes from each rank to each other'
        f'</caption><thead><tr><th scope="col">from, to</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(edges: Sequence[Edge], top: int) -> str:
    if not edges:
        return "<td></td>"
    n_bytes = sum(edge.size_bytes or 0 for edge in edges)
    rates = [
        f"{edge.via}: {format_rate(edge.rate_bytes_per_s)}"
        for edge in edges
        if edge.rate_bytes_per_s is not None
    ]
    share = round(100 * n_bytes / top)
    return (
        f'<td class="number" style="--part:{share}%" title="{html_text(", ".join(rates))}">'
        f"{format_bytes(n_bytes)}</td>"
    )


def _order(name: str) -> tuple[str, list[int]]:
    return _NUMBERS.sub("", name), [int(number) for number in _NUMBERS.findall(name)]
