"""The page of the viewer, and its server for one user on one machine.

On the page are timelines above, the tables of a window below. The server has no debugger, no
reloader, no request log.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from traceprof.render.escape import html_text, plain_text
from traceprof.units import format_count, format_duration
from traceprof.viewer.guard import Address, protect
from traceprof.viewer.panes import Pane
from traceprof.viewer.routes import add_pairs, add_routes
from traceprof.viewer.tables import DEFAULT_TABLES, TABLE_NAMES, Differences, Tables

_INDEX = """<!doctype html>
<html lang="en" data-theme="light">
<head>{%metas%}<title>{%title%}</title>{%css%}<link rel="stylesheet" href="/styles/page.css"></head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>"""


def make_app(panes: Sequence[Pane]) -> Any:
    """Return the Dash app that shows ``panes``; its Flask server has no other routes yet."""
    title = " · ".join(pane.title for pane in panes)
    app: Any = Dash(
        "traceprof.viewer",
        assets_folder=str(files("traceprof.viewer") / "assets"),
        index_string=_INDEX,
        title=html_text(f"{title} · traceprof", 200),
        update_title="",
        serve_locally=True,
        compress=False,
    )
    app.layout = _layout(panes)
    _add_callbacks(app, Tables(panes), Differences(panes))
    return app


def _layout(panes: Sequence[Pane]) -> html.Main:
    return html.Main(
        [
            html.Div(
                [
                    *(_pane(place, pane) for place, pane in enumerate(panes)),
                    _together(len(panes)),
                ],
                className="timelines",
            ),
            _answers(len(panes)),
            html.Div(id="remembered", hidden=True),
        ]
    )


def _together(n_panes: int) -> html.Div:
    """Return how the timelines of several runs move, and where two lie step under step."""
    ways = [
        {"label": "Move together, step under step", "value": "steps"},
        {"label": "Move together by time", "value": "time"},
        {"label": "Move each alone", "value": "no"},
    ]
    marks: dict[str, Any] = {"data-beside": "", "target": "_blank"}
    links = [
        html.A(
            f"Timeline {place + 1} under 1 on one axis, with what differs",
            href=f"/beside/{place}",
            **marks,
        )
        for place in range(1, n_panes)
    ]
    return html.Div(
        [dcc.RadioItems(ways, "steps", id="together"), html.Div(links, className="pairs")],
        style=None if n_panes > 1 else {"display": "none"},
    )


def _answers(n_panes: int) -> html.Div:
    """Return what stands beside the timelines: the window, the choice of tables, the tables."""
    controls = [
        html.Label("Window", htmlFor="window"),
        dcc.Input(
            id="window",
            debounce=True,
            placeholder="Shift + drag above, or step:10..20, steady, all",
        ),
        html.Button("Default window", id="reset"),
        dcc.Dropdown(list(TABLE_NAMES), list(DEFAULT_TABLES), id="names", multi=True),
    ]
    return html.Div(
        [
            html.Div(controls, className="controls"),
            dcc.Loading(
                html.Div(id="differences", className="differences"),
                style=None if n_panes > 1 else {"display": "none"},
            ),
            html.Div(id="tables", className="tables"),
        ],
        className="card answers",
    )


def _pane(place: int, pane: Pane) -> html.Div:
    about, length = pane.about, format_duration(pane.store.duration_ns)
    words = [about.profiler, about.host, length, f"{format_count(about.n_events)} events"]
    warnings = [html.Li(plain_text(text, 400)) for text in about.warnings]
    return html.Div(
        [
            html.H1(plain_text(pane.title, 200)),
            html.Div(plain_text(" · ".join(word for word in words if word), 400), className="sub"),
            html.Ul(warnings, className="warnings", hidden=not warnings),
            html.Iframe(
                src=f"/timeline/{place}", title=f"Timeline {place + 1}", className="timeline"
            ),
        ],
        className="card",
    )


def _add_callbacks(app: Any, tables: Tables, differences: Differences) -> None:
    app.clientside_callback(
        ClientsideFunction("traceprof", "recall"),
        Output("window", "value"),
        Output("names", "value"),
        Input("reset", "n_clicks"),
    )
    app.clientside_callback(
        ClientsideFunction("traceprof", "remember"),
        Output("remembered", "title"),
        Input("window", "value"),
        Input("names", "value"),
        prevent_initial_call=True,
    )

    def show(window: Any, names: Any) -> Any:
        chosen = [name for name in names if isinstance(name, str)] if names else []
        return tables.show(window if isinstance(window, str) else None, chosen)

    app.callback(Output("tables", "children"), Input("window", "value"), Input("names", "value"))(
        show
    )

    def differ(window: Any) -> Any:
        return differences.show(window if isinstance(window, str) else None)

    app.callback(Output("differences", "children"), Input("window", "value"))(differ)


class _Quiet(WSGIRequestHandler):
    """Logs no requests: their addresses carry the token."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing."""


class ViewerServer:
    """Serves ``panes`` on a socket that listens already, at the address that names it."""

    def __init__(self, panes: Sequence[Pane], listening: socket.socket, address: Address) -> None:
        self.address = address
        self.app = make_app(panes)
        flask: Any = self.app.server
        add_routes(flask, panes)
        add_pairs(flask, panes)
        protect(flask, address, self.app.csp_hashes())
        self._server: BaseWSGIServer = make_server(
            address.host,
            address.port,
            flask,
            threaded=True,
            request_handler=_Quiet,
            fd=listening.fileno(),
        )
        listening.close()  # the server has a copy of it

    def serve(self) -> None:
        """Answer requests until `stop` is called from another thread, or Ctrl-C."""
        self._server.serve_forever()

    def stop(self) -> None:
        """End `serve`."""
        self._server.shutdown()

    def close(self) -> None:
        """Give the port back."""
        self._server.server_close()
