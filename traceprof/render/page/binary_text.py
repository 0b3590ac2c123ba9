"""Bytes as text of a page, 7 bits a character: 14 % longer than they are (base64: 33 %).

A character that HTML would change (NUL, CR), that ends a script ("<"), or that terminals obey is
no character of its own: with the seven bits after it it is one of the letters from U+0100 on, which
takes two bytes of UTF-8, as the two would. `assets/text.mjs` reads it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

__all__ = ["data_block", "text_of_bytes"]

_FORBIDDEN: Final = (0, 7, 8, 10, 11, 12, 13, 14, 15, 26, 27, 60, 127)
_FIRST_PAIR: Final = 0x100


def data_block(name: str, data: bytes) -> str:
    """Return the element of the id ``name`` that holds ``data``."""
    text = text_of_bytes(data)
    return f'<script type="text/plain" id="{name}" data-bytes="{len(data)}">{text}</script>'


def text_of_bytes(data: bytes) -> str:
    """Return ``data`` as text; who reads it must know the number of bytes."""
    sevens = _sevens(np.frombuffer(data, np.uint8))
    place = np.full(128, -1, np.int16)
    place[list(_FORBIDDEN)] = np.arange(len(_FORBIDDEN))
    places = place[sevens]
    opens = _pairs_open(places >= 0)
    units = sevens.astype(np.uint16)
    pairs = np.flatnonzero(opens)
    units[pairs] = _FIRST_PAIR + (places[pairs].astype(np.uint16) << 7) + sevens[pairs + 1]
    is_kept = np.ones(len(units), bool)
    is_kept[pairs + 1] = False
    is_kept[-1] = False
    return units[is_kept].astype("<u2").tobytes().decode("utf-16-le")


def _sevens(data: np.ndarray) -> np.ndarray:
    """Return the bits of ``data`` by sevens, and seven more for the last one to pair with."""
    n_bits = 8 * len(data)
    n_sevens = -(-n_bits // 7)
    padded = np.concatenate((data, np.zeros(2, np.uint8))).astype(np.uint16)
    first = 7 * np.arange(n_sevens)
    both = (padded[first >> 3] << 8) | padded[(first >> 3) + 1]
    return np.append((both >> (9 - (first & 7))) & 127, 0).astype(np.uint8)


def _pairs_open(is_forbidden: np.ndarray) -> np.ndarray:
    """Return where a forbidden one makes a pair: the 1st, 3rd, … of those in a row."""
    edges = np.flatnonzero(np.diff(is_forbidden, prepend=False) & is_forbidden)
    run = np.zeros(len(is_forbidden), np.int64)
    run[edges] = edges
    offset = np.arange(len(is_forbidden)) - np.maximum.accumulate(run)
    opens: np.ndarray = is_forbidden & (offset % 2 == 0)
    opens[-1] = False
    return opens
