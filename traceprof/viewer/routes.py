"""Define the viewer's HTTP routes: timelines, their data, search, and pairs of timelines.

`traceprof.viewer.server` protects these routes. Only the viewer's page gets an answer, and only if
the person who started the viewer opened it, because a trace contains what somebody trains. Any
page in the same browser can send requests to a local server. With a host name that resolves to
127.0.0.1 it could also read the answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any, Final

from flask import Flask, Response, abort, jsonify, request

from traceprof.errors import TraceprofError
from traceprof.model.timing import TimeWindow
from traceprof.render.escape import html_text, plain_text
from traceprof.render.page.document import page_style, plotly_bundle
from traceprof.render.timeline.beside import TimelineSide, render_side_by_side
from traceprof.render.timeline.render import module_order, read_asset, theme_script
from traceprof.viewer.panes import Pane
from traceprof.viewer.tables import window_text

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")


def whole_number(arguments: Mapping[str, str], name: str, least: int, most: int) -> int:
    """Return the argument ``name`` as an integer.

    The request fails with status 400 if the argument is no integer from ``least`` to ``most``.
    """
    text = arguments.get(name, "")
    if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
        abort(400, f"invalid {name} {text[:40]!r}: use an integer from {least} to {most}")
    return int(text)


_MODULES: Final = ("live.mjs", "live_timeline.mjs", "remote.mjs")
_MAX_WIDTH: Final = 20_000
_MAX_LIST_LENGTH: Final = 1_000
_SPARE_BYTES: Final = 100_000  # for the names of steps, which only the page has
_MAX_NUMBER: Final = 10**17
_BINARY: Final = "application/octet-stream"
_PLACE: Final = re.compile("[0-9]{1,8}")
_PAGE: Final = """<!doctype html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<title>{title}</title>
<script src="/theme.js"></script>
<link rel="stylesheet" href="/styles/timeline.css">
<script src="/plotly.js"></script>
<script type="module" src="/modules/live.mjs"></script>
</head>
<body><div id="traceprof-timeline" data-pane="{pane}"><p class="note">Loading…</p></div></body>
</html>
"""


def add_routes(app: Flask, panes: Sequence[Pane]) -> None:
    """Add the routes of the timelines of ``panes`` to ``app``."""
    _add_files(app)

    def pane_of(place: int) -> Pane:
        return panes[place] if place < len(panes) else abort(404)

    @app.get("/timeline/<int:place>")
    def timeline(place: int) -> str:
        return _PAGE.format(title=html_text(pane_of(place).title), pane=place)

    @app.get("/data/<int:place>/overview")
    def overview(place: int) -> Response:
        return Response(mimetype=_BINARY, response=pane_of(place).store.overview)

    @app.get("/data/<int:place>/view")
    def view(place: int) -> Response:
        window = TimeWindow(_instant("start"), _instant("end"))
        if not window.duration_ns:
            abort(400, "end must be after start")
        width = whole_number(request.args, "width", 1, _MAX_WIDTH)
        numbers = request.args.get("groups", "").split(",")
        groups = {int(text) for text in numbers if _PLACE.fullmatch(text)}
        return Response(mimetype=_BINARY, response=pane_of(place).store.view(window, width, groups))

    _add_questions(app, pane_of)


def _add_questions(app: Flask, pane_of: Callable[[int], Pane]) -> None:
    """Add the routes that answer questions about all events, also those that are not loaded."""

    @app.route("/data/<int:place>/find", methods=["GET", "POST"])
    def find(place: int) -> Response:
        return jsonify(_find(pane_of(place)))

    @app.get("/data/<int:place>/alike")
    def same_name(place: int) -> Response:
        row, channel = (whole_number(request.args, n, 0, _MAX_NUMBER) for n in ("row", "channel"))
        found = pane_of(place).same_name.of(row, channel, _instant("start"))
        if found is None:
            abort(400, "no event at this row, channel, and start time")
        return jsonify(found)


def _find(pane: Pane) -> dict[str, Any]:
    """Return the answer to a search: count, list, and next of the events that match.

    The body of the request contains one bit per name (see `Search.matching`). The arguments select
    the parts of the answer.
    """
    kinds = request.args.get("kinds", "")
    search = pane.search.within_kinds(kinds.split(",") if kinds else ())
    bits = request.get_data(cache=False)
    if len(bits) > search.n_names // 8 + _SPARE_BYTES:
        abort(400, "too many names in the request body")
    is_match = search.matching(bits)
    answer: dict[str, Any] = {"count": search.count(is_match), "next": None}
    if "direction" in request.args:
        direction = 1 if whole_number(request.args, "direction", -1, 1) > 0 else -1
        row = whole_number(request.args, "row", 0, _MAX_NUMBER) if "row" in request.args else None
        found = search.nearest(is_match, _instant("from"), direction, row)
        answer["next"] = None if found is None else asdict(found)
    if "before" in request.args:
        answer["before"] = search.count_before(is_match, _instant("before"))
    if "lit_from" in request.args:
        window = TimeWindow(_instant("lit_from"), _instant("lit_to"))
        width = whole_number(request.args, "width", 1, _MAX_WIDTH)
        answer["lit"] = search.lit(is_match, window, width) if window.duration_ns else {}
    if "limit" in request.args:
        limit = whole_number(request.args, "limit", 1, _MAX_LIST_LENGTH)
        events = search.listed(is_match, request.args.get("order", ""), limit)
        answer["list"] = [asdict(event) for event in events]
        answer |= {"ns": search.total_ns(is_match), "names": search.count_names(is_match)}
        if "launched" in request.args:
            answer["launched_in"] = search.launched_in(events)
    return answer


def _instant(name: str) -> int:
    """Return the argument ``name`` as a time in ns after the start of the trace."""
    return whole_number(request.args, name, -_MAX_NUMBER, _MAX_NUMBER)


def _add_files(app: Flask) -> None:
    """Add the routes of scripts and styles, which are read once."""
    folder = files("traceprof.viewer") / "modules"
    viewer_modules = {name: (folder / name).read_text(encoding="utf-8") for name in _MODULES}
    shared = {name: read_asset(name) for name in module_order("main.mjs")}
    modules = {**shared, **viewer_modules}
    styles = {"page.css": page_style(), "timeline.css": page_style() + read_asset("timeline.css")}
    plotly = plotly_bundle().gzip

    @app.get("/modules/<name>")
    def module(name: str) -> Response:
        return Response(modules.get(name) or abort(404), mimetype="text/javascript")

    @app.get("/styles/<name>")
    def stylesheet(name: str) -> Response:
        return Response(styles.get(name) or abort(404), mimetype="text/css")

    @app.get("/theme.js")
    def theme() -> Response:
        return Response(theme_script(), mimetype="text/javascript")

    @app.get("/plotly.js")
    def plotly_js() -> Response:
        headers = {"Content-Encoding": "gzip"}
        return Response(plotly, mimetype="text/javascript", headers=headers)


MAX_ITEMS: Final = 300_000
_POLICY: Final = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]*)"')


def add_pairs(app: Flask, panes: Sequence[Pane]) -> None:
    """Add the pages with the timelines of the first run and another run on one axis."""

    @app.get("/beside/<int:place>")
    def beside(place: int) -> Response:
        if not 0 < place < len(panes):
            abort(404)
        window = window_text(request.args.get("window"))
        try:
            sides = [
                TimelineSide(name, pane.title, *pane.drawn(window))
                for name, pane in (("A", panes[0]), ("B", panes[place]))
            ]
        except TraceprofError as error:
            abort(400, plain_text(error, 400))
        title = " vs ".join(side.title for side in sides)
        page = render_side_by_side(sides, title=title, max_items=MAX_ITEMS)
        answer = Response(page, mimetype="text/html")
        # The policy in the page allows only the page's scripts, by their hashes.
        policy = _POLICY.search(page)
        assert policy is not None
        answer.headers["Content-Security-Policy"] = f"{policy[1]}; frame-ancestors 'none'"
        return answer
