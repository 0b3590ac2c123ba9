"""Write HTML documents that load nothing from the network, their data blocks, and their tables."""

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
from traceprof.render.escape import html_text, plain_text
from traceprof.render.formatting import STYLES, column_texts, headings, is_known
from traceprof.render.shown import Row, ShownTable

PLOTLY_CONFIG: Final[Mapping[str, Any]] = {
    "displaylogo": False,
    # plotly.js 4 shows a button that uploads the chart unless both options are switched off.
    "showSendToCloud": False,
    "plotlyServerURL": "",
}
"""The configuration of every plotly figure. It sends no data from the machine."""


@dataclass(frozen=True, slots=True)
class PlotlyBundle:
    """plotly.js compressed with gzip, and the CSP source that allows exactly this script."""

    gzip: bytes
    csp_source: str


@cache
def plotly_bundle() -> PlotlyBundle:
    """Return plotly.js of the installed plotly package (about 1.5 MB), compressed once."""
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
    """A part of a page: its HTML, data blocks, style, and script.

    ``head_script`` runs before the page is shown. ``csp_sources`` allow the scripts that the page
    creates from its data blocks.
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
    """Return an HTML document that loads nothing.

    ``title`` is plain text, ``body`` is HTML, and ``script`` is trusted JavaScript. The content
    security policy allows only ``script`` and the scripts of the fragment.
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


WARNINGS_TITLE: Final = "Warnings and notes"
"""Title of the section with warnings and remarks, which follows the result and its charts."""

_MAX_SHORT_LENGTH: Final = 60
"""A longer text is cut on the screen, and its full text is in the tooltip."""
_KERNEL_COLUMNS: Final = frozenset({"name", "kernel", "before", "after"})
_NAME_SEPARATOR: Final = re.compile(r"(?<=::|.[_/,(.#<])(?=[^\W\d]|_)")
_MAX_UNBROKEN_LENGTH: Final = 14
"""A text up to this length is never broken into lines."""
_MAX_COLUMNS: Final = 9
"""A table with more columns is printed with smaller letters."""
_MAX_UPRIGHT_COLUMNS: Final = 13
"""A table with more columns is printed with vertical headings."""

Link = Callable[[Row], str | None]
"""Returns the address in the page that a table row links to, or None."""


def html_table(
    table: ShownTable, caption: str, max_rows: int, link: Link | None = None, leading: str = ""
) -> str:
    """Return the first ``max_rows`` rows of a table; the caption states how many are left out.

    ``link`` gives the address that the cell in column ``leading`` of a row links to. By default
    ``leading`` is the column of the time, or of the step.
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
    classes = " crowded" if len(table.columns) > _MAX_COLUMNS else ""
    classes += " wide" if len(table.columns) > _MAX_UPRIGHT_COLUMNS else ""
    return (
        f'<div class="scroll{classes}" tabindex="0" role="region" '
        f'aria-label="{html_text(caption)}"><table>'
        f"<caption>{html_text(caption)}{more}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(
    table: ShownTable, row: Row, texts: Sequence[str], link: Link | None, leading: str
) -> str:
    """Return the cells of a row, whose values are formatted as ``texts``."""
    address = link(row) if link else None
    leading = leading or ("at_ns" if table.has("at_ns") else "step")
    cells = []
    for column, text in zip(table, texts, strict=True):
        content = _content(text, is_kernel=column.name in _KERNEL_COLUMNS)
        if address and column.name == leading:
            content = f'<a href="{html_text(address)}">{content}</a>'
        cells.append(f"<td{_align(column)}{_bar(column, row[column.name])}>{content}</td>")
    return "".join(cells)


def _content(text: str, *, is_kernel: bool) -> str:
    """Return the HTML of a cell; a printout has only the short form of a long kernel name."""
    if len(text) <= _MAX_SHORT_LENGTH:
        return _breakable(text)
    brief = short_name(text) if is_kernel else text
    content = _breakable(text)
    if brief != text:
        content = (
            f'<span class="whole">{html_text(text, 400)}</span>'
            f'<span class="brief">{_breakable(brief)}</span>'
        )
    return f'<span class="long" title="{html_text(text)}">{content}</span>'


def _breakable(text: str) -> str:
    """Return HTML whose lines may break after the separators in names, but not within words."""
    # Separated before it is escaped: an entity such as &#x27; must stay whole.
    plain = plain_text(text, 400)
    pieces = _NAME_SEPARATOR.split(plain) if len(plain) > _MAX_UNBROKEN_LENGTH else [plain]
    return "<wbr>".join(map(html_text, pieces))


def _align(column: Column) -> str:
    return ' class="number"' if STYLES[column.unit].is_number else ""


def _bar(column: Column, value: Any) -> str:
    """Return the style attribute that draws a bar behind a share; "" for other values."""
    if not STYLES[column.unit].has_bar or not is_known(value):
        return ""
    return f' style="--part:{100 * min(1.0, max(0.0, float(value))):.1f}%"'


_FORBIDDEN: Final = (0, 7, 8, 10, 11, 12, 13, 14, 15, 26, 27, 60, 127)
"""ASCII codes that must not occur in a data block: control characters and "<"."""
_FIRST_PAIR: Final = 0x100


def data_block(name: str, data: bytes) -> str:
    """Return the HTML element with the id ``name`` that contains ``data``."""
    text = text_of_bytes(data)
    return f'<script type="text/plain" id="{name}" data-bytes="{len(data)}">{text}</script>'


def text_of_bytes(data: bytes) -> str:
    """Return ``data`` encoded as text. A decoder needs the number of bytes.

    Each character stands for 7 bits. A character that must not occur is combined with the next
    7 bits into one character from U+0100 on.
    """
    septets = _septets(np.frombuffer(data, np.uint8))
    index_of = np.full(128, -1, np.int16)
    index_of[list(_FORBIDDEN)] = np.arange(len(_FORBIDDEN))
    indices = index_of[septets]
    pairs = np.flatnonzero(_starts_pair(indices >= 0))
    units = septets.astype(np.uint16)
    units[pairs] = _FIRST_PAIR + (indices[pairs].astype(np.uint16) << 7) + septets[pairs + 1]
    is_kept = np.ones(len(units), bool)
    is_kept[pairs + 1] = False
    is_kept[-1] = False
    return units[is_kept].astype("<u2").tobytes().decode("utf-16-le")


def _septets(data: np.ndarray) -> np.ndarray:
    """Return the bits of ``data`` in groups of 7, and a last group of zeros as a pair's second."""
    n_septets = -(-8 * len(data) // 7)
    padded = np.concatenate((data, np.zeros(2, np.uint8))).astype(np.uint16)
    first_bit = 7 * np.arange(n_septets)
    two_bytes = (padded[first_bit >> 3] << 8) | padded[(first_bit >> 3) + 1]
    return np.append((two_bytes >> (9 - (first_bit & 7))) & 127, 0).astype(np.uint8)


def _starts_pair(is_forbidden: np.ndarray) -> np.ndarray:
    """Return which septets start a pair: the 1st, 3rd, … of each sequence of forbidden ones."""
    edges = np.flatnonzero(np.diff(is_forbidden, prepend=False) & is_forbidden)
    start = np.zeros(len(is_forbidden), np.int64)
    start[edges] = edges
    offset = np.arange(len(is_forbidden)) - np.maximum.accumulate(start)
    starts: np.ndarray = is_forbidden & (offset % 2 == 0)
    starts[-1] = False
    return starts
