"""The names of a page: in the order of their use, and as texts with numbers in them.

Programs number what they name ("aten::add, op_id = 4711"): of 200 000 such names a few dozen
templates remain, and numbers that count up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.model.intervals import Int64Array
from traceprof.render.timeline.channels import STATES, Channel, Lanes, channels_by_kind
from traceprof.render.timeline.columns import Streams, zigzag

__all__ = [
    "Templates",
    "code_names",
    "in_order_of_use",
    "renumbered",
    "with_channels",
]

_NUMBER: Final = re.compile(r"(?<![0-9])(0|[1-9][0-9]{0,14})(?![0-9])", re.ASCII)
_PLACE: Final = "\x01"  # `plain_text` leaves no such character in a name


def in_order_of_use(lanes: Lanes) -> Lanes:
    """Return the same lanes with names numbered as they come first, kind by kind of the rows.

    Names that no item has stand behind the others: several events may bear them that are one item.
    """
    kinds = channels_by_kind(lanes)
    channels = [c for kind, found in kinds.items() if kind != STATES for c in found]
    if not channels:
        return lanes
    every = np.concatenate([c.names[_are_single(c)] for c in channels])
    used, first = np.unique(every, return_index=True)
    order = np.append(used[np.argsort(first)], np.setdiff1d(np.arange(len(lanes.names)), used))
    place = np.zeros(len(lanes.names), np.int64)
    place[order] = np.arange(len(order))

    def renamed(channel: Channel) -> Channel:
        return replace(channel, names=renumbered(channel, place))

    ordered = with_channels(lanes, renamed)
    return Lanes(ordered.groups, tuple(lanes.names[i] for i in order.tolist()))


def renumbered(channel: Channel, place: Int64Array) -> Int64Array:
    """Return the names of ``channel`` at their ``place``; items of several events have none: 0."""
    if not len(place):
        return channel.names
    return np.where(_are_single(channel), place[channel.names], 0)


def _are_single(channel: Channel) -> npt.NDArray[np.bool_]:
    if channel.counts is None:
        return np.ones(len(channel), np.bool_)
    return np.asarray(channel.counts == 1, np.bool_)


def with_channels(lanes: Lanes, change: Callable[[Channel], Channel]) -> Lanes:
    """Return ``lanes`` with what ``change`` makes of each channel of their rows."""
    groups = tuple(
        replace(
            group,
            rows=tuple(
                replace(row, channels=tuple(map(change, row.channels))) for row in group.rows
            ),
        )
        for group in lanes.groups
    )
    return replace(lanes, groups=groups)


def code_names(names: Int64Array, n_before: int) -> tuple[Int64Array, int]:
    """Return 0 for a name that is the next new one, else its number and 1; and how many are known.

    ``n_before`` is one more than the greatest number so far.
    """
    if len(names) == 0:
        return names, n_before
    known = np.maximum.accumulate(np.concatenate(([n_before - 1], names)))
    return np.where(names == known[:-1] + 1, 0, names + 1), int(known[-1]) + 1


class Templates:
    """``names`` without their numbers; ``of_names`` is the template of each name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        places: dict[str, int] = {}
        of_names = []
        numbers: list[list[list[str]]] = []
        for name in names:
            parts = _NUMBER.split(name)
            template = _PLACE.join(parts[::2])
            place = places.setdefault(template, len(places))
            if place == len(numbers):
                numbers.append([])
            of_names.append(place)
            numbers[place].append(parts[1::2])
        self.texts = tuple(places)
        self.of_names = np.array(of_names, np.int64)
        steps = [np.diff(np.array(own, np.int64).T, prepend=0) for own in numbers]
        flat = [part.reshape(-1) for part in steps if part.size]
        self._steps = zigzag(np.concatenate(flat) if flat else np.zeros(0, np.int64))

    def add_to(self, streams: Streams) -> None:
        """Add the template of each name, then of each template the numbers, place by place."""
        streams.add_numbers("names.template", self.of_names)
        streams.add_numbers("names.number", self._steps)
