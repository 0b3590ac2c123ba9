"""A viewer that runs in a thread for as long as a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.render.browser import OpenPage
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.session.run import run_of
from traceprof.viewer.panes import open_pane
from traceprof.viewer.server import ViewerServer, bind

Serve = Callable[..., ViewerServer]
View = Callable[..., OpenPage]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that serves traces by title; every server ends with the test."""
    with ExitStack() as stack:

        def start(**traces: Trace) -> ViewerServer:
            listening, address = bind("127.0.0.1", 0)
            panes = [open_pane(title, run_of(Ranks.of(trace))) for title, trace in traces.items()]
            server = ViewerServer(panes, listening, address)
            thread = threading.Thread(target=server.serve)
            stack.callback(server.close)
            stack.callback(thread.join)
            stack.callback(server.stop)
            thread.start()
            return server

        yield start


@pytest.fixture
def view(browser: Any, serve: Serve) -> Iterator[View]:
    """Return a function that serves traces and opens the viewer in a browser."""
    with ExitStack() as stack:

        def open_viewer(address: str = "", **traces: Trace) -> OpenPage:
            server = serve(**traces)
            context = browser.new_context(viewport={"width": 1400, "height": 1400})
            stack.callback(context.close)
            opened = OpenPage(context.new_page())
            opened.page.goto(server.address.url + address)
            for place in range(len(traces)):
                frame = opened.page.frame_locator(f"iframe[src='/timeline/{place}']")
                frame.locator("[data-ready]").wait_for(timeout=30_000)
            opened.page.locator(".tables section").first.wait_for()
            return opened

        yield open_viewer
