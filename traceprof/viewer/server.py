"""A server for one user on one machine: no debugger, no reloader, no request log."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from traceprof.viewer.guard import protect
from traceprof.viewer.page import make_app
from traceprof.viewer.pairs import add_pairs
from traceprof.viewer.panes import Pane
from traceprof.viewer.routes import add_routes
from traceprof.viewer.site import Address

__all__ = ["ViewerServer"]


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
