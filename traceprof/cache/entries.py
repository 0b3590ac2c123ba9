"""Cache entries: private, checked, and limited bytes and files under keys.

Each entry is one file with a checksum of its key and content. At the size limit, the least recently
used entries are removed. A write that fails is ignored: a full disk or a read-only home costs time,
never a result.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from traceprof.errors import TraceprofError
from traceprof.files import new_file, write_file

VARIABLE: Final = "TRACEPROF_CACHE"
_OFF: Final = frozenset({"0", "off", "no", "false"})
MAX_CACHE_BYTES: Final = 4 << 30
_MAGIC: Final = b"traceprof cache 1\n"
_SUM_BYTES: Final = 32
_PIECE_BYTES: Final = 1 << 20
_ENTRY, _FILE, _PART = ".entry", ".file", ".part"
_OUR_NAMES: Final = re.compile(r"[0-9a-f]{64}\.(?:entry|file)|\.traceprof-[0-9a-f]+\.part")
_ABANDONED_S: Final = 24 * 3600
_NO_FOLLOW_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_NONBLOCK_FLAG: Final = getattr(os, "O_NONBLOCK", 0)  # do not block on a named pipe


def cache_folder(
    environment: Mapping[str, str] | None = None, platform: str = sys.platform
) -> Path | None:
    """Return the folder of the cache; None if ``TRACEPROF_CACHE`` is 0, or there is no home folder.

    ``TRACEPROF_CACHE`` may also name the parent folder of the cache. The default is the platform's:
    ``XDG_CACHE_HOME`` or ``~/.cache``, on macOS ``~/Library/Caches``, on Windows
    ``%LOCALAPPDATA%``.
    """
    variables = os.environ if environment is None else environment
    given = variables.get(VARIABLE, "").strip()
    if given.lower() in _OFF:
        return None
    try:
        if given:
            return Path(given).expanduser().absolute() / "traceprof"
        home = Path(variables["HOME"]) if variables.get("HOME") else Path.home()
    except RuntimeError:
        return None
    if platform == "win32":
        local = Path(variables.get("LOCALAPPDATA") or home / "AppData" / "Local")
        return local / "traceprof" / "Cache"
    if platform == "darwin":
        return home / "Library" / "Caches" / "traceprof" / "kept"
    named = Path(variables.get("XDG_CACHE_HOME") or "")
    # By convention, a relative path is ignored.
    return (named if named.is_absolute() else home / ".cache") / "traceprof" / "kept"


@dataclass(frozen=True, slots=True)
class Usage:
    """The size of a cache."""

    entry_count: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache in ``folder``, with at most ``largest_bytes`` in total."""

    folder: Path
    largest_bytes: int = MAX_CACHE_BYTES

    @classmethod
    def of_user(cls) -> Cache | None:
        """Return the user's cache; None if it is off."""
        folder = cache_folder()
        return None if folder is None else cls(folder)

    def get(self, key: str) -> bytes | None:
        """Return the content under ``key``; None if there is no valid entry."""
        path = self._path(key, _ENTRY)
        if not self._is_ours():
            return None
        data = _read_private(path)
        if data is None:
            return None
        head = len(_MAGIC) + _SUM_BYTES
        content = data[head:]
        if data[:head] != _MAGIC + _checksum(key, content):
            _remove(path)
            return None
        _touch(path)
        return content

    def put(self, contents: Mapping[str, bytes]) -> None:
        """Store ``contents`` under their keys, as far as possible."""
        if not self._make_folder():
            return
        with suppress(TraceprofError, OSError):
            for key, content in contents.items():
                if 2 * len(content) <= self.largest_bytes:
                    data = _MAGIC + _checksum(key, content) + content
                    path = self._path(key, _ENTRY)
                    write_file(path, data, force=True, is_lasting=False, mode=0o600)
        self._remove_oldest()

    @contextmanager
    def file(self, key: str) -> Iterator[Path | None]:
        """Yield the cached file under ``key``; None if there is no valid one.

        The file exists as long as the context, even if its entry is removed meanwhile.
        """
        found = self._sound_file(key, self._path(key, _FILE))
        try:
            yield found
        finally:
            if found is not None and found.suffix == _PART:
                _remove(found)

    def put_file(self, key: str, source: Path) -> None:
        """Store a copy of the file ``source`` under ``key``, if possible."""
        with suppress(OSError):
            if 2 * source.stat().st_size <= self.largest_bytes:
                self.make_file(key, lambda path: shutil.copyfile(source, path))

    def make_file(self, key: str, write: Callable[[Path], object]) -> None:
        """Store the file that ``write`` creates under ``key``, if possible."""
        with suppress(TraceprofError, OSError):
            if not self._make_folder():
                return
            with new_file(self._path(key, _FILE), force=True, is_lasting=False) as temporary:
                temporary.chmod(0o600)
                write(temporary)
                if 2 * temporary.stat().st_size > self.largest_bytes:
                    temporary.unlink()
                    return
                checksum = _checksum_of_file(temporary)
            self.put({key: checksum})

    def usage(self) -> Usage:
        """Return the current size."""
        files = self._files()
        n_entries = sum(path.suffix == _ENTRY for path, _ in files)
        return Usage(n_entries, sum(status.st_size for _, status in files))

    def clear(self) -> Usage:
        """Remove everything that traceprof stored; return its size."""
        before = self.usage()
        if self._is_ours():
            for path, status in self._files():
                if not _is_being_written(path, status):
                    _remove(path)
        return before

    def is_writable(self) -> bool:
        """Return whether entries can be stored; creates the folder if necessary."""
        return self._make_folder() and os.access(self.folder, os.W_OK)

    def _path(self, key: str, suffix: str) -> Path:
        return self.folder / f"{key}{suffix}"

    def _make_folder(self) -> bool:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            return False
        return self._is_ours()

    def _is_ours(self) -> bool:
        """Return whether no other user can write into the folder."""
        try:
            status = self.folder.stat()
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and _is_private(status)

    def _sound_file(self, key: str, path: Path) -> Path | None:
        """Return a private link to the valid cached file, or None. Nobody else removes the link."""
        checksum = self.get(key)
        if checksum is None:
            return None
        held = self.folder / f".traceprof-{os.urandom(8).hex()}{_PART}"
        try:
            _touch(path)
            os.link(path, held)
        except OSError:
            held = path
        try:
            if _is_private(held.stat()) and _checksum_of_file(held) == checksum:
                return held
        except OSError:
            pass
        _remove(held)
        _remove(path)
        return None

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if _OUR_NAMES.fullmatch(entry.name):
                    with suppress(OSError):
                        found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
        return found

    def _remove_oldest(self) -> None:
        """Remove the least recently used entries above the limit, and abandoned partial files."""
        files = sorted(self._files(), key=lambda file: file[1].st_mtime_ns)
        total = sum(status.st_size for _, status in files)
        for path, status in files:
            if _is_being_written(path, status):
                continue
            if path.suffix == _PART or total > self.largest_bytes:
                _remove(path)
                total -= status.st_size


def _is_being_written(path: Path, status: os.stat_result) -> bool:
    """Return whether a process may still be using a temporary file."""
    return path.suffix == _PART and time.time() - status.st_mtime < _ABANDONED_S


def _is_private(status: os.stat_result) -> bool:
    """Return whether only the user can have written the file, as far as the system shows."""
    if os.name != "posix":
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _read_private(path: Path) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | _NO_FOLLOW_FLAGS | _NONBLOCK_FLAG)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file, suppress(OSError):
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and _is_private(status):
            return file.read()
    return None


def _checksum(key: str, content: bytes) -> bytes:
    return blake2b(content, digest_size=_SUM_BYTES, key=key.encode()[:64]).digest()


def _checksum_of_file(path: Path) -> bytes:
    found = blake2b(digest_size=_SUM_BYTES)
    with path.open("rb") as file:
        while data := file.read(_PIECE_BYTES):
            found.update(data)
    return found.digest()


def _touch(path: Path) -> None:
    with suppress(OSError):
        os.utime(path)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
