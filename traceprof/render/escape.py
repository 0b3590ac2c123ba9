"""Names in a trace are untrusted: every way out of traceprof into a page goes through here.

plotly interprets a subset of HTML in every text that it draws (links, styles that fetch
addresses), templates (``%{…}``) and mathematics (``$…$``); a page interprets HTML; a script
block ends at ``</script``; and bidirectional controls reorder what a reader sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

MAX_NAME_LENGTH: Final = 1_000
"""Of a name on a page of HTML."""
_MAX_LENGTH: Final = 10_000

# C0 and C1 controls, line and paragraph separators, bidirectional marks and isolates, BOM,
# lone surrogates (which cannot be written as UTF-8).
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


_OBEYED: Final = re.compile(f"(?![\\n\\t]){_UNPRINTABLE.pattern}")
_ESCAPED: Final = re.compile(rf"{_OBEYED.pattern}|\\(?=u[0-9a-f]{{4}})")


def plain_text(text: object, max_length: int = _MAX_LENGTH) -> str:
    """Return ``text`` on one line, without controls, at most ``max_length`` characters long."""
    clean = str(text)
    if not clean.isprintable():  # nearly every name is
        clean = _UNPRINTABLE.sub(" ", clean)
    return clean if len(clean) <= max_length else clean[: max_length - 1] + "…"


def visible_text(text: str) -> str:
    """Return ``text`` with what a terminal would obey, or hide, escaped as JSON does it.

    Lines and tabs stay. Within JSON it means the same as before.
    """
    return _OBEYED.sub(_escape, text)


def escaped_text(text: str) -> str:
    """Return ``text`` with the same characters escaped, so that it can be restored exactly.

    A backslash that begins what looks like an escape becomes an escape.
    """
    return text if text.isprintable() and "\\u" not in text else _ESCAPED.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def html_text(text: object, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return ``text`` for the body or a quoted attribute of an HTML page."""
    import html  # noqa: PLC0415 (terminals need none, and it takes as long as all else here)

    return html.escape(plain_text(text, max_length), quote=True)


_CODE: Final = re.compile(r"`([^`]+)`")


def html_prose(text: object, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a sentence for the body of an HTML page, with code for what is in backticks."""
    return _CODE.sub(r"<code>\1</code>", html_text(text, max_length))


def html_list(items: Iterable[object]) -> str:
    """Return a list of plain texts as HTML; nothing where there are none."""
    entries = "".join(f"<li>{html_prose(item, 400)}</li>" for item in items)
    return f'<ul class="warnings">{entries}</ul>' if entries else ""


def plotly_text(text: object, max_length: int = 200) -> str:
    """Return ``text`` for any text of a plotly figure: drawn as written, nothing interpreted."""
    clean = plain_text(text, max_length).replace("&", "&amp;")
    clean = clean.replace("<", "&lt;").replace(">", "&gt;")
    return clean.replace("$", "&#36;").replace("%{", "%&#123;")
