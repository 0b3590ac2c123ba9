"""Store large unused arrays on disk, in an unnamed memory-mapped file.

The file is in the user's cache folder (in the folder for temporary files, if the cache is off). It
disappears with the process, however that ends. Arrays that do not fit stay in memory.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import threading
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.cache.entries import cache_folder

MIN_DISK_BYTES: Final = 4 << 20
"""Smaller arrays stay in memory as long as no array has this size."""
SMALLEST: Final = 4
"""Once the file exists, arrays of `MIN_DISK_BYTES` divided by this number also move to disk."""
MAX_KEPT_BYTES: Final = 64 << 20
"""Large arrays stay in memory up to this total; writing them would cost more time than it saves."""
_MIN_FREE_BYTES: Final = 2 << 30
"""The file does not grow if less than this would remain free on the disk."""
_MAX_MAPPED_BYTES: Final = 256 << 20
"""Above this total, mapped pages leave memory until they are read again."""
_PAGE_BYTES: Final = mmap.ALLOCATIONGRANULARITY
_GROWTH_BYTES: Final = 64 << 20

Array = npt.NDArray[Any]


class DiskArray:
    """An array on disk. Immutable, except while it is filled."""

    __slots__ = ("_first_byte", "_mapped", "_place", "dtype", "n_rows")

    def __init__(self, place: _Place, first_byte: int, n_rows: int, dtype: np.dtype[Any]) -> None:
        self._place, self._first_byte, self.n_rows, self.dtype = place, first_byte, n_rows, dtype
        self._mapped: weakref.ref[_Mapped] | None = None

    def __len__(self) -> int:
        return self.n_rows

    def __reduce__(self) -> tuple[Any, ...]:
        return np.array, (self.open(),)

    @property
    def n_bytes(self) -> int:
        """Size in bytes."""
        return self.n_rows * self.dtype.itemsize

    def open(self) -> Array:
        """Return the array, read-only; it takes memory while it is referenced."""
        mapped = self._mapped() if self._mapped is not None else None
        if mapped is None:
            mapped = _Mapped.of(self._place, self._first_byte, self.n_bytes)
            self._mapped = weakref.ref(mapped)
        skipped = (self._place.at + self._first_byte) % _PAGE_BYTES
        return np.frombuffer(mapped, self.dtype, self.n_rows, skipped)

    def __setitem__(self, rows: slice, values: Array) -> None:
        """Write rows of a `reserved` array, from any thread. Only the start of ``rows`` counts.

        Raises:
            OSError: the disk is full or fails.
        """
        at = self._place.at + self._first_byte + (rows.start or 0) * self.dtype.itemsize
        self._place.file.write(at, np.ascontiguousarray(values, self.dtype))

    def __getitem__(self, rows: slice) -> DiskArray:
        """Return a range of rows without reading them."""
        first, after, _ = rows.indices(self.n_rows)
        first_byte = self._first_byte + first * self.dtype.itemsize
        return DiskArray(self._place, first_byte, after - first, self.dtype)


def min_disk_bytes() -> int:
    """Return the minimum size of arrays that are stored on disk."""
    return MIN_DISK_BYTES // SMALLEST if files else MIN_DISK_BYTES


_kept: Final[dict[int, tuple[weakref.ref[Array], int]]] = {}
"""The arrays that `stays_in_memory` accepted and that still exist, and their sizes."""


def stays_in_memory(values: Array) -> bool:
    """Return whether ``values`` can stay in memory, and count them as long as they exist."""
    owner = values
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    key, n_bytes = id(owner), owner.nbytes
    if key in _kept:
        return True
    if n_bytes + sum(kept for _, kept in tuple(_kept.values())) > MAX_KEPT_BYTES:
        return False
    _kept[key] = weakref.ref(owner, lambda _: _kept.pop(key, None)), n_bytes
    return True


def reserved(n_rows: int, dtype: npt.DTypeLike) -> DiskArray | None:
    """Return an array to be filled; None if it is small, or no disk has room."""
    kind = np.dtype(dtype)
    n_bytes = n_rows * kind.itemsize
    if n_bytes < min_disk_bytes() or kind.hasobject:
        return None
    place = _place_for(n_bytes)
    return None if place is None else DiskArray(place, 0, n_rows, kind)


def store_on_disk(values: Array) -> DiskArray | None:
    """Return ``values`` on disk; None if they stay in memory.

    A part of an array that is already on disk is not written again.
    """
    if values.nbytes < min_disk_bytes() or values.ndim != 1 or values.dtype.hasobject:
        return None
    if (known := _part_of_mapped(values)) is not None:
        return known
    if stays_in_memory(values):
        return None
    found = reserved(len(values), values.dtype)
    if found is None:
        return None
    try:
        found[:] = values
    except OSError:
        return None
    return found


def _part_of_mapped(values: Array) -> DiskArray | None:
    """Return the array on disk that ``values`` is a view of; None if it is none."""
    base: Any = values
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else None
    if not isinstance(mapped, _Mapped) or not values.flags.c_contiguous:
        return None
    address = values.__array_interface__["data"][0] - mapped.address
    part = DiskArray(mapped.place, mapped.first_byte + address, len(values), values.dtype)
    if address == 0:
        part._mapped = weakref.ref(mapped)
    return part


class _Mapped(mmap.mmap):
    """A mapped range of the file that starts at a page boundary."""

    place: _Place
    first_byte: int
    address: int

    @classmethod
    def of(cls, place: _Place, first_byte: int, n_bytes: int) -> _Mapped:
        at = place.at + first_byte
        skipped = at % _PAGE_BYTES
        try:
            found = cls(
                place.file.number, n_bytes + skipped, access=mmap.ACCESS_READ, offset=at - skipped
            )
        except OSError as error:  # limit of mapped memory per process
            raise MemoryError from error
        found.place, found.first_byte = place, first_byte - skipped
        found.address = np.frombuffer(found, np.uint8).__array_interface__["data"][0]
        _limit_mapped_memory(found)
        return found


_all_mapped: Final = weakref.WeakSet[_Mapped]()
_lock: Final = threading.Lock()


def _limit_mapped_memory(mapped: _Mapped) -> None:
    """Drop mapped pages from memory above the limit; they are read again on use."""
    with _lock:
        _all_mapped.add(mapped)
        held = list(_all_mapped)
        if sum(map(len, held)) > _MAX_MAPPED_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            for region in held:
                with suppress(OSError, ValueError):
                    region.madvise(mmap.MADV_DONTNEED)


class _File:
    """An unnamed file and its free ranges."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115 (open until the process ends)
            dir=folder, prefix=".traceprof-"
        )
        self.number = self._file.fileno()
        os.ftruncate(self.number, _PAGE_BYTES)
        mmap.mmap(
            self.number, _PAGE_BYTES, access=mmap.ACCESS_READ
        ).close()  # some file systems do not support it
        self._n_bytes = 0
        self._free: list[tuple[int, int]] = []
        self.returned = deque[tuple[int, int]]()
        """Released ranges. The garbage collector adds to it at any time, in any thread."""
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def place(self, n_bytes: int) -> _Place | None:
        """Return room for ``n_bytes``; None if the disk is too full."""
        n_bytes += -n_bytes % _PAGE_BYTES
        with self._lock:
            self._merge()
            for i, (at, n_free) in enumerate(self._free):
                if n_free >= n_bytes:
                    self._free[i] = (at + n_bytes, n_free - n_bytes)
                    return _Place(self, at, n_bytes)
            grown = max(n_bytes, _GROWTH_BYTES)
            if shutil.disk_usage(self.folder).free < grown + _MIN_FREE_BYTES:
                return None
            at, self._n_bytes = self._n_bytes, self._n_bytes + grown
            os.ftruncate(self.number, self._n_bytes)
            if grown > n_bytes:
                self._free.append((at + n_bytes, grown - n_bytes))
            return _Place(self, at, n_bytes)

    def _merge(self) -> None:
        """Merge adjacent free ranges, including released ones."""
        regions = [region for region in self._free if region[1]]
        while self.returned:
            regions.append(self.returned.popleft())
        merged: list[tuple[int, int]] = []
        for at, n_free in sorted(regions):
            before = merged.pop() if merged and sum(merged[-1]) == at else (at, 0)
            merged.append((before[0], before[1] + n_free))
        self._free = merged

    def write(self, at: int, values: Array) -> None:
        """Write values at the offset ``at``, from any thread."""
        remaining: Any = values.view(np.uint8).data
        if not hasattr(os, "pwrite"):
            with self._lock:
                self._file.seek(at)
                self._file.write(remaining)
                self._file.flush()
            return
        while len(remaining):
            n_written = os.pwrite(self.number, remaining, at)
            remaining, at = remaining[n_written:], at + n_written


class _Place:
    """A range of the file, released when nothing refers to it."""

    __slots__ = ("__weakref__", "_n_bytes", "at", "file")

    def __init__(self, file: _File, at: int, n_bytes: int) -> None:
        self.file, self.at, self._n_bytes = file, at, n_bytes

    def __del__(self) -> None:
        self.file.returned.append((self.at, self._n_bytes))


files: Final[list[_File | None]] = []
"""The file of this process, created on first use; None if it cannot be created."""


def _place_for(n_bytes: int) -> _Place | None:
    with _lock:
        if not files:
            files.append(_new_file())
        file = files[0]
    with suppress(OSError):
        return None if file is None else file.place(n_bytes)
    return None


def _new_file() -> _File | None:
    for folder in (cache_folder(), Path(tempfile.gettempdir())):
        if folder is not None:
            with suppress(OSError):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                return _File(folder)
    return None


def _leave_to_parent() -> None:
    """In a forked child, use a new file instead of the file of the parent."""
    files.clear()
    _lock.release()


if hasattr(os, "register_at_fork"):
    # Hold the lock during the fork: in the child, no other thread could release it.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_leave_to_parent
    )
