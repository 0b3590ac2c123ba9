"""Fewer items for a page: short events of one bin become one item that says how many it is.

Nothing is lost silently: every item keeps the number of events, their busy time and their
bytes, and an event that is at least as long as a bin stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.model.intervals import Int64Array
from traceprof.model.tables import ABSENT
from traceprof.render.timeline.channels import Channel, Group, Lanes

__all__ = [
    "FIRST_BIN_NS",
    "condense",
    "condense_channel",
    "condense_until",
    "items_by_width",
    "times_to_widen",
    "width_of",
]

FIRST_BIN_NS: Final = 1_000
_GROWTH: Final = 2
_MOST_TIMES: Final = 52  # beyond all clocks
_POWERS: Final = np.int64(_GROWTH) ** np.arange(_MOST_TIMES)


def condense_until(lanes: Lanes, max_items: int) -> tuple[Lanes, int]:
    """Return lanes of at most ``max_items`` items, and the width of the bins in ns (0: exact)."""
    widened = times_to_widen(items_by_width(lanes), max_items)
    bin_ns = width_of(widened)
    return (condense(lanes, bin_ns) if widened else lanes), bin_ns


def items_by_width(lanes: Lanes) -> list[int]:
    """Return of how many items lanes would be with bins that were widened 0, 1, 2 … times.

    Two neighbours of a channel are apart in bins of w ns where they start in different ones or
    one of them is at least as long: as long as w / FIRST_BIN_NS has no more bits than the greater
    of the two lengths, or than what differs between the two starts, in bins of the first width.
    """
    found = np.zeros(_MOST_TIMES + 1, np.int64)
    for channel in lanes.channels:
        if not len(channel):
            continue
        starts = channel.starts // FIRST_BIN_NS
        lengths = (channel.ends - channel.starts) // FIRST_BIN_NS
        differing = (starts[1:] ^ starts[:-1]) | lengths[1:] | lengths[:-1]
        n_bits = np.searchsorted(_POWERS, differing, side="right")
        n_bits[differing < 0] = _MOST_TIMES  # to both sides of 0
        apart = np.bincount(n_bits, minlength=len(found))[: len(found)]
        found += 1 + apart[::-1].cumsum()[::-1]
    return [lanes.n_items, *found[1:].tolist()]


def times_to_widen(n_items: Sequence[int], max_items: int) -> int:
    """Return how often bins have to be widened for at most so many of the items, or can be."""
    fitting = (times for times, n in enumerate(n_items) if n <= max_items)
    return next(fitting, len(n_items) - 1)


def width_of(n_times: int) -> int:
    """Return the width in ns of bins that were widened so often: 0 for none."""
    return FIRST_BIN_NS * _GROWTH ** (n_times - 1) if n_times else 0


def condense(lanes: Lanes, bin_ns: int) -> Lanes:
    """Return lanes with events shorter than ``bin_ns`` merged.

    Lanes that were condensed to narrower bins, of which these are multiples, become what they
    would at once.
    """

    def condense_group(group: Group) -> Group:
        rows = tuple(
            replace(row, channels=tuple(condense_channel(c, bin_ns) for c in row.channels))
            for row in group.rows
        )
        return replace(
            group, rows=rows, states=tuple(condense_channel(c, bin_ns) for c in group.states)
        )

    return replace(lanes, groups=tuple(condense_group(group) for group in lanes.groups))


def condense_channel(channel: Channel, bin_ns: int) -> Channel:
    """Return ``channel`` with events shorter than ``bin_ns`` merged per bin of that width."""
    if len(channel) == 0:
        return channel
    durations = channel.ends - channel.starts
    bins = channel.starts // bin_ns
    is_long = durations >= bin_ns
    opens = np.ones(len(channel), bool)
    opens[1:] = (bins[1:] != bins[:-1]) | is_long[1:] | is_long[:-1]
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(channel)) - 1
    counts = _sums(channel.counts, first, last - first + 1)
    alone = counts == 1
    return Channel(
        category=channel.category,
        starts=channel.starts[first],
        ends=channel.ends[last],
        names=np.where(alone, channel.names[first], 0),
        n_bytes=_known_sum(channel.n_bytes, first),
        correlations=None
        if channel.correlations is None
        else np.where(alone, channel.correlations[first], ABSENT),
        busy_ns=_sums(channel.busy_ns, first, np.add.reduceat(durations, first)),
        counts=counts,
    )


def _sums(values: Int64Array | None, first: Int64Array, otherwise: Int64Array) -> Int64Array:
    return otherwise if values is None else np.add.reduceat(values, first)


def _known_sum(n_bytes: Int64Array | None, first: Int64Array) -> Int64Array | None:
    """Return the bytes of each item; ABSENT where none of its events has any."""
    if n_bytes is None:
        return None
    total = np.add.reduceat(np.maximum(n_bytes, 0), first)
    is_known = np.maximum.reduceat(n_bytes, first) != ABSENT
    return np.where(is_known, total, ABSENT)
