"""Lines of a file of any size: one at a time, whatever ends them, no longer than is useful."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from traceprof.errors import TraceError
from traceprof.files import kind_of_no_file
from traceprof.values import dataclass

if TYPE_CHECKING:
    from io import BufferedReader

__all__ = ["LONGEST", "RawLines"]

LONGEST: Final = 1 << 16
"""Characters of a line that are read; what lies behind is left out."""

_CHUNK: Final = 1 << 20
_GZIP: Final = b"\x1f\x8b"
_ENCODINGS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# A carriage return and a run of backspaces both go back in the line: what follows is drawn over it.
_BREAKS: Final = re.compile(r"\r*\n|\r|\x08+")


@dataclass(slots=True)
class RawLines:
    """The lines of a text file, as they are but for what cannot be decoded.

    Memory is bounded whatever the file holds. ``damage`` says why reading ended early, once it has.
    """

    path: Path
    limit: int | None = None
    damage: str = field(default="", init=False)
    cut_count: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[str]:
        """Yield the lines, those that were drawn over too; of the first ``limit`` characters.

        Raises:
            TraceError: the file cannot be read.
        """
        rest, is_cut, seen = "", False, 0
        for chunk in self._chunks():
            seen += len(chunk)
            text = rest + chunk
            # A return at the end may belong to the newline that begins the next chunk.
            held = len(text) - len(text.rstrip("\r"))
            whole = text[: len(text) - held]
            parts = _BREAKS.split(whole) if "\r" in whole or "\x08" in whole else whole.split("\n")
            for part in parts[:-1]:
                if not is_cut:
                    yield part[:LONGEST]
                is_cut = False
            last = parts[-1]
            if len(last) > LONGEST:
                if not is_cut:
                    self.cut_count += 1
                    yield last[:LONGEST]
                last, is_cut = "", True
            rest = last + "\r" * min(held, 1)
            if self.limit is not None and seen >= self.limit:
                return
        rest = rest.rstrip("\r")
        if rest and not is_cut:
            yield rest[:LONGEST]

    def _chunks(self) -> Iterator[str]:
        if kind := kind_of_no_file(self.path):
            raise TraceError(f"{self.path}: {kind}, where a file is expected")
        try:
            with self.path.open("rb") as plain:
                head = plain.read(4)
                plain.seek(0)
                is_packed = head.startswith(_GZIP)
                file = cast("BufferedReader", gzip.GzipFile(fileobj=plain)) if is_packed else plain
                if is_packed:
                    head = file.read(4)
                    file.seek(0)
                names = (name for mark, name in _ENCODINGS if head.startswith(mark))
                decoder = codecs.getincrementaldecoder(next(names, "utf-8"))("replace")
                # Not read(): of a packed file that ends too early it returns nothing at all.
                while data := file.read1(_CHUNK):
                    yield decoder.decode(data).replace("\0", "")
                yield decoder.decode(b"", final=True).replace("\0", "")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.damage = str(error) or "it ends too early"
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror or error}") from error
