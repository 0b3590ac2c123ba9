"""The period of a sequence of symbols, such as the names of the kernels of a stream."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.values import dataclass

__all__ = ["Period", "find_period"]

_Int64Array = npt.NDArray[np.int64]

_LONGEST: Final = 1 << 18
"""How many symbols are looked at to find the period: enough for steps of 100 000 kernels."""
_SHORTEST_PERIOD: Final = 4
_LEAST_MATCH: Final = 0.8
_SIGNATURE: Final = 8
_CANDIDATES: Final = 256
_PLACES: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Period:
    """A repeating sequence: its length, how well it repeats, and the last place of each turn."""

    length: int
    match_ratio: float
    lasts: _Int64Array


def find_period(codes: _Int64Array, weights: _Int64Array) -> Period | None:
    """Return the period of ``codes``, None where fewer than 80 % of the symbols repeat.

    ``weights[i]`` is the pause after symbol i: the turns are cut at the longest usual pause.
    """
    # The end of a recording is steadier than its beginning.
    tail = codes[-_LONGEST:]
    length = _best_shift(tail)
    if length is None:
        return None
    match = float(np.mean(tail[length:] == tail[:-length]))
    lasts = _cut(codes, weights, length)
    return Period(length, match, lasts) if match >= _LEAST_MATCH else None


def _best_shift(codes: _Int64Array) -> int | None:
    """Return the shortest shift at which the sequence matches itself about best."""
    longest = len(codes) // 3
    if longest < _SHORTEST_PERIOD:
        return None
    overlap = len(codes) - np.arange(longest + 1)
    ratio = _matches(codes, longest) / overlap
    ratio[:_SHORTEST_PERIOD] = 0
    candidates = np.argsort(-ratio, kind="stable")[:_CANDIDATES]
    exact = np.array([float(np.mean(codes[k:] == codes[:-k])) if k else 0.0 for k in candidates])
    # A layer that repeats inside every turn matches nearly as well as the turn itself.
    return int(candidates[exact >= 0.99 * exact.max()].min()) if exact.any() else None


def _matches(codes: _Int64Array, longest: int) -> npt.NDArray[np.float64]:
    """Return, for each shift up to ``longest``, about how many symbols match themselves.

    The symbols become random signs, whose correlation (by Fourier transform) is the number of
    matches and noise; eight draws keep the noise small. Seeded: the same input, the same answer.
    """
    generator = np.random.default_rng(0)
    size = 1 << int(np.ceil(np.log2(2 * len(codes))))
    n_symbols = int(codes.max()) + 1
    total = np.zeros(longest + 1)
    for _ in range(8):
        signs = generator.choice(np.array([-1.0, 1.0]), n_symbols)[codes]
        spectrum = np.fft.rfft(signs, size)
        total += np.fft.irfft(spectrum * np.conj(spectrum), size)[: longest + 1]
    return total / 8


def _cut(codes: _Int64Array, weights: _Int64Array, length: int) -> _Int64Array:
    """Return the last place of each turn: where the usual pause after it is the longest."""
    n_turns = len(codes) // length
    whole = n_turns * length
    pauses = np.median(weights[-whole:].reshape(n_turns, length), axis=0)
    for place in np.argsort(-pauses, kind="stable")[:_PLACES]:
        signature_end = len(codes) - whole + int(place) + (n_turns - 2) * length
        found = _occurrences(codes, signature_end, min(_SIGNATURE, length // 2))
        if abs(len(found) - n_turns) <= max(1, n_turns // 10):
            return found
    place = int(np.argmax(pauses))
    return np.arange(len(codes) - whole + place, len(codes), length)


def _occurrences(codes: _Int64Array, end: int, size: int) -> _Int64Array:
    """Return where the ``size`` symbols up to ``end`` occur, as the places of their last one."""
    signature = codes[end - size + 1 : end + 1]
    windows = np.lib.stride_tricks.sliding_window_view(codes, size)
    return np.flatnonzero((windows == signature).all(axis=1)) + size - 1
