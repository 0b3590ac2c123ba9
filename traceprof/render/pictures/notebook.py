"""A figure that shows itself in notebooks: as wide as the page, offline, and nothing leaves it."""

from __future__ import annotations

import base64
import json
from html import escape
from importlib.resources import files
from typing import Any, Final

import plotly.graph_objects as go

from traceprof.render.page.document import Fragment, write_document
from traceprof.render.page.plotly_bundle import PLOTLY_CONFIG, plotly_bundle

__all__ = ["NotebookFigure"]

_CONFIG: Final = dict(PLOTLY_CONFIG) | {"responsive": True}
_FRAME: Final = (
    '<iframe title="{title}" sandbox="allow-scripts allow-downloads" srcdoc="{page}" '
    'style="width:100%;height:{height}px;border:0"></iframe>'
)
_STYLE: Final = (
    "body{{background:{paper}}}#figure{{width:100%;height:{height}px}}"
    "image{{image-rendering:pixelated}}"
)
_USUAL_HEIGHT_PX: Final = 450


class NotebookFigure(go.Figure):  # type: ignore[misc]  # plotly has no types
    """A plotly figure; every way of showing or writing it goes without plotly's upload button.

    A notebook shows it in a frame of its own that holds plotly.js (2 MB): it needs no network and
    no extension, and takes the width that there is.
    """

    _ipython_display_ = None
    """Not plotly's way of showing figures in notebooks, which knows nothing of the settings."""

    def _repr_html_(self) -> str:
        height = self.layout.height or _USUAL_HEIGHT_PX
        title = (self.layout.title.text or "") or "Timeline"
        page = escape(_page(self, height), quote=True)
        return _FRAME.format(title=escape(title, quote=True), page=page, height=height + 8)

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": "<timeline figure>"}

    def show(self, *args: Any, **options: Any) -> None:
        """Show it as plotly does, with nothing that leaves the machine."""
        super().show(*args, **({"config": _CONFIG} | options))

    def to_html(self, *args: Any, **options: Any) -> str:
        """Return it as plotly writes pages, with nothing that leaves the machine."""
        return str(super().to_html(*args, **({"config": _CONFIG} | options)))

    def write_html(self, *args: Any, **options: Any) -> None:
        """Write it as plotly writes pages, with nothing that leaves the machine."""
        super().write_html(*args, **({"config": _CONFIG} | options))


def _page(figure: go.Figure, height: int) -> str:
    """Return a page with the figure alone, which loads nothing."""
    bundle = plotly_bundle()
    # A notebook is JSON, in which each control character of a denser text would take six.
    packed = base64.b64encode(bundle.gzip).decode()
    told = figure.to_json().replace("<", "\\u003c")
    fragment = Fragment(
        html="",
        data=(
            f'<script type="text/plain" id="plotly">{packed}</script>\n'
            f'<script type="application/json" id="told">{told}</script>\n'
            f'<script type="application/json" id="config">{json.dumps(_CONFIG)}</script>'
        ),
        style=_STYLE.format(paper=figure.layout.paper_bgcolor or "#fff", height=height),
        script=(files(__package__) / "figure.js").read_text(encoding="utf-8"),
        csp_sources=(bundle.csp_source,),
    )
    return write_document("figure", '<div id="figure"></div>', (), fragment)
