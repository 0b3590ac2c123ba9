"""Read the live status files of the processes of a run (see ``live`` in the runtime).

The files are untrusted: their sizes, numbers, and texts are checked, and a damaged file is skipped.
A refresh reads the header of each file and the steps that are new since the last refresh.
"""

from __future__ import annotations

import struct
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
import numpy.typing as npt

from traceprof.errors import TraceError
from traceprof.recording.identities import ProcessIdentity, parse_identity
from traceprof.recording.orphans import is_running

LIVE: Final = "live"
"""The name of the folder of the live status in the folder of a run."""
MAGIC: Final = b"TPLIVE02"
HEADER_BYTES, N_STEPS = 8192, 1024
STEP_FIELDS: Final = (
    *("index", "number", "end_ns", "duration_ns", "data_ns", "forward_ns", "backward_ns"),
    *("optimizer_ns", "wait_ns", "samples", "calls", "evaluation_ns"),
)
PERIODS: Final = ((60, 10_080), (3600, 2208), (86_400, 1100))
"""Periods whose steps are summed: seconds, and number of records."""
PERIOD_FIELDS: Final = (
    *("number", "steps", "sum_ns", "min_ns", "max_ns", "wait_ns", "data_ns", "samples"),
    "typical_sum_ns",
)
N_KEPT: Final = 256
"""The number of steps that a reader keeps of each process."""

_HEADER: Final = struct.Struct("<8sII")
_STEP_BYTES, _PERIOD_BYTES = 8 * len(STEP_FIELDS), 8 * len(PERIOD_FIELDS)
_PERIODS_AT: Final = HEADER_BYTES + N_STEPS * _STEP_BYTES
_MAX_FILES: Final = 20_000
_MAX_NODE_BYTES: Final = 1 << 20
_LOST_NS: Final = 5_000_000_000

Rows = npt.NDArray[np.int64]


class Header(msgspec.Struct, frozen=True):
    """The header of a status file. Times are ns on the monotonic clock of the machine ``boot``.

    ``started_ns`` is ns since 1970, like ``offset_ns`` plus a monotonic time. ``pending`` is the
    oldest incomplete collective: (operator, start, number of incomplete calls).
    ``tokens``: the number of last steps, and their tokens with padding (0: unknown).
    ``is_wait_unknown``: the time in which the process waits for other ranks is not measured.
    ``is_always``: of ``record --always``, whose hooks measure only steps and data loading.
    ``core_wait_ns``: for how long the training thread has waited for a core since it began.
    ``progress``: "run" or "epoch" → (done, total, done at an earlier time, that time, source).
    ``capture`` is the state of the last capture. ``metrics``: name → (value, step); the value is
    None if it is not finite.
    ``ended`` is "", "finished", or "failed".
    """

    version: int
    pid: int
    host: str
    boot: str
    started_ns: int
    offset_ns: int
    now_ns: int
    n_steps: int
    last_step_ns: int
    n_events: int = 0
    n_samples: float = 0
    tokens: tuple[int, int] = (0, 0)
    rank: int | None = None
    world_size: int | None = None
    restart_count: str | None = None
    phase: str = ""
    phase_since_ns: int = 0
    pending: tuple[str, int, int] | None = None
    is_wait_unknown: bool = False
    is_always: bool = False
    cpu_ns: int = 0
    core_wait_ns: int | None = None
    memory_bytes: int | None = None
    device_bytes: tuple[int, int] | None = None
    metrics: dict[str, tuple[float | None, int]] = {}
    progress: dict[str, tuple[float, float, float, int, str]] = {}
    capture: dict[str, Any] = {}
    n_errors: int = 0
    ended: str = ""
    stack: tuple[str, ...] = ()


class Node(msgspec.Struct, frozen=True):
    """The use of one host, from its launcher. ``gpus``: name → metric → value."""

    host: str
    time_s: float
    cpu_ratio: float | None = None
    n_cpus: int | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    gpus: dict[str, dict[str, float]] = {}


_decode_node: Final = msgspec.json.Decoder(Node).decode
_decode_header: Final = msgspec.json.Decoder(Header).decode


@dataclass(slots=True)
class Process:
    """One process of a run: its header, its last steps, and what changed since the last refresh.

    ``steps`` are the last `N_KEPT` steps at most, with the columns `STEP_FIELDS`. ``cpu_ratio`` is
    the number of CPU cores that the process used between two headers; None where it is unknown.
    ``is_active``: the process did work between two headers, although it may not have ended a step.
    """

    path: Path
    identity: ProcessIdentity
    header: Header
    steps: Rows = field(default_factory=lambda: np.empty((0, len(STEP_FIELDS)), np.int64))
    cpu_ratio: float | None = None
    is_active: bool = False
    _seen_s: float = 0.0

    def column(self, name: str) -> Rows:
        """Return a column of the steps."""
        column: Rows = self.steps[:, STEP_FIELDS.index(name)]
        return column

    @property
    def silence_ns(self) -> int:
        """The time since the process wrote its status, in ns.

        On another machine, it counts from the moment when this reader saw the status change.
        """
        if self.header.boot and self.header.boot == current_boot():
            return max(0, time.monotonic_ns() - self.header.now_ns)
        return int((time.monotonic() - self._seen_s) * 1e9)

    @property
    def since_step_ns(self) -> int:
        """The time since the last step ended (or since the process began), in ns."""
        return max(0, self.header.now_ns - self.header.last_step_ns) + self.silence_ns

    @property
    def state(self) -> str:
        """Return "running", "finished", "failed", "killed", or "lost" (no sign of life)."""
        if self.header.ended:
            return self.header.ended
        # The processes of another container of this machine cannot be seen.
        is_here = self.identity.is_local and self.identity.start > 0
        is_here = is_here and bool(self.header.boot) and self.header.boot == current_boot()
        if is_here and not is_running(self.identity):
            return "killed"
        return "lost" if self.silence_ns > _LOST_NS else "running"

    def update(self) -> None:
        """Read the file again.

        Raises:
            OSError: the file cannot be read.
            TraceError: the file is damaged.
        """
        before = self.header
        with self.path.open("rb") as file:
            header = read_header(file.read(HEADER_BYTES), self.path)
            n_old = int(self.steps[-1, 0]) + 1 if len(self.steps) else 0
            # The last step may have been written again, with the waiting of its last collective.
            first = max(n_old - 1, header.n_steps - N_KEPT, 0)
            new = [_read_steps(file, *piece) for piece in _pieces(first, header.n_steps)]
        old = self.steps[self.steps[:, 0] < first]
        self.steps = np.concatenate([old, *new])[-N_KEPT:]
        if header.now_ns != before.now_ns or not self._seen_s:
            self._seen_s = time.monotonic()
            elapsed_ns = header.now_ns - before.now_ns
            self.is_active = header.n_events != before.n_events
            self.cpu_ratio = (header.cpu_ns - before.cpu_ns) / elapsed_ns if elapsed_ns else None
        self.header = header


def _pieces(first: int, end: int) -> list[tuple[int, int]]:
    """Return (first step, number of steps) of the parts of the ring: two parts if it wraps."""
    pieces = []
    while first < end:
        size = min(end - first, N_STEPS - first % N_STEPS)
        pieces.append((first, size))
        first += size
    return pieces


def _read_steps(file: BinaryIO, first: int, size: int) -> Rows:
    """Return the records of ``size`` steps; fewer if some are missing or being overwritten."""
    file.seek(HEADER_BYTES + first % N_STEPS * _STEP_BYTES)
    data = file.read(size * _STEP_BYTES)
    data = data[: len(data) // _STEP_BYTES * _STEP_BYTES]
    rows: Rows = np.frombuffer(data, "<i8").reshape(-1, len(STEP_FIELDS)).astype(np.int64)
    is_valid = (rows[:, 0] == np.arange(first, first + len(rows))) & (rows[:, 3] >= 0)
    valid: Rows = rows[is_valid]
    return valid


def read_header(data: bytes, path: Path) -> Header:
    """Return the header in the first `HEADER_BYTES` of a status file.

    Raises:
        TraceError: the data is damaged, or is being written.
    """
    if len(data) >= _HEADER.size:
        magic, length, crc = _HEADER.unpack_from(data)
        text = data[_HEADER.size : _HEADER.size + length]
        if magic == MAGIC and len(text) == length and zlib.crc32(text) == crc:
            with suppress(ValueError):
                return _decode_header(text)
    raise TraceError(f"{path}: not a live status, or damaged")


def read_periods(path: Path, seconds: int = 60) -> Rows:
    """Return the sums of each minute (or hour, day) of a status file, oldest first.

    The columns are `PERIOD_FIELDS`. Records that are damaged are left out.

    Raises:
        OSError: the file cannot be read.
    """
    sizes = dict(PERIODS)
    before = sum(n_records for period_s, n_records in PERIODS if period_s < seconds)
    with path.open("rb") as file:
        file.seek(_PERIODS_AT + before * _PERIOD_BYTES)
        data = file.read(sizes[seconds] * _PERIOD_BYTES)
    data = data[: len(data) // _PERIOD_BYTES * _PERIOD_BYTES]
    rows: Rows = np.frombuffer(data, "<i8").reshape(-1, len(PERIOD_FIELDS)).astype(np.int64)
    is_valid = rows[:, 0] % sizes[seconds] == np.arange(len(rows))
    is_valid &= (rows[:, 0] > 0) & (rows[:, 1] > 0) & (rows >= 0).all(axis=1)
    ordered: Rows = rows[is_valid][np.argsort(rows[is_valid, 0])]
    return ordered


def read_nodes(live: Path) -> list[Node]:
    """Return the use of the hosts in the folder of the live status; damaged files are skipped."""
    nodes = []
    for path in sorted(live.glob("node.*.json"))[:_MAX_FILES]:
        with suppress(OSError, ValueError), path.open("rb") as file:
            nodes.append(_decode_node(file.read(_MAX_NODE_BYTES)))
    return nodes


class LiveRun:
    """The processes of a run that have trained. ``n_damaged`` files could not be read.

    ``live`` is the folder of the live status; by default it is found in ``folder``.

    Raises:
        TraceError: the run has no live status.
    """

    def __init__(self, folder: Path, live: Path | None = None) -> None:
        self.folder = folder
        self.live = live or live_folder(folder)
        self.n_damaged = 0
        self._processes: dict[str, Process] = {}

    def refresh(self) -> list[Process]:
        """Read what is new, and return all processes by rank, older attempts first."""
        self.n_damaged = 0
        for path in self._files():
            try:
                self._refresh_file(path)
            except (OSError, TraceError, ValueError):
                self.n_damaged += path.name not in self._processes
        return sorted(
            self._processes.values(),
            key=lambda process: (
                process.header.rank is None,
                process.header.rank or 0,
                process.header.started_ns,
            ),
        )

    def _files(self) -> list[Path]:
        return sorted(self.live.glob("status.*"))[:_MAX_FILES]

    def _refresh_file(self, path: Path) -> None:
        process = self._processes.get(path.name)
        if process is None:
            identity = parse_identity(path.name.partition(".")[2])
            with path.open("rb") as file:
                header = read_header(file.read(HEADER_BYTES), path)
            process = self._processes[path.name] = Process(path, identity, header)
        process.update()


def live_folder(folder: Path) -> Path:
    """Return the folder of the live status of a run.

    Raises:
        TraceError: the run has no live status.
    """
    for candidate in (folder / LIVE, folder):
        if any(candidate.glob("status.*")) or (candidate / "recording.json").is_file():
            return candidate
    raise TraceError(
        f"{folder}: no live status found; start the program with `traceprof record --live -o "
        f"{folder}/ -- COMMAND`"
    )


@cache
def current_boot() -> str:
    """Return the id of this boot and its clock, in the form of `Header.boot`; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot + str(Path("/proc/self/ns/time").readlink())
    except OSError:
        return ""
