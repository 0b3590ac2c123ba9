"""Where a viewer listens, and who gets an answer.

That is our own page, opened by the person who started the viewer, and nobody else. A trace holds
what somebody trains. Any page in the same browser can send requests to a local server, and a name
of its own that resolves to 127.0.0.1 lets it read the answers.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

from flask import Flask, abort, current_app, redirect, request
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response

from traceprof.errors import UsageError
from traceprof.render.escape import plain_text


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a running viewer and the secret of this start."""

    host: str
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def authorities(self) -> frozenset[str]:
        """The Host headers that are ours: any other is a name that was rebound to us."""
        hosts = {self.host}
        if is_loopback(self.host):
            hosts |= {"127.0.0.1", "localhost", "::1"}
        return frozenset(_authority(host, self.port) for host in hosts)

    @property
    def cookie(self) -> str:
        """The name of the cookie; cookies do not know ports, so the name does."""
        return f"traceprof_{self.port}"

    @property
    def url(self) -> str:
        """The address to open, with the token: whoever has it may read the trace."""
        return f"http://{_authority(self.host, self.port)}/?{urlencode({'token': self.token})}"


def bind(host: str, port: int, *, allow_remote: bool = False) -> tuple[socket.socket, Address]:
    """Return a listening socket and its address; port 0 takes a free one.

    Raises:
        UsageError: ``host`` is not this machine alone and ``allow_remote`` is not given, it is
            a wildcard, or the port is taken.
    """
    if not is_loopback(host):
        if not allow_remote:
            raise UsageError(
                f"--host {host} is open to other machines: add --allow-remote if that is meant"
            )
        if _is_wildcard(host):
            raise UsageError(f"--host {host} is every address: name the one that readers will use")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host} port {port}: {reason}") from error
    return listening, Address(host, listening.getsockname()[1])


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == ""


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_LARGEST_REQUEST: Final = 1 << 20
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
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
    """Let ``app`` answer only requests that carry the token and come from its own page.

    ``script_hashes`` name the inline scripts of its pages (CSP sources).
    """
    policy = _CSP.format(hashes=" ".join(script_hashes))
    app.config["MAX_CONTENT_LENGTH"] = _LARGEST_REQUEST

    def check() -> Response | None:
        _check_origin(address)
        given = request.args.get("token")
        if given is not None:
            return _exchange(address, given)
        if not _is_token(address, request.cookies.get(address.cookie, "")):
            abort(403, "open the address that `traceprof view` printed: it carries a token")
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
    """Answer a request that makes no sense, with one line on the user's terminal."""
    if isinstance(error, HTTPException):
        return error
    current_app.logger.error(
        "a request to the viewer was not answered (%s)",
        plain_text(f"{type(error).__name__}: {error}", 200),
        exc_info=error if os.environ.get("TRACEPROF_DEBUG") else None,
    )
    return "this was not understood", 500


def _check_origin(address: Address) -> None:
    if request.headers.get("Host", "").lower() not in address.authorities:
        abort(421, "this viewer answers only under its own address")
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        abort(403, "another site asked for this")
    origin = request.headers.get("Origin")
    if origin is not None and origin not in {f"http://{own}" for own in address.authorities}:
        abort(403, "another site asked for this")


def _exchange(address: Address, given: str) -> Response:
    """Turn the token of the address into a cookie, so that it does not stay in the history."""
    if not _is_token(address, given):
        abort(403, "the token is not that of this viewer: it changes with every start")
    rest = [(key, value) for key, value in request.args.items(multi=True) if key != "token"]
    response = redirect("/?" + urlencode(rest) if rest else "/", 303)
    response.set_cookie(address.cookie, address.token, httponly=True, samesite="Strict")
    return response


def _is_token(address: Address, given: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), address.token.encode())


def whole_number(arguments: Mapping[str, str], name: str, least: int, most: int) -> int:
    """Return the argument ``name``; anything but a whole number in the range ends in 400."""
    text = arguments.get(name, "")
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        abort(400, f"{name} must be a whole number from {least} to {most}")
    return int(text)
