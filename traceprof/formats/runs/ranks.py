"""Determine the rank of a trace from its content, its manifest, or its file name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from traceprof.errors import TraceError
from traceprof.formats.runs.cycles import are_consecutive, joined_cycles, start_utc_ns
from traceprof.formats.shared.launchers import RANK_VARIABLES, rack_of
from traceprof.model.ranks import RankTrace, change_each, of_process
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

Work = Mapping[str, Mapping[tuple[int, int], int]]
"""Device work of a file: kernels and copies → (process, device) → number of rows."""
LARGEST_RANK: Final = 1 << 22
"""Larger numbers are no ranks: they are dates in file names, or come from damaged manifests."""

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
    trace: Trace, path: Path, entry: Mapping[str, Any], work: Callable[[], Work]
) -> list[RankClaim]:
    """Return the ranks in one file. Its processes and environment must have been read.

    ``entry`` is the manifest entry of the file (rank, local_rank, host, rack). ``work`` returns the
    device work of the whole file; it is called if several processes share the file.
    """
    environment = {row["name"]: row["value"] for row in trace.environment.rows()}
    by_torch = _TORCH_NAME.fullmatch(path.name)  # PyTorch's TensorBoard handler: HOST_…
    host = str(entry.get("host") or trace.info.host or (by_torch[1] if by_torch else ""))
    rack = str(entry.get("rack") or rack_of(environment))
    found = [
        (replace(member, host=member.host or host, rack=rack), world_size)
        for member, world_size in _ranks_in_trace(trace, environment, work)
    ]
    if len(found) == 1:
        found = [(_with_listed_rank(found[0][0], path, entry, host), found[0][1])]
    return [RankClaim(member, path, world_size) for member, world_size in found]


def _with_listed_rank(
    member: RankTrace, path: Path, entry: Mapping[str, Any], host: str
) -> RankTrace:
    """Return the only rank of a file, with the number in its manifest entry or its file name."""
    rank, local = entry.get("rank"), entry.get("local_rank")
    if isinstance(rank, int) and rank <= LARGEST_RANK:
        local = local if isinstance(local, int) else member.local_rank
        return replace(member, rank=rank, local_rank=local, host=host, detected_by="manifest")
    named = _IN_NAME.findall(path.name)
    if member.rank == ABSENT and named and int(named[-1]) <= LARGEST_RANK:
        return replace(member, rank=int(named[-1]), detected_by="file name")
    return member


def _ranks_in_trace(
    trace: Trace, environment: Mapping[str, str], work: Callable[[], Work]
) -> list[tuple[RankTrace, int]]:
    """Return (rank, world size) for each rank that the trace names; one unnamed rank otherwise."""
    ranked = [row for row in trace.processes.rows() if 0 <= row["rank"] <= LARGEST_RANK]
    source = "distributedInfo" if trace.info.format == "kineto" else "trace"
    source = "environment" if _has_variable_of(ranked, environment) else source
    found = []
    for row in ranked:
        process_trace = trace if len(ranked) == 1 else _process_trace(trace, row["process"], work())
        member = RankTrace(process_trace, row["rank"], row["local_rank"], row["host"], source)
        found.append((member, row["world_size"]))
    return found or _infer_ranks(trace, environment, work)


def _has_variable_of(ranked: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> bool:
    """Return whether the rank of the only process is in the environment."""
    names = RANK_VARIABLES["rank"]
    return len(ranked) == 1 and str(ranked[0]["rank"]) in map(environment.get, names)


def _process_trace(trace: Trace, process: int, work: Work) -> Trace:
    """Return the trace of one process; its used devices come from ``work``."""
    used = {device for rows in work.values() for owner, device in rows if owner == process}
    return change_each([trace], _select_process, [(process, used)], takes_part=True)[0]


def _select_process(trace: Trace, process: int, used: set[int]) -> Trace:
    """Return the trace of one process; only the devices ``used`` count as used."""
    process_trace = of_process(trace, process)
    devices = process_trace.devices.assign(
        used=np.isin(process_trace.devices["device"], list(used)).astype(np.int64)
    )
    return replace(process_trace, devices=devices)


def _infer_ranks(
    trace: Trace, environment: Mapping[str, str], work: Callable[[], Work]
) -> list[tuple[RankTrace, int]]:
    """Return the processes that use devices; a single one may have its rank in the environment."""
    workers = _order_by_device(work()) if len(trace.processes) > 1 else []
    if len(workers) > 1:
        return [
            (RankTrace(_process_trace(trace, process, work()), local_rank=place), ABSENT)
            for place, process in enumerate(workers)
        ]
    rank, local_rank, world_size = (
        next((int(text) for name in names if (text := environment.get(name, "")).isdigit()), ABSENT)
        for names in (RANK_VARIABLES[what] for what in ("rank", "local_rank", "world_size"))
    )
    detected_by = "" if rank == ABSENT else "environment"
    return [(RankTrace(trace, rank, local_rank, detected_by=detected_by), world_size)]


def _order_by_device(work: Work) -> list[int]:
    """Return the processes with device work, ordered by their first device."""
    first: dict[int, int] = {}
    for process, device in work["kernels"] or work["copies"]:
        first[process] = min(device, first.get(process, device))
    ordered = sorted(first, key=lambda process: (first[process], process))
    return [process for process in ordered if process >= 0]


def numbered(
    claims: Sequence[RankClaim], number_of: Callable[[Path], int]
) -> tuple[list[RankTrace], list[str]]:
    """Return the members in order of rank, and warnings about guessed and ignored ranks.

    If a file has a rank twice, because its program was started twice, the first process counts.

    Raises:
        TraceError: two files have the same rank.
    """
    warnings: list[str] = []
    if all(claim.member.rank == ABSENT for claim in claims):
        claims = _number_by_name_or_order(claims, number_of)
        if len(claims) > 1:
            warnings.append(
                "no file contains its rank; traceprof numbers the ranks by "
                f"{claims[0].member.detected_by} (list the ranks in a manifest to be certain)"
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


def _group_by_process(claims: Sequence[RankClaim]) -> Iterator[list[RankClaim]]:
    """Yield the claims of each process; consecutive recordings of a process are one group.

    A profiler numbers its files, so names are compared without digits. Equal process ids are not
    enough: in containers, processes of other runs have the same ids.
    """
    found: dict[tuple[Any, ...], list[RankClaim]] = {}
    for claim in claims:
        member, processes = claim.member, claim.member.trace.processes["process"].tolist()
        name = re.sub(r"\d+", "", str(claim.path))
        key = (name, member.host, member.rank, member.local_rank, *processes)
        found.setdefault(key, []).append(claim)
    several_in_one = len({claim.path for claim in claims}) < len(claims)
    for group in found.values():
        if several_in_one or not are_consecutive([claim.member.trace for claim in group]):
            yield from ([claim] for claim in group)
        else:
            yield sorted(group, key=lambda claim: start_utc_ns(claim.member.trace))


def with_cycles(
    claims: Sequence[RankClaim],
) -> tuple[list[RankClaim], dict[str, list[str]], list[str]]:
    """Return the claims, with several recordings of one process joined into one.

    The other results are the files of each process with several recordings, by its first file, and
    warnings. Traces that other processes hold are not joined: the last recording that every process
    has is chosen.
    """
    groups = list(_group_by_process(claims))
    counts = [len(group) for group in groups if len(group) > 1]
    if not counts:
        return list(claims), {}, []
    text = f"{max(counts)} consecutive recordings of one process (profiler cycles)"
    if any(claim.member.trace.is_remote for group in groups for claim in group):
        number = min(counts if len(counts) == len(groups) else [1]) - 1
        chosen = [group[min(number, len(group) - 1)] for group in groups]
        return chosen, {}, [f"{text}; traceprof analyzes only number {number + 1}"]
    joined, files = [], dict[str, list[str]]()
    for group in groups:
        first = group[0]
        if len(group) > 1:
            trace = joined_cycles([claim.member.trace for claim in group])
            files[str(first.path)] = [str(claim.path) for claim in group]
            first = replace(first, member=replace(first.member, trace=trace))
        joined.append(first)
    return joined, files, [f"{text}; traceprof joins them into one trace with gaps"]


def _number_by_name_or_order(
    claims: Sequence[RankClaim], number_of: Callable[[Path], int]
) -> list[RankClaim]:
    """Return the claims with ranks from ``number_of`` or, if it has none, by their order."""
    several_in_one = len({claim.path for claim in claims}) < len(claims)
    numbers = [number_of(claim.path) for claim in claims]
    if several_in_one or ABSENT in numbers:
        numbers = list(range(len(claims)))
        detected_by = "order of devices" if several_in_one else "order of files"
    else:
        detected_by = "number in the file name"
    return [
        replace(claim, member=replace(claim.member, rank=number, detected_by=detected_by))
        for claim, number in zip(claims, numbers, strict=True)
    ]


def varying_number(files: Sequence[Path]) -> Callable[[Path], int]:
    """Return a function file → the number in its name that counts the files from 0.

    The function returns `ABSENT` if the names differ in more than numbers, or no number counts from
    0.
    """
    names = {path: re.split(r"(\d+)", path.name) for path in files}
    shapes = {tuple(parts[::2]) for parts in names.values()}
    if len(shapes) == 1 and len(files) > 1:
        for place in range(1, max(len(parts) for parts in names.values()), 2):
            numbers = {path: int(parts[place]) for path, parts in names.items()}
            if sorted(numbers.values()) == list(range(len(files))):
                return numbers.__getitem__
    return lambda _: ABSENT
