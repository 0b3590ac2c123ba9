"""The page of a running program: the facts of `traceprof watch`, refreshed while it is open.

The page has one script and asks only this server, which reads the status files of the run. A page
that is not open costs nothing.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec
from flask import Flask, Response

from traceprof.recording.live.remote import STATE_PATH, State
from traceprof.recording.live.status import LiveRun, read_nodes
from traceprof.recording.live.view import RunView, view_of
from traceprof.render.escape import html_text
from traceprof.render.live_text import facts_of, head_of, rank_rows
from traceprof.render.page.document import page_style
from traceprof.viewer.server import Address, AppServer

_MAX_AGE_S: Final = 0.5
"""A state is read at most this often, however many pages are open."""
_STYLE: Final = """
main { max-width: 72rem; margin: 1rem auto; padding: 0 1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.3rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; } dd.problem { font-weight: 600; }
.is-lost main { opacity: 0.5; }
.is-lost main::before { content: "The server has stopped. The values are old."; }
td + td, th + th { text-align: right; }
"""
_PAGE: Final = """<!doctype html>
<html lang="en" data-theme="light">
<head><meta charset="utf-8">
<link rel="icon" href="data:,"><title>{title}</title><style>{style}</style>
<script type="module" src="/running.js"></script></head>
<body><main id="run">{body}</main></body>
</html>
"""


class RunPages:
    """Reads a run and returns its page as HTML. It may be called by several threads."""

    def __init__(self, folder: Path) -> None:
        self.title = folder.name or str(folder)
        self._run = LiveRun(folder)
        self._lock = threading.Lock()
        self._read_s = float("-inf")
        self._state = State(RunView(), [])

    def state(self) -> State:
        """Return the state of the run now."""
        with self._lock:
            if time.monotonic() - self._read_s >= _MAX_AGE_S:
                view = view_of(self._run.refresh(), self._run.n_damaged)
                self._state = State(view, read_nodes(self._run.live))
                self._read_s = time.monotonic()
            return self._state

    def body(self) -> str:
        """Return the facts of the run now, and the table of its ranks."""
        state = self.state()
        rows = rank_rows(state.view) if state.view.ranks else []
        facts = facts_of(state.view, state.nodes)
        return _body_of(head_of(state.view, self.title), facts, rows)

    def json(self) -> Response:
        """Return the state for `traceprof watch` on another machine."""
        return Response(msgspec.json.encode(self.state()), mimetype="application/json")

    def page(self) -> str:
        """Return the whole page."""
        title, style = html_text(f"{self.title} · traceprof", 200), page_style() + _STYLE
        return _PAGE.format(title=title, style=style, body=self.body())


def _body_of(head: str, facts: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    """Return the body of the page: a heading, the labeled facts, and the table of ranks."""
    items = [
        f"<dt>{html_text(label)}</dt>"
        f"<dd{' class=problem' if label == 'Problem' else ''}>{html_text(text)}</dd>"
        for label, text in facts
    ]
    lines = [
        "".join(f"<{cell}>{html_text(text)}</{cell}>" for text in row)
        for cell, row in zip(["th", *["td"] * len(rows)], rows, strict=False)
    ]
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<h1>{html_text(head)}</h1><dl>{''.join(items)}</dl><table>{table}</table>"


class RunServer(AppServer):
    """Serves the page of a running program on a listening socket, as returned by `bind`."""

    def __init__(self, folder: Path, listening: socket.socket, address: Address) -> None:
        pages = RunPages(folder)
        app = Flask("traceprof.viewer", static_folder=None)
        script = (files("traceprof.viewer") / "modules" / "running.mjs").read_text("utf-8")
        app.add_url_rule("/", "page", pages.page)
        app.add_url_rule("/state", "state", pages.body)
        app.add_url_rule(STATE_PATH, "json", pages.json)
        app.add_url_rule(
            "/running.js", "script", lambda: Response(script, mimetype="text/javascript")
        )
        super().__init__(app, (), listening, address)
