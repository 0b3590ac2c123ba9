"""The page: one HTML file that holds everything and may load nothing."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from traceprof.render.escape import html_text
from traceprof.render.plotly_bundle import csp_hash, plotly_bundle
from traceprof.render.timeline.script import read_asset, timeline_script

__all__ = ["Page", "write_page"]

_CSP: Final = (
    "default-src 'none'; script-src {script} {plotly}; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
_PAGE: Final = """<!doctype html>
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
<header><h1>{title}</h1><div class="sub">{subtitle}</div>{warnings}</header>
<main>
<div class="card"><div id="traceprof-timeline"><p class="note">Unpacking the trace…</p></div></div>
<noscript><p>The timeline is drawn by JavaScript in this file; nothing is loaded.</p></noscript>
<footer>{notes}</footer>
</main>
<script type="text/plain" id="traceprof-plotly">{plotly}</script>
<script type="text/plain" id="traceprof-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Page:
    """What the page says around the timeline; plain text, escaped when written."""

    title: str
    subtitle: str
    notes: Sequence[str]
    warnings: Sequence[str]


def write_page(page: Page, data: bytes) -> str:
    """Return the HTML of ``page`` with the encoded lanes ``data``."""
    bundle = plotly_bundle()
    script = timeline_script()
    csp = _CSP.format(script=csp_hash(script.encode()), plotly=bundle.csp_source)
    return _PAGE.format(
        csp=csp,
        title=html_text(page.title),
        style=read_asset("timeline.css"),
        subtitle=html_text(page.subtitle, 400),
        warnings=_list(page.warnings),
        notes=" · ".join(html_text(note, 400) for note in page.notes),
        plotly=bundle.base64_gzip,
        data=base64.b64encode(gzip.compress(data, compresslevel=6, mtime=0)).decode(),
        script=script,
    )


def _list(items: Sequence[str]) -> str:
    if not items:
        return ""
    entries = "".join(f"<li>{html_text(item, 400)}</li>" for item in items)
    return f'<ul class="warnings">{entries}</ul>'
