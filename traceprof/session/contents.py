"""A short description of the contents of a trace or a run, read without its events if possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from traceprof.formats import Outline
from traceprof.formats.contract import OUTLINED_TABLES
from traceprof.model.placement import device_ids, process_ids
from traceprof.model.ranks import Ranks, RunFiles
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import (
    DEVICE_TABLES,
    FIRST_EPOCH_NS,
    RecordedBy,
    TraceInfo,
    how_to_record,
)
from traceprof.session.opening import outline_files, place_files
from traceprof.session.options import Opening

SCHEMA: Final = "traceprof.info/2"


@dataclass(frozen=True, slots=True)
class DeviceContents:
    """One GPU with the number of its kernels and copies in the trace."""

    device: int
    name: str
    memory_bytes: int | None
    kernels: int
    copies: int


@dataclass(frozen=True, slots=True)
class ProcessContents:
    """One process with the number of its API calls, ranges, and host operators in the trace."""

    process: int
    name: str
    rank: int | None
    host: str
    api_calls: int
    ranges: int
    host_ops: int


@dataclass(frozen=True, slots=True)
class RankContents:
    """One rank of a run: its place, its file, and the evidence that connects the two."""

    rank: int | None
    local_rank: int | None
    host: str
    rack: str
    detected_by: str
    format: str
    path: str


@dataclass(frozen=True, slots=True)
class AttemptContents:
    """One attempt of one rank: start time, duration, how it ended, and its file."""

    attempt: int
    rank: int
    host: str
    started_utc: str
    duration_ns: int
    ended: str
    world_size: int | None
    path: str


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a trace or a run.

    ``rows`` is the number of rows of each table in all files (None: the table was not recorded).
    ``ranks`` is empty for a single file. ``attempts`` lists every attempt of every rank if there
    was more than one. ``info`` contains the warnings.
    """

    info: TraceInfo
    span: TimeWindow
    started_utc: str | None
    devices: tuple[DeviceContents, ...]
    n_unused_devices: int
    processes: tuple[ProcessContents, ...]
    rows: Mapping[str, int | None]
    environment: Mapping[str, str]
    ranks: tuple[RankContents, ...]
    attempts: tuple[AttemptContents, ...] = ()

    @property
    def independent_count(self) -> int:
        """Number of processes with ranges that are not ranks of one job; 0 with ranks."""
        if self.ranks or self.info.recorded_by != RecordedBy.OWN:
            return 0
        working = [process for process in self.processes if process.ranges]
        ranks = {process.rank for process in working} - {None}
        return len(working) if len(working) > 1 and len(ranks) < 2 else 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, including how to record the missing tables."""
        recorded = [name for name, n in self.rows.items() if n is not None]
        missing = {
            name: how_to_record(name, self.info, recorded)
            for name, n in self.rows.items()
            if n is None
        }
        span = {**asdict(self.span), "duration_ns": self.span.duration_ns}
        return {"schema": SCHEMA, **asdict(self), "span": span, "not_recorded": missing}


def describe(paths: Sequence[Path | str], opening: Opening) -> Contents:
    """Return the contents of the trace or run in ``paths``.

    Raises:
        TraceError: no file is found, or a file cannot be read.
        UsageError: the files look like several runs, or an option is invalid.
    """
    files, outlines = outline_files(paths, opening)
    ranks = place_files(files, opening)
    outlines = {member.trace.info.path: outlines[member.trace.info.path] for member in files}
    devices = ranks.table("devices")
    used = devices.take(devices["used"] == 1)
    of_devices, of_processes = _rows_by_owner(files, outlines)
    environment, epoch_ns = ranks.table("environment"), ranks.info.utc_epoch_ns or 0
    return Contents(
        info=replace(ranks.info, path=" ".join(map(str, paths))),
        span=ranks.span,
        started_utc=_utc(epoch_ns + ranks.span.start_ns) if epoch_ns >= FIRST_EPOCH_NS else None,
        devices=tuple(_devices(used, of_devices)),
        n_unused_devices=len(devices) - len(used),
        processes=_processes(ranks.table("processes"), of_processes),
        rows=_rows(ranks, outlines),
        environment=dict(zip(environment["name"], environment["value"], strict=True)),
        ranks=tuple(_ranks(files, ranks)) if len(files) > 1 else (),
        attempts=tuple(_lives(files))
        if len({attempt.number for attempt in files.attempts}) > 1
        else (),
    )


def _lives(files: RunFiles) -> Iterator[AttemptContents]:
    """Yield every attempt of every rank."""
    for attempt in files.attempts:
        started, length_ns = _utc(attempt.start_ns), attempt.end_ns - attempt.start_ns
        values = (started, length_ns, attempt.ended, _known(attempt.world_size), attempt.path)
        yield AttemptContents(attempt.number, attempt.rank, attempt.host, *values)


def _utc(time_ns: int) -> str:
    """Return a time as an ISO 8601 text in UTC, in whole seconds."""
    seconds = time_ns // 1_000_000_000
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _rows(ranks: Ranks, outlines: Mapping[str, Outline]) -> dict[str, int | None]:
    """Return the number of rows of each table in all files (None: not recorded)."""
    names = next(iter(outlines.values())).n_rows
    return {
        name: sum(outlined.n_rows[name] for outlined in outlines.values())
        if name in ranks.recorded
        else None
        for name in names
    }


def _rows_by_owner(
    files: RunFiles, outlines: Mapping[str, Outline]
) -> tuple[dict[str, Counter[int]], dict[str, Counter[int]]]:
    """Return row counts by table and device, and by table and process, as numbered in the run."""
    of_devices = {name: Counter[int]() for name in DEVICE_TABLES}
    of_processes = {name: Counter[int]() for name in OUTLINED_TABLES}
    is_alone = len(files) == 1
    renamed = [({}, {})] if is_alone else zip(device_ids(files), process_ids(files), strict=True)
    for member, (devices, processes) in zip(files, renamed, strict=True):
        outlined = outlines[member.trace.info.path]
        for name, counted in of_devices.items():
            for (process, device), n in outlined.device_rows[name].items():
                if is_alone or process in processes:
                    counted[devices.get(device, device)] += n
        for name, counted in of_processes.items():
            for process, n in outlined.process_rows[name].items():
                if is_alone or process in processes:
                    counted[processes.get(process, process)] += n
    return of_devices, of_processes


def _devices(used: Table, rows: Mapping[str, Counter[int]]) -> Iterator[DeviceContents]:
    """Yield the used devices with their row counts."""
    columns = (used["device"].tolist(), used["name"].tolist(), used["memory_bytes"].tolist())
    for device, name, memory_bytes in zip(*columns, strict=True):
        counts = (rows[table][device] for table in DEVICE_TABLES)
        yield DeviceContents(device, name, _known(memory_bytes), *counts)


def _processes(processes: Table, rows: Mapping[str, Counter[int]]) -> tuple[ProcessContents, ...]:
    """Return the processes, those with the most rows first."""
    columns = (processes[name].tolist() for name in ("process", "name", "rank", "host"))
    found = [
        ProcessContents(
            process, name, _known(rank), host, *(rows[table][process] for table in OUTLINED_TABLES)
        )
        for process, name, rank, host in zip(*columns, strict=True)
    ]
    return tuple(sorted(found, key=lambda p: -(p.api_calls + p.ranges + p.host_ops)))


def _ranks(files: RunFiles, ranks: Ranks) -> Iterator[RankContents]:
    """Yield the ranks of a run, with the host and rack from the user or else from the files."""
    for member, part in zip(files, ranks, strict=True):
        rows_of_rank = part.processes.take(part.processes["rank"] == member.rank)
        host, rack = (
            rows_of_rank[name][0] if len(rows_of_rank) else "" for name in ("host", "rack")
        )
        yield RankContents(
            _known(member.rank),
            _known(member.local_rank),
            host or member.host,
            rack or member.rack,
            member.detected_by,
            member.trace.info.format,
            member.trace.info.path,
        )


def _known(number: int) -> int | None:
    """Return ``number``, or None if it is ABSENT."""
    return None if number == ABSENT else number
