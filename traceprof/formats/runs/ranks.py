"""Which rank a trace belongs to, from what it says itself or else from its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from traceprof.errors import TraceError
from traceprof.formats.runs.cycles import are_in_turn, begins_ns, joined_cycles
from traceprof.formats.shared.launchers import RANK_VARIABLES, rack_of
from traceprof.model.ranks import RankTrace, change_each, of_process
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

Work = Mapping[str, Mapping[tuple[int, int], int]]
"""Where the device work of a file is: kernels and copies → (process, device) → rows."""
LARGEST_RANK: Final = 1 << 22
"""A greater number is none of a rank: a date in a name, or a manifest that was damaged."""

_IN_NAME: Final = re.compile(
    r"(?:^|[^a-z])(?:rank|worker|proc|r)[-_=.]?(\d+)(?=[^0-9a-z]|$)", re.IGNORECASE
)
_TORCH_NAME: Final = re.compile(r"(.+?)_\d+(?:\.\d+)?\.pt\.trace\.json(?:\.gz)?")


@dataclass(frozen=True, slots=True, eq=False)
class RankClaim:
    """One process of a file that may be a rank."""

    member: RankTrace
    path: Path
    world_size: int = ABSENT


def claims_of(
    trace: Trace, path: Path, told: Mapping[str, Any], work: Callable[[], Work]
) -> list[RankClaim]:
    """Return the ranks in one file, of which processes and environment must have been read.

    ``told`` is what a manifest says of it (rank, local_rank, host, rack); ``work`` tells where the
    device work of the whole file is, if several processes share it.
    """
    environment = {row["name"]: row["value"] for row in trace.environment.rows()}
    by_torch = _TORCH_NAME.fullmatch(path.name)  # its TensorBoard handler puts the host in front
    host = str(told.get("host") or trace.info.host or (by_torch[1] if by_torch else ""))
    rack = str(told.get("rack") or rack_of(environment))
    found = [
        (replace(member, host=member.host or host, rack=rack), world_size)
        for member, world_size in _in_trace(trace, environment, work)
    ]
    if len(found) == 1:
        found = [(_as_told(found[0][0], path, told, host), found[0][1])]
    return [RankClaim(member, path, world_size) for member, world_size in found]


def _as_told(member: RankTrace, path: Path, told: Mapping[str, Any], host: str) -> RankTrace:
    """Return the only rank of a file with the number that its manifest or its name tells."""
    rank, local = told.get("rank"), told.get("local_rank")
    if isinstance(rank, int) and rank <= LARGEST_RANK:
        local = local if isinstance(local, int) else member.local_rank
        return replace(member, rank=rank, local_rank=local, host=host, known_from="manifest")
    named = _IN_NAME.findall(path.name)
    if member.rank == ABSENT and named and int(named[-1]) <= LARGEST_RANK:
        return replace(member, rank=int(named[-1]), known_from="file name")
    return member


def _in_trace(
    trace: Trace, environment: Mapping[str, str], work: Callable[[], Work]
) -> list[tuple[RankTrace, int]]:
    """Return the ranks that a trace tells, each with the number of all; one where none is told."""
    ranked = [row for row in trace.processes.rows() if 0 <= row["rank"] <= LARGEST_RANK]
    source = "distributedInfo" if trace.info.format == "kineto" else "trace"
    found = []
    for row in ranked:
        own = trace if len(ranked) == 1 else _of_process(trace, row["process"], work())
        member = RankTrace(own, row["rank"], row["local_rank"], row["host"], source)
        found.append((member, row["world_size"]))
    return found or _unranked(trace, environment, work)


def _of_process(trace: Trace, process: int, work: Work) -> Trace:
    """Return what one process did; the devices that it used are told by ``work``."""
    used = {device for rows in work.values() for owner, device in rows if owner == process}
    return change_each([trace], _of_one, [(process, used)], takes_part=True)[0]


def _of_one(trace: Trace, process: int, used: set[int]) -> Trace:
    own = of_process(trace, process)
    devices = own.devices.assign(used=np.isin(own.devices["device"], list(used)).astype(np.int64))
    return replace(own, devices=devices)


def _unranked(
    trace: Trace, environment: Mapping[str, str], work: Callable[[], Work]
) -> list[tuple[RankTrace, int]]:
    """Return the processes that work on devices; their ranks may be in the environment."""
    workers = _in_order_of_devices(work()) if len(trace.processes) > 1 else []
    if len(workers) > 1:
        return [
            (RankTrace(_of_process(trace, process, work()), local_rank=place), ABSENT)
            for place, process in enumerate(workers)
        ]
    rank, local_rank, world_size = (
        next((int(text) for name in names if (text := environment.get(name, "")).isdigit()), ABSENT)
        for names in (RANK_VARIABLES[what] for what in ("rank", "local_rank", "world_size"))
    )
    known_from = "" if rank == ABSENT else "environment"
    return [(RankTrace(trace, rank, local_rank, known_from=known_from), world_size)]


def _in_order_of_devices(work: Work) -> list[int]:
    first: dict[int, int] = {}
    for process, device in work["kernels"] or work["copies"]:
        first[process] = min(device, first.get(process, device))
    ordered = sorted(first, key=lambda process: (first[process], process))
    return [process for process in ordered if process >= 0]


def numbered(
    claims: Sequence[RankClaim], number_of: Callable[[Path], int]
) -> tuple[list[RankTrace], list[str]]:
    """Return the members in order of rank, and warnings about what was guessed or left out.

    Raises:
        TraceError: two files have one rank. Of one file, in which a program may have been started
            twice, the first counts.
    """
    warnings: list[str] = []
    if all(claim.member.rank == ABSENT for claim in claims):
        claims = _numbered_by_place(claims, number_of)
        if len(claims) > 1:
            warnings.append(
                "no file contains its rank; traceprof numbers the ranks by "
                f"{claims[0].member.known_from} (list the ranks in a manifest to be certain)"
            )
    members: dict[int, RankClaim] = {}
    unknown = []
    for claim in claims:
        rank = claim.member.rank
        if rank == ABSENT:
            unknown.append(claim.member)
            warnings.append(f"{claim.path}: the rank of this file is unknown")
        elif rank in members and claim.path != members[rank].path:
            both = f"{members[rank].path} and {claim.path}"
            raise TraceError(
                f"{both} both have rank {rank}, but a run has each rank once; give the files of "
                "one run, or list the rank of each file in a manifest"
            )
        elif rank in members:
            warnings.append(
                f"{claim.path}: traceprof ignored a second process with rank {rank} in this file"
            )
        else:
            members[rank] = claim
    return [*(members[rank].member for rank in sorted(members)), *unknown], warnings


def _of_one_process(claims: Sequence[RankClaim]) -> Iterator[list[RankClaim]]:
    """Yield the claims of each process, those that were made one after the other together.

    A profiler counts its files: process ids are equal of other runs, too, in containers.
    """
    found: dict[tuple[Any, ...], list[RankClaim]] = {}
    for claim in claims:
        own, processes = claim.member, claim.member.trace.processes["process"].tolist()
        named = re.sub(r"\d+", "", str(claim.path))
        key = (named, own.host, own.rank, own.local_rank, *processes)
        found.setdefault(key, []).append(claim)
    several_in_one = len({claim.path for claim in claims}) < len(claims)
    for every in found.values():
        if not several_in_one and are_in_turn([one.member.trace for one in every]):
            yield sorted(every, key=lambda one: begins_ns(one.member.trace))
        else:
            yield from ([one] for one in every)


def with_cycles(
    claims: Sequence[RankClaim],
) -> tuple[list[RankClaim], dict[str, list[str]], list[str]]:
    """Return the claims, several recordings of one process as one with windows.

    And the files of each such process by the first of them, and what is said of them. Where other
    processes hold the events it is the same cycle of all, the last that every one has.
    """
    groups = list(_of_one_process(claims))
    counts = [len(group) for group in groups if len(group) > 1]
    if not counts:
        return list(claims), {}, []
    text = f"{max(counts)} consecutive recordings of one process (profiler cycles)"
    if any(one.member.trace.is_remote for group in groups for one in group):
        number = min(counts if len(counts) == len(groups) else [1]) - 1
        chosen = [group[min(number, len(group) - 1)] for group in groups]
        return chosen, {}, [f"{text}; traceprof analyzes only number {number + 1}"]
    joined, files = [], dict[str, list[str]]()
    for group in groups:
        first = group[0]
        if len(group) > 1:
            trace = joined_cycles([one.member.trace for one in group])
            files[str(first.path)] = [str(one.path) for one in group]
            first = replace(first, member=replace(first.member, trace=trace))
        joined.append(first)
    return joined, files, [f"{text}; traceprof joins them into one trace with gaps"]


def _numbered_by_place(
    claims: Sequence[RankClaim], number_of: Callable[[Path], int]
) -> list[RankClaim]:
    several_in_one = len({claim.path for claim in claims}) < len(claims)
    numbers = [number_of(claim.path) for claim in claims]
    if several_in_one or ABSENT in numbers:
        numbers = list(range(len(claims)))
        known_from = "order of devices" if several_in_one else "order of files"
    else:
        known_from = "number in the file name"
    return [
        replace(claim, member=replace(claim.member, rank=number, known_from=known_from))
        for claim, number in zip(claims, numbers, strict=True)
    ]


def varying_number(files: Sequence[Path]) -> Callable[[Path], int]:
    """Return which number in the names counts the files from 0, as a function of the file.

    It gives `ABSENT` where the names differ in more than numbers, or none counts from 0.
    """
    names = {path: re.split(r"(\d+)", path.name) for path in files}
    shapes = {tuple(parts[::2]) for parts in names.values()}
    if len(shapes) == 1 and len(files) > 1:
        for place in range(1, max(len(parts) for parts in names.values()), 2):
            numbers = {path: int(parts[place]) for path, parts in names.items()}
            if sorted(numbers.values()) == list(range(len(files))):
                return numbers.__getitem__
    return lambda _: ABSENT
