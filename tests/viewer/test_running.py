"""The page of a running program: who gets it, what it contains, and that it loads nothing else."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from tests.recording.live.status_files import step, write_status
from traceprof.cli import app
from traceprof.errors import TraceError, UsageError
from traceprof.recording.live.remote import MAX_BYTES, RemoteRun, State, parse_address
from traceprof.recording.live.status import LiveRun, Node
from traceprof.recording.live.view import RunView, view_of
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


def test_watch_shows_a_run_of_another_machine(server: RunServer, tmp_path: Path) -> None:
    """It shows what it shows for the folder; a missing token is asked for."""
    url = server.address.url
    bare, texts = url.partition("?")[0], []
    for run, entered in ((url, ""), (bare, f"{server.address.token}\n"), (str(tmp_path), "")):
        done = CliRunner().invoke(app, ["watch", run, "--once"], input=entered)
        assert done.exit_code == 0
        head, _, rest = done.stdout.lstrip(" \n").partition("\n")
        assert "2 of 2 ranks running" in head
        assert server.address.token not in head
        texts.append(rest)
    assert texts[0] == texts[1] == texts[2]
    assert EVIL in texts[0]
    document = json.loads(CliRunner().invoke(app, ["watch", url, "--once", "--json"]).stdout)
    assert document["straggler"]["rank"] == 1


def test_only_the_token_opens_the_state(ask: Ask, server: RunServer) -> None:
    assert ask("/state.json", has_token=False)[0].status == 403
    with pytest.raises(TraceError, match="invalid token"):
        replace(parse_address(server.address.url), token="wrong").read()
    with pytest.raises(TraceError, match="no answer"):
        replace(parse_address(server.address.url), token="a\nb").read()


@contextmanager
def answering(answer: bytes) -> Iterator[RemoteRun]:
    """Yield a run on a server that sends ``answer`` once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield RemoteRun("127.0.0.1", listening.getsockname()[1], "token")
        thread.join()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n" + bytes(MAX_BYTES + 1), "status 200"),
        (b"HTTP/1.0 200 OK\r\n\r\n{}", "not a state"),
        (b'HTTP/1.0 200 OK\r\n\r\n{"view": {"ranks": [1]}, "nodes": []}', "not a state"),
        (b"HTTP/1.0 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n", "status 302"),
        (b"SSH-2.0-OpenSSH\r\n", "no answer"),
        (b"", "no answer"),
    ],
)
def test_the_answer_of_another_server_is_an_error(answer: bytes, reason: str) -> None:
    with answering(answer) as run, pytest.raises(TraceError, match=reason):
        run.read()


def test_clocks_of_two_machines_may_differ() -> None:
    """A node that was read 2 s before the state is 2 s old here."""
    state = State(RunView(time_s=1000), [Node("node1", 998)])
    before_s = time.time()
    with answering(b"HTTP/1.0 200 OK\r\n\r\n" + msgspec.json.encode(state)) as run:
        view, (node,) = run.read()
    assert before_s <= view.time_s <= time.time()
    assert view.time_s - node.time_s == pytest.approx(2)


def test_addresses_are_parsed() -> None:
    assert parse_address("http://[::1]:80/?token=a_b&x=1") == RemoteRun("::1", 80, "a_b")
    assert parse_address("http://node7:8080") == RemoteRun("node7", 8080, "")
    for address in ("http://node7/?token=a", "http://:80", "http://a:99999/", "http:x", "http://["):
        with pytest.raises(UsageError, match="expected an address"):
            parse_address(address)


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
