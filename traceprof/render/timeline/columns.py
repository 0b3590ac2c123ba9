"""Columns of integers as streams of bytes, cut so that deflate finds what there is to find.

A number is a *symbol*, its magnitude with three more bits, and what lies below that, in one stream
for each byte. Symbols of like numbers are alike, and the noise below them costs its own bits only.
Where the numbers of a group (events of one name) are alike, their symbol is that of the group's
mean and a difference. `assets/columns.mjs` reads it.

::

    value < 16            symbol = value
    value ≥ 16            symbol = 8 · shift + (value >> shift), 8 ≤ value >> shift < 16
    NAME.symbol           a byte each; 255 and more: 255, and the rest as a varint in NAME.escape
    NAME.low0, .low1, …   bits 0 to 7, 8 to 15, … of those whose shift is above 0, 8, …: first all
                          numbers of the smallest shift, since equally many bits pack best together
    NAME.expected         where symbols are differences (zigzag): the symbol of each group, as
                          varints, in the order in which the groups come first
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceprof.model.intervals import Int64Array

__all__ = ["Streams", "encode_varints", "first_places", "zigzag"]

UInt64Array = npt.NDArray[np.uint64]

_MANTISSA_BITS = 3
_ESCAPE = 255


class Streams:
    """Named streams of bytes, in the order in which they were added."""

    def __init__(self) -> None:
        self._streams: dict[str, bytes] = {}

    @property
    def lengths(self) -> dict[str, int]:
        """The number of bytes of each stream."""
        return {name: len(data) for name, data in self._streams.items()}

    def joined(self) -> bytes:
        """Return all streams one after another."""
        return b"".join(self._streams.values())

    def add(self, name: str, data: bytes) -> None:
        """Add bytes as they are; none are left out."""
        if data:
            self._streams[name] = data

    def add_numbers(self, name: str, values: Int64Array, groups: Int64Array | None = None) -> None:
        """Add integers from 0; ``groups`` (from 0) tell which of them may be alike."""
        symbols, shifts = _divided(values)
        if groups is not None and len(values):
            symbols = self._add_expected(name, symbols, groups)
        is_escaped = symbols >= _ESCAPE
        self.add(f"{name}.symbol", np.minimum(symbols, _ESCAPE).astype(np.uint8).tobytes())
        self.add(f"{name}.escape", encode_varints(symbols[is_escaped] - _ESCAPE))
        by_shift = np.argsort(shifts.astype(np.uint8), kind="stable")
        below = (values & ((np.int64(1) << shifts) - 1))[by_shift]
        ends = np.searchsorted(shifts[by_shift], np.arange(0, 64, 8), "right")
        for place, first in enumerate(ends.tolist()):
            self.add(f"{name}.low{place}", (below[first:] >> 8 * place).astype(np.uint8).tobytes())

    def _add_expected(self, name: str, symbols: Int64Array, groups: Int64Array) -> Int64Array:
        """Return the symbols as differences from those of their groups, where that is shorter."""
        counts = np.bincount(groups)
        means = np.bincount(groups, symbols) / np.maximum(counts, 1)
        expected = np.rint(means).astype(np.int64)
        differences = zigzag(symbols - expected[groups])
        n_used = int(np.count_nonzero(counts))
        if _bits(differences) + 8 * n_used >= _bits(symbols):
            return symbols
        self.add(f"{name}.expected", encode_varints(expected[groups[first_places(groups)]]))
        return differences


def first_places(values: Int64Array) -> Int64Array:
    """Return the place at which each distinct value comes first, ascending."""
    _, places = np.unique(values, return_index=True)
    return np.sort(places)


def _divided(values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the symbol of each number, and how many bits lie below it."""
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shifts = np.maximum(bits - 1 - _MANTISSA_BITS, 0)
    shifts -= (shifts > 0) & (values >> shifts < 1 << _MANTISSA_BITS)  # rounded up to 2^n
    return (shifts << _MANTISSA_BITS) + (values >> shifts), shifts


def _bits(symbols: Int64Array) -> float:
    """Return how many bits the symbols take by their frequencies alone."""
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / len(symbols))).sum())


def zigzag(values: Int64Array) -> Int64Array:
    """Return integers from 0 for signed ones: 0, -1, 1, -2 … as 0, 1, 2, 3 …."""
    return np.where(values >= 0, 2 * values, -2 * values - 1)


def encode_varints(values: Int64Array | UInt64Array) -> bytes:
    """Return the numbers, each in as many bytes of 7 bits as it needs, least significant first."""
    if len(values) == 0:
        return b""
    rest = values.astype(np.uint64)
    n_bytes = np.ones(len(rest), np.int64)
    for bits in range(7, int(rest.max()).bit_length(), 7):
        n_bytes += rest >= np.uint64(1 << bits)
    places = np.concatenate(([0], np.cumsum(n_bytes)))
    out = np.empty(int(places[-1]), np.uint8)
    for k in range(int(n_bytes.max())):
        has_byte = n_bytes > k
        low = (rest[has_byte] & np.uint64(127)).astype(np.uint8)
        more = np.where(n_bytes[has_byte] > k + 1, 128, 0).astype(np.uint8)
        out[places[:-1][has_byte] + k] = low | more
        rest >>= np.uint64(7)
    return out.tobytes()
