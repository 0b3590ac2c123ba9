"""What a device does at each instant, for pages that hold condensed events.

An exact page derives the same in the browser (`assets/states.mjs`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traceprof.model.activity import Part
from traceprof.model.intervals import Intervals
from traceprof.render.palette import CATEGORIES
from traceprof.render.timeline.channels import Channel, Group, Lanes

__all__ = ["device_states", "with_states"]

_PART_OF = {item.key: item.part for item in CATEGORIES}


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
    busy = {part: _busy(group, part).clip(0, duration_ns) for part in Part}
    compute, communication = busy[Part.COMPUTE], busy[Part.COMMUNICATION]
    transfer, memory = busy[Part.TRANSFER], busy[Part.DEVICE_MEMORY]
    active = compute | communication
    found = {
        "compute": compute - communication,
        "overlap": compute & communication,
        "exposed_communication": communication - compute,
        "exposed_transfer": transfer - active,
        "device_memory": memory - active - transfer,
        "idle": (active | transfer | memory).gaps(0, duration_ns),
    }
    return tuple(_channel(key, span) for key, span in found.items() if len(span))


def _busy(group: Group, part: Part) -> Intervals:
    channels = [c for row in group.rows for c in row.channels if _PART_OF[c.category] is part]
    if not channels:
        return Intervals.empty()
    return Intervals.union_of(
        np.concatenate([c.starts for c in channels]), np.concatenate([c.ends for c in channels])
    )


def _channel(category: str, span: Intervals) -> Channel:
    return Channel(category, span.starts, span.ends, np.zeros(len(span), np.int64))
