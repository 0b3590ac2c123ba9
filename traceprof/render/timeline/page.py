"""The timeline as a part of a page."""

from __future__ import annotations

import base64
import gzip
from typing import Final

from traceprof.render.page.document import Fragment
from traceprof.render.page.plotly_bundle import plotly_bundle
from traceprof.render.timeline.script import read_asset, timeline_script

__all__ = ["timeline_fragment"]

_ROOT: Final = """<div id="traceprof-timeline"{mode}><p class="note">Unpacking the trace…</p></div>
<noscript><p>The timeline is drawn by JavaScript in this file; nothing is loaded.</p></noscript>"""


def timeline_fragment(data: bytes, *, is_embedded: bool = False) -> Fragment:
    """Return the timeline of the encoded lanes ``data``.

    Embedded among other things it leaves the wheel and the keys to the page until the reader
    turns to it.
    """
    bundle = plotly_bundle()
    packed = base64.b64encode(gzip.compress(data, compresslevel=6, mtime=0)).decode()
    return Fragment(
        html=_ROOT.format(mode=" data-embedded" if is_embedded else ""),
        data=(
            f'<script type="text/plain" id="traceprof-plotly">{bundle.base64_gzip}</script>\n'
            f'<script type="text/plain" id="traceprof-data">{packed}</script>'
        ),
        style=read_asset("timeline.css"),
        script=timeline_script(),
        csp_sources=(bundle.csp_source,),
    )
