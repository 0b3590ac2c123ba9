"""Remove marks from the text of cells: HTML, LaTeX, links, footnotes, symbols, wide digits."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from typing import Final

_MAX_LINE_CHARS: Final = 20_000
_MAX_SPAN: Final = 100
_LATEX_ROW: Final = re.compile(
    r"(?P<cells>[^&|]{1,2000}+&[^|]{1,8000}?)\\\\\s*+(?:\\\w{1,20}+)?\s*+"
)
_LATEX_RULE: Final = re.compile(r"\s*+\\(?:hline|toprule|midrule|bottomrule|cline\{[\d-]+\})\s*+")
_LATEX_STYLE: Final = re.compile(
    r"\\(?:textbf|textit|emph|texttt|num|multirow\{\d{1,3}+\}\{\*\})\{(?P<text>[^{}]{0,200}+)\}"
)
_LATEX_SYMBOLS: Final = {
    "\\%": "%", "\\#": "#", "$\\times$": "x", "\\times": "x", "$\\pm$": "±", "\\pm": "±",
    "\\cdot": "x", "\\,": "", "{,}": ",", "$": "",
}  # fmt: skip
_ROW_TAG: Final = re.compile(r"<tr\b[^<>]{0,200}+>", re.IGNORECASE)
_CELL: Final = re.compile(
    r"<(?P<kind>t[dh])\b(?P<attributes>[^<>]{0,200}+)>(?P<text>(?:(?!<t[dh]\b).)*+)", re.I | re.S
)
_SPAN: Final = re.compile(r"\b(?P<way>col|row)span\s?=\s?[\"']?(?P<n>\d{1,3}+)", re.IGNORECASE)
_TAG: Final = re.compile(r"<[^<>]{0,2000}+>")
_RAISED: Final = re.compile(r"<sup>(?P<text>[^<>]{0,40}+)</sup>", re.IGNORECASE)
_IMAGE: Final = re.compile(r"!\[[^\[\]]{0,200}+\]\([^()]{0,500}+\)")
_LINK: Final = re.compile(r"\[(?P<text>[^\[\]]{0,200}+)\]\([^()]{0,500}+\)")
_STRUCK: Final = re.compile(r"~~[^~]{1,200}+~~")
_BOLD: Final = re.compile(r"(?P<mark>\*\*|__)(?P<text>.{1,200}?)(?P=mark)")
_MATH: Final = re.compile(r"\$(?P<text>[^$]{1,100}+)\$")
_POWER: Final = re.compile(
    r"(?<=[\d.])\s?+[x×·*]\s?+10(?:\^?+\{?+(?P<n>[-+−]?\d{1,2}+)\}?+|(?P<raised>[⁻⁺]?+[⁰¹²³⁴-⁹]{1,2}+))",
    re.IGNORECASE,
)
_DIGITS: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺−", "0123456789-+-")
_RAISED_DIGITS: Final = re.compile(r"[⁰¹²³⁴-⁹]++$")
_WIDE: Final = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | dict.fromkeys(
    (0xA0, 0x2007, 0x2009, 0x202F, 0x3000), " "
)
"""Full-width characters, and the spaces that separate thousands."""
_KEPT_SYMBOLS: Final = "°"


def row_of_latex(line: str) -> str:
    """Return a row or rule of a LaTeX table in the form of Markdown; other lines are unchanged."""
    if not ("\\" in line and len(line) <= _MAX_LINE_CHARS):
        return line
    if _LATEX_RULE.fullmatch(line):
        return "|---|"
    row = _LATEX_ROW.fullmatch(line)
    return line if row is None else f"| {_from_latex(row['cells']).replace('&', '|')} |"


def _from_latex(text: str) -> str:
    text = _LATEX_STYLE.sub(r"\g<text>", text)
    for symbol, plain in _LATEX_SYMBOLS.items():
        text = text.replace(symbol, plain)
    return text


def without_tags(text: str) -> str:
    """Return a text without HTML tags and entities; raised text is an exponent or a footnote."""
    if "<" not in text and "&" not in text:
        return text.strip()
    text = _RAISED.sub(lambda raised: _exponent(raised, text), text)
    return " ".join(html.unescape(_TAG.sub(" ", text)).split())


def _exponent(raised: re.Match[str], text: str) -> str:
    return f"^{raised['text']}" if text[: raised.start()].rstrip().endswith("10") else ""


def html_rows(block: Sequence[str]) -> list[list[str]]:
    """Return the rows of an HTML table; cells that span rows or columns are repeated.

    If a heading cell spans columns, the names of the first two rows are joined.
    """
    texts = _ROW_TAG.split("\n".join(block))[1:]
    rows: list[list[str]] = []
    below: dict[tuple[int, int], str] = {}
    n_headings = 0
    for i, row in enumerate(texts):
        cells = list(_CELL.finditer(row))
        found: list[str] = []
        for cell in cells:
            spans = {span["way"].lower(): int(span["n"]) for span in _SPAN.finditer(cell[0][:240])}
            text = without_tags(cell["text"])
            _take_from_above(found, below, i)
            for _ in range(min(spans.get("col", 1), _MAX_SPAN)):
                for later in range(i + 1, i + min(spans.get("row", 1), _MAX_SPAN)):
                    below[later, len(found)] = text
                found.append(text)
        _take_from_above(found, below, i)
        is_heading = bool(cells) and all(cell["kind"].lower() == "th" for cell in cells)
        n_headings += is_heading and i == n_headings
        rows.append(found)
    if n_headings == 2 and len(rows[0]) == len(rows[1]):
        names = zip(rows[0], rows[1], strict=True)
        rows[:2] = [[a if a == b else f"{a} {b}".strip() for a, b in names]]
    return rows


def _take_from_above(found: list[str], below: dict[tuple[int, int], str], row: int) -> None:
    """Add the cells that span from the rows above to the place of the next cell."""
    while (text := below.pop((row, len(found)), None)) is not None:
        found.append(text)


def without_marks(cell: str) -> str:
    """Return a cell without images, addresses of links, bold marks, raised digits, and symbols.

    A power of ten becomes an exponent: 1.2 × 10^5 is 1.2e5. Marks that are the whole cell stay.
    """
    if cell.isascii() and not any(mark in cell for mark in "![$^*_~"):
        return cell
    text = _LINK.sub(r"\g<text>", _IMAGE.sub("", cell.translate(_WIDE)))
    text = _MATH.sub(lambda match: _from_latex(match[0]), text) if "$" in text else text
    text = _BOLD.sub(r"\g<text>", _STRUCK.sub("", text))
    text = _POWER.sub(lambda match: "e" + (match["n"] or match["raised"]).translate(_DIGITS), text)
    text = _RAISED_DIGITS.sub("", text)
    if not text.isascii():
        is_kept = (
            unicodedata.category(one) not in ("So", "Cf", "Mn") or one in _KEPT_SYMBOLS
            for one in text
        )
        text = "".join(one for one, kept in zip(text, is_kept, strict=True) if kept)
    return text.strip() if any(map(str.isalnum, text)) else cell
