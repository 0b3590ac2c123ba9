"""Bytes through the TCP sockets of the recorded processes: the kernel's own counts, per process.

A byte that had to be sent again counts once: what the network carried is what its interfaces count.
Needs neither root nor a tool: the kernel answers over a netlink socket (sock_diag(7)), and
``/proc/<pid>/fd`` says whose sockets are whose.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from traceprof.recording.spool import recorded_pids

__all__ = ["open_sockets", "parse_sockets"]

_PERIOD_S: Final = 1.0
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_EXTENSION_INFO: Final = 1 << 1
_ALL_BUT_LISTENING: Final = 0xFFFFFFFF & ~(1 << 10)
_DONE, _ERROR, _INFO = 3, 2, 2
_MESSAGE_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE_HEADER: Final = struct.Struct("=HH")
_INODE_AT, _ATTRIBUTES_AT = 16 + 68, 16 + 72
_ACKED_AT, _SENT_AT = 120, 200  # in struct tcp_info

Reading = Iterator[tuple[str, str, float]]
Counts = dict[int, tuple[int, int]]
"""inode → (bytes sent, bytes received)."""


def open_sockets(folder: Path) -> tuple[float, Callable[[], Reading]] | None:
    """Return (period in seconds, read), None where the kernel does not tell."""
    try:
        _read_counts()
    except (OSError, AttributeError):
        return None
    totals: dict[int, Counts] = {}

    def read() -> Reading:
        counts = _read_counts()
        for pid in recorded_pids(folder):
            seen = totals.setdefault(pid, {})
            seen |= {inode: counts[inode] for inode in _inodes(pid) if inode in counts}
            if seen:  # sockets that were closed keep their last counts
                sent, received = map(sum, zip(*seen.values(), strict=True))
                yield f"process:{pid}", "tcp_bytes_sent", float(sent)
                yield f"process:{pid}", "tcp_bytes_received", float(received)

    return _PERIOD_S, read


def _inodes(pid: int) -> Iterator[int]:
    try:
        entries = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(target[len("socket:[") : -1])


def _read_counts() -> Counts:
    counts: Counts = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
            link.settimeout(1)
            request = struct.pack(
                "=BBBxI48x", family, socket.IPPROTO_TCP, _EXTENSION_INFO, _ALL_BUT_LISTENING
            )
            length = _MESSAGE_HEADER.size + len(request)
            header = _MESSAGE_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
            link.send(header + request)
            while parse_sockets(link.recv(1 << 18), counts):
                pass
    return counts


def parse_sockets(answer: bytes, counts: Counts) -> bool:
    """Add the sockets in one answer of the kernel to ``counts``; return whether more follow.

    Raises:
        OSError: the kernel answered with an error.
    """
    position = 0
    while position + _MESSAGE_HEADER.size <= len(answer):
        length, kind, *_ = _MESSAGE_HEADER.unpack_from(answer, position)
        if kind == _DONE:
            return False
        if kind == _ERROR or length < _MESSAGE_HEADER.size:
            raise OSError("the kernel does not tell about sockets")
        message = answer[position : position + length]
        (inode,) = struct.unpack_from("=I", message, _INODE_AT)
        info = _attribute(message, _INFO)
        if len(info) >= _ACKED_AT + 16:
            acked, received = struct.unpack_from("=QQ", info, _ACKED_AT)
            has_sent = len(info) >= _SENT_AT + 16
            sent, again = struct.unpack_from("=QQ", info, _SENT_AT) if has_sent else (acked, 0)
            counts[inode] = (sent - again, received)
        position += (length + 3) & ~3
    return True


def _attribute(message: bytes, wanted: int) -> bytes:
    position = _ATTRIBUTES_AT
    while position + _ATTRIBUTE_HEADER.size <= len(message):
        length, kind = _ATTRIBUTE_HEADER.unpack_from(message, position)
        if length < _ATTRIBUTE_HEADER.size:
            break
        if kind == wanted:
            return message[position + _ATTRIBUTE_HEADER.size : position + length]
        position += (length + 3) & ~3
    return b""
