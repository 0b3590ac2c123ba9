"""The page of a running program: who gets it, what it contains, and that it loads nothing else."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.recording.live.status_files import step, write_status
from traceprof.recording.live.status import LiveRun
from traceprof.recording.live.view import view_of
from traceprof.render.live_text import facts_of, rank_rows
from traceprof.viewer.running import RunServer
from traceprof.viewer.server import bind

EVIL = "<script>alert(1)</script>"
Ask = Callable[..., tuple[http.client.HTTPResponse, str]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunServer]:
    """Yield the server of a run of two ranks."""
    for rank, work_ms in enumerate((20, 49)):
        steps = [step(50, wait=50 - work_ms, forward=work_ms, samples=4)] * 30
        write_status(tmp_path, rank, steps, world_size=2, metrics={EVIL: [0.5, 3]}, host=EVIL)
    server = RunServer(tmp_path, *bind("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server
    server.stop()
    thread.join()
    server.close()


@pytest.fixture
def ask(server: RunServer) -> Ask:
    """Return a function that asks the server for a path."""

    def send(path: str, *, has_token: bool = True) -> tuple[http.client.HTTPResponse, str]:
        address = server.address
        connection = http.client.HTTPConnection(address.host, address.port, timeout=30)
        cookie = {"Cookie": f"{address.cookie}={address.token}"} if has_token else {}
        connection.request("GET", path, headers=cookie)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response, text

    return send


def test_the_page_has_the_facts_of_the_terminal(ask: Ask, tmp_path: Path) -> None:
    _, page = ask("/")
    _, state = ask("/state")
    view = view_of(LiveRun(tmp_path).refresh())
    plain = state.replace("&lt;", "<").replace("&gt;", ">")
    for label, text in facts_of(view, []):
        assert f"<dt>{label}</dt>" in state
        assert f">{text}</dd>" in plain
    for row in rank_rows(view):
        for cell in row:
            assert f">{cell}</t" in plain
    assert "rank 1 is the straggler" in page


def test_texts_of_a_run_are_escaped(ask: Ask) -> None:
    for path in ("/", "/state"):
        assert EVIL not in ask(path)[1]


def test_the_page_asks_only_this_server(ask: Ask) -> None:
    response, page = ask("/")
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["data:,", "/running.js"]
    policy = response.getheader("Content-Security-Policy") or ""
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "http" not in ask("/running.js")[1]


def test_without_the_token_nothing_is_shown(ask: Ask) -> None:
    for path in ("/", "/state", "/running.js"):
        response, text = ask(path, has_token=False)
        assert response.status == 403
        assert "rank 1" not in text


def test_the_state_is_read_again(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceprof.viewer.running._MAX_AGE_S", 0.0)
    assert "step 29" in ask("/state")[1]
    for rank in range(2):
        write_status(tmp_path, rank, [step(50)] * 40, world_size=2)
    assert "step 39" in ask("/state")[1]


def test_the_page_refreshes_itself_and_stays_on_this_server(
    browser: Any, server: RunServer, tmp_path: Path
) -> None:
    page = browser.new_page(viewport={"width": 1000, "height": 500})
    asked: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: problems.append(message.text))
    try:
        page.goto(server.address.url)
        page.get_by_text("step 29").wait_for(timeout=30_000)
        for rank in range(2):
            write_status(tmp_path, rank, [step(50)] * 40, world_size=2)
        page.get_by_text("step 39").wait_for(timeout=30_000)
    finally:
        page.close()
    origin = server.address.url.partition("?")[0]
    assert all(url.startswith(origin) for url in asked)
    assert problems == []
