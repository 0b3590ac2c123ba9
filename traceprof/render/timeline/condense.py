"""Fewer items for a page: short events of one bin become one item that says how many it is.

Nothing is lost silently: every item keeps the number of events, their busy time and their
bytes, and an event that is at least as long as a bin stays as it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.model.intervals import Int64Array
from traceprof.model.tables import ABSENT
from traceprof.render.timeline.channels import Channel, Group, Lanes

__all__ = [
    "FIRST_BIN_NS",
    "LONGEST_BIN_NS",
    "condense",
    "condense_channel",
    "condense_until",
    "wider",
]

FIRST_BIN_NS: Final = 1_000
LONGEST_BIN_NS: Final = 1 << 60
_GROWTH: Final = 2


def condense_until(lanes: Lanes, max_items: int) -> tuple[Lanes, int]:
    """Return lanes of at most ``max_items`` items, and the width of the bins in ns (0: exact)."""
    bin_ns = 0
    while lanes.n_items > max_items and bin_ns < LONGEST_BIN_NS:
        bin_ns = wider(bin_ns)
        lanes = condense(lanes, bin_ns)
    return lanes, bin_ns


def wider(bin_ns: int) -> int:
    """Return the next width of bins: those of one end where those of the other do."""
    return _GROWTH * bin_ns or FIRST_BIN_NS


def condense(lanes: Lanes, bin_ns: int) -> Lanes:
    """Return lanes with events shorter than ``bin_ns`` merged, as far as bins of half of it have.

    Lanes that were condensed to all narrower bins become what they would at once.
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
