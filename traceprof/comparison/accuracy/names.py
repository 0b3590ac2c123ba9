"""Names of runs without what all of them share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["short_names"]

_LONG: Final = 24
_PIECES: Final = re.compile(r"[^-_./ ]+|[-_./ ]")
_MARKS: Final = "-_./ "


def short_names(names: Sequence[str]) -> list[str]:
    """Return ``names`` without the words that all begin and end with, where some are long.

    Each keeps a word; names that would be alike stay as they are.
    """
    if len(names) < 2 or max(map(len, names)) <= _LONG:
        return list(names)
    words = [_PIECES.findall(name) for name in names]
    shortest = min(map(len, words))
    end = 0
    while end < shortest - 1 and len({tuple(own[-1 - end :]) for own in words}) == 1:
        end += 1
    start = 0
    while start < shortest - end - 1 and len({tuple(own[: start + 1]) for own in words}) == 1:
        start += 1
    found = ["".join(own[start : len(own) - end]).strip(_MARKS) for own in words]
    return found if all(found) and len(set(found)) == len(names) else list(names)
