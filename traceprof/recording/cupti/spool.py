"""Read the files of the C library, one per process: chunks with headers (see ``spool.c``)."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from traceprof.recording.identities import files_by_process, numbers_in

LIBRARY: Final = Path(__file__).with_name("recorder.library")
"""The library that `scripts/build_hook.py` compiles from the C sources in this folder."""

FILES: Final = "cupti.*.spool"
_HEADER: Final = struct.Struct("<IHHIIQQQQQII")
_MAGIC: Final = 0x55435054
_STEPS, _NAMES, _RECORDS, _CLOCKS, _NOTE, _DEVICES, _END = range(1, 8)
_DEVICE: Final = struct.Struct("<6IQ16s96s")
_NAME: Final = struct.Struct("<QI")
_MAX_BODY_BYTES: Final = 1 << 32
_MAX_SAFE_GRAPH_KERNELS: Final = 25_000_000
_MAX_CLOCK_JUMP_NS: Final = 1_000_000_000
_MAX_TIME_NS: Final = 1 << 62
_MAX_OFFSET_CHANGE_NS: Final = 1_000_000
_MEMORY_ADVICE: Final = "use --cupti-arg=memory=1024 to give CUPTI more buffers (MB)"


class _Chunk(NamedTuple):
    """The header of a chunk, and the offset of its body in the file (``at``)."""

    kind: int
    version: int
    n_bytes: int
    n_dropped: int
    first_ns: int
    last_ns: int
    n_lost: int
    n_graph_kernels: int
    at: int


class Clocks(NamedTuple):
    """One moment on three clocks in ns: CUPTI's, the wall clock, and the monotonic clock."""

    cupti_ns: int
    wall_ns: int
    monotonic_ns: int


class DeviceFacts(NamedTuple):
    """A device, with its number in the process."""

    device: int
    compute_capability: int
    sm_count: int
    memory_bytes: int
    memory_bytes_per_s: int
    uuid: str
    name: str


@dataclass(slots=True)
class DeviceActivity:
    """A summary of the CUPTI records of one process. The records stay in their file.

    Times are ns since 1970, None without records. ``steps`` is the size in bytes of each kind of
    record. ``n_dropped`` is the number of records that CUPTI dropped for lack of memory. ``n_lost``
    is the number of kernels and copies without times. ``n_graph_kernels`` is the number of kernels
    of CUDA graphs. ``unwritten_bytes`` did not fit into the file. ``is_cut``: the process did not
    end normally; it was killed, or still runs (``is_running``). ``program`` counts the programs
    that the process executed (exec), from 0: each restarts the correlation ids.
    """

    pid: int
    path: Path
    version: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    record_bytes: int = 0
    n_dropped: int = 0
    n_lost: int = 0
    n_graph_kernels: int = 0
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
        """Which API calls were recorded: chosen, runtime, all, or none."""
        return self.notes.get("calls", "none").partition(" ")[0]

    def losses(self) -> list[str]:
        """Return one sentence for each kind of GPU activity that the trace lacks."""
        of = f"of process {self.pid}"
        found = []
        if self.n_dropped:
            what = f"CUPTI dropped {self.n_dropped} records {of}, which are not in the trace"
            found.append(f"{what}; {_MEMORY_ADVICE}")
        if self.n_lost:
            what = f"traceprof ignored {self.n_lost} kernels and copies {of} without times"
            found.append(f"{what} (still running at the end, or lost by CUPTI)")
        if self.n_graph_kernels > _MAX_SAFE_GRAPH_KERNELS:
            found.append(
                f"{self.n_graph_kernels} CUDA graph kernels {of} were recorded, but CUPTI may lose "
                "times above 25 million; use --cupti-arg=graphs=whole to record fewer"
            )
        if self.unwritten_bytes:
            what = f"{self.unwritten_bytes} bytes of records {of} were not kept"
            found.append(f"{what} (full disk, --max-size, or too few buffers); {_MEMORY_ADVICE}")
        if self._has_odd_times():
            found.append(f"CUPTI {self.version} reported times {of} that are outside the recording")
        if self.is_cut and not self.is_running:
            found.append(
                f"the last second of GPU activity {of} may be lost because it was killed or "
                "skipped its exit handlers (_exit)"
            )
        if self._has_clock_jump():
            found.append(f"times jump because the clock changed while process {self.pid} ran")
        return found

    def _has_odd_times(self) -> bool:
        """Return whether times are outside the recording: then the record layout is unknown."""
        if not self.clocks or self.first_ns is None or self.last_ns is None:
            return False
        first, last = self.clocks[0].wall_ns, self.clocks[-1].wall_ns
        slack_ns = 60 * _MAX_CLOCK_JUMP_NS  # a killed process has no clock reading at its end
        return self.first_ns < first - slack_ns or self.last_ns > last + slack_ns

    def _has_clock_jump(self) -> bool:
        """Return whether the wall clock jumped by more than 1 s during the recording."""
        offsets_ns = [clock.wall_ns - clock.monotonic_ns for clock in self.clocks]
        return any(abs(b - a) > _MAX_CLOCK_JUMP_NS for a, b in pairwise(offsets_ns))


def read_activities(folder: Path) -> list[DeviceActivity]:
    """Return the file summary of each process, sorted by pid.

    Files without records are included: they contain the reason. A process that replaced its program
    (exec) has one file per program.
    """
    numbers = numbers_in(folder)
    found = sorted(
        (numbers.of(identity), path) for identity, path in files_by_process(folder, FILES)
    )
    activities = [survey(pid, path) for pid, path in found]
    for previous, activity in pairwise(activities):
        activity.program = previous.program + 1 if previous.pid == activity.pid else 0
    return activities


def survey(pid: int, path: Path) -> DeviceActivity:
    """Summarize a file from its chunk headers, without reading the records."""
    activity = DeviceActivity(pid, path)
    with path.open("rb") as file:
        for chunk in _chunks(file):
            activity.version = chunk.version
            activity.n_dropped += chunk.n_dropped
            if chunk.kind == _RECORDS:
                _add_buffer(activity, chunk)
            elif chunk.kind != _NAMES:
                _parse_chunk(activity, chunk.kind, _body(file, chunk))
    if activity.clocks and activity.first_ns is not None and activity.last_ns is not None:
        offset_ns = activity.clocks[0].wall_ns - activity.clocks[0].cupti_ns
        activity.first_ns, activity.last_ns = (
            activity.first_ns + offset_ns,
            activity.last_ns + offset_ns,
        )
    return activity


def _parse_chunk(activity: DeviceActivity, kind: int, body: bytes) -> None:
    """Add a chunk without records to ``activity``; ignore a damaged one."""
    with suppress(struct.error):
        _PARSERS[kind](activity, body)


def buffers(activity: DeviceActivity) -> Iterator[tuple[bytes, Mapping[int, str]]]:
    """Yield each buffer with its kernel names (pointer → name). A pointer may be reused later."""
    names: dict[int, str] = {}
    with activity.path.open("rb") as file:
        for chunk in _chunks(file):
            if chunk.kind == _NAMES:
                names = names | _names_in(_body(file, chunk))
            elif chunk.kind == _RECORDS:
                yield _body(file, chunk), names


def _chunks(file: BinaryIO) -> Iterator[_Chunk]:
    """Yield the complete chunks of a file. The file may end anywhere."""
    end, at = os.fstat(file.fileno()).st_size, 0
    while at + _HEADER.size <= end:
        file.seek(at)
        magic, kind, size, version, _, n_bytes, _, *facts = _HEADER.unpack(file.read(_HEADER.size))
        begin = at + size
        is_known = magic == _MAGIC and _STEPS <= kind <= _END and size >= _HEADER.size
        if not is_known or n_bytes > _MAX_BODY_BYTES or begin + n_bytes > end:
            return
        yield _Chunk._make((kind, version, n_bytes, *facts, begin))
        at = begin + n_bytes + (-n_bytes & 7)


def _body(file: BinaryIO, chunk: _Chunk) -> bytes:
    file.seek(chunk.at)
    return file.read(chunk.n_bytes)


def _add_buffer(activity: DeviceActivity, chunk: _Chunk) -> None:
    """Add size, losses, and time range of a buffer of records to ``activity``."""
    activity.record_bytes += chunk.n_bytes
    activity.n_lost += chunk.n_lost
    activity.n_graph_kernels += chunk.n_graph_kernels
    if 0 < chunk.first_ns <= chunk.last_ns < _MAX_TIME_NS:
        activity.first_ns = min(chunk.first_ns, activity.first_ns or chunk.first_ns)
        activity.last_ns = max(chunk.last_ns, activity.last_ns or 0)


def _names_in(body: bytes) -> dict[int, str]:
    """Return pointer → kernel name of a chunk of names."""
    names, at = {}, 0
    while at + _NAME.size <= len(body):
        pointer, length = _NAME.unpack_from(body, at)
        at += _NAME.size + length
        names[pointer] = body[at - length : at].decode("utf-8", "replace")
    return names


def _parse_steps(activity: DeviceActivity, body: bytes) -> None:
    pairs = struct.iter_unpack("<II", body[: len(body) // 8 * 8])
    activity.steps |= {kind: step for kind, step in pairs if step and step % 8 == 0}


def _parse_clocks(activity: DeviceActivity, body: bytes) -> None:
    clocks = Clocks(*struct.unpack_from("<3Q", body))
    if max(clocks) < _MAX_TIME_NS:
        activity.clocks.append(clocks)
    if len(activity.clocks) > 2 and _have_same_offsets(activity.clocks):
        del activity.clocks[-2]  # drop a reading (one per second) between two that agree with it


def _have_same_offsets(clocks: list[Clocks]) -> bool:
    """Return whether the last three clock readings have the same offsets, within 1 ms."""
    offsets = [
        (clock.wall_ns - clock.cupti_ns, clock.wall_ns - clock.monotonic_ns)
        for clock in clocks[-3:]
    ]
    return all(
        max(column) - min(column) < _MAX_OFFSET_CHANGE_NS for column in zip(*offsets, strict=True)
    )


def _parse_notes(activity: DeviceActivity, body: bytes) -> None:
    lines = body.decode("utf-8", "replace").splitlines()
    activity.notes |= {name: value for name, _, value in (line.partition("=") for line in lines)}


def _parse_devices(activity: DeviceActivity, body: bytes) -> None:
    activity.devices = []
    for number, capability, count, khz, bits, _, size, uuid, name in _DEVICE.iter_unpack(body):
        digits = uuid.hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        text = name.split(b"\0")[0].decode("utf-8", "replace")
        rate = 2 * khz * 1000 * bits // 8  # both edges of the clock, like nsys
        activity.devices.append(
            DeviceFacts(number, capability, count, size, rate, f"GPU-{'-'.join(parts)}", text)
        )


def _parse_end(activity: DeviceActivity, body: bytes) -> None:
    activity.is_cut = False
    _, _, discarded, unwritten = struct.unpack_from("<4Q", body)
    activity.unwritten_bytes = discarded + unwritten


_PARSERS: Final = {
    _STEPS: _parse_steps,
    _CLOCKS: _parse_clocks,
    _NOTE: _parse_notes,
    _DEVICES: _parse_devices,
    _END: _parse_end,
}
