"""Which ranks are stages of a pipeline, and in which order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd

from traceprof.facts.collectives.members import Member, find_members
from traceprof.facts.collectives.point_to_point import find_messages
from traceprof.facts.collectives.work import find_collectives
from traceprof.measures.facts import fact
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.names.ranges import codes_containing
from traceprof.values import dataclass

__all__ = ["POINT_TO_POINT", "Stage", "find_chains", "find_stages"]

POINT_TO_POINT: Final = ("send", "recv", "send_recv")
_STAGE: Final = re.compile(r"\b(?:pipeline[ _]?)?stage[ _:#-]*(?P<number>\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: its place among ``n_stages`` of its pipeline, its rank, and how that is known."""

    number: int
    n_stages: int
    member: Member
    known_from: str
    pipeline: int = 0


@fact
def find_stages(ranks: Ranks) -> tuple[Stage, ...]:
    """Return the stages in their order, one pipeline after another; none if they cannot be told.

    Ranges that name one stage in each process ("stage 2") decide, then the messages between
    ranks: of two ranks the one that sends first comes first. Where nobody tells whom a send
    goes to, processes that send and receive are stages, in the order in which they first compute.
    Kernels named SendRecv do not suffice: all-to-all uses them, too.
    """
    members = find_members(ranks)
    named = {
        process: number for own in ranks.each(_named_stages) for process, number in own.items()
    }
    ordered = sorted((named[m.process], m) for m in members if m.process in named)
    if len({number for number, _ in ordered}) == len(ordered) > 1:
        return _numbered([member for _, member in ordered], "ranges", 0)
    links = _first_messages(ranks)
    if links:
        chains = find_chains(links)
        return tuple(
            stage
            for number, chain in enumerate(chains)
            for stage in _numbered([members[place] for place in chain], "messages", number)
        )
    begins = {process: ns for own in ranks.each(_talking) for process, ns in own.items()}
    stages = [member for member in members if member.process in begins]
    if len(stages) < 2:
        return ()
    stages.sort(key=lambda member: begins[member.process])
    return _numbered(stages, "sends and receives", 0)


def _talking(trace: Trace) -> dict[int, int]:
    """Return the processes that send or receive, and when each first used a device."""
    work, kernels = find_collectives(trace), trace.kernels[["process", "start_ns"]]
    talking = work.loc[work["op"].isin(("send", "recv")), "process"].unique()
    begins = kernels.drop_duplicates("process").set_index("process")["start_ns"].to_dict()
    return {process: int(begins[process]) for process in talking.tolist() if process in begins}


def find_chains(links: Mapping[tuple[int, int], int]) -> list[list[int]]:
    """Return the ranks of each pipeline in their order.

    ``links`` holds when each rank first sent to another: (source, target) → ns. Ranks that pass
    messages around a ring in one direction only (ring attention) are no pipeline.
    """
    after: dict[int, list[int]] = {}
    skipped: set[tuple[int, int]] = set()
    for (source, target), first_ns in sorted(links.items(), key=lambda item: (item[1], item[0])):
        back_ns = links.get((target, source))
        if back_ns is not None and (back_ns, target, source) < (first_ns, source, target):
            continue
        if source in _reachable(after, target):
            skipped.add((source, target))  # it closes a ring, as interleaved stages do
        else:
            after.setdefault(source, []).append(target)
    chains = []
    for ranks in _components(after):
        is_mutual = any((b, a) in links for a, b in links if a in ranks)
        closes = any(a in ranks for a, _ in skipped)
        if is_mutual or not closes:
            chains.append(_in_order(ranks, after, links))
    return sorted(chains)


def _reachable(after: Mapping[int, list[int]], start: int) -> set[int]:
    found, open_ranks = {start}, [start]
    while open_ranks:
        for target in after.get(open_ranks.pop(), ()):
            if target not in found:
                found.add(target)
                open_ranks.append(target)
    return found


def _components(after: Mapping[int, list[int]]) -> list[set[int]]:
    both: dict[int, list[int]] = {}
    for source, targets in after.items():
        for target in targets:
            both.setdefault(source, []).append(target)
            both.setdefault(target, []).append(source)
    found: list[set[int]] = []
    for rank in sorted(both):
        if not any(rank in ranks for ranks in found):
            found.append(_reachable(both, rank))
    return found


def _in_order(
    ranks: set[int], after: Mapping[int, list[int]], links: Mapping[tuple[int, int], int]
) -> list[int]:
    """Return the ranks with each behind all that send to it; ties by the first message."""
    depth = dict.fromkeys(ranks, 0)
    for _ in ranks:
        for source in ranks:
            for target in after.get(source, ()):
                depth[target] = max(depth[target], depth[source] + 1)
    begins = {rank: min(ns for pair, ns in links.items() if rank in pair) for rank in ranks}
    return sorted(ranks, key=lambda rank: (depth[rank], begins[rank], rank))


def _first_messages(ranks: Ranks) -> dict[tuple[int, int], int]:
    messages = find_messages(ranks)
    known = (messages["source"] >= 0) & (messages["target"] >= 0)
    known &= messages["carrier"].isin(POINT_TO_POINT)
    messages = messages[known & (messages["source"] != messages["target"])]
    first = messages.groupby(["source", "target"], as_index=False)["start_ns"].min()
    columns = (first[name].tolist() for name in ("source", "target", "start_ns"))
    return {(source, target): ns for source, target, ns in zip(*columns, strict=True)}


def _numbered(members: list[Member], known_from: str, pipeline: int) -> tuple[Stage, ...]:
    return tuple(
        Stage(i, len(members), member, known_from, pipeline) for i, member in enumerate(members)
    )


def _named_stages(trace: Trace) -> dict[int, int]:
    """Return the number of the one stage that the ranges of each process name."""
    ranges = trace.ranges
    names = ranges["name"].cat.categories
    likely = codes_containing(names, ["stage"]).tolist()
    found = {i: match for i in likely if (match := _STAGE.search(str(names[i])))}
    codes = ranges["name"].cat.codes.to_numpy()
    rows = np.flatnonzero(np.isin(codes, list(found)))
    hits = pd.DataFrame({"process": ranges["process"].to_numpy()[rows], "code": codes[rows]})
    by_process: dict[int, set[int]] = {}
    for process, code in hits.drop_duplicates().itertuples(index=False):
        by_process.setdefault(int(process), set()).add(int(found[code]["number"]))
    return {process: min(own) for process, own in by_process.items() if len(own) == 1}
