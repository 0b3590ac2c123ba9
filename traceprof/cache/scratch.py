"""Large arrays on the disk while nobody looks at them: in a file without a name, which is mapped.

The file lies in the user's cache folder (where that is off, in the folder of temporary files), and
is gone with the process, however that ends. What it cannot take stays in memory.
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

LEAST_BYTES: Final = 4 << 20
"""Smaller arrays stay in memory, and all do where none is as large."""
SMALLEST: Final = 4
"""Beside large ones those down to this part of it are on the disk, too: there are many."""
_MIN_FREE_BYTES: Final = 2 << 30
"""No disk is filled up to less than this."""
_MAX_MAPPED_BYTES: Final = 256 << 20
"""What is mapped beyond this leaves memory until it is looked at again."""
_PAGE_BYTES: Final = mmap.ALLOCATIONGRANULARITY
_GROWTH_BYTES: Final = 64 << 20

Array = npt.NDArray[Any]


class DiskArray:
    """An array that is on the disk; nothing of it changes."""

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
        """How large it is."""
        return self.n_rows * self.dtype.itemsize

    def open(self) -> Array:
        """Return the array, which may not be written to; it takes memory while it is held."""
        mapped = self._mapped() if self._mapped is not None else None
        if mapped is None:
            mapped = _Mapped.of(self._place, self._first_byte, self.n_bytes)
            self._mapped = weakref.ref(mapped)
        skipped = (self._place.at + self._first_byte) % _PAGE_BYTES
        return np.frombuffer(mapped, self.dtype, self.n_rows, skipped)

    def __setitem__(self, rows: slice, values: Array) -> None:
        """Write rows of one that is `reserved`, from any thread; only their start counts.

        Raises:
            OSError: the disk does not take them.
        """
        at = self._place.at + self._first_byte + (rows.start or 0) * self.dtype.itemsize
        self._place.file.write(at, np.ascontiguousarray(values, self.dtype))

    def __getitem__(self, rows: slice) -> DiskArray:
        """Return a run of rows, without looking at them."""
        first, after, _ = rows.indices(self.n_rows)
        first_byte = self._first_byte + first * self.dtype.itemsize
        return DiskArray(self._place, first_byte, after - first, self.dtype)


def least_bytes() -> int:
    """Return how large an array is at least that is put on the disk."""
    return LEAST_BYTES // SMALLEST if files else LEAST_BYTES


def reserved(n_rows: int, dtype: npt.DTypeLike) -> DiskArray | None:
    """Return an array whose rows are still to be written; None if small, or no disk takes it."""
    kind = np.dtype(dtype)
    n_bytes = n_rows * kind.itemsize
    if n_bytes < least_bytes() or kind.hasobject:
        return None
    place = _place_for(n_bytes)
    return None if place is None else DiskArray(place, 0, n_rows, kind)


def put_aside(values: Array) -> DiskArray | None:
    """Return ``values`` on the disk; None where they stay in memory.

    What is part of an array on the disk already is not written again.
    """
    if values.nbytes < least_bytes() or values.ndim != 1 or values.dtype.hasobject:
        return None
    if (known := _part_of_mapped(values)) is not None:
        return known
    found = reserved(len(values), values.dtype)
    if found is None:
        return None
    try:
        found[:] = values
    except OSError:
        return None
    return found


def _part_of_mapped(values: Array) -> DiskArray | None:
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
    """Bytes of the file in memory, from a boundary of pages on."""

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
        except OSError as error:  # a limit of what a process may map
            raise MemoryError from error
        found.place, found.first_byte = place, first_byte - skipped
        found.address = np.frombuffer(found, np.uint8).__array_interface__["data"][0]
        _limit_mapped_memory(found)
        return found


_all_mapped: Final = weakref.WeakSet[_Mapped]()
_lock: Final = threading.Lock()


def _limit_mapped_memory(mapped: _Mapped) -> None:
    """Let what is mapped leave memory where it is much; its pages come back when looked at."""
    with _lock:
        _all_mapped.add(mapped)
        held = list(_all_mapped)
        if sum(map(len, held)) > _MAX_MAPPED_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            for region in held:
                with suppress(OSError, ValueError):
                    region.madvise(mmap.MADV_DONTNEED)


class _File:
    """A file without a name, and which parts of it are free."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115 (open until the process ends)
            dir=folder, prefix=".traceprof-"
        )
        self.number = self._file.fileno()
        os.ftruncate(self.number, _PAGE_BYTES)
        mmap.mmap(
            self.number, _PAGE_BYTES, access=mmap.ACCESS_READ
        ).close()  # some disks cannot do that
        self._n_bytes = 0
        self._free: list[tuple[int, int]] = []
        self.returned = deque[tuple[int, int]]()
        """Whoever collects garbage adds to it: at any time, in any thread."""
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def place(self, n_bytes: int) -> _Place | None:
        """Return room for so many bytes; None where the disk is too full."""
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
        regions = [region for region in self._free if region[1]]
        while self.returned:
            regions.append(self.returned.popleft())
        merged: list[tuple[int, int]] = []
        for at, n_free in sorted(regions):
            before = merged.pop() if merged and sum(merged[-1]) == at else (at, 0)
            merged.append((before[0], before[1] + n_free))
        self._free = merged

    def write(self, at: int, values: Array) -> None:
        """Write values, from any thread."""
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
    """Bytes of the file, which are free again when nobody has them."""

    __slots__ = ("__weakref__", "_n_bytes", "at", "file")

    def __init__(self, file: _File, at: int, n_bytes: int) -> None:
        self.file, self.at, self._n_bytes = file, at, n_bytes

    def __del__(self) -> None:
        self.file.returned.append((self.at, self._n_bytes))


files: Final[list[_File | None]] = []
"""The file of this process, once it was wanted; None where there can be none."""


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
    """Write to another file than the process that this one was forked from."""
    files.clear()
    _lock.release()


if hasattr(os, "register_at_fork"):
    # Nobody holds the lock where a process begins: what held it would not be there to let go.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_leave_to_parent
    )
