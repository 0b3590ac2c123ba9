"""Find all events with the name of an event, and the same event on other ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from traceprof.model.intervals import Int64Array
from traceprof.render.timeline.channels import LaneGroup, LaneRow, Lanes

_N_BINS: Final = 24
_MIN_LOG_RATIO: Final = 40
"""The bins are logarithmic if the longest duration exceeds this multiple of the shortest."""
_DEVICE_ROW: Final = "gpu"
_COMMUNICATION: Final = "communication"
_Event = tuple[int, int, int]
"""Start in ns, number of the row, and number of the channel."""


@dataclass(frozen=True, slots=True)
class FoundEvent:
    """An event: number of its row in the trace, number of its channel in the row, times in ns."""

    row: int
    channel: int
    start: int
    end: int


def rows_of(lanes: Lanes) -> list[tuple[int, LaneGroup, LaneRow]]:
    """Return all rows in the order of their numbers, each with the number of its group."""
    return [(number, group, row) for number, group in enumerate(lanes.groups) for row in group.rows]


class SameName:
    """Finds all events with the name of an event, of which the browser has loaded only some."""

    def __init__(self, lanes: Lanes) -> None:
        self._rows = rows_of(lanes)

    def of(self, row: int, channel: int, start_ns: int) -> dict[str, Any] | None:
        """Return statistics of all events with this event's name, and its peers.

        Returns None if there is no event at ``row``, ``channel``, and ``start_ns``.
        """
        event = self._event(row, channel, start_ns)
        if event is None:
            return None
        name, duration = event
        kind = self._rows[row][2].kind
        return {
            "population": self._population(name, kind, duration),
            **self._peers(name, kind, (start_ns, row, channel)),
        }

    def _event(self, row: int, channel: int, start_ns: int) -> tuple[int, int] | None:
        """Return name and duration of an event; None if there is no such event."""
        channels = self._rows[row][2].channels if row < len(self._rows) else ()
        if channel >= len(channels):
            return None
        events = channels[channel]
        item = int(np.searchsorted(events.starts, np.int64(start_ns)))
        if item >= len(events) or events.starts[item] != start_ns:
            return None
        return int(events.names[item]), int(events.ends[item] - events.starts[item])

    def _population(self, name: int, kind: str, duration_ns: int) -> dict[str, Any]:
        """Return the same numbers as `assets/population.mjs`: statistics of durations."""
        parts = [
            (c.ends - c.starts)[c.names == name]
            for _, _, row in self._rows
            if (row.kind == _DEVICE_ROW) == (kind == _DEVICE_ROW)
            for c in row.channels
        ]
        durations = np.sort(np.concatenate(parts))
        n = len(durations)
        return {
            "n": n,
            "total": int(durations.sum()),
            "min": int(durations[0]),
            "median": float(np.median(durations)),
            "max": int(durations[-1]),
            "place": n - int(np.searchsorted(durations, duration_ns, side="right")) + 1,
            "bins": _bins(durations),
        }

    def _peers(self, name: int, kind: str, event: _Event) -> dict[str, Any]:
        """Return the same events as `assets/peers.mjs`: one per party, with this event's name.

        A party is a device, or the threads of a process. If all parties have the same number of
        events, peers have the same number in the order of time. Otherwise the peer is the event
        whose start is nearest; of collectives, which ranks leave together, the nearest end.
        """
        own_channel = self._rows[event[1]][2].channels[event[2]]
        edge = "end" if own_channel.category == _COMMUNICATION else "start"
        edge_ns: dict[_Event, int] = {}
        parties: dict[tuple[bool, int], list[_Event]] = defaultdict(list)
        groups: dict[_Event, int] = {}
        party_of_event: tuple[bool, int] | None = None
        for place, (group_number, group, row) in enumerate(self._rows):
            if row.kind != kind:
                continue
            is_device = group.kind == "device"
            party = (is_device, group_number if is_device else group.process)
            party_of_event = party if place == event[1] else party_of_event
            for number, channel in enumerate(row.channels):
                items = np.flatnonzero(channel.names == name)
                edges = channel.starts if edge == "start" else channel.ends
                for start, at in zip(
                    channel.starts[items].tolist(), edges[items].tolist(), strict=True
                ):
                    parties[party].append((start, place, number))
                    groups[start, place, number] = group_number
                    edge_ns[start, place, number] = at
        if len(parties) < 2 or party_of_event is None:
            return {"peers": [], "matched_by": "number"}
        for events in parties.values():
            events.sort(key=lambda one: (edge_ns[one], one))
        number_of_event = parties[party_of_event].index(event)
        by_number = len({len(events) for events in parties.values()}) == 1
        peers = []
        for party, events in parties.items():
            is_same_party = party == party_of_event
            peer = (
                events[number_of_event]
                if is_same_party or by_number
                else min(events, key=lambda one: (abs(edge_ns[one] - edge_ns[event]), one))
            )
            start, place, number = peer
            channel = self._rows[place][2].channels[number]
            end = int(channel.ends[np.searchsorted(channel.starts, np.int64(start))])
            fields = asdict(FoundEvent(place, number, start, end))
            peers.append({**fields, "group": groups[peer], "is_own": is_same_party})
        return {"peers": peers, "matched_by": "number" if by_number else edge}


def _bins(durations: Int64Array) -> list[int]:
    """Return the number of durations in each bin of a histogram; ``durations`` are sorted."""
    low, high = float(durations[0]), float(durations[-1])
    values = durations.astype(np.float64)
    if low > 0 and high / low > _MIN_LOG_RATIO:
        low, high, values = np.log(low), np.log(high), np.log(values)
    if high <= low:
        return [len(durations)]
    indices = np.floor((values - low) / ((high - low) / _N_BINS)).astype(np.int64)
    counts: list[int] = np.bincount(indices.clip(0, _N_BINS - 1), minlength=_N_BINS).tolist()
    return counts
