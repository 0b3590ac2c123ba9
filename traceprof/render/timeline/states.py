"""What a device does at each instant, for pages that hold condensed events.

An exact page derives the same in the browser (`assets/states.mjs`), from `state_of_parts`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.model.activity import DeviceTime, Part
from traceprof.model.intervals import Intervals
from traceprof.render.palette import CATEGORIES, category_index
from traceprof.render.timeline.channels import Channel, Group, Lanes

__all__ = ["device_states", "part_bits", "state_of_parts", "with_states"]

_PART_OF: Final = {item.key: item.part for item in CATEGORIES}
_UNIONS: Final = tuple(Part)


def with_states(lanes: Lanes, duration_ns: int) -> Lanes:
    """Return ``lanes`` whose device groups carry their states over ``[0, duration_ns)``."""
    return replace(
        lanes,
        groups=tuple(
            replace(group, states=device_states(group, duration_ns))
            if group.kind == "device"
            else group
            for group in lanes.groups
        ),
    )


def device_states(group: Group, duration_ns: int) -> tuple[Channel, ...]:
    """Return the states of one device: exclusive, and together the whole duration."""
    time = DeviceTime(**{part.value: _busy(group, part) for part in _UNIONS})
    states = time.states(0, duration_ns)
    return tuple(_channel(key, span) for key, span in states.items() if len(span))


def part_bits() -> list[int]:
    """Return, for each category, the bit of the union that its events belong to; 0 for none."""
    return [0 if c.part is None else 1 << _UNIONS.index(c.part) for c in CATEGORIES]


def state_of_parts() -> list[int]:
    """Return the category of the state for each set of unions that are busy together.

    A place in the list has the bits of `part_bits`.
    """
    return [_state_of(bits) for bits in range(1 << len(_UNIONS))]


def _state_of(bits: int) -> int:
    always, never = Intervals.union_of(np.array([0]), np.array([1])), Intervals.empty()
    time = DeviceTime(
        **{part.value: always if bits >> i & 1 else never for i, part in enumerate(_UNIONS)}
    )
    (state,) = (key for key, span in time.states(0, 1).items() if len(span))
    return category_index(state)


def _busy(group: Group, part: Part) -> Intervals:
    channels = [c for row in group.rows for c in row.channels if _PART_OF[c.category] is part]
    if not channels:
        return Intervals.empty()
    return Intervals.union_of(
        np.concatenate([c.starts for c in channels]), np.concatenate([c.ends for c in channels])
    )


def _channel(category: str, span: Intervals) -> Channel:
    return Channel(category, span.starts, span.ends, np.zeros(len(span), np.int64))
