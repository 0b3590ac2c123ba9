"""Which lanes and which steps of two recordings are held against one another.

On one axis for two recordings step k of one begins where step k of the other does. Each step
takes as much of the axis as the longer of the two; after the shorter one the axis goes on without
it. So nothing is stretched, and what is longer on the screen is longer.
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
class Place:
    """Group ``group`` of side ``side``, which lies in the section ``section``."""

    side: int
    group: int
    section: str


def pair_groups(
    sides: Sequence[tuple[Trace, Lanes]], by_rank: bool
) -> tuple[list[Place], list[int]]:
    """Return all groups, counterparts one after the other, and the place of each one's (or -1)."""
    keys = [_keys(trace, lanes, by_rank) for trace, lanes in sides]
    known = [{key: place for place, key in enumerate(own)} for own in keys]
    several = any(len({key[0] for key in own}) > 1 for own in keys)
    found: list[Place] = []
    partners: list[int] = []
    used: set[str] = set()
    every = dict.fromkeys(key for own in keys for key in own)
    places = {whose: i for i, whose in enumerate(dict.fromkeys(key[0] for key in every))}
    for key in sorted(every, key=lambda key: (places[key[0]], key[1] != "device")):
        members = [(side, own[key]) for side, own in enumerate(known) if key in own]
        section = _section(key, [sides[s][1].groups[p] for s, p in members], several, used)
        first = len(found)
        found += [Place(side, place, section) for side, place in members]
        partners += [first + 1, first] if len(members) == 2 else [ABSENT]
    return found, partners


def _keys(trace: Trace, lanes: Lanes, by_rank: bool) -> list[_Key]:
    """Return for each group what its counterpart must have in common with it."""
    told = trace.processes
    ranks = dict(zip(told["process"].tolist(), told["rank"].tolist(), strict=True))
    processes = dict.fromkeys(group.process for group in lanes.groups)
    order = {process: i for i, process in enumerate(processes)}
    seen: Counter[tuple[str, str, str]] = Counter()
    keys: list[_Key] = []
    for group in lanes.groups:
        rank = int(ranks.get(group.process, ABSENT))
        number = f"process {order[group.process] + 1} of {len(order)}"
        whose = f"rank {rank}" if by_rank and rank != ABSENT else number
        what = "" if group.kind == "device" else " ".join(_DIGITS.sub("", group.label).split())
        seen[whose, group.kind, what] += 1
        keys.append((whose, group.kind, what, seen[whose, group.kind, what]))
    return keys


def _section(key: _Key, members: Sequence[LaneGroup], several: bool, used: set[str]) -> str:
    """Return a heading such as "GPU 1, rank 1"; each is there once."""
    labels = dict.fromkeys(group.label.split(" · ")[0] for group in members)
    is_one_thread = key[1] != "device" and len(labels) > 1
    words = key[2] if is_one_thread else " | ".join(labels)
    base = f"{words}, {key[0]}" if several else words
    base = section = plain_text(base.replace(" · ", ", "), 120)
    number = 1
    while section in used:
        number += 1
        section = f"{base} ({number})"
    used.add(section)
    return section


_BEFORE: Final = 0


@dataclass(frozen=True, slots=True, eq=False)
class StepExtent:
    """The steps of one recording and all that it holds; times in ns on its own clock, sorted.

    ``word`` is what they are called: steps, or iterations of a pattern.
    """

    first_ns: int
    last_ns: int
    starts: Int64Array
    ends: Int64Array
    numbers: tuple[int, ...]
    word: str = "step"


@dataclass(frozen=True, slots=True, eq=False)
class AxisClock:
    """Pieces of the own time of a recording, and where on the axis each begins; ns, sorted."""

    own_ns: Int64Array
    axis_ns: Int64Array
    lengths_ns: Int64Array

    def starts(self, own_ns: Int64Array) -> Int64Array:
        """Return where on the axis the instants are at which something starts."""
        return self._at(own_ns, "right")

    def ends(self, own_ns: Int64Array) -> Int64Array:
        """Return where on the axis things end: at the border of two pieces, in the first."""
        return self._at(own_ns, "left")

    def _at(self, own_ns: Int64Array, side: Any) -> Int64Array:
        piece = np.maximum(np.searchsorted(self.own_ns, own_ns, side=side) - 1, 0)
        found: Int64Array = own_ns - self.own_ns[piece] + self.axis_ns[piece]
        return found

    def head(self) -> dict[str, list[int]]:
        """Return what a page must know of it."""
        return {
            "own": self.own_ns.tolist(),
            "axis": self.axis_ns.tolist(),
            "lengths": self.lengths_ns.tolist(),
        }


@dataclass(frozen=True, slots=True)
class StepAxis:
    """The clocks of the recordings, and the steps as they lie on the axis (ns).

    ``own`` holds, for each recording and step, its start and end on the own clock; None where it
    has no such step.
    """

    clocks: tuple[AxisClock, ...]
    duration_ns: int
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    labels: tuple[str, ...]
    own: tuple[tuple[tuple[int, int] | None, ...], ...]


def align_steps(extents: Sequence[StepExtent]) -> StepAxis:
    """Return the common axis: steps of one number under one another, else those of one order."""
    keys, places = _matched(extents)
    borders = [_borders(extent, places[side]) for side, extent in enumerate(extents)]
    lengths = np.array([np.diff(border) for border in borders])
    widest = lengths.max(axis=0)
    slots = np.concatenate(([0], np.cumsum(widest)))
    clocks = []
    for border, own in zip(borders, lengths, strict=True):
        axis = slots[:-1].copy()
        axis[_BEFORE] += widest[_BEFORE] - own[_BEFORE]  # what is before the steps ends with them
        kept = np.flatnonzero(own > 0)
        kept = kept if len(kept) else np.array([_BEFORE])
        clocks.append(AxisClock(border[:-1][kept], axis[kept], own[kept]))
    return StepAxis(
        clocks=tuple(clocks),
        duration_ns=max(1, int(slots[-1])),
        starts=tuple(slots[1:-2].tolist()),
        ends=tuple(slots[2:-1].tolist()),
        labels=tuple(keys),
        own=tuple(
            tuple(
                None if place is None else (int(extent.starts[place]), int(extent.ends[place]))
                for place in places[side]
            )
            for side, extent in enumerate(extents)
        ),
    )


def _matched(extents: Sequence[StepExtent]) -> tuple[list[str], list[list[int | None]]]:
    """Return what each step is called, and its place in each recording, if it has it."""
    by_number = [{number: i for i, number in enumerate(e.numbers)} for e in extents]
    are_sorted = all(list(e.numbers) == sorted(set(e.numbers)) for e in extents)
    if are_sorted and set.intersection(*map(set, by_number)):
        numbers = sorted(set().union(*by_number))
        labels = [f"{extents[0].word} {number}" for number in numbers]
        return labels, [[known.get(number) for number in numbers] for known in by_number]
    most = range(max(len(extent.numbers) for extent in extents))
    places = [[i if i < len(extent.numbers) else None for i in most] for extent in extents]
    words = [[*(f"{e.word} {number}" for number in e.numbers)] for e in extents]
    return [" | ".join(row) for row in zip_longest(*words, fillvalue="–")], places


def _borders(extent: StepExtent, places: Sequence[int | None]) -> Int64Array:
    """Return where each slot begins in a recording: before, each step, after, and the end.

    A step lasts until the next one begins, the last one until its end. A step that is not there
    takes no time.
    """
    known = [place for place in places if place is not None]
    after = int(extent.ends[known[-1]])
    inner: list[int] = []
    next_ns = after
    for place in reversed(places):
        next_ns = next_ns if place is None else int(extent.starts[place])
        inner.append(next_ns)
    return np.array([extent.first_ns, *reversed(inner), after, extent.last_ns], np.int64)
