"""Pair the lanes and the steps of two recordings.

On the common axis, step k of both recordings starts at the same position. Each step has a slot as
long as the longer of the two steps; after the shorter step, the rest of its slot is empty. Times
are never stretched, so lengths on the screen can be compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from traceprof.model.intervals import Int64Array
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.render.escape import plain_text
from traceprof.render.timeline.channels import LaneGroup, Lanes

_DIGITS: Final = re.compile(r"-?\d+")
_Key = tuple[str, str, str, int]


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Group number ``group`` of side ``side``, shown in the section ``section``."""

    side: int
    group: int
    section: str


def pair_groups(
    sides: Sequence[tuple[Trace, Lanes]], by_rank: bool
) -> tuple[list[GroupPlace], list[int]]:
    """Return all groups, counterparts next to each other, and each counterpart's index (or -1)."""
    keys = [_group_keys(trace, lanes, by_rank) for trace, lanes in sides]
    group_of_key = [{key: group for group, key in enumerate(side_keys)} for side_keys in keys]
    has_several_owners = any(len({key[0] for key in side_keys}) > 1 for side_keys in keys)
    placed: list[GroupPlace] = []
    partners: list[int] = []
    used: set[str] = set()
    all_keys = dict.fromkeys(key for side_keys in keys for key in side_keys)
    places = {owner: i for i, owner in enumerate(dict.fromkeys(key[0] for key in all_keys))}
    for key in sorted(all_keys, key=lambda key: (places[key[0]], key[1] != "device")):
        members = [(side, known[key]) for side, known in enumerate(group_of_key) if key in known]
        groups = [sides[side][1].groups[group] for side, group in members]
        section = _section(key, groups, has_several_owners, used)
        first = len(placed)
        placed += [GroupPlace(side, group, section) for side, group in members]
        partners += [first + 1, first] if len(members) == 2 else [ABSENT]
    return placed, partners


def _group_keys(trace: Trace, lanes: Lanes, by_rank: bool) -> list[_Key]:
    """Return a key for each group: (owner, kind, label, number). Counterparts have equal keys."""
    known = trace.processes
    ranks = dict(zip(known["process"].tolist(), known["rank"].tolist(), strict=True))
    processes = dict.fromkeys(group.process for group in lanes.groups)
    order = {process: i for i, process in enumerate(processes)}
    seen: Counter[tuple[str, str, str]] = Counter()
    keys: list[_Key] = []
    for group in lanes.groups:
        rank = int(ranks.get(group.process, ABSENT))
        number = f"process {order[group.process] + 1} of {len(order)}"
        owner = f"rank {rank}" if by_rank and rank != ABSENT else number
        label = "" if group.kind == "device" else " ".join(_DIGITS.sub("", group.label).split())
        seen[owner, group.kind, label] += 1
        keys.append((owner, group.kind, label, seen[owner, group.kind, label]))
    return keys


def _section(
    key: _Key, members: Sequence[LaneGroup], has_several_owners: bool, used: set[str]
) -> str:
    """Return a unique heading such as "GPU 1, rank 1"; add it to ``used``."""
    labels = dict.fromkeys(group.label.split(" · ")[0] for group in members)
    is_one_thread = key[1] != "device" and len(labels) > 1
    words = key[2] if is_one_thread else " | ".join(labels)
    base = f"{words}, {key[0]}" if has_several_owners else words
    base = section = plain_text(base.replace(" · ", ", "), 120)
    number = 1
    while section in used:
        number += 1
        section = f"{base} ({number})"
    used.add(section)
    return section


_SLOT_BEFORE: Final = 0


@dataclass(frozen=True, slots=True, eq=False)
class StepExtent:
    """The steps of one recording and its whole extent; times in ns on its own clock, sorted.

    ``word`` is "step", or "iteration" for iterations of a pattern.
    """

    first_ns: int
    last_ns: int
    starts: Int64Array
    ends: Int64Array
    numbers: tuple[int, ...]
    word: str = "step"


@dataclass(frozen=True, slots=True, eq=False)
class AxisClock:
    """Pieces of a recording's time, and where each begins on the axis (ns, sorted)."""

    recording_ns: Int64Array
    axis_ns: Int64Array
    lengths_ns: Int64Array

    def starts(self, recording_ns: Int64Array) -> Int64Array:
        """Return the axis positions of starts of events.

        An instant on the border of two pieces belongs to the later piece.
        """
        return self._at(recording_ns, "right")

    def ends(self, recording_ns: Int64Array) -> Int64Array:
        """Return the axis positions of ends of events.

        An instant on the border of two pieces belongs to the earlier piece.
        """
        return self._at(recording_ns, "left")

    def _at(self, recording_ns: Int64Array, side: Any) -> Int64Array:
        """Return the axis positions of instants; ``side`` is that of `numpy.searchsorted`."""
        piece = np.maximum(np.searchsorted(self.recording_ns, recording_ns, side=side) - 1, 0)
        found: Int64Array = recording_ns - self.recording_ns[piece] + self.axis_ns[piece]
        return found

    def head(self) -> dict[str, list[int]]:
        """Return the clock in the JSON form of the page."""
        return {
            "own": self.recording_ns.tolist(),
            "axis": self.axis_ns.tolist(),
            "lengths": self.lengths_ns.tolist(),
        }


@dataclass(frozen=True, slots=True)
class StepAxis:
    """The clocks of the recordings, and the positions of the steps on the axis (ns).

    ``step_spans`` holds, for each recording and step, start and end on the recording's clock; None
    if the recording lacks the step.
    """

    clocks: tuple[AxisClock, ...]
    duration_ns: int
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    labels: tuple[str, ...]
    step_spans: tuple[tuple[tuple[int, int] | None, ...], ...]


def align_steps(extents: Sequence[StepExtent]) -> StepAxis:
    """Return the common axis of the recordings.

    Steps are paired by number if the recordings share numbers, otherwise by order.
    """
    keys, places = _match_steps(extents)
    borders = [_slot_borders(extent, places[side]) for side, extent in enumerate(extents)]
    lengths = np.array([np.diff(border) for border in borders])
    widest = lengths.max(axis=0)
    slots = np.concatenate(([0], np.cumsum(widest)))
    clocks = []
    for border, slot_lengths in zip(borders, lengths, strict=True):
        axis = slots[:-1].copy()
        # The time before the first step is aligned at its end, where the first step begins.
        axis[_SLOT_BEFORE] += widest[_SLOT_BEFORE] - slot_lengths[_SLOT_BEFORE]
        kept = np.flatnonzero(slot_lengths > 0)
        kept = kept if len(kept) else np.array([_SLOT_BEFORE])
        clocks.append(AxisClock(border[:-1][kept], axis[kept], slot_lengths[kept]))
    return StepAxis(
        clocks=tuple(clocks),
        duration_ns=max(1, int(slots[-1])),
        starts=tuple(slots[1:-2].tolist()),
        ends=tuple(slots[2:-1].tolist()),
        labels=tuple(keys),
        step_spans=tuple(
            tuple(
                None if place is None else (int(extent.starts[place]), int(extent.ends[place]))
                for place in places[side]
            )
            for side, extent in enumerate(extents)
        ),
    )


def _match_steps(extents: Sequence[StepExtent]) -> tuple[list[str], list[list[int | None]]]:
    """Return the label of each step, and its index in each recording (None if missing there)."""
    by_number = [{number: i for i, number in enumerate(e.numbers)} for e in extents]
    are_sorted = all(list(e.numbers) == sorted(set(e.numbers)) for e in extents)
    if are_sorted and set.intersection(*map(set, by_number)):
        numbers = sorted(set().union(*by_number))
        labels = [f"{extents[0].word} {number}" for number in numbers]
        return labels, [
            [index_of_number.get(number) for number in numbers] for index_of_number in by_number
        ]
    orders = range(max(len(extent.numbers) for extent in extents))
    places = [[i if i < len(extent.numbers) else None for i in orders] for extent in extents]
    words = [[*(f"{e.word} {number}" for number in e.numbers)] for e in extents]
    return [" | ".join(row) for row in zip_longest(*words, fillvalue="–")], places


def _slot_borders(extent: StepExtent, places: Sequence[int | None]) -> Int64Array:
    """Return where each slot begins in a recording: before, each step, after; and the end.

    A step lasts until the next step begins; the last step lasts until its own end. A missing step
    takes no time.
    """
    present = [place for place in places if place is not None]
    after = int(extent.ends[present[-1]])
    inner: list[int] = []
    next_ns = after
    for place in reversed(places):
        next_ns = next_ns if place is None else int(extent.starts[place])
        inner.append(next_ns)
    return np.array([extent.first_ns, *reversed(inner), after, extent.last_ns], np.int64)
