"""Read counters of the host: network interfaces, RDMA ports, recorded processes, and sockets.

Network interfaces do not count RDMA traffic. TCP traffic per process comes from the kernel's counts
per socket: a retransmitted byte counts once there, while the interfaces count everything that the
network carried. This requires neither root nor a tool: the kernel answers over a netlink socket
(sock_diag(7)), and ``/proc/<pid>/fd`` lists the sockets of each process.
"""

from __future__ import annotations

import importlib
import importlib.util
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from traceprof.recording.spool import recorded_pids

_NETWORK_PERIOD_S: Final = 0.1
_INFINIBAND: Final = Path("/sys/class/infiniband")
_RDMA_COUNTERS: Final = {"port_xmit_data": "bytes_sent", "port_rcv_data": "bytes_received"}
_RDMA_UNIT_BYTES: Final = 4  # these counters count 32-bit words

Reading = Iterator[tuple[str, str, float]]
"""(source, metric, value) of all current values of one read."""
Reads = list[tuple[float, Callable[[], Reading]]]
"""(period in seconds, function) pairs."""
_PROCESS_PERIOD_S: Final = 0.5
_PROFILERS: Final = ("nsys", "nvprof", "nsight")
_SOCKET_PERIOD_S: Final = 1.0
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_EXTENSION_INFO: Final = 1 << 1
_ALL_BUT_LISTENING: Final = 0xFFFFFFFF & ~(1 << 10)
_DONE, _ERROR, _INFO = 3, 2, 2
_MESSAGE_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE_HEADER: Final = struct.Struct("=HH")
_INODE_OFFSET, _ATTRIBUTES_OFFSET = 16 + 68, 16 + 72
_ACKED_OFFSET, _SENT_OFFSET = 120, 200  # in struct tcp_info
Counts = dict[int, tuple[int, int]]
"""inode → (bytes sent, bytes received)."""


def open_psutil(folder: Path) -> Reads:
    """Return the reads of network and recorded processes; [] if psutil is not installed."""
    if importlib.util.find_spec("psutil") is None:
        return []
    psutil = importlib.import_module("psutil")
    known: dict[int, Any] = {}

    def read_network() -> Reading:
        for name, counters in psutil.net_io_counters(pernic=True).items():
            yield f"nic:{name}", "bytes_sent", float(counters.bytes_sent)
            yield f"nic:{name}", "bytes_received", float(counters.bytes_recv)
        yield from read_rdma()

    def read_processes() -> Reading:
        for pid in recorded_pids(folder) or _program_pids(psutil):
            try:
                process = known.get(pid) or known.setdefault(pid, psutil.Process(pid))
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info()
            except psutil.Error:  # it has ended
                continue
            if not memory.rss:  # a zombie
                continue
            yield f"process:{pid}", "cpu_seconds", times.user + times.system
            yield f"process:{pid}", "memory_bytes", float(memory.rss)

    return [(_NETWORK_PERIOD_S, read_network), (_PROCESS_PERIOD_S, read_processes)]


def read_rdma(folder: Path = _INFINIBAND) -> Reading:
    """Yield the data counters of every RDMA port in ``folder``."""
    for port in sorted(folder.glob("*/ports/*")):
        for counter, metric in _RDMA_COUNTERS.items():
            path = port / "counters" / counter
            if path.exists():
                words = int(path.read_text())
                source = f"rdma:{port.parent.parent.name}:{port.name}"
                yield source, metric, float(words * _RDMA_UNIT_BYTES)


def _program_pids(psutil: Any) -> list[int]:
    """Return the descendants of this process, which are the program if no process has hooks."""
    try:
        started = psutil.Process().children(recursive=True)
        return [process.pid for process in started if not process.name().startswith(_PROFILERS)]
    except psutil.Error:  # one of them has ended
        return []


def open_sockets(folder: Path) -> Reads:
    """Return the read of sockets; [] if the kernel does not report sockets."""
    try:
        _read_counts()
    except (OSError, AttributeError):
        return []
    totals: dict[int, Counts] = {}

    def read() -> Reading:
        counts = _read_counts()
        for pid in recorded_pids(folder):
            counts_of_pid = totals.setdefault(pid, {})
            counts_of_pid |= {inode: counts[inode] for inode in _inodes(pid) if inode in counts}
            if counts_of_pid:  # closed sockets keep their last counts
                sent, received = map(sum, zip(*counts_of_pid.values(), strict=True))
                yield f"process:{pid}", "tcp_bytes_sent", float(sent)
                yield f"process:{pid}", "tcp_bytes_received", float(received)

    return [(_SOCKET_PERIOD_S, read)]


def _inodes(pid: int) -> Iterator[int]:
    """Yield the inodes of the sockets of a process."""
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
    """Return the byte counts of all TCP sockets that are not listening."""
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
            raise OSError("the kernel does not report sockets")
        message = answer[position : position + length]
        (inode,) = struct.unpack_from("=I", message, _INODE_OFFSET)
        info = _attribute(message, _INFO)
        if len(info) >= _ACKED_OFFSET + 16:
            acked, received = struct.unpack_from("=QQ", info, _ACKED_OFFSET)
            has_sent = len(info) >= _SENT_OFFSET + 16
            sent, retransmitted = (
                struct.unpack_from("=QQ", info, _SENT_OFFSET) if has_sent else (acked, 0)
            )
            counts[inode] = (sent - retransmitted, received)
        position += (length + 3) & ~3
    return True


def _attribute(message: bytes, wanted: int) -> bytes:
    """Return the content of a netlink attribute, b"" where the message does not have it."""
    position = _ATTRIBUTES_OFFSET
    while position + _ATTRIBUTE_HEADER.size <= len(message):
        length, kind = _ATTRIBUTE_HEADER.unpack_from(message, position)
        if length < _ATTRIBUTE_HEADER.size:
            break
        if kind == wanted:
            return message[position + _ATTRIBUTE_HEADER.size : position + length]
        position += (length + 3) & ~3
    return b""
