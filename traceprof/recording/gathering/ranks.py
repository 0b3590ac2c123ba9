"""Which processes belong to which rank: those that it started, such as data loaders."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from traceprof.recording.spool import ProcessRecord
from traceprof.values import dataclass

__all__ = ["RankProcesses", "find_ranks", "without_inherited_ranks"]


@dataclass(frozen=True, slots=True)
class RankProcesses:
    """The main process of a rank, which trains, and its helpers, such as data loaders.

    ``rank`` is None where it is not known: what then does the work is the main process. ``pids``
    are the ids of all of them.
    """

    main: int
    rank: int | None
    pids: frozenset[int]


def find_ranks(
    records: Sequence[ProcessRecord], children: Mapping[int, int], n_events: Mapping[int, int]
) -> list[RankProcesses]:
    """Return the ranks of a recording, with their processes.

    Args:
        records: who the processes are. A launcher hands its variables down, so that a helper may
            have a record with the rank of the process that it helps.
        children: child → parent of processes that were forked.
        n_events: how many events each process left; the main processes are among these.

    A process with events belongs to the nearest process above it that left some, unless it has a
    rank that this one has not. Programs that ran as the same rank one after another are one
    rank: its main process is the one with the most events. Where torchrun's agent started the
    rank again, each start is a rank of its own: one of its lives.
    """
    ranks = {record.pid: record.rank for record in records}
    launched = {record.pid for record in records if record.run_id}
    parents = _parents(records, children)
    mains = {pid: _main_process(pid, parents, ranks, n_events) for pid in n_events}
    of_rank: dict[tuple[int, int], list[int]] = {}
    groups: list[list[int]] = []
    for main in sorted(set(mains.values()), key=lambda pid: (-n_events[pid], pid)):
        rank = ranks.get(main)
        if rank is None:
            groups.append([main])
            continue
        start = (rank, _started_as(main, parents, launched, ranks))
        if start in of_rank:
            of_rank[start].append(main)
        else:
            groups.append(of_rank.setdefault(start, [main]))
    owners = {main: group[0] for group in groups for main in group}
    members: dict[int, set[int]] = {group[0]: set() for group in groups}
    for pid in {*n_events, *ranks, *children}:
        above = next((p for p in _line(pid, parents) if p in mains), None)
        if above is not None:
            members[owners[mains[above]]].add(pid)
    found = [RankProcesses(pid, ranks.get(pid), frozenset(own)) for pid, own in members.items()]
    return sorted(found, key=_by_rank)


def without_inherited_ranks(
    records: Iterable[ProcessRecord], ranks: Iterable[RankProcesses]
) -> list[ProcessRecord]:
    """Return the records without the ranks that helpers have only inherited."""
    helpers = {pid for rank in ranks for pid in rank.pids if pid != rank.main}
    return [replace(record, rank=None) if record.pid in helpers else record for record in records]


def _started_as(
    main: int,
    parents: Mapping[int, int],
    launched: Collection[int],
    records: Container[int],
) -> int:
    """Return which process torchrun's agent started for ``main``; 0 where no agent did."""
    if main not in launched:
        return 0
    started = main
    for above in list(_line(main, parents))[1:]:
        if above in records and above not in launched:
            return started  # the agent itself, which is no worker
        started = above
    return main


def _by_rank(found: RankProcesses) -> tuple[bool, int, int]:
    return found.rank is None, found.rank or 0, found.main


def _parents(records: Sequence[ProcessRecord], children: Mapping[int, int]) -> dict[int, int]:
    lines = [(record.pid, *record.ancestors) for record in records]
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


def _main_process(
    pid: int,
    parents: Mapping[int, int],
    ranks: Mapping[int, int | None],
    n_events: Mapping[int, int],
) -> int:
    main = pid
    for above in list(_line(pid, parents))[1:]:
        if above not in n_events:
            continue
        if ranks.get(main) not in (None, ranks.get(above)):
            break
        main = above
    return main
