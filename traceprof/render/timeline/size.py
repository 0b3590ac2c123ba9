"""How large the data of a page may be: a budget of items, and of bytes once they are packed."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["MAX_BYTES", "MAX_ITEMS", "pack_within"]

MAX_ITEMS: Final = 5_000_000
"""How many items a page holds at most; more are condensed, and the page says so."""

MAX_BYTES: Final = 8_800_000
"""How many bytes they take at most, packed: a page of 12 MB, some 3 million events."""

_FEWEST_ITEMS: Final = 10_000
_MARGIN: Final = 0.9

_Drawn = TypeVar("_Drawn")


def pack_within(
    draw: Callable[[int], tuple[_Drawn, int, bytes]], max_items: int, max_bytes: int = MAX_BYTES
) -> tuple[_Drawn, bytes]:
    """Return what ``draw`` makes of at most so many items that it fits, and its bytes as gzip.

    ``draw`` takes a number of items and returns what it drew, its number of items and its bytes.
    """
    while True:
        drawn, n_items, data = draw(max_items)
        packed = gzip.compress(data, compresslevel=6, mtime=0)
        if len(packed) <= max_bytes or max_items <= _FEWEST_ITEMS:
            return drawn, packed
        max_items = int(_MARGIN * min(max_items, n_items) * max_bytes / len(packed))
