"""What the page of a timeline holds: its head, its steps, and when devices are in which state.

The form is described in `traceprof/render/timeline/encode.py`, and read by `assets/decode.mjs`.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["Timeline", "timeline_of"]

Numbers = npt.NDArray[np.int64]
_BLOCK: Final = re.compile(
    r'<script type="text/plain" id="traceprof-data" data-bytes="(\d+)">(.*?)</script>', re.DOTALL
)
_FORBIDDEN: Final = np.array([0, 7, 8, 10, 11, 12, 13, 14, 15, 26, 27, 60, 127])
_FIRST_PAIR: Final = 0x100
_ESCAPE: Final = 255
_LABEL: Final = re.compile(r"\D*(\d+)")


@dataclass(frozen=True, slots=True)
class Timeline:
    """``head`` as the page has it; ``states`` are starts and ends by device and category."""

    head: Mapping[str, Any]
    states: Mapping[tuple[str, str], tuple[Numbers, Numbers]]

    @property
    def steps(self) -> dict[int, float]:
        """The lengths of the steps in ns, by their numbers: on the devices where that is known."""
        steps = self.head["steps"]
        labels = (_LABEL.match(label) for label in steps["labels"])
        where = "device_" if steps["device_starts"] else ""
        spans = zip(labels, steps[f"{where}starts"], steps[f"{where}ends"], strict=True)
        return {int(label[1]): float(end - start) for label, start, end in spans if label}


def timeline_of(page: str) -> Timeline:
    """Return the timeline in ``page``."""
    found = _BLOCK.search(page)
    assert found, "a page without a timeline"
    data = gzip.decompress(_bytes_of(found[2], int(found[1])))
    n_head = int.from_bytes(data[:4], "little")
    head = json.loads(data[4 : 4 + n_head])
    streams, at = {}, 4 + n_head
    for name, length in head["streams"].items():
        streams[name] = np.frombuffer(data, np.uint8, length, at)
        at += length
    return Timeline(head, _states_of(head, streams))


def _bytes_of(text: str, n_bytes: int) -> bytes:
    """Return the bytes that ``text`` has, 7 bits a character; what a page cannot hold in pairs."""
    units = np.frombuffer(text.encode("utf-16-le"), "<u2").astype(np.int64)
    are_pairs = units >= _FIRST_PAIR
    places = np.arange(len(units)) + np.cumsum(are_pairs)  # of the last seven of each
    sevens = np.zeros(len(units) + int(are_pairs.sum()), np.uint8)
    sevens[places] = units & 127
    sevens[places[are_pairs] - 1] = _FORBIDDEN[(units[are_pairs] - _FIRST_PAIR) >> 7]
    bits = np.unpackbits(sevens[:, None], axis=1)[:, 1:].ravel()
    return np.packbits(bits)[:n_bytes].tobytes()


def _states_of(
    head: Mapping[str, Any], streams: Mapping[str, npt.NDArray[np.uint8]]
) -> dict[tuple[str, str], tuple[Numbers, Numbers]]:
    """Return when each device is in which state, as far as the page says so itself.

    Of a page with all events that is only when it was not recorded; the other states follow. What
    stands for several is left out: there are pauses in it.
    """
    gaps, durations = (_numbers(streams, f"state.{column}") for column in ("gap", "duration"))
    found, at = {}, 0
    for group in head["groups"]:
        for channel in group["states"]:
            own = slice(at, at + channel["n"])
            at = own.stop
            # Each item begins so long after the end of the one before.
            ends = channel["first_ns"] + np.cumsum(gaps[own] + durations[own])
            key = head["categories"][channel["category"]]["key"]
            if not channel["is_condensed"]:
                found[group["label"], key] = (ends - durations[own], ends)
    return found


def _numbers(streams: Mapping[str, npt.NDArray[np.uint8]], name: str) -> Numbers:
    none = np.zeros(0, np.uint8)
    symbols = streams.get(f"{name}.symbol", none).astype(np.int64)
    escaped = symbols == _ESCAPE
    symbols[escaped] += _varints(streams.get(f"{name}.escape", none))
    expected = _varints(streams.get(f"{name}.expected", none))
    if len(expected):  # states have no names: they are one group
        symbols = expected[0] + np.where(symbols % 2, -(symbols + 1) // 2, symbols // 2)
    shifts = np.where(symbols < 16, 0, (symbols >> 3) - 1)
    values = np.where(symbols < 16, symbols, ((symbols & 7) + 8) << shifts)
    by_shift = np.argsort(shifts, kind="stable")
    for place in range(8):
        own = by_shift[shifts[by_shift] > 8 * place]
        low = streams.get(f"{name}.low{place}", none).astype(np.int64)
        values[own] += low[: len(own)] << (8 * place)
    return values


def _varints(data: npt.NDArray[np.uint8]) -> Numbers:
    found, value, bits = [], 0, 0
    for byte in data.tolist():
        value |= (byte & 127) << bits
        bits += 7
        if byte < 128:
            found.append(value)
            value, bits = 0, 0
    return np.array(found, np.int64)
