"""The files that the library in C leaves, one a process: chunks with headers, see ``spool.c``."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from traceprof.recording.identities import left_in, numbers_in

LIBRARY: Final = Path(__file__).with_name("recorder.library")
"""What `scripts/build_hook.py` compiles of the C in this folder."""

FILES: Final = "cupti.*.spool"
_HEADER: Final = struct.Struct("<IHHIIQQQQQII")
_MAGIC: Final = 0x55435054
_STEPS, _NAMES, _RECORDS, _CLOCKS, _NOTE, _DEVICES, _END = range(1, 8)
_DEVICE: Final = struct.Struct("<6IQ16s96s")
_NAME: Final = struct.Struct("<QI")
_MOST_BODY_BYTES: Final = 1 << 32
_FEW_OF_GRAPHS: Final = 25_000_000
_A_WHILE_NS: Final = 1_000_000_000
_NEVER_NS: Final = 1 << 62
_STEADY_NS: Final = 1_000_000
_ASK_MORE: Final = "use --cupti-arg=memory=1024 to give CUPTI more buffers (MB)"


class _Chunk(NamedTuple):
    """The header of a chunk, and where its body begins in the file."""

    kind: int
    version: int
    n_bytes: int
    n_dropped: int
    first_ns: int
    last_ns: int
    n_lost: int
    n_of_graphs: int
    at: int


class Clocks(NamedTuple):
    """What clocks showed at one moment, in ns: CUPTI's, the wall clock, the monotonic one."""

    cupti_ns: int
    wall_ns: int
    monotonic_ns: int


class DeviceFacts(NamedTuple):
    """A device as a process numbers it."""

    device: int
    compute_capability: int
    sm_count: int
    memory_bytes: int
    memory_bytes_per_s: int
    uuid: str
    name: str


@dataclass(slots=True)
class DeviceActivity:
    """What CUPTI recorded of one process; the records stay in their file.

    Times are ns since 1970, None where there is nothing. ``steps`` is how many bytes the
    records of each kind are apart. ``n_dropped`` are records that CUPTI had no room for, ``n_lost``
    those of kernels and copies without times, ``unwritten_bytes`` what was not kept in the file,
    and ``is_cut`` that the process did not come to its end: it was killed, or still runs
    (``is_running``). ``program`` counts the programs that one process was, from 0: each numbers
    its calls anew.
    """

    pid: int
    path: Path
    version: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    record_bytes: int = 0
    n_dropped: int = 0
    n_lost: int = 0
    n_of_graphs: int = 0
    unwritten_bytes: int = 0
    is_cut: bool = True
    is_running: bool = False
    program: int = 0
    steps: dict[int, int] = field(default_factory=dict)
    clocks: list[Clocks] = field(default_factory=list)
    devices: list[DeviceFacts] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def calls(self) -> str:
        """Which calls were recorded: chosen, runtime, all, none."""
        return self.notes.get("calls", "none").partition(" ")[0]

    def losses(self) -> list[str]:
        """Return, in a sentence each, what the device did and the trace does not have."""
        of = f"of process {self.pid}"
        found = []
        if self.n_dropped:
            what = f"CUPTI dropped {self.n_dropped} records {of}, which are not in the trace"
            found.append(f"{what}; {_ASK_MORE}")
        if self.n_lost:
            what = f"traceprof ignored {self.n_lost} kernels and copies {of} without times"
            found.append(f"{what} (still running at the end, or lost by CUPTI)")
        if self.n_of_graphs > _FEW_OF_GRAPHS:
            found.append(
                f"{self.n_of_graphs} CUDA graph kernels {of} were recorded, but CUPTI may lose "
                "times above 25 million; use --cupti-arg=graphs=whole to record fewer"
            )
        if self.unwritten_bytes:
            what = f"{self.unwritten_bytes} bytes of records {of} were not kept"
            found.append(f"{what} (full disk, --max-size, or too few buffers); {_ASK_MORE}")
        if self._has_odd_times():
            found.append(f"CUPTI {self.version} reported times {of} that are outside the recording")
        if self.is_cut and not self.is_running:
            found.append(
                f"the last second of GPU activity {of} may be lost because it was killed or "
                "skipped its exit handlers (_exit)"
            )
        if self._was_set():
            found.append(f"times jump because the clock changed while process {self.pid} ran")
        return found

    def _has_odd_times(self) -> bool:
        """Return whether records are of another shape than is known: their times tell."""
        if not self.clocks or self.first_ns is None or self.last_ns is None:
            return False
        first, last = self.clocks[0].wall_ns, self.clocks[-1].wall_ns
        slack_ns = 60 * _A_WHILE_NS  # a process that was killed has no clocks of its end
        return self.first_ns < first - slack_ns or self.last_ns > last + slack_ns

    def _was_set(self) -> bool:
        since = [one.wall_ns - one.monotonic_ns for one in self.clocks]
        return any(abs(b - a) > _A_WHILE_NS for a, b in pairwise(since))


def read_activities(folder: Path) -> list[DeviceActivity]:
    """Return what each process has left, by pid; those that only say why they have nothing, too.

    A process that replaced its program (exec) has a file for each.
    """
    numbers = numbers_in(folder)
    found = sorted((numbers.of(identity), path) for identity, path in left_in(folder, FILES))
    activities = [survey(pid, path) for pid, path in found]
    for before, one in pairwise(activities):
        one.program = before.program + 1 if before.pid == one.pid else 0
    return activities


def survey(pid: int, path: Path) -> DeviceActivity:
    """Go from header to header, without looking at the records."""
    found = DeviceActivity(pid, path)
    with path.open("rb") as file:
        for chunk in _chunks(file):
            found.version = chunk.version
            found.n_dropped += chunk.n_dropped
            if chunk.kind == _RECORDS:
                _widen(found, chunk)
            elif chunk.kind != _NAMES:
                _tell(found, chunk.kind, _body(file, chunk))
    if found.clocks and found.first_ns is not None and found.last_ns is not None:
        offset_ns = found.clocks[0].wall_ns - found.clocks[0].cupti_ns
        found.first_ns, found.last_ns = found.first_ns + offset_ns, found.last_ns + offset_ns
    return found


def _tell(found: DeviceActivity, kind: int, body: bytes) -> None:
    """Take what a chunk tells that has no records; what is damaged tells nothing."""
    with suppress(struct.error):
        _TOLD[kind](found, body)


def buffers(activity: DeviceActivity) -> Iterator[tuple[bytes, Mapping[int, str]]]:
    """Yield each buffer, and what pointers to names mean in it: later they may mean others."""
    names: dict[int, str] = {}
    with activity.path.open("rb") as file:
        for chunk in _chunks(file):
            if chunk.kind == _NAMES:
                names = names | _names_in(_body(file, chunk))
            elif chunk.kind == _RECORDS:
                yield _body(file, chunk), names


def _chunks(file: BinaryIO) -> Iterator[_Chunk]:
    """Yield the chunks that are whole: a file may end anywhere."""
    end, at = os.fstat(file.fileno()).st_size, 0
    while at + _HEADER.size <= end:
        file.seek(at)
        header = _HEADER.unpack(file.read(_HEADER.size))
        magic, kind, size, version, _, n_bytes, _, *facts = header
        begin = at + size
        is_known = magic == _MAGIC and _STEPS <= kind <= _END and size >= _HEADER.size
        if not is_known or n_bytes > _MOST_BODY_BYTES or begin + n_bytes > end:
            return
        yield _Chunk._make((kind, version, n_bytes, *facts, begin))
        at = begin + n_bytes + (-n_bytes & 7)


def _body(file: BinaryIO, chunk: _Chunk) -> bytes:
    file.seek(chunk.at)
    return file.read(chunk.n_bytes)


def _widen(found: DeviceActivity, chunk: _Chunk) -> None:
    found.record_bytes += chunk.n_bytes
    found.n_lost += chunk.n_lost
    found.n_of_graphs += chunk.n_of_graphs
    if 0 < chunk.first_ns <= chunk.last_ns < _NEVER_NS:
        found.first_ns = min(chunk.first_ns, found.first_ns or chunk.first_ns)
        found.last_ns = max(chunk.last_ns, found.last_ns or 0)


def _names_in(body: bytes) -> dict[int, str]:
    names, at = {}, 0
    while at + _NAME.size <= len(body):
        pointer, length = _NAME.unpack_from(body, at)
        at += _NAME.size + length
        names[pointer] = body[at - length : at].decode("utf-8", "replace")
    return names


def _tell_steps(found: DeviceActivity, body: bytes) -> None:
    told = struct.iter_unpack("<II", body[: len(body) // 8 * 8])
    found.steps |= {kind: step for kind, step in told if step and step % 8 == 0}


def _tell_clocks(found: DeviceActivity, body: bytes) -> None:
    clocks = Clocks(*struct.unpack_from("<3Q", body))
    if max(clocks) < _NEVER_NS:
        found.clocks.append(clocks)
    if len(found.clocks) > 2 and _is_as_before(found.clocks):
        del found.clocks[-2]  # one a second: those between two that agree tell nothing


def _is_as_before(clocks: list[Clocks]) -> bool:
    offsets = [(one.wall_ns - one.cupti_ns, one.wall_ns - one.monotonic_ns) for one in clocks[-3:]]
    return all(max(column) - min(column) < _STEADY_NS for column in zip(*offsets, strict=True))


def _tell_notes(found: DeviceActivity, body: bytes) -> None:
    lines = body.decode("utf-8", "replace").splitlines()
    found.notes |= {name: value for name, _, value in (line.partition("=") for line in lines)}


def _tell_devices(found: DeviceActivity, body: bytes) -> None:
    found.devices = []
    for number, capability, count, khz, bits, _, size, uuid, name in _DEVICE.iter_unpack(body):
        plain = uuid.hex()
        parts = (plain[:8], plain[8:12], plain[12:16], plain[16:20], plain[20:])
        called = name.split(b"\0")[0].decode("utf-8", "replace")
        rate = 2 * khz * 1000 * bits // 8  # both edges of the clock, as nsys tells it
        found.devices.append(
            DeviceFacts(number, capability, count, size, rate, f"GPU-{'-'.join(parts)}", called)
        )


def _tell_end(found: DeviceActivity, body: bytes) -> None:
    found.is_cut = False
    _, _, thrown, unwritten = struct.unpack_from("<4Q", body)
    found.unwritten_bytes = thrown + unwritten


_TOLD: Final = {
    _STEPS: _tell_steps,
    _CLOCKS: _tell_clocks,
    _NOTE: _tell_notes,
    _DEVICES: _tell_devices,
    _END: _tell_end,
}
