"""The distinct headers of rows: each is understood once, and each row knows which it has.

A row of SQLite begins with the length of its header and the types of its columns; what follows is
laid out by them. Rows of one table have few distinct headers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.pages.file import NotPlainError
from traceprof.formats.sqlite.pages.layout import Layout
from traceprof.formats.sqlite.pages.varints import Words
from traceprof.values import dataclass

__all__ = ["ODD", "Field", "Headers"]

ODD: Final = 0
"""The header of rows that SQLite itself has to read."""

_MOST: Final = 16_384
_MOST_WORDS: Final = 32
_MOST_BYTES: Final = 1 << 31
_SLOT_BITS: Final = 16
_SHIFT: Final = np.uint64(64 - _SLOT_BITS)
_FACTORS: Final = np.random.default_rng(0).integers(1, 2**63, 64, np.uint64) * np.uint64(
    2
) + np.uint64(1)
_KEPT: Final = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
_WIDTHS: Final = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
_REAL: Final = 7
_RESERVED: Final = (10, 11)


class Field:
    """What each header says of one column: element ``i`` of an array is of header ``i``.

    ``offset`` counts from the start of the row. Of a number, ``shift`` is what the eight bytes
    there, as a big-endian number, are shifted by; where ``is_given`` it is ``value``. Of a text,
    ``length`` is that in bytes.
    """

    def __init__(self, kind: ColumnType) -> None:
        self.kind = kind
        self.offset = np.zeros(_MOST, np.int64)
        self.shift = np.zeros(_MOST, np.int64)
        self.length = np.zeros(_MOST, np.int64)
        self.is_given = np.zeros(_MOST, np.bool_)
        self.is_real = np.zeros(_MOST, np.bool_)
        self.value = np.full(_MOST, NULL, np.int64)
        self.is_given[ODD] = True

    def put(self, header: int, kind: int, offset: int) -> bool:
        """Note the type of the column under a header; False where it is not of this kind."""
        is_text = kind >= 12
        if kind and is_text is not (self.kind is ColumnType.TEXT):
            return False
        if kind in _RESERVED or (kind == _REAL and self.kind is not ColumnType.REAL):
            return False
        self.offset[header] = offset
        if is_text:
            self.length[header] = _width(kind)
        elif _width(kind):
            self.shift[header] = 64 - 8 * _width(kind)
            self.is_real[header] = kind == _REAL
        else:
            self.is_given[header] = True
            self.value[header] = NULL if kind == 0 else kind - 8
        return True


@dataclass(frozen=True, slots=True)
class _Types:
    """Types and offsets of the columns that a header tells, as far as one looked."""

    types: list[int]
    offsets: list[int]
    n_bytes: int
    is_whole: bool


class Headers:
    """The headers that were seen so far in a table of which these columns are wanted.

    It belongs to one thread.
    """

    def __init__(self, layout: Layout, kinds: Mapping[str, ColumnType]) -> None:
        wanted = {layout.places[name]: kind for name, kind in kinds.items() if name != layout.alias}
        self.fields = {place: Field(kind) for place, kind in wanted.items()}
        self._n_columns = max(wanted, default=-1) + 1
        self.n_words = -(-(1 + sum(layout.n_bytes[: self._n_columns])) // 8)
        if self.n_words > _MOST_WORDS:
            raise NotPlainError("too many columns")
        self._ids: dict[bytes, int] = {}
        self._n = 1
        self._words = np.zeros((self.n_words, _MOST), np.uint64)
        self._slots = np.zeros(1 << _SLOT_BITS, np.int64)
        self.least = np.zeros(_MOST, np.int64)
        """How many bytes a row has at least, and at most: rows that have not are damaged."""
        self.most = np.full(_MOST, 1 << 62, np.int64)

    def of(self, words: Sequence[Words]) -> npt.NDArray[np.int64]:
        """Return which header each row has, whose first bytes are these words."""
        words = self._cut(words)
        mixed = words[0] * _FACTORS[0]
        for word, factor in zip(words[1:], _FACTORS[1:], strict=False):
            mixed ^= word * factor
        mixed *= _FACTORS[-1]
        found: npt.NDArray[np.int64] = self._slots.take((mixed >> _SHIFT).view(np.int64))
        unknown = np.flatnonzero(self._differs(words, found))
        if len(unknown):
            found[unknown] = self._learn([word[unknown] for word in words], mixed[unknown])
        return found

    def _cut(self, words: Sequence[Words]) -> list[Words]:
        """Return the words without what follows the header."""
        length = (words[0] & np.uint64(0xFF)).view(np.int64)
        whole = 8 * self.n_words
        if int(length.min()) >= whole:
            return list(words)
        return [
            word & _KEPT.take(np.clip(length - 8 * number, 0, 8))
            for number, word in enumerate(words)
        ]

    def _differs(
        self, words: Sequence[Words], found: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        differs: npt.NDArray[np.bool_] = found == ODD
        for known, word in zip(self._words, words, strict=True):
            differs |= known.take(found) != word
        return differs

    def _learn(self, words: Sequence[Words], mixed: Words) -> npt.NDArray[np.int64]:
        _, first, place = np.unique(mixed, return_index=True, return_inverse=True)
        ids = [self._id_of([int(word[row]) for word in words]) for row in first.tolist()]
        self._slots[(mixed[first] >> _SHIFT).view(np.int64)] = ids
        found = np.array(ids, np.int64)[place]
        # Rows whose hash alone is that of another header are left to SQLite.
        found[self._differs(words, found)] = ODD
        return found

    def _id_of(self, words: Sequence[int]) -> int:
        """Return the number of a header, which is understood now if it is new."""
        head = b"".join(word.to_bytes(8, "little") for word in words)
        if head not in self._ids:
            if self._n == _MOST:
                raise NotPlainError("too many kinds of rows")
            self._ids[head] = self._put(self._n, head)
            self._words[:, self._n] = words
            self._n += 1
        return self._ids[head]

    def _put(self, number: int, head: bytes) -> int:
        found = _parsed(head, self._n_columns)
        if found.n_bytes > _MOST_BYTES:
            raise NotPlainError("a damaged row")
        if len(found.types) < self._n_columns:
            return ODD
        self.least[number] = found.n_bytes
        if found.is_whole:
            self.most[number] = found.n_bytes
        kinds = [
            field.put(number, found.types[place], found.offsets[place])
            for place, field in self.fields.items()
        ]
        return number if all(kinds) else ODD


def _parsed(head: bytes, n_columns: int) -> _Types:
    """Return the first columns that a header tells; fewer where it has fewer, or is too long."""
    end = head[0]
    types: list[int] = []
    offsets: list[int] = []
    place, offset = 1, end
    if end < 0x80:
        while place < end and len(types) < n_columns:
            kind = 0
            while place < min(end, len(head)) and head[place] >= 0x80:
                kind, place = kind << 7 | head[place] & 0x7F, place + 1
            if place >= min(end, len(head)):
                return _Types(types, offsets, offset, is_whole=False)
            kind, place = kind << 7 | head[place], place + 1
            types.append(kind)
            offsets.append(offset)
            offset += _width(kind)
    return _Types(types, offsets, offset, is_whole=place == end)


def _width(kind: int) -> int:
    """Return how many bytes a value of this type takes."""
    if kind >= 12:
        return (kind - 12) // 2
    return _WIDTHS[kind] if kind < len(_WIDTHS) else 0
