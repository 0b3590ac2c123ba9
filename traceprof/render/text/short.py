"""Names that are too long for their column, cut in the middle so that they stay distinct."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

__all__ = ["shorten_all"]

_CUT: Final = "…"
_LEAST_CUT_TWICE: Final = 12


def shorten_all(names: Sequence[str], width: int) -> list[str]:
    """Return ``names`` with at most ``width`` characters each, different ones different.

    Begin and end of a name are kept. Where two would read alike it is the begin and a place where
    a name differs from others; the last resort is a number.
    """
    different = list(dict.fromkeys(names))
    plain = {name: _in_the_middle(name, width) for name in different}
    uses = Counter(plain.values())
    short = {name: text for name, text in plain.items() if uses[text] == 1}
    taken = set(short.values())
    for name in different:
        if name not in short:
            ways = (way for way in _ways(name, different, width) if way not in taken)
            short[name] = next(ways, plain[name])
            taken.add(short[name])
    return [short[name] for name in names]


def _in_the_middle(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    if width < 3:
        return name[:width]
    head = width // 2
    tail = width - 1 - head
    return f"{name[:head]}{_CUT}{name[len(name) - tail :]}"


def _ways(name: str, others: Sequence[str], width: int) -> Iterator[str]:
    """Yield ways to write ``name`` that tell it from others, then with numbers."""
    if len(name) > width >= _LEAST_CUT_TWICE:
        shared = {_n_shared(name, other) for other in others if other != name}
        for length in sorted(shared, reverse=True):
            yield _from(name, length, width)
    for number in range(2, 2 + len(others)):
        yield f"{_in_the_middle(name, width - len(str(number)) - 1)}#{number}"[:width]


def _from(name: str, shared: int, width: int) -> str:
    """Return the begin of ``name``, and what follows on the first ``shared`` characters."""
    head = width // 4
    if shared <= head + 2:
        return f"{name[: width - 1]}{_CUT}"
    rest = width - head - 2
    start = min(max(head, shared - rest // 2), len(name) - rest - 1)
    end = _CUT if start + rest < len(name) else ""
    return f"{name[:head]}{_CUT}{name[start : start + rest]}{end}"


def _n_shared(one: str, other: str) -> int:
    """Return how many characters two names begin with alike."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
