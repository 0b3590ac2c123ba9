"""What every HTML page is made of: the document that loads nothing, its data and its tables."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import numpy as np
from plotly.offline import get_plotlyjs

from traceprof.model.results import Column
from traceprof.names.kernels import short_name
from traceprof.render.escape import html_text
from traceprof.render.formatting import STYLES, column_texts, headings, is_known
from traceprof.render.shown import Row, ShownTable

PLOTLY_CONFIG: Final[Mapping[str, Any]] = {
    "displaylogo": False,
    # plotly.js 4 shows a button that uploads the chart unless both are switched off.
    "showSendToCloud": False,
    "plotlyServerURL": "",
}
"""What every plotly figure of traceprof is shown with: nothing may leave the machine."""


@dataclass(frozen=True, slots=True)
class PlotlyBundle:
    """The script as gzip, and the CSP source that lets exactly this script run."""

    gzip: bytes
    csp_source: str


@cache
def plotly_bundle() -> PlotlyBundle:
    """Return plotly.js of the installed plotly package (about 1.5 MB; compressed once)."""
    script = get_plotlyjs().encode()
    packed = gzip.compress(script, compresslevel=6, mtime=0)
    return PlotlyBundle(packed, csp_hash(script))


def csp_hash(script: bytes) -> str:
    """Return the CSP source expression that allows an inline script with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"


_CSP: Final = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)
_DOCUMENT: Final = """<!doctype html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{csp}">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>{head}
</head>
<body>
{body}
{scripts}
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a page: its HTML, blocks of data, its style, and the scripts that it runs.

    ``head_script`` runs before anything is shown. ``csp_sources`` allow scripts that the page
    makes itself from its data blocks.
    """

    html: str
    data: str
    style: str
    script: str
    csp_sources: Sequence[str]
    head_script: str = ""


def page_style() -> str:
    """Return the style that all pages share."""
    return (files(__package__) / "page.css").read_text(encoding="utf-8")


def write_document(
    title: str, body: str, styles: Sequence[str], fragment: Fragment | None = None, script: str = ""
) -> str:
    """Return the document; ``body`` is HTML, ``title`` plain text, ``script`` JavaScript of ours.

    The policy of the document lets that and the fragment's script run and nothing load.
    """
    sources, scripts, head = [], "", ""
    if fragment is not None:
        sources = [csp_hash(fragment.script.encode()), *fragment.csp_sources]
        styles = [*styles, fragment.style]
        scripts = f"{fragment.data}\n<script>{fragment.script}</script>"
        if fragment.head_script:
            sources.append(csp_hash(fragment.head_script.encode()))
            head = f"\n<script>{fragment.head_script}</script>"
    if script:
        sources.append(csp_hash(script.encode()))
        scripts += f"\n<script>{script}</script>"
    return _DOCUMENT.format(
        csp=_CSP.format(scripts=" ".join(sources) or "'none'"),
        title=html_text(title),
        style="\n".join([page_style(), *styles]),
        head=head,
        body=body,
        scripts=scripts,
    )


KNOWN_WITH_IT: Final = "Warnings and notes"
"""What warnings and remarks stand under, behind the answer and its charts."""

_SHORT: Final = 60
_KERNELS: Final = frozenset({"name", "kernel", "before", "after"})
"""Columns that hold names of kernels."""
_PART: Final = re.compile(r"(::|[_/,(.]|(?<!&)#|&lt;)(?=[^\W\d]|_)")
_WORD: Final = 14
"""What is no longer is not broken, even where it could be."""
_CROWDED: Final = 9
_WIDE: Final = 13
"""From more columns on paper needs smaller letters, and upright headings."""

Link = Callable[[Row], str | None]


def html_table(
    table: ShownTable, caption: str, max_rows: int, link: Link | None = None, leading: str = ""
) -> str:
    """Return the first ``max_rows`` rows of a table, which says what it leaves out.

    ``link`` gives, for a row, an address within the page (or None) for its column ``leading``: its
    time, or its step, where none is named.
    """
    head = "".join(
        f'<th scope="col"{_align(column)} title="{html_text(column.meaning)}">'
        f"{html_text(title)}</th>"
        for column, title in headings(table).items()
    )
    rows = table.rows(max_rows)
    texts = [column_texts(column.unit, [row[column.name] for row in rows]) for column in table]
    body = "".join(
        f"<tr>{_cells(table, row, row_texts, link, leading)}</tr>"
        for row, row_texts in zip(rows, zip(*texts, strict=True), strict=True)
    )
    left_out = len(table) - max_rows
    more = f" · first {max_rows} of {len(table)} rows" if left_out > 0 else ""
    crowded = " crowded" if len(table.columns) > _CROWDED else ""
    crowded += " wide" if len(table.columns) > _WIDE else ""
    return (
        f'<div class="scroll{crowded}" tabindex="0" role="region" '
        f'aria-label="{html_text(caption)}"><table>'
        f"<caption>{html_text(caption)}{more}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(
    table: ShownTable, row: Row, texts: Sequence[str], link: Link | None, leading: str
) -> str:
    address = link(row) if link else None
    leading = leading or ("at_ns" if table.has("at_ns") else "step")
    cells = []
    for column, written in zip(table, texts, strict=True):
        text = _text(written, is_kernel=column.name in _KERNELS)
        if address and column.name == leading:
            text = f'<a href="{html_text(address)}">{text}</a>'
        cells.append(f"<td{_align(column)}{_bar(column, row[column.name])}>{text}</td>")
    return "".join(cells)


def _text(text: str, *, is_kernel: bool = False) -> str:
    """Return a cell; of a long name of a kernel paper has its short form alone."""
    if len(text) <= _SHORT:
        return _parted(text)
    whole, brief = html_text(text, 400), short_name(text) if is_kernel else text
    if brief != text:
        whole = f'<span class="whole">{whole}</span><span class="brief">{_parted(brief)}</span>'
    else:
        whole = _parted(text)
    return f'<span class="long" title="{html_text(text)}">{whole}</span>'


def _parted(text: str) -> str:
    """Return a text that may be broken between the parts of its names, and not within words."""
    written = html_text(text, 400)
    return _PART.sub(r"\1<wbr>", written) if len(text) > _WORD else written


def _align(column: Column) -> str:
    return ' class="number"' if STYLES[column.unit].is_number else ""


def _bar(column: Column, value: Any) -> str:
    """Return the style that draws a share behind its number."""
    if not STYLES[column.unit].has_bar or not is_known(value):
        return ""
    return f' style="--part:{100 * min(1.0, max(0.0, float(value))):.1f}%"'


_FORBIDDEN: Final = (0, 7, 8, 10, 11, 12, 13, 14, 15, 26, 27, 60, 127)
_FIRST_PAIR: Final = 0x100


def data_block(name: str, data: bytes) -> str:
    """Return the element of the id ``name`` that holds ``data``."""
    text = text_of_bytes(data)
    return f'<script type="text/plain" id="{name}" data-bytes="{len(data)}">{text}</script>'


def text_of_bytes(data: bytes) -> str:
    """Return ``data`` as text; who reads it must know the number of bytes."""
    sevens = _sevens(np.frombuffer(data, np.uint8))
    place = np.full(128, -1, np.int16)
    place[list(_FORBIDDEN)] = np.arange(len(_FORBIDDEN))
    places = place[sevens]
    opens = _pairs_open(places >= 0)
    units = sevens.astype(np.uint16)
    pairs = np.flatnonzero(opens)
    units[pairs] = _FIRST_PAIR + (places[pairs].astype(np.uint16) << 7) + sevens[pairs + 1]
    is_kept = np.ones(len(units), bool)
    is_kept[pairs + 1] = False
    is_kept[-1] = False
    return units[is_kept].astype("<u2").tobytes().decode("utf-16-le")


def _sevens(data: np.ndarray) -> np.ndarray:
    """Return the bits of ``data`` by sevens, and seven more for the last one to pair with."""
    n_bits = 8 * len(data)
    n_sevens = -(-n_bits // 7)
    padded = np.concatenate((data, np.zeros(2, np.uint8))).astype(np.uint16)
    first = 7 * np.arange(n_sevens)
    both = (padded[first >> 3] << 8) | padded[(first >> 3) + 1]
    return np.append((both >> (9 - (first & 7))) & 127, 0).astype(np.uint8)


def _pairs_open(is_forbidden: np.ndarray) -> np.ndarray:
    """Return where a forbidden one makes a pair: the 1st, 3rd, … of those in a row."""
    edges = np.flatnonzero(np.diff(is_forbidden, prepend=False) & is_forbidden)
    run = np.zeros(len(is_forbidden), np.int64)
    run[edges] = edges
    offset = np.arange(len(is_forbidden)) - np.maximum.accumulate(run)
    opens: np.ndarray = is_forbidden & (offset % 2 == 0)
    opens[-1] = False
    return opens
