"""Read the state of a running program from the server of its page, on another machine.

`traceprof watch RUN --page` serves the page there. The answer is untrusted: its size and its types
are checked.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException
from typing import Final
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import structs

from traceprof.errors import TraceError, UsageError
from traceprof.recording.live.status import Node
from traceprof.recording.live.view import RunView

STATE_PATH: Final = "/state.json"
MAX_BYTES: Final = 16 << 20
_TIMEOUT_S: Final = 10.0


class State(msgspec.Struct, frozen=True):
    """The state of a run, and the use of its hosts."""

    view: RunView
    nodes: list[Node]


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """A running program whose page a server on ``host`` serves."""

    host: str
    port: int
    token: str = field(repr=False)

    def read(self) -> tuple[RunView, list[Node]]:
        """Return the state of the run now, and the use of its hosts.

        Raises:
            TraceError: there is no answer, it is not the state of a run, or the token is wrong.
        """
        name = f"{self.host}:{self.port}"
        cookie = {"Cookie": f"traceprof_{self.port}={self.token}"}
        try:
            with closing(HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)) as connection:
                connection.request("GET", STATE_PATH, headers=cookie)
                answer = connection.getresponse()
                data = answer.read(MAX_BYTES + 1)
        except (OSError, HTTPException, ValueError) as error:
            raise TraceError(f"{name}: no answer ({error}); is `watch --page` running?") from error
        if answer.status != 200 or len(data) > MAX_BYTES:
            reason = "invalid token" if answer.status == 403 else f"status {answer.status}"
            raise TraceError(f"{name}: {reason}; use the address that `watch --page` printed")
        try:
            state = msgspec.json.decode(data, type=State)
        except msgspec.MsgspecError as error:
            raise TraceError(f"{name}: not a state of a run of this version ({error})") from error
        now_s = time.time()
        skew_s = now_s - state.view.time_s  # of the clocks of the two machines
        nodes = [structs.replace(node, time_s=node.time_s + skew_s) for node in state.nodes]
        return replace(state.view, time_s=now_s), nodes


def parse_address(address: str) -> RemoteRun:
    """Parse the address that `watch --page` printed; the token may be missing ("").

    Raises:
        UsageError: the text is not such an address.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise UsageError("expected an address with a port, as `traceprof watch --page` prints it")
    return RemoteRun(host, port, parse_qs(parts.query).get("token", [""])[0])
