"""Identify the content of a file without reading all of it, and the code that computes from it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Final

from traceprof.version import __version__

_MAX_READ_BYTES: Final = 1 << 20
_END_BYTES: Final = 1 << 16
_PAGE_BYTES: Final = 4096
_N_SAMPLED_PAGES: Final = 62
_SETTLED_NS: Final = 2_000_000_000
"""Resolution of the coarsest file system clock: two changes within it may have the same time."""
_LIBRARIES: Final = ("numpy", "pandas")


def digest(*parts: str | bytes) -> str:
    """Return a hash of ``parts`` that also depends on how the data is divided into parts."""
    found = sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def identify_file(path: Path) -> str:
    """Return a hash that identifies the content of ``path``, from its state and samples.

    The state consists of its size, its inode, and both change times. Tools such as `touch -r` and
    copy programs can reset the modification time, but not the time that the system sets. Samples of
    a large file are its beginning, with the header and SQLite's change counter, its end, and pages
    evenly in between. Data that SQLite has not yet written into the file (``-wal``, ``-journal``)
    also counts.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        samples = list(_samples(file, status.st_size))
    logs = (_state_of(path.with_name(path.name + end)) for end in ("-wal", "-journal"))
    return digest(_state(status), *logs, *samples)


def is_settled(paths: Iterable[Path]) -> bool:
    """Return whether all files were last changed long enough ago to rely on their change times.

    Raises:
        OSError: a file no longer exists.
    """
    latest_ns = time.time_ns() - _SETTLED_NS
    return all(changed_ns(path.stat()) < latest_ns for path in paths)


def changed_ns(status: os.stat_result) -> int:
    """Return the time of the last change, the later of two times: programs can reset only one."""
    return max(status.st_mtime_ns, status.st_ctime_ns)


@cache
def identify_code() -> str:
    """Return a hash of the code that computes, which changes with version and edited sources."""
    package = Path(__file__).resolve().parent.parent
    files = sorted(_files_of(str(package)))
    libraries = (find_spec(name) for name in _LIBRARIES)
    origins = [Path(spec.origin) for spec in libraries if spec is not None and spec.origin]
    states = [f"{path} {_state_of(path)}" for path in origins]
    return digest(__version__, sys.version, *files, *states)


def _samples(file: BinaryIO, size: int) -> Iterator[bytes]:
    if size <= _MAX_READ_BYTES:
        yield file.read(_MAX_READ_BYTES)
        return
    yield file.read(_END_BYTES)
    for number in range(1, _N_SAMPLED_PAGES + 1):
        file.seek(size * number // (_N_SAMPLED_PAGES + 1) // _PAGE_BYTES * _PAGE_BYTES)
        yield file.read(_PAGE_BYTES)
    file.seek(size - _END_BYTES)
    yield file.read(_END_BYTES)


def _state(status: os.stat_result) -> str:
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def _state_of(path: Path) -> str:
    try:
        return _state(path.stat())
    except OSError:
        return ""


def _files_of(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _files_of(entry.path)
            else:
                yield f"{entry.path} {_state(entry.stat())}"
