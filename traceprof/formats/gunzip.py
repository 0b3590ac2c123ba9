"""Reading gzip files up to where they end, even where they were cut off."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

__all__ = ["GZIP_MAGIC", "GzipSource", "unpacked_head"]

GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = zlib.MAX_WBITS | 16
_PACKED_BYTES: Final = 1 << 18


def _new_member() -> Any:
    return zlib.decompressobj(_GZIP_WINDOW)


@dataclass(slots=True)
class GzipSource:
    """Unpacks a gzip file; where it was cut off or is damaged, it ends.

    `gzip.GzipFile` raises instead and loses what it had unpacked.
    """

    file: BinaryIO
    _member: Any = field(default_factory=_new_member)
    _rest: bytes = b""

    def read(self, _size: int, /) -> bytes:
        """Return the next bytes, as many as one piece of the file unpacks to; b"" at the end."""
        while True:
            packed = self._rest or self.file.read(_PACKED_BYTES)
            if not packed:
                return b""
            try:
                data: bytes = self._member.decompress(packed)
            except zlib.error:
                return b""
            self._rest = self._member.unused_data
            if self._member.eof:
                self._member = _new_member()
            if data:
                return data


def unpacked_head(path: Path, n_bytes: int) -> bytes:
    """Return the first bytes of what the gzip file ``path`` holds."""
    head = b""
    with path.open("rb") as file:
        source = GzipSource(file)
        while len(head) < n_bytes and (more := source.read(n_bytes)):
            head += more
    return head[:n_bytes]
