"""The distinct texts of rows, of which most are repeated many times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.sqlite.pages.block import Block
from traceprof.formats.sqlite.pages.varints import windows
from traceprof.values import dataclass

__all__ = ["Texts", "joined", "texts_of"]

_LONGEST: Final = 256
"""Texts of more bytes are looked at one by one."""
_FACTORS: Final = np.random.default_rng(1).integers(1, 2**63, _LONGEST // 8 + 1, np.uint64)
_KEPT: Final = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)


@dataclass(frozen=True, slots=True)
class Texts:
    """The text of each row: ``distinct[codes]``."""

    codes: npt.NDArray[np.int64]
    distinct: list[bytes]


def texts_of(block: Block, place: int) -> Texts:
    """Return the texts of a column; "" for NULL, and of rows that SQLite has to read."""
    starts, lengths = block.spans(place)
    short = np.flatnonzero((lengths > 0) & (lengths <= _LONGEST))
    codes = np.zeros(len(block), np.int64)
    distinct = [b""]
    if len(short):
        codes[short], first = _grouped(block.data, starts[short], lengths[short])
        codes[short] += 1
        rows = short[first]
        distinct += _bytes(block, starts[rows], lengths[rows])
    long = np.flatnonzero(lengths > _LONGEST)
    if len(long):
        codes[long] = np.arange(len(distinct), len(distinct) + len(long))
        distinct += _bytes(block, starts[long], lengths[long])
    return Texts(codes, distinct)


def joined(parts: Sequence[Texts]) -> Texts:
    """Return the texts of all parts one after another; the distinct ones are sorted.

    Of millions of texts a dictionary is slow: those of the same hash are compared instead.
    """
    every = [text for part in parts for text in part.distinct]
    hashes = np.fromiter(map(hash, every), np.int64, len(every))
    order = np.argsort(hashes, kind="stable")
    opens = np.append(True, hashes[order[1:]] != hashes[order[:-1]])[: len(every)]
    leader = np.empty(len(every), np.int64)
    leader[order] = order[opens][np.cumsum(opens) - 1]
    for one in np.flatnonzero(leader != np.arange(len(every))).tolist():
        if every[one] != every[leader[one]]:
            leader[one] = one  # it may stand there twice: that does no harm
    rows = np.flatnonzero(leader == np.arange(len(every))).tolist()
    rows.sort(key=every.__getitem__)
    place = np.empty(len(every), np.int64)
    place[rows] = np.arange(len(rows))
    place = place[leader]
    first = np.cumsum([0, *(len(part.distinct) for part in parts)]).tolist()
    codes = [place[part.codes + begin] for part, begin in zip(parts, first[:-1], strict=True)]
    distinct = [every[row] for row in rows]
    return Texts(np.concatenate(codes) if codes else np.zeros(0, np.int64), distinct)


def _bytes(
    block: Block, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> list[bytes]:
    data = block.data.tobytes()
    ends = starts + lengths
    return [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def _grouped(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the group of rows with the same text that each row is in, and the first of each."""
    n_words = -(-int(lengths.max()) // 8)
    table = windows(data, f"V{8 * n_words}")[starts].view("<u8").reshape(len(starts), -1)
    words = []
    mixed = lengths.view(np.uint64) * _FACTORS[-1]
    for number in range(n_words):
        word = table[:, number] & _KEPT.take(np.clip(lengths - 8 * number, 0, 8))
        mixed ^= (word ^ (word >> np.uint64(29))) * _FACTORS[number]
        words.append(word)
    mixed ^= mixed >> np.uint64(32)
    codes, _ = pd.factorize(mixed)
    first = np.full(int(codes.max()) + 1, len(codes))
    np.minimum.at(first, codes, np.arange(len(codes)))
    leader = first[codes]
    differs = lengths != lengths[leader]
    for word in words:
        differs |= word != word[leader]
    others = np.flatnonzero(differs)
    if len(others):  # the same hash, another text
        codes[others] = np.arange(len(first), len(first) + len(others))
        first = np.append(first, others)
    return codes, first
