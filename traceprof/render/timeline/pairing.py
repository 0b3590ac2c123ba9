"""Which lanes of two recordings are held against one another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.render.escape import plain_text
from traceprof.render.timeline.channels import Group, Lanes
from traceprof.values import dataclass

__all__ = ["Place", "pair_groups"]

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
    ranks = dict(zip(trace.processes["process"], trace.processes["rank"], strict=True))
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


def _section(key: _Key, members: Sequence[Group], several: bool, used: set[str]) -> str:
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
