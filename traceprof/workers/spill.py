"""Spill objects to a separate file; their arrays are mapped and read only where they are used."""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias
from weakref import finalize

import numpy as np
import numpy.typing as npt

_ALIGNED_BYTES: Final = 64
_ON_DISK: Final = "/var/tmp"
"""Folder on disk, used because the default folder for temporary files may be in memory."""
_MIN_MAPPED_BYTES: Final = 4096
"""Smaller arrays are not worth a mapping."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_MIN_REMEMBERED_OBJECTS: Final = 1024
"""Smaller object arrays, such as names, are written again instead of being remembered."""


_Place: TypeAlias = tuple[int, int]
"""Offset in the file and number of bytes."""


class Spill:
    """An unnamed file that holds an object; it disappears with this object or the process.

    An object that was loaded and has grown can be spilled again. Only arrays that the file does not
    yet contain are written.
    """

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._mapped: tuple[mmap.mmap, int] | None = None
        self._pickled = b""
        self._places: list[_Place | bytes] = []
        self._objects: dict[int, tuple[_Place, npt.NDArray[np.object_]]] = {}
        self._regions: set[_Place] = set()

    def spill(self, known: Any) -> bool:
        """Write ``known``; return False if there is no room or it does not pickle."""
        buffers: list[pickle.PickleBuffer] = []
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=folder_on_disk())  # noqa: SIM115 - it stays open
                finalize(self, self._file.close)
            text = io.BytesIO()
            pickler = _Pickler(text, buffers, self._place_of_objects)
            pickler.dump(known)
            self._pickled = text.getvalue()
            self._places = [self._placed(buffer.raw()) for buffer in buffers]
            self._file.flush()
            self._give_up_all_but(
                {*pickler.places, *(place for place in self._places if isinstance(place, tuple))}
            )
        except (OSError, pickle.PicklingError, AttributeError, TypeError):
            self.close()
            return False
        self._objects = {}
        return True

    def load(self) -> Any:
        """Return the spilled object; its arrays are read-only."""
        assert self._file is not None
        end = os.fstat(self._file.fileno()).st_size
        if end:
            mapped = mmap.mmap(self._file.fileno(), end, access=mmap.ACCESS_READ)
            whole = memoryview(mapped)
            address = int(np.frombuffer(mapped, np.uint8).__array_interface__["data"][0])
            self._mapped = mapped, address
        else:
            whole = memoryview(b"")
        views = [
            place if isinstance(place, bytes) else whole[place[0] : place[0] + place[1]]
            for place in self._places
        ]
        return _Unpickler(self._pickled, views, self._objects_at).load()

    def close(self) -> None:
        """Close the file and drop its content."""
        if self._file is not None:
            self._file.close()
        self._file, self._mapped, self._pickled = None, None, b""
        self._places, self._objects, self._regions = [], {}, set()

    def _give_up_all_but(self, used: set[_Place]) -> None:
        """Free the disk space of arrays of which no part is in ``used``."""
        assert self._file is not None
        starts = sorted(start for start, _ in used)
        for place in [*self._regions]:
            first = bisect_left(starts, place[0])
            if first == len(starts) or starts[first] >= sum(place):
                self._regions.remove(place)
                _punch(self._file.fileno(), place)

    def _place_of_objects(self, array: npt.NDArray[np.object_]) -> _Place:
        known = self._objects.get(id(array))
        if known is None:
            known = self._written(memoryview(pickle.dumps(array.tolist(), 5))), array
            self._objects[id(array)] = known
        return known[0]

    def _objects_at(self, place: _Place) -> npt.NDArray[np.object_]:
        assert self._mapped is not None
        start, n_bytes = place
        values = pickle.loads(memoryview(self._mapped[0])[start : start + n_bytes])
        found = np.empty(len(values), np.object_)
        found[:] = values
        self._objects[id(found)] = place, found
        return found

    def _placed(self, raw: memoryview) -> _Place | bytes:
        """Return the place of an array's bytes, written if necessary; small arrays as bytes."""
        if raw.nbytes < _MIN_MAPPED_BYTES:
            return bytes(raw)
        address = int(np.frombuffer(raw, np.uint8).__array_interface__["data"][0])
        if self._mapped is not None:
            mapped, start = self._mapped
            if start <= address and address + raw.nbytes <= start + len(mapped):
                return address - start, raw.nbytes
        return self._written(raw)

    def _written(self, raw: memoryview) -> _Place:
        assert self._file is not None
        place = -(-self._file.seek(0, os.SEEK_END) // _ALIGNED_BYTES) * _ALIGNED_BYTES
        self._file.seek(place)
        self._file.write(raw)
        self._regions.add((place, raw.nbytes))
        return place, raw.nbytes


class _Pickler(pickle.Pickler):
    """Pickles without large object arrays, which get a place in the file."""

    def __init__(
        self,
        text: io.BytesIO,
        buffers: list[pickle.PickleBuffer],
        place_of_objects: Callable[[npt.NDArray[np.object_]], _Place],
    ) -> None:
        super().__init__(text, 5, buffer_callback=buffers.append)
        self._place_of_objects = place_of_objects
        self.places: set[_Place] = set()

    def persistent_id(self, value: Any) -> _Place | None:
        if type(value) is not np.ndarray or value.dtype != np.object_ or value.ndim != 1:
            return None
        if len(value) < _MIN_REMEMBERED_OBJECTS:
            return None
        place = self._place_of_objects(value)
        self.places.add(place)
        return place


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        text: bytes,
        views: Iterable[memoryview | bytes],
        objects_at: Callable[[_Place], npt.NDArray[np.object_]],
    ) -> None:
        super().__init__(io.BytesIO(text), buffers=views)
        self._objects_at = objects_at
        self._known: dict[_Place, npt.NDArray[np.object_]] = {}

    def persistent_load(self, place: _Place) -> npt.NDArray[np.object_]:
        if place not in self._known:
            self._known[place] = self._objects_at(place)
        return self._known[place]


def _punch(file: int, place: _Place) -> None:
    """Free a part of a file, where the system supports it."""
    with suppress(AttributeError, OSError, TypeError):
        start, n_bytes = map(ctypes.c_longlong, place)
        ctypes.CDLL(None).fallocate64(file, _PUNCH_HOLE | _KEEP_SIZE, start, n_bytes)


def folder_on_disk() -> str | None:
    """Return the folder for spilled files; None: the default folder for temporary files."""
    return _ON_DISK if "TMPDIR" not in os.environ and Path(_ON_DISK).is_dir() else None
