"""Escape untrusted text, such as the names in a trace, for terminals, HTML, and plotly.

All text of a page goes through this module. An HTML page interprets HTML, and a script block ends
at ``</script``. plotly interprets a subset of HTML (links, styles that load addresses), templates
(``%{…}``), and math (``$…$``). Bidirectional control characters reorder the displayed text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

MAX_NAME_LENGTH: Final = 1_000
"""Maximum length of a name on an HTML page, in characters."""
_MAX_LENGTH: Final = 10_000

# C0 and C1 controls, line and paragraph separators, bidirectional marks and isolates, BOM,
# lone surrogates (which cannot be written as UTF-8).
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


_CONTROLS: Final = re.compile(f"(?![\\n\\t]){_UNPRINTABLE.pattern}")
"""Unprintable characters except line feed and tab."""
_ESCAPED: Final = re.compile(rf"{_CONTROLS.pattern}|\\(?=u[0-9a-f]{{4}})")


def plain_text(text: object, max_length: int = _MAX_LENGTH) -> str:
    """Return ``text`` on one line, without control characters, cut to ``max_length`` characters."""
    clean = str(text)
    if not clean.isprintable():  # skips the regular expression for nearly all names
        clean = _UNPRINTABLE.sub(" ", clean)
    return clean if len(clean) <= max_length else clean[: max_length - 1] + "…"


def visible_text(text: str) -> str:
    r"""Return ``text`` with control and invisible characters escaped as in JSON (``\u001b``).

    Line feeds and tabs stay. In JSON the escaped text has the same value.
    """
    return _CONTROLS.sub(_escape, text)


def escaped_text(text: str) -> str:
    """Return ``text`` escaped like `visible_text`, but so that it can be restored exactly.

    A backslash at the start of a sequence that looks like an escape is escaped, too.
    """
    return text if text.isprintable() and "\\u" not in text else _ESCAPED.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def html_text(text: object, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return ``text`` for the body or a quoted attribute of an HTML page."""
    # Commands that print text do not need this import, which doubles the import time of the module.
    import html  # noqa: PLC0415

    return html.escape(plain_text(text, max_length), quote=True)


_UNIT: Final = re.compile(r"(?<=\d) (?=(?:ns|µs|ms|s|B|kB|MB|GB|TB|GB/s|TFLOP/s)\b)")


def html_sentence(text: object, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a sentence for the body of an HTML page; no line ends between number and unit."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", html_text(text, max_length))


_CODE: Final = re.compile(r"`([^`]+)`")


def html_prose(text: object, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a sentence for the body of an HTML page; text in backticks becomes ``<code>``."""
    return _CODE.sub(r"<code>\1</code>", html_text(text, max_length))


def html_list(items: Iterable[object]) -> str:
    """Return plain texts as an HTML list; "" without items."""
    entries = "".join(f"<li>{html_prose(item, 400)}</li>" for item in items)
    return f'<ul class="warnings">{entries}</ul>' if entries else ""


def plotly_text(text: object, max_length: int = 200) -> str:
    """Return ``text`` for a plotly figure, escaped so that plotly draws it unchanged."""
    clean = plain_text(text, max_length).replace("&", "&amp;")
    clean = clean.replace("<", "&lt;").replace(">", "&gt;")
    return clean.replace("$", "&#36;").replace("%{", "%&#123;")
