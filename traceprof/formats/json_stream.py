"""Reading the items of a huge JSON array one after another, in bounded memory.

The document is an object with the array under one key (other keys may stand before and after
it), or the array alone. Numbers with a fraction come back as their text, so that the reader of
a trace can turn microseconds into exact nanoseconds. A document that was cut off in the middle
yields what is whole.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

__all__ = ["JsonArrayStream"]

_CHUNK_BYTES = 1 << 20
_SPACE = re.compile(r"[ \t\r\n,]*")


class _CutOffError(Exception):
    """The document ended where more was expected."""


@dataclass(slots=True)
class JsonArrayStream:
    """Iterates over the array at ``key`` of a JSON document.

    After iteration ``header`` holds the other top-level values and ``is_complete`` says whether
    the document was whole. A number with a fraction or an exponent is a ``str``.
    """

    file: BinaryIO
    key: str
    header: dict[str, Any] = field(default_factory=dict)
    is_complete: bool = False
    _text: str = ""
    _position: int = 0
    _at_end: bool = False
    _utf8: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    _json: json.JSONDecoder = field(
        default_factory=lambda: json.JSONDecoder(parse_float=str, strict=False)
    )

    def __iter__(self) -> Iterator[Any]:
        """Yield the items of the array."""
        try:
            yield from self._document()
            self.is_complete = True
        except _CutOffError:
            return

    def _document(self) -> Iterator[Any]:
        opening = self._peek()
        self._position += 1
        if opening == "[":
            yield from self._items()
            return
        if opening != "{":
            raise _CutOffError
        while self._peek() != "}":
            key = self._value()
            if self._peek() != ":":
                raise _CutOffError
            self._position += 1
            if key == self.key and self._peek() == "[":
                self._position += 1
                yield from self._items()
            else:
                self.header[str(key)] = self._value()

    def _items(self) -> Iterator[Any]:
        while self._peek() != "]":
            yield self._value()
        self._position += 1

    def _peek(self) -> str:
        """Return the next character that is not space or a comma, without taking it."""
        while True:
            match = _SPACE.match(self._text, self._position)
            self._position = match.end() if match else self._position
            if self._position < len(self._text):
                return self._text[self._position]
            self._read_more()

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._position)
            except json.JSONDecodeError:
                self._read_more()
                continue
            if self._may_go_on(value, end):
                self._read_more(may_end=True)
                continue
            self._position = end
            return value

    def _may_go_on(self, value: Any, end: int) -> bool:
        """Return whether a number was cut by the end of the chunk ("12." reads as 12)."""
        near_end = end >= len(self._text) - len(".e+")
        return near_end and not self._at_end and isinstance(value, int | str)

    def _read_more(self, *, may_end: bool = False) -> None:
        if self._at_end:
            raise _CutOffError
        # Growing with what is pending keeps the work on one long value linear.
        pending = len(self._text) - self._position
        try:
            data = self.file.read(max(_CHUNK_BYTES, pending))
        except (EOFError, OSError):
            data = b""
        self._at_end = not data
        if self._at_end and not may_end:
            raise _CutOffError
        self._text = self._text[self._position :] + self._utf8.decode(data, final=self._at_end)
        self._position = 0
