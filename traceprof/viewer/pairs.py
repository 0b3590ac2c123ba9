"""Two runs of a viewer on one page, step under step: the page that `traceprof timeline` writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from flask import Flask, Response, abort, request

from traceprof.errors import TraceprofError
from traceprof.render.escape import plain_text
from traceprof.render.timeline.beside import Side, render_beside
from traceprof.viewer.panes import Pane
from traceprof.viewer.tables import window_text

__all__ = ["add_pairs"]

MAX_ITEMS: Final = 300_000
_POLICY: Final = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]*)"')


def add_pairs(app: Flask, panes: Sequence[Pane]) -> None:
    """Add the pages that hold a run against the first one, within the window that is asked for."""

    @app.get("/beside/<int:place>")
    def beside(place: int) -> Response:
        if not 0 < place < len(panes):
            abort(404)
        window = window_text(request.args.get("window"))
        try:
            sides = [_side(n, panes[i], window) for n, i in (("A", 0), ("B", place))]
        except TraceprofError as error:
            abort(400, plain_text(error, 400))
        title = " vs ".join(side.title for side in sides)
        page = render_beside(sides, title=title, max_items=MAX_ITEMS)
        answer = Response(page, mimetype="text/html")
        # The page allows its own scripts by their hashes, and nothing else.
        found = _POLICY.search(page)
        assert found is not None
        answer.headers["Content-Security-Policy"] = f"{found[1]}; frame-ancestors 'none'"
        return answer


def _side(name: str, pane: Pane, window: str | None) -> Side:
    trace, span = pane.drawn(window)
    return Side(name, pane.title, trace, span)
