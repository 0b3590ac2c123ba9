"""One event among all of its name, and the same on the other ranks, in all of a trace."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from traceprof.model.intervals import Int64Array
from traceprof.render.timeline.channels import Channel, Group, Lanes
from traceprof.viewer.search import Found

__all__ = ["Alike"]

_N_BINS: Final = 24
_WIDE: Final = 40
_DEVICE: Final = "gpu"
_Event = tuple[int, int, int]


class Alike:
    """Answers what the panel says of an event beyond what the browser has loaded."""

    def __init__(self, lanes: Lanes) -> None:
        self._rows: list[tuple[int, Group, str, tuple[Channel, ...]]] = [
            (place, group, row.kind, row.channels)
            for place, group in enumerate(lanes.groups)
            for row in group.rows
        ]

    def of(self, row: int, channel: int, start_ns: int) -> dict[str, Any] | None:
        """Return the numbers of all of this event's name, and who else has it; None for none."""
        found = self._event(row, channel, start_ns)
        if found is None:
            return None
        name, duration = found
        kind = self._rows[row][2]
        return {
            "population": self._population(name, kind, duration),
            **self._peers(name, kind, (start_ns, row, channel)),
        }

    def _event(self, row: int, channel: int, start_ns: int) -> tuple[int, int] | None:
        channels = self._rows[row][3] if row < len(self._rows) else ()
        if channel >= len(channels):
            return None
        own = channels[channel]
        item = int(np.searchsorted(own.starts, np.int64(start_ns)))
        if item >= len(own) or own.starts[item] != start_ns:
            return None
        return int(own.names[item]), int(own.ends[item] - own.starts[item])

    def _population(self, name: int, kind: str, own_ns: int) -> dict[str, Any]:
        """Return the same numbers as `assets/population.mjs`."""
        parts = [
            (c.ends - c.starts)[c.names == name]
            for _, _, other, channels in self._rows
            if (other == _DEVICE) == (kind == _DEVICE)
            for c in channels
        ]
        durations = np.sort(np.concatenate(parts))
        n = len(durations)
        return {
            "n": n,
            "total": int(durations.sum()),
            "min": int(durations[0]),
            "median": float(np.median(durations)),
            "max": int(durations[-1]),
            "place": n - int(np.searchsorted(durations, own_ns, side="right")) + 1,
            "bins": _bins(durations),
        }

    def _peers(self, name: int, kind: str, event: _Event) -> dict[str, Any]:
        """Return the same as `assets/peers.mjs`: by number where all have as many, else by time."""
        parties: dict[tuple[bool, int], list[_Event]] = defaultdict(list)
        groups: dict[_Event, int] = {}
        mine: tuple[bool, int] | None = None
        for row, (place, group, other, channels) in enumerate(self._rows):
            if other != kind:
                continue
            is_device = group.kind == "device"
            party = (is_device, place if is_device else group.process)
            mine = party if row == event[1] else mine
            for number, channel in enumerate(channels):
                for start in channel.starts[channel.names == name].tolist():
                    parties[party].append((start, row, number))
                    groups[start, row, number] = place
        if len(parties) < 2 or mine is None:
            return {"peers": [], "by_number": True}
        for events in parties.values():
            events.sort()
        own = parties[mine].index(event)
        by_number = len({len(events) for events in parties.values()}) == 1
        peers = []
        for party, events in parties.items():
            is_own = party == mine
            same = events[own] if is_own or by_number else _nearest(events, event[0])
            start, row, number = same
            channel = self._rows[row][3][number]
            end = int(channel.ends[np.searchsorted(channel.starts, np.int64(start))])
            told = asdict(Found(row, number, start, end))
            peers.append({**told, "group": groups[same], "is_own": is_own})
        return {"peers": peers, "by_number": by_number}


def _nearest(events: list[_Event], start_ns: int) -> _Event:
    return min(events, key=lambda event: (abs(event[0] - start_ns), event))


def _bins(durations: Int64Array) -> list[int]:
    low, high = float(durations[0]), float(durations[-1])
    values = durations.astype(np.float64)
    if low > 0 and high / low > _WIDE:
        low, high, values = np.log(low), np.log(high), np.log(values)
    if high <= low:
        return [len(durations)]
    places = np.floor((values - low) / ((high - low) / _N_BINS)).astype(np.int64)
    found: list[int] = np.bincount(places.clip(0, _N_BINS - 1), minlength=_N_BINS).tolist()
    return found
