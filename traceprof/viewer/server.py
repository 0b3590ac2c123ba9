"""Serve the viewer's page to one user on one machine, and refuse all other requests.

The page has timelines at the top and the tables of a window below. The server has no debugger, no
reloader, and no request log. `traceprof.viewer.routes` describes which requests are dangerous.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode

from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from flask import Flask, abort, current_app, redirect, request
from werkzeug.exceptions import HTTPException
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler
from werkzeug.wrappers import Response

from traceprof.errors import UsageError
from traceprof.render.escape import html_text, plain_text
from traceprof.units import format_count, format_duration
from traceprof.viewer.panes import Pane
from traceprof.viewer.routes import add_pairs, add_routes
from traceprof.viewer.tables import DEFAULT_TABLES, TABLE_NAMES, Differences, show_tables


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a running viewer and its secret token, which is new for each start."""

    host: str
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def authorities(self) -> frozenset[str]:
        """The accepted values of the Host header. Any other is a DNS name rebound to this host."""
        hosts = {self.host}
        if is_loopback(self.host):
            hosts |= {"127.0.0.1", "localhost", "::1"}
        return frozenset(_authority(host, self.port) for host in hosts)

    @property
    def cookie(self) -> str:
        """The name of the cookie. It contains the port, because cookies ignore ports."""
        return f"traceprof_{self.port}"

    @property
    def url(self) -> str:
        """The URL to open, with the token. Anybody who has the URL can read the trace."""
        return f"http://{_authority(self.host, self.port)}/?{urlencode({'token': self.token})}"


def bind(host: str, port: int, *, allow_remote: bool = False) -> tuple[socket.socket, Address]:
    """Return a listening socket and its address; port 0 selects a free port.

    Raises:
        UsageError: other machines can reach ``host`` and ``allow_remote`` is false, ``host`` is a
            wildcard address, or the port is in use.
    """
    if not is_loopback(host):
        if not allow_remote:
            raise UsageError(
                f"--host {host} is reachable from other machines. Add --allow-remote to allow it"
            )
        if not host or _has(host, "is_unspecified"):
            raise UsageError(
                f"--host {host!r} means all addresses. Use the address that browsers connect to"
            )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host} port {port}: {reason}") from error
    return listening, Address(host, listening.getsockname()[1])


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    return host == "localhost" or _has(host, "is_loopback")


def _has(host: str, flag: str) -> bool:
    """Return whether ``host`` is an IP address with the property ``flag``."""
    with suppress(ValueError):
        return bool(getattr(ipaddress.ip_address(host), flag))
    return False


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_MAX_REQUEST_BYTES: Final = 1 << 20
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
}
_CSP: Final = (
    "default-src 'none'; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; "
    "frame-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)


def protect(app: Flask, address: Address, script_hashes: Sequence[str]) -> None:
    """Make ``app`` answer only requests that have the token and come from the viewer's page.

    ``script_hashes`` are the CSP sources of the inline scripts in its pages.
    """
    policy = _CSP.format(hashes=" ".join(script_hashes))
    app.config["MAX_CONTENT_LENGTH"] = _MAX_REQUEST_BYTES

    def check() -> Response | None:
        _check_origin(address)
        given = request.args.get("token")
        if given is not None:
            return _set_cookie(address, given)
        if not _is_token(address, request.cookies.get(address.cookie, "")):
            abort(403, "missing or invalid token. Open the address that `traceprof view` printed")
        return None

    def add_headers(response: Response) -> Response:
        for name, value in _HEADERS.items():
            response.headers[name] = value
        response.headers.setdefault("Content-Security-Policy", policy)
        return response

    app.before_request(check)
    app.after_request(add_headers)
    app.register_error_handler(Exception, _refuse)


def _refuse(error: Exception) -> HTTPException | tuple[str, int]:
    """Answer a request that raised an error, and log one line to the user's terminal."""
    if isinstance(error, HTTPException):
        return error
    current_app.logger.error(
        "the viewer cannot answer a request (%s)",
        plain_text(f"{type(error).__name__}: {error}", 200),
        exc_info=error if os.environ.get("TRACEPROF_DEBUG") else None,
    )
    return "internal error; see the terminal that runs `traceprof view`", 500


def _check_origin(address: Address) -> None:
    """Abort a request to another host name or from another site."""
    if request.headers.get("Host", "").lower() not in address.authorities:
        abort(421, "unknown host name. Open the address that `traceprof view` printed")
    is_cross_site = request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
    origins = {None, *(f"http://{authority}" for authority in address.authorities)}
    if is_cross_site or request.headers.get("Origin") not in origins:
        abort(403, "cross-site requests are not allowed")


def _set_cookie(address: Address, given: str) -> Response:
    """Store the URL's token in a cookie and redirect, so that it is not in the browser history."""
    if not _is_token(address, given):
        abort(403, "invalid token. Open the address that this `traceprof view` printed")
    others = [(key, value) for key, value in request.args.items(multi=True) if key != "token"]
    response = redirect("/?" + urlencode(others) if others else "/", 303)
    response.set_cookie(address.cookie, address.token, httponly=True, samesite="Strict")
    return response


def _is_token(address: Address, given: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), address.token.encode())


_INDEX = """<!doctype html>
<html lang="en" data-theme="light">
<head>{%metas%}<title>{%title%}</title>{%css%}<link rel="stylesheet" href="/styles/page.css">
<script src="/theme.js"></script></head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>"""


def make_app(panes: Sequence[Pane]) -> Any:
    """Return the Dash app that shows ``panes``. The routes of the timelines are added later."""
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
    _add_callbacks(app, panes)
    return app


def _layout(panes: Sequence[Pane]) -> html.Main:
    timelines = [*map(_pane, range(len(panes)), panes), _pair_controls(len(panes))]
    return html.Main(
        [
            html.Div(timelines, className="timelines"),
            _answers(len(panes)),
            html.Div(id="remembered", hidden=True),
        ]
    )


def _pair_controls(n_panes: int) -> html.Div:
    """Return the choice of how timelines move together, and links to pairs on one axis.

    They are hidden for a single run.
    """
    choices = [
        {"label": "Synchronize views by step", "value": "steps"},
        {"label": "Synchronize views by time", "value": "time"},
        {"label": "Independent views", "value": "no"},
    ]
    marks: dict[str, Any] = {"data-beside": "", "target": "_blank"}
    links = [
        html.A(
            f"Compare timelines 1 and {place + 1} on one axis",
            href=f"/beside/{place}",
            **marks,
        )
        for place in range(1, n_panes)
    ]
    return html.Div(
        [dcc.RadioItems(choices, "steps", id="together"), html.Div(links, className="pairs")],
        style=None if n_panes > 1 else {"display": "none"},
    )


def _answers(n_panes: int) -> html.Div:
    """Return the part below the timelines: choice of window and tables, differences, tables."""
    controls = [
        html.Label("Window", htmlFor="window"),
        dcc.Input(
            id="window",
            debounce=True,
            placeholder="step:10..20, steady, all, or Shift + drag in the timeline",
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
    """Return the card of a run: title, facts, warnings, and the frame of its timeline."""
    about, length = pane.about, format_duration(pane.store.duration_ns)
    facts = [about.profiler, about.host, length, f"{format_count(about.n_events)} events"]
    warnings = [html.Li(plain_text(text, 400)) for text in about.warnings]
    return html.Div(
        [
            html.H1(plain_text(pane.title, 200)),
            html.Div(plain_text(" · ".join(filter(None, facts)), 400), className="sub"),
            html.Ul(warnings, className="warnings", hidden=not warnings),
            html.Iframe(
                src=f"/timeline/{place}", title=f"Timeline {place + 1}", className="timeline"
            ),
        ],
        className="card",
    )


def _add_callbacks(app: Any, panes: Sequence[Pane]) -> None:
    """Connect the inputs "window" and "names" with the tables, and with the URL of the page."""
    differences = Differences(panes)
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
        return show_tables(panes, window if isinstance(window, str) else None, chosen)

    inputs = Input("window", "value"), Input("names", "value")
    app.callback(Output("tables", "children"), *inputs)(show)

    def differ(window: Any) -> Any:
        return differences.show(window if isinstance(window, str) else None)

    app.callback(Output("differences", "children"), Input("window", "value"))(differ)


class _QuietHandler(WSGIRequestHandler):
    """Logs no requests, because their URLs contain the token."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing."""


class _Server(ThreadedWSGIServer):
    """Answers each request in a new thread, or in the main thread if no thread can be started."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # ulimit -u
            self.process_request_thread(request, client_address)


class AppServer:
    """Serves an app on a listening socket and its address, as returned by `bind`.

    ``script_hashes`` are the CSP sources of the inline scripts in its pages.
    """

    def __init__(
        self,
        flask: Flask,
        script_hashes: Sequence[str],
        listening: socket.socket,
        address: Address,
    ) -> None:
        self.address = address
        protect(flask, address, script_hashes)
        self._server = _Server(
            address.host, address.port, flask, handler=_QuietHandler, fd=listening.fileno()
        )
        listening.close()  # the server has duplicated the file descriptor

    def serve(self) -> None:
        """Answer requests until `stop` is called from another thread, or Ctrl-C."""
        self._server.serve_forever()

    def stop(self) -> None:
        """Make `serve` return."""
        self._server.shutdown()

    def close(self) -> None:
        """Close the socket, which frees the port."""
        self._server.server_close()


class ViewerServer(AppServer):
    """Serves ``panes`` on a listening socket and its address, as returned by `bind`."""

    def __init__(self, panes: Sequence[Pane], listening: socket.socket, address: Address) -> None:
        self.app = make_app(panes)
        flask: Any = self.app.server
        add_routes(flask, panes)
        add_pairs(flask, panes)
        super().__init__(flask, self.app.csp_hashes(), listening, address)
