"""Text columns with few distinct values, stored as dictionary codes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice, pairwise
from operator import eq
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.cache import scratch
from traceprof.model.packed import Array as Array
from traceprof.model.packed import Bools as Bools
from traceprof.model.packed import Ints, Packed

MOST_SHARED: Final = 1 << 10
"""Dictionaries of up to this many texts are shared between equal columns. Larger ones usually
differ between ranks.
"""
MANY_TEXTS: Final = 100_000
"""Dictionaries of at least this many texts are stored as bytes.

As Python texts, each entry would take about a hundred bytes.
"""
_PIECE_TEXTS: Final = 1 << 14
_MAX_SEARCHED_TEXTS: Final = 16


class PackedTexts:
    """Many distinct texts as bytes, on disk while they are not used. Immutable.

    Behaves like an array of texts: an integer index returns a text, any other index an array. Each
    text is stored in UTF-8 with a zero byte behind it, so that texts with a zero byte cannot be
    stored.
    """

    __slots__ = ("__weakref__", "_data", "_ends")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: bytes) -> None:
        """Store the texts in ``data``, each followed by a zero byte."""
        buffer = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(buffer == 0)
        arrays = ((array, scratch.store_on_disk(array)) for array in (buffer, ends))
        self._data, self._ends = (array if file is None else file.open() for array, file in arrays)

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> PackedTexts | None:
        """Return the packed ``texts``, or None if they cannot or need not be packed.

        That is the case if there are few texts, a text contains a zero byte or invalid UTF-8, or
        two neighbors are equal: sorted input may contain duplicates.
        """
        if len(texts) < MANY_TEXTS or any(map(eq, texts, islice(texts, 1, None))):
            return None
        data = b"\0".join((*texts, b""))
        with suppress(UnicodeDecodeError):
            return cls(data) if data.count(b"\0") == len(texts) and data.decode() else None
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedTexts, (self._data.tobytes(),)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[str]:
        data, ends = self._data, self._ends
        first = 0
        for at in range(0, len(ends), _PIECE_TEXTS):
            end = int(ends[at : at + _PIECE_TEXTS][-1])
            yield from data[first:end].tobytes().decode().split("\0")
            first = end + 1

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.fromiter(self, object, len(self))

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, int | np.integer):
            place = range(len(self))[rows]
            start = int(self._ends[place - 1]) + 1 if place else 0
            return self._data[start : self._ends[place]].tobytes().decode()
        places = np.arange(len(self))[rows]
        if len(places) > len(self) // 2:
            return np.asarray(self)[places]
        return objects(self._decoded(places))

    def _decoded(self, places: Array) -> list[str]:
        data, ends = self._data, self._ends
        starts = np.where(places > 0, ends[places - 1] + 1, 0)
        view = memoryview(data)  # type: ignore[arg-type]
        spans = zip(starts.tolist(), ends[places].tolist(), strict=True)
        return [str(view[start:end], "utf-8") for start, end in spans]

    def __eq__(self, other: object) -> Bools:  # type: ignore[override]
        found = np.zeros(len(self), np.bool_)
        if isinstance(other, str):
            found[self._places_of(other)] = True
            return found
        return np.asarray(np.asarray(self) == np.asarray(other), np.bool_)

    def __ne__(self, other: object) -> Bools:  # type: ignore[override]
        return ~(self == other)

    def _places_of(self, text: str) -> Array:
        """Return the indices of ``text``: one or none."""
        data, ends = self._data, self._ends
        wanted = text.encode(errors="surrogatepass")
        lengths = np.diff(ends, prepend=-1) - 1
        found = np.flatnonzero(lengths == len(wanted))
        for at, byte in enumerate(reversed(wanted), 1):  # names usually differ at their end
            found = found[data[ends[found] - at] == byte]
        return found

    def tolist(self) -> list[str]:
        """Return the texts as a list."""
        return list(self)

    def is_in(self, texts: Collection[str]) -> Bools:
        """Return which texts are in ``texts``."""
        if len(texts) > _MAX_SEARCHED_TEXTS:
            return np.fromiter((text in texts for text in self), np.bool_, len(self))
        found = np.zeros(len(self), np.bool_)
        for text in texts:
            found[self._places_of(text)] = True
        return found

    def inserted(self, places: Array, texts: Iterable[str]) -> PackedTexts:
        """Return a copy with ``texts`` inserted before the ascending indices ``places``."""
        data, ends = self._data, self._ends
        cuts = np.append(0, ends + 1)[places].tolist()
        pieces = [data[a:b].tobytes() for a, b in pairwise([0, *cuts, len(data)])]
        added = [text.encode() + b"\0" for text in texts]
        return PackedTexts(b"".join(chain(*zip(pieces, added, strict=False), pieces[-1:])))


Texts: TypeAlias = "npt.NDArray[np.object_] | PackedTexts"


class Names:
    """A text column with few distinct values: the code of each row is an index into ``texts``.

    ``texts`` are distinct; some may be unused. Small equal dictionaries share one array, so that
    values computed for the names of one rank are reused for all ranks with the same names. A
    comparison with a text or an array returns a mask of rows. An integer index returns a text, any
    other index a `Names`. Immutable. ``packed`` contains the codes as stored.
    """

    __slots__ = ("packed", "texts")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, codes: npt.ArrayLike | Packed, texts: Iterable[str]) -> None:
        self.packed = codes if isinstance(codes, Packed) else Packed(codes)
        self.texts: Texts = texts if isinstance(texts, np.ndarray | PackedTexts) else shared(texts)

    @classmethod
    def of(cls, values: Iterable[Any]) -> Names:
        """Return the texts of rows as `Names`, with the dictionary in alphabetical order."""
        if isinstance(values, Names):
            return values
        rows = values.tolist() if isinstance(values, np.ndarray) else list(values)
        texts = sorted(set(rows))
        place = {text: code for code, text in enumerate(texts)}
        codes = np.fromiter((place[row] for row in rows), np.int64, len(rows))
        return cls(Packed.below(len(texts), codes), texts)

    @classmethod
    def coded(
        cls, texts: Iterable[str], codes: Array | Packed, *, is_sorted: bool = False
    ) -> Names:
        """Return a column from ``codes`` into ``texts``, which may contain duplicates.

        The dictionary is ordered by first occurrence or, with ``is_sorted``, alphabetically.
        """
        given = list(texts)
        once = dict.fromkeys(given)  # often a few sorted runs, which sort fast
        distinct = sorted(once) if is_sorted else list(once)
        if distinct == given:
            packed = codes if isinstance(codes, Packed) else Packed.below(len(given), codes)
            return cls(packed, given)
        place = {text: code for code, text in enumerate(distinct)}
        places = np.fromiter(map(place.__getitem__, given), np.int64, len(given))
        return cls(Packed.below(len(distinct), places)[codes], distinct)

    @classmethod
    def repeated(cls, text: str, n_rows: int) -> Names:
        """Return a column with the same text in all ``n_rows`` rows."""
        return cls(Packed.repeated(0, n_rows), [text] if n_rows else [])

    @classmethod
    def joined(cls, parts: Sequence[Names]) -> Names:
        """Return the rows of all parts (at least one), one after another."""
        if len(parts) == 1:
            return parts[0]
        texts = parts[0].texts
        if all(part.texts is texts for part in parts):
            return cls(Packed.joined([part.packed for part in parts]), texts)
        texts_of_parts = list(chain.from_iterable(part.texts for part in parts))
        merged = cls.coded(texts_of_parts, np.arange(len(texts_of_parts)))
        # Recode part by part: joint int64 codes would need much memory.
        first = np.cumsum([0, *(len(part.texts) for part in parts)]).tolist()
        codes = [merged.packed[at:][part.packed] for at, part in zip(first, parts, strict=False)]
        return cls(Packed.joined(codes), merged.texts)

    @property
    def codes(self) -> Ints:
        """The code of each row as int64: 8 bytes per row."""
        return self.packed.wide()

    def __len__(self) -> int:
        return len(self.packed)

    def __iter__(self) -> Iterator[str]:
        return iter(self.plain().tolist())

    def __getitem__(self, rows: Any) -> Any:
        found = self.packed[rows]
        return Names(found, self.texts) if isinstance(found, Packed) else self.texts[found]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        plain = self.plain()
        return plain if dtype is None else plain.astype(dtype)

    def __eq__(self, other: object) -> Bools:  # type: ignore[override]
        if isinstance(other, str):
            return self.by_text(self.texts == other)
        return np.asarray(self.plain() == np.asarray(other, object), np.bool_)

    def __ne__(self, other: object) -> Bools:  # type: ignore[override]
        return ~(self == other)

    def __repr__(self) -> str:
        return f"Names({self.plain().tolist()!r})"

    def plain(self) -> npt.NDArray[np.object_]:
        """Return the text of each row as an object array."""
        found: npt.NDArray[np.object_] = np.empty(0, object)
        return self.texts[self.packed.stored] if len(self.texts) else found

    def tolist(self) -> list[str]:
        """Return the text of each row as a list."""
        return list(self.plain())

    def isin(self, texts: Collection[str]) -> Bools:
        """Return which rows have one of ``texts``."""
        wanted = frozenset(texts)
        if isinstance(self.texts, PackedTexts):
            return self.by_text(self.texts.is_in(wanted))
        if len(self) < len(self.texts):
            return np.array([text in wanted for text in self.tolist()], np.bool_)
        return self.by_text(np.array([text in wanted for text in self.texts.tolist()], np.bool_))

    def by_text(self, values: Sequence[Any] | Array) -> Array:
        """Return the value of each row's text; ``values[i]`` belongs to ``texts[i]``."""
        found = np.asarray(values)
        return self.packed.pick(found) if len(found) else np.empty(len(self), found.dtype)

    def used(self) -> Names:
        """Return the same column without unused dictionary texts."""
        is_used = np.bincount(self.packed, minlength=len(self.texts)) > 0
        if is_used.all():
            return self
        places = Packed.below(len(self.texts), np.cumsum(is_used) - 1)
        return Names(places[self.packed], self.texts[is_used].tolist())

    def places(self) -> npt.NDArray[np.int64]:
        """Return the alphabetical rank of each row's text, as a sort key."""
        rank = np.empty(len(self.texts), np.int64)
        rank[np.argsort(self.texts, kind="stable")] = np.arange(len(self.texts))
        return self.by_text(rank)

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each used text, in the order of ``texts``."""
        counts = np.bincount(self.packed, minlength=len(self.texts)).tolist()
        return {text: n for text, n in zip(self.texts.tolist(), counts, strict=True) if n}

    def distinct(self) -> list[str]:
        """Return the used texts, in the order of ``texts``."""
        return list(self.counts())


def shared(texts: Iterable[str]) -> Texts:
    """Return texts as an array; equal small lists of texts share one array."""
    key = tuple(texts)
    if len(key) >= MANY_TEXTS:
        with suppress(UnicodeEncodeError):
            if (packed := PackedTexts.of([*map(str.encode, key)])) is not None:
                return packed
    return _shared(key) if len(key) <= MOST_SHARED else objects(key)


@lru_cache(maxsize=256)
def _shared(texts: tuple[Any, ...]) -> npt.NDArray[np.object_]:
    # Convert enum members and numpy texts, which equal plain texts: the cache would return them
    # for plain texts.
    found = objects(str(text) if isinstance(text, str) else text for text in texts)
    found.flags.writeable = False
    return found


def objects(values: Iterable[Any]) -> npt.NDArray[np.object_]:
    """Return values of any type as a one-dimensional object array."""
    given = list(values)
    return np.fromiter(given, object, len(given))
