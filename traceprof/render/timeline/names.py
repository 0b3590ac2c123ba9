"""The names of a page: in the order of their use, and as texts with numbers in them.

Programs number what they name ("aten::add, op_id = 4711"): of 200 000 such names a few dozen
templates remain, and numbers that count up.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.model.intervals import Int64Array
from traceprof.render.timeline.channels import STATES, Channel, Lanes, channels_by_kind
from traceprof.render.timeline.columns import Streams, zigzag

__all__ = [
    "SplitNames",
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


class SplitNames(dict[str, tuple[str, list[str]]]):
    """Template and numbers of each name: a page that is drawn anew does not split them again."""

    def __missing__(self, name: str) -> tuple[str, list[str]]:
        parts = _NUMBER.split(name)
        found = self[name] = (sys.intern(_PLACE.join(parts[::2])), parts[1::2])
        return found


class Templates:
    """Names without their numbers; ``of_names`` is the template of each name."""

    def __init__(self, names: Sequence[str], split: SplitNames | None = None) -> None:
        split = SplitNames() if split is None else split
        places: dict[str, int] = {}
        of_names, self._numbers = [], []
        for name in names:
            template, numbers = split[name]
            of_names.append(places.setdefault(template, len(places)))
            self._numbers.append(numbers)
        self.texts = tuple(places)
        self.of_names = np.array(of_names, np.int64)

    def add_to(self, streams: Streams) -> None:
        """Add the template of each name, then of each template the numbers, place by place."""
        streams.add_numbers("names.template", self.of_names)
        members = np.split(
            np.argsort(self.of_names, kind="stable"),
            np.cumsum(np.bincount(self.of_names, minlength=len(self.texts)))[:-1],
        )
        numbers = [
            np.diff(np.array([self._numbers[i] for i in places.tolist()], np.int64).T, prepend=0)
            for places in (members if self.texts else ())
        ]
        flat = [part.reshape(-1) for part in numbers if part.size]
        together = np.concatenate(flat) if flat else np.zeros(0, np.int64)
        streams.add_numbers("names.number", zigzag(together))
