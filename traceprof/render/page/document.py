"""An HTML document that holds everything it needs and may load nothing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from traceprof.render.escape import html_text
from traceprof.render.page.plotly_bundle import csp_hash
from traceprof.values import dataclass

__all__ = ["Fragment", "page_style", "write_document"]

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
<style>{style}</style>
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

    ``csp_sources`` allow scripts that the page makes itself from its data blocks.
    """

    html: str
    data: str
    style: str
    script: str
    csp_sources: Sequence[str]


def page_style() -> str:
    """Return the style that all pages share."""
    return (files(__package__) / "page.css").read_text(encoding="utf-8")


def write_document(
    title: str,
    body: str,
    styles: Sequence[str],
    fragment: Fragment | None = None,
    script: str = "",
) -> str:
    """Return the document; ``body`` is HTML, ``title`` plain text, ``script`` JavaScript of ours.

    The policy of the document lets that and the fragment's script run and nothing load.
    """
    sources, scripts = [], ""
    if fragment is not None:
        sources = [csp_hash(fragment.script.encode()), *fragment.csp_sources]
        styles = [*styles, fragment.style]
        scripts = f"{fragment.data}\n<script>{fragment.script}</script>"
    if script:
        sources.append(csp_hash(script.encode()))
        scripts += f"\n<script>{script}</script>"
    return _DOCUMENT.format(
        csp=_CSP.format(scripts=" ".join(sources) or "'none'"),
        title=html_text(title),
        style="\n".join([page_style(), *styles]),
        body=body,
        scripts=scripts,
    )
