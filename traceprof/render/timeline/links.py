"""Which events belong together: a launch on the host and what it started on a device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from traceprof.model.intervals import Int64Array
from traceprof.model.tables import ABSENT
from traceprof.render.timeline.channels import Channel, Lanes
from traceprof.render.timeline.columns import zigzag

__all__ = ["code_links", "number_links"]

_DEVICE = "gpu"


def number_links(lanes: Lanes, order: Iterable[Channel]) -> Mapping[int, Int64Array]:
    """Return, by the id() of each channel with correlations, numbers that say the same in less.

    Equal numbers of one process are linked, as equal correlations are. They count up in the
    ``order`` of the channels; an event without a partner on the other side has ABSENT.
    """
    owner = {
        id(channel): (group.process, row.kind == _DEVICE)
        for group in lanes.groups
        for row in group.rows
        for channel in row.channels
    }
    by_process: dict[int, list[tuple[Channel, bool]]] = defaultdict(list)
    for channel in order:
        if channel.correlations is not None and id(channel) in owner:
            process, is_device = owner[id(channel)]
            by_process[process].append((channel, is_device))
    found: dict[int, Int64Array] = {}
    for channels in by_process.values():
        columns = [c.correlations for c, _ in channels if c.correlations is not None]
        sides = np.repeat([is_device for _, is_device in channels], list(map(len, columns)))
        ends = np.cumsum(list(map(len, columns)))[:-1]
        numbers = np.split(_numbers(np.concatenate(columns), sides), ends)
        found |= {id(c): part for (c, _), part in zip(channels, numbers, strict=True)}
    return found


def _numbers(correlations: Int64Array, is_device: np.ndarray) -> Int64Array:
    values, first, place = np.unique(correlations, return_index=True, return_inverse=True)
    on_device = np.bincount(place[is_device], minlength=len(values)) > 0
    on_host = np.bincount(place[~is_device], minlength=len(values)) > 0
    linked = np.flatnonzero(on_device & on_host & (values != ABSENT))
    number = np.full(len(values), ABSENT)
    number[linked[np.argsort(first[linked])]] = np.arange(len(linked))
    return number[place]


def code_links(numbers: Int64Array) -> Int64Array:
    """Return 0 for events without a partner, else 1 and how far it is from the one that follows."""
    codes = np.zeros(len(numbers), np.int64)
    known = np.flatnonzero(numbers != ABSENT)
    codes[known] = 1 + zigzag(np.diff(numbers[known], prepend=ABSENT) - 1)
    return codes
