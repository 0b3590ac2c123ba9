"""Objects laid down in a file of their own, whose arrays are read back only where they are used."""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, Final
from weakref import finalize

import numpy as np

__all__ = ["Spill"]

_ALIGNED_BYTES: Final = 64
_ON_DISK: Final = "/var/tmp"
"""Where the usual folder for temporary files may be in memory."""
_LEAST_BYTES: Final = 4096
"""Smaller arrays are not worth a mapping."""


class Spill:
    """A file without a name that holds an object; it is gone with this or the process.

    An object that was brought back and has grown is laid down again; of its arrays only those are
    written that the file does not hold yet.
    """

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._mapped: list[tuple[mmap.mmap, int]] = []
        self._pickled = b""
        self._places: list[tuple[int, int] | bytes] = []

    def lay_down(self, known: Any) -> bool:
        """Write ``known``; False where there is no room for it, or it does not pickle."""
        buffers: list[pickle.PickleBuffer] = []
        try:
            self._pickled = pickle.dumps(known, 5, buffer_callback=buffers.append)
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=_folder())  # noqa: SIM115 - it stays open
                finalize(self, self._file.close)
            self._places = [self._placed(buffer.raw()) for buffer in buffers]
            self._file.flush()
        except (OSError, pickle.PicklingError, AttributeError, TypeError):
            self.close()
            return False
        return True

    def bring_back(self) -> Any:
        """Return what was laid down; its arrays cannot be written to."""
        assert self._file is not None
        end = os.fstat(self._file.fileno()).st_size
        if end:
            mapped = mmap.mmap(self._file.fileno(), end, access=mmap.ACCESS_READ)
            whole = memoryview(mapped)
            address = int(np.frombuffer(mapped, np.uint8).__array_interface__["data"][0])
            self._mapped.append((mapped, address))
        else:
            whole = memoryview(b"")
        views = [
            place if isinstance(place, bytes) else whole[place[0] : place[0] + place[1]]
            for place in self._places
        ]
        return pickle.loads(self._pickled, buffers=views)

    def close(self) -> None:
        """Give up the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._pickled, self._places = None, b"", []

    def _placed(self, raw: memoryview) -> tuple[int, int] | bytes:
        """Return where in the file the bytes of an array are, written there if need be."""
        if raw.nbytes < _LEAST_BYTES:
            return bytes(raw)
        address = int(np.frombuffer(raw, np.uint8).__array_interface__["data"][0])
        for mapped, start in self._mapped:
            if start <= address and address + raw.nbytes <= start + len(mapped):
                return address - start, raw.nbytes
        assert self._file is not None
        place = -(-self._file.seek(0, os.SEEK_END) // _ALIGNED_BYTES) * _ALIGNED_BYTES
        self._file.seek(place)
        self._file.write(raw)
        return place, raw.nbytes


def _folder() -> str | None:
    """Return the folder for such files; None: the usual one."""
    return _ON_DISK if "TMPDIR" not in os.environ and Path(_ON_DISK).is_dir() else None
