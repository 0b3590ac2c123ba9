"""The timeline as a part of a page."""

from __future__ import annotations

from typing import Final

from traceprof.render.page.binary_text import data_block
from traceprof.render.page.document import Fragment
from traceprof.render.page.plotly_bundle import plotly_bundle
from traceprof.render.timeline.script import read_asset, timeline_script

__all__ = ["timeline_fragment"]

_ROOT: Final = """<div id="traceprof-timeline"{mode}><p class="note">Unpacking the trace…</p></div>
<noscript><p>The timeline is drawn by JavaScript in this file; nothing is loaded.</p></noscript>"""


def timeline_fragment(packed: bytes, *, is_embedded: bool = False) -> Fragment:
    """Return the timeline of the encoded lanes ``packed`` (gzip).

    Embedded among other things it leaves the wheel and the keys to the page until the reader
    turns to it.
    """
    bundle = plotly_bundle()
    return Fragment(
        html=_ROOT.format(mode=" data-embedded" if is_embedded else ""),
        data="\n".join(
            (data_block("traceprof-plotly", bundle.gzip), data_block("traceprof-data", packed))
        ),
        style=read_asset("timeline.css"),
        script=timeline_script(),
        csp_sources=(bundle.csp_source,),
    )
