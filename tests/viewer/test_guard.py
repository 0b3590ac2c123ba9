"""Who gets an answer from the viewer, over a real socket."""

from __future__ import annotations

import contextlib
import http.client
import socket
import socketserver
from collections.abc import Callable

import pytest

from tests.builders import TraceBuilder
from tests.viewer.conftest import Serve
from traceprof.errors import UsageError
from traceprof.viewer.server import Address, ViewerServer, bind

Ask = Callable[..., http.client.HTTPResponse]
VIEW = "/data/0/view?start=0&end=10&width=100&groups=0"


@pytest.fixture
def server(serve: Serve) -> ViewerServer:
    return serve(small=TraceBuilder().kernel("k", 0, 10).build())


@pytest.fixture
def ask(server: ViewerServer) -> Ask:
    """Return a function that sends one request as our own page would."""

    def send(path: str, **headers: str) -> http.client.HTTPResponse:
        address = server.address
        connection = http.client.HTTPConnection(address.host, address.port, timeout=30)
        usual = {"Cookie": f"{address.cookie}={address.token}"}
        usual |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", path, headers=usual)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response

    return send


def test_our_own_page_is_answered_and_not_kept(ask: Ask) -> None:
    answer = ask(VIEW)
    assert answer.status == 200
    assert answer.getheader("Cache-Control") == "no-store"
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    policy = answer.getheader("Content-Security-Policy") or ""
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'self' 'sha256-" in policy


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil"])
def test_a_name_that_is_not_ours_is_misdirected(ask: Ask, host: str) -> None:
    for path in ("/", VIEW, "/_dash-layout", "/?token=x"):
        assert ask(path, Host=host).status == 421


def test_localhost_is_ours(ask: Ask, server: ViewerServer) -> None:
    assert ask(VIEW, Host=f"localhost:{server.address.port}").status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_are_refused(ask: Ask, site: str) -> None:
    assert ask(VIEW, Sec_Fetch_Site=site).status == 403
    assert ask(VIEW, Origin="http://evil.example").status == 403
    assert ask(VIEW, Origin="null").status == 403


def test_our_own_origin_is_answered(ask: Ask, server: ViewerServer) -> None:
    own = f"http://127.0.0.1:{server.address.port}"
    assert ask(VIEW, Origin=own, Sec_Fetch_Site="same-origin").status == 200


@pytest.mark.parametrize("path", ["/", VIEW, "/_dash-layout", "/plotly.js", "/timeline/0"])
def test_without_the_token_nothing_is_told(ask: Ask, server: ViewerServer, path: str) -> None:
    assert ask(path, Cookie="").status == 403
    assert ask(path, Cookie=f"{server.address.cookie}=é{server.address.token}").status == 403


def test_the_token_becomes_a_cookie_that_scripts_cannot_read(
    ask: Ask, server: ViewerServer
) -> None:
    answer = ask(f"/?token={server.address.token}&window=all", Cookie="")
    assert answer.status == 303
    assert answer.getheader("Location") == "/?window=all"
    cookie = answer.getheader("Set-Cookie") or ""
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert ask("/?token=wrong").status == 403
    assert ask(f"//evil.example/?token={server.address.token}").getheader("Location") == "/"


@pytest.mark.parametrize("number", ["", "nan", "inf", "1e3", "1.5", "9" * 19, "0x1", "١"])
def test_numbers_that_are_none_are_refused(ask: Ask, number: str) -> None:
    quoted = number.encode("utf-8").hex("%") if not number.isascii() else number
    quoted = f"%{quoted}" if not number.isascii() else quoted
    for path in (
        f"/data/0/view?start={quoted}&end=10&width=100",
        f"/data/0/view?start=0&end={quoted}&width=100",
        f"/data/0/view?start=0&end=10&width={quoted}",
        f"/data/0/find?text=k&direction=1&from={quoted}",
    ):
        assert ask(path).status == 400, path


def test_views_that_make_no_sense_are_refused(ask: Ask) -> None:
    assert ask("/data/0/view?start=10&end=10&width=100").status == 400
    assert ask("/data/0/view?start=0&end=10&width=0").status == 400
    assert ask("/data/0/view?start=0&end=10&width=1&groups=999,x,-1").status == 200
    assert ask("/data/1/view?start=0&end=10&width=1").status == 404
    assert ask("/modules/server.py").status == 404
    assert ask("/styles/nothing.css").status == 404


def test_only_this_machine_is_let_in_unless_asked() -> None:
    with pytest.raises(UsageError, match="--allow-remote"):
        bind("192.0.2.1", 0)
    with pytest.raises(UsageError, match="--allow-remote"):
        bind("node.example", 0)
    with pytest.raises(UsageError, match="Use the address"):
        bind("0.0.0.0", 0, allow_remote=True)
    assert Address("192.0.2.1", 80).authorities == {"192.0.2.1:80"}


def test_a_port_that_is_taken_is_a_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1 port {port}"):
            bind("127.0.0.1", port)


def test_every_start_has_a_secret_of_its_own() -> None:
    tokens = {Address("127.0.0.1", 1).token for _ in range(3)}
    assert len(tokens) == 3
    assert min(map(len, tokens)) >= 32
    assert "token" not in repr(Address("127.0.0.1", 1))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"5", b"{}", b'{"output": "a\x1b.b"}', b"[" * 99_999]
)
def test_what_is_no_callback_is_one_line_on_the_terminal(
    server: ViewerServer, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    assert _post(server, body) in (400, 500)
    assert all("\n" not in one.getMessage() and one.exc_info is None for one in caplog.records)
    assert "\x1b" not in caplog.text
    assert _post(server, body, cookie="") == 403


def test_big_posts_are_refused_unread(server: ViewerServer) -> None:
    # A body that is on its way while nobody reads it would break the connection.
    assert _post(server, b"", n_bytes=2 << 20) == 413


def _post(
    server: ViewerServer, body: bytes, cookie: str | None = None, n_bytes: int | None = None
) -> int:
    address = server.address
    connection = http.client.HTTPConnection(address.host, address.port, timeout=30)
    own = f"{address.cookie}={address.token}" if cookie is None else cookie
    headers = {"Cookie": own, "Content-Type": "application/json"}
    headers |= {} if n_bytes is None else {"Content-Length": str(n_bytes)}
    with contextlib.closing(connection):
        connection.request("POST", "/_dash-update-component", body, headers)
        return connection.getresponse().status


def test_requests_are_answered_one_after_the_other_where_no_thread_starts(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(socketserver.ThreadingMixIn, "process_request", refuse)
    assert [ask(VIEW).status for _ in range(2)] == [200, 200]
