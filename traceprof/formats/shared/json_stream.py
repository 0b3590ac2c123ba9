"""Read the items of a huge JSON array one after another, in bounded memory.

The document is an object with the array under one key, or the array alone. Numbers with a fraction
are returned as text, so that readers can convert microseconds to exact nanoseconds. A truncated
document yields the items that are complete.

For speed, `JsonArrayStream.batches` passes runs of items to a faster parser. It guesses the end of
a run, and the parser verifies the guess: text up to a comma is a valid array only if that comma
separates two items. Runs that the parser rejects are read item by item.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeAlias, TypeVar

from traceprof.errors import TraceError
from traceprof.formats.shared.files import unpacking_source

_WINDOW_BYTES: Final = 1 << 16
_MAX_GUESSES: Final = 8
_MAX_TOKEN_BYTES: Final = len("-Infinity") + len("\\u0000\\u0000")
_SPACE: Final = re.compile(rb"[ \t\r\n,]*")
_PADDING: Final = b" \t\r\n\0"
_BOUNDARY: Final = re.compile(rb"\}[ \t\r\n]*,[ \t\r\n]*\{")
_LAST: Final = re.compile(rb"\}[ \t\r\n]*\]")
_OTHER_LIST: Final = re.compile(rb'"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*\{')
# Surrogates except those that represent an undecodable byte (surrogateescape).
_ESCAPED_HALVES: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_MAX_DIGITS: Final = 1000


def _number(digits: str) -> int | str:
    """Return a whole number; the digits as text if Python would refuse to convert so many."""
    return int(digits) if len(digits) <= _MAX_DIGITS else digits


_JSON: Final = json.JSONDecoder(parse_float=str, parse_int=_number, strict=False)

_Batch = TypeVar("_Batch")
_Parse: TypeAlias = Callable[[bytes], "_Batch | None"]


class ByteSource(Protocol):
    """An object with ``read``, such as an open file."""

    def read(self, size: int, /) -> bytes:
        """Return about ``size`` bytes, b"" at the end."""
        ...


class TooDeepError(Exception):
    """The document is nested more deeply than traceprof can read."""


class _CutOffError(Exception):
    """The document ends before it is complete."""


@contextmanager
def open_chrome_trace(
    path: Path, chunk_bytes: int = 1 << 20
) -> Iterator[tuple[JsonArrayStream, BinaryIO]]:
    """Open a Chrome trace, plain or gzip; give a stream of its events, and the file.

    Raises:
        TraceError: the JSON is nested too deeply.
    """
    with path.open("rb") as file:
        try:
            yield JsonArrayStream(unpacking_source(file), "traceEvents", chunk_bytes), file
        except TooDeepError:
            raise TraceError(f"{path}: not a trace (the JSON is nested too deeply)") from None


@dataclass(slots=True)
class JsonArrayStream:
    """Iterates over the array at ``key`` of a JSON document.

    After the iteration ``header`` contains the other top-level values, and ``header_texts`` their
    keys and values as written. ``has_array``: the array was found. ``is_complete``: the document
    was complete. ``is_damaged``: it was not, because a part of it is not JSON. ``bytes_behind``
    counts bytes after a complete document (another document, or a result of damage), without
    leading and trailing space. ``text`` is the latest single value as written. A number with a
    fraction, an exponent, or more than a thousand digits is a ``str``. Texts are valid Unicode
    (`mend_text`). The iteration raises `TooDeepError` if the JSON is nested too deeply.
    """

    file: ByteSource
    key: str
    chunk_bytes: int = 1 << 20
    header: dict[str, Any] = field(default_factory=dict)
    has_array: bool = False
    is_complete: bool = False
    is_damaged: bool = False
    bytes_behind: int = 0
    header_texts: list[tuple[bytes, bytes]] = field(default_factory=list)
    text: bytes = b""
    _buffer: bytes = b""
    _position: int = 0
    _at_end: bool = False

    def __iter__(self) -> Iterator[Any]:
        """Yield the items of the array."""
        for batch in self.batches(lambda _: None):
            yield from batch

    def batches(self, parse: _Parse[_Batch]) -> Iterator[_Batch | list[Any]]:
        """Yield the items in runs: the result of ``parse``, or a plain list.

        ``parse`` gets the text of a JSON array and returns None if it cannot read it. The items of
        such a run are then read by `json`.
        """
        try:
            yield from self._document(parse)
            self._position += 1
            self.is_complete = True
            self._count_behind()
        except _CutOffError:
            return

    def parts(self, opened: Collection[str], parse: _Parse[list[Any]]) -> Iterator[tuple[str, Any]]:
        """Yield (path, value) for a document with many arrays, for example ("/metadata/pid", 7).

        Objects at the paths ``opened`` are entered, also if they are in a list there: (path, None)
        announces each. Other arrays are yielded in runs, as by `batches`; other values whole.
        """
        try:
            self._skip_mark()
            yield from self._parts("", opened, parse)
            self.is_complete = True
            self._count_behind()
        except _CutOffError:
            return

    def _parts(
        self, path: str, opened: Collection[str], parse: _Parse[list[Any]], *, in_list: bool = False
    ) -> Iterator[tuple[str, Any]]:
        """Read one value, and yield its parts."""
        opening, is_opened = self._peek(), path in opened
        if opening == b"{" and is_opened:
            self._position += 1
            yield path, None
            while self._peek() != b"}":
                key = self._value()
                if self._peek() != b":":
                    raise _CutOffError
                self._position += 1
                yield from self._parts(f"{path}/{key}", opened, parse)
            self._position += 1
        elif opening == b"[" and is_opened and not in_list:
            self._position += 1
            while self._peek() != b"]":
                yield from self._parts(path, opened, parse, in_list=True)
            self._position += 1
        elif opening == b"[" and not in_list:
            self._position += 1
            for run in self._items(parse):
                yield path, run
        else:
            yield path, self._value()

    def _skip_mark(self) -> None:
        self._fill(len(BOM_UTF8))
        if self._buffer.startswith(BOM_UTF8):
            self._position = len(BOM_UTF8)

    def _document(self, parse: _Parse[_Batch]) -> Iterator[_Batch | list[Any]]:
        """Read the document up to its closing bracket, and yield the runs of the array."""
        self._skip_mark()
        opening = self._peek()
        self._position += 1
        if opening == b"[":
            yield from self._items(parse)
            self._position -= 1
            return
        if opening != b"{":
            raise _CutOffError
        while self._peek() != b"}":
            key = self._value()
            key_text = self.text
            if self._peek() != b":":
                raise _CutOffError
            self._position += 1
            if key == self.key and self._peek() == b"[":
                self._position += 1
                yield from self._items(parse)
            else:
                self.header[str(key)] = self._value()
                self.header_texts.append((key_text, self.text))

    def _count_behind(self) -> None:
        """Read to the end of the file, and count the bytes after the document."""
        n_space = 0
        while not self._at_end or self._position < len(self._buffer):
            text = self._buffer[self._position :]
            self._position = len(self._buffer)
            if stripped := text.strip(_PADDING):
                gone = len(text) - len(text.lstrip(_PADDING))
                self.bytes_behind += (n_space + gone if self.bytes_behind else 0) + len(stripped)
                n_space = len(text) - gone - len(stripped)
            else:
                n_space += len(text)
            self._fill(self.chunk_bytes)

    def _items(self, parse: _Parse[_Batch]) -> Iterator[_Batch | list[Any]]:
        """Yield the runs of the array, after its opening bracket."""
        self.has_array = True
        while self._peek() != b"]":
            self._fill(self.chunk_bytes)
            batch = self._run_of_items(parse)
            if batch is not None:
                yield batch
                continue
            n_read = 0
            while self._peek() != b"]" and n_read <= self.chunk_bytes // 4:
                yield [self._value()]
                n_read += len(self.text)
        self._position += 1

    def _run_of_items(self, parse: _Parse[_Batch]) -> _Batch | None:
        """Return the result of ``parse`` for the longest accepted run; None if there is none."""
        for boundary in self._guesses():
            run = memoryview(self._buffer)[self._position : boundary.start() + 1]
            batch = parse(b"".join((b"[", run, b"]")))
            if batch is not None:
                self._position = boundary.end() - 1
                return batch
        return None

    def _guesses(self) -> Iterator[re.Match[bytes]]:
        """Yield possible ends of a run: between two items or after the last item, the latest first.

        After the last item the document may continue with other lists.
        """
        n_bytes = min(len(self._buffer) - self._position, self.chunk_bytes)
        end = self._position + n_bytes
        tail = max(self._position, end - _WINDOW_BYTES)
        if self._at_end and end == len(self._buffer):
            next_list = _OTHER_LIST.search(self._buffer, tail)
            yield from [
                *_LAST.finditer(self._buffer, tail, next_list.start() if next_list else end)
            ][-1:]
        yield from reversed(list(_BOUNDARY.finditer(self._buffer, tail, end))[-_MAX_GUESSES:])
        for quarters in (3, 2, 1):
            found = _BOUNDARY.search(self._buffer, self._position + n_bytes * quarters // 4, end)
            if found:
                yield found

    def _peek(self) -> bytes:
        """Return the next byte that is not space or a comma, without consuming it."""
        while True:
            match = _SPACE.match(self._buffer, self._position)
            self._position = match.end() if match else self._position
            if self._position < len(self._buffer):
                return self._buffer[self._position : self._position + 1]
            if self._at_end:
                raise _CutOffError
            self._read(self.chunk_bytes)

    def _value(self) -> Any:
        """Read one JSON value."""
        self._peek()
        size = _WINDOW_BYTES
        while True:
            window = self._buffer[self._position : self._position + size]
            is_all = self._at_end and len(window) == len(self._buffer) - self._position
            try:
                text = window.decode("utf-8", "surrogateescape")
                parsed, end = _JSON.raw_decode(text)
                value = _mended(parsed)
            except RecursionError:
                raise TooDeepError from None
            except json.JSONDecodeError as error:
                self.is_damaged = _is_inside(error, text)
                if is_all or self.is_damaged:
                    raise _CutOffError from None
            else:
                # A number may continue after the window: "12." is parsed as 12.
                is_open = isinstance(value, int | str) and end >= len(text) - len(".e+")
                if is_all or not is_open:
                    self.text = text[:end].encode("utf-8", "surrogateescape")
                    self._position += len(self.text)
                    return value
            size *= 2
            self._fill(size)

    def _fill(self, n_bytes: int) -> None:
        """Read until ``n_bytes`` are in the buffer, or the document ends."""
        while len(self._buffer) - self._position < n_bytes and not self._at_end:
            self._read(n_bytes)

    def _read(self, n_bytes: int) -> None:
        """Append the next bytes to the buffer, and drop those that were consumed."""
        data = self.file.read(n_bytes)
        self._at_end = not data
        self._buffer = self._buffer[self._position :] + data
        self._position = 0


def _is_inside(error: json.JSONDecodeError, text: str) -> bool:
    """Return whether the error is inside the text, so that more text would not resolve it."""
    return not error.msg.startswith("Unterminated") and error.pos < len(text) - _MAX_TOKEN_BYTES


def _mended(value: Any) -> Any:
    """Return a value with all its texts mended by `mend_text`."""
    if isinstance(value, dict):
        return {mend_text(key): _mended(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_mended(inner) for inner in value]
    return mend_text(value) if isinstance(value, str) else value


def mend_text(text: str) -> str:
    """Return ``text`` with replacement characters in place of bytes that are not UTF-8.

    Unpaired surrogates, which JSON escapes can contain, are replaced, too.
    """
    if text.isascii():
        return text
    text = _ESCAPED_HALVES.sub("\N{REPLACEMENT CHARACTER}", text)
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
