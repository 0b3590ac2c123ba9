"""Where a viewer listens, and who may talk to it."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from dataclasses import field
from urllib.parse import urlencode

from traceprof.errors import UsageError
from traceprof.values import dataclass

__all__ = ["Address", "bind"]


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
