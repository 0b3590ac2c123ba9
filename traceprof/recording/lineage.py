"""Which processes belong together: a rank with those that it started, such as data loaders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from traceprof.recording.spool_files import Card

__all__ = ["Family", "find_families", "with_ranks_of_heads"]


@dataclass(frozen=True, slots=True)
class Family:
    """A process that trains (or does the work, where nothing trains) and its helpers.

    ``rank`` is None where nothing tells it; ``members`` are the ids of all of them.
    """

    head: int
    rank: int | None
    members: frozenset[int]


def find_families(
    cards: Sequence[Card], children: Mapping[int, int], n_events: Mapping[int, int]
) -> list[Family]:
    """Return the families of a recording, by rank.

    Args:
        cards: who the processes are. A launcher hands its variables down, so that a helper may
            have a card with the rank of the process that it helps.
        children: child → parent of processes that were forked.
        n_events: how many events each process left; the heads are among these.

    A process with events belongs to the nearest process above it that left some, unless it has a
    rank that this one has not. Programs that ran as the same rank one after another are one
    family: its head is the one with the most events.
    """
    ranks = {card.pid: card.rank for card in cards}
    parents = _parents(cards, children)
    heads = {pid: _head(pid, parents, ranks, n_events) for pid in n_events}
    of_rank: dict[int, list[int]] = {}
    groups: list[list[int]] = []
    for head in sorted(set(heads.values()), key=lambda pid: (-n_events[pid], pid)):
        rank = ranks.get(head)
        if rank is None:
            groups.append([head])
        elif rank in of_rank:
            of_rank[rank].append(head)
        else:
            groups.append(of_rank.setdefault(rank, [head]))
    owners = {head: group[0] for group in groups for head in group}
    members: dict[int, set[int]] = {group[0]: set() for group in groups}
    for pid in {*n_events, *ranks, *children}:
        above = next((p for p in _line(pid, parents) if p in heads), None)
        if above is not None:
            members[owners[heads[above]]].add(pid)
    families = [Family(pid, ranks.get(pid), frozenset(own)) for pid, own in members.items()]
    return sorted(families, key=_by_rank)


def with_ranks_of_heads(cards: Iterable[Card], families: Iterable[Family]) -> list[Card]:
    """Return the cards without the ranks that helpers have only inherited."""
    helpers = {pid for family in families for pid in family.members if pid != family.head}
    return [replace(card, rank=None) if card.pid in helpers else card for card in cards]


def _by_rank(family: Family) -> tuple[bool, int, int]:
    return family.rank is None, family.rank or 0, family.head


def _parents(cards: Sequence[Card], children: Mapping[int, int]) -> dict[int, int]:
    lines = [(card.pid, *card.ancestors) for card in cards]
    pairs = [pair for line in lines for pair in pairwise(line)]
    parents: dict[int, int] = {}
    for pid, parent in (*pairs, *children.items()):
        if pid not in _line(parent, parents):  # an id may have been given twice
            parents[pid] = parent
    return parents


def _line(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """Yield ``pid``, its parent and so on."""
    yield pid
    while pid in parents:
        pid = parents[pid]
        yield pid


def _head(
    pid: int,
    parents: Mapping[int, int],
    ranks: Mapping[int, int | None],
    n_events: Mapping[int, int],
) -> int:
    head = pid
    for above in list(_line(pid, parents))[1:]:
        if above not in n_events:
            continue
        if ranks.get(head) not in (None, ranks.get(above)):
            break
        head = above
    return head
