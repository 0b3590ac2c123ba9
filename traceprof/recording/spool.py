"""The spool: what the hooks leave in the work folder about each process, and its events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from traceprof.model.masking import kept_variables, masked_command

__all__ = [
    "ProcessEvents",
    "ProcessRecord",
    "read_children",
    "read_events",
    "read_process_records",
    "recorded_pids",
    "window_files",
]

_PROCESS_RECORDS: Final = "process.*.json"

Row = list[Any]


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Who a process is: what it wrote when it imported torch.

    ``ancestors`` are its parent, the parent of that and so on.
    """

    pid: int
    ancestors: tuple[int, ...] = ()
    command: str = ""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    software: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessEvents:
    """The events of one process, times in ns since 1970.

    ``ranges``, ``marks`` and ``collectives`` are the rows of the spool (see the runtime's
    ``spool`` module) by kind. ``is_cut`` says that the last line was cut off: the process died.
    """

    pid: int
    ranges: list[Row]
    marks: list[Row]
    collectives: list[Row]
    is_cut: bool = False


def recorded_pids(folder: Path) -> list[int]:
    """Return the ids of the processes that have left a record in ``folder``."""
    return [_pid_of(path) for path in folder.glob(_PROCESS_RECORDS)]


def read_process_records(folder: Path) -> list[ProcessRecord]:
    """Return the records of all processes that imported torch, by pid."""
    records = []
    for path in folder.glob(_PROCESS_RECORDS):
        try:
            raw = json.loads(path.read_text("utf-8", "replace"))
        except (OSError, ValueError):
            continue
        records.append(
            ProcessRecord(
                pid=int(raw["pid"]),
                ancestors=tuple(raw.get("ancestors", ())),
                command=" ".join(masked_command([str(part) for part in raw.get("argv", ())])),
                rank=raw.get("rank"),
                local_rank=raw.get("local_rank"),
                world_size=raw.get("world_size"),
                software=_texts(raw.get("software", {}))
                | {
                    f"env.{name}": value
                    for name, value in kept_variables(_texts(raw.get("variables", {}))).items()
                },
            )
        )
    return sorted(records, key=lambda record: record.pid)


def _texts(raw: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in raw.items()}


def read_children(folder: Path) -> dict[int, int]:
    """Return child → parent of the processes that recorded ones forked."""
    return {
        int(line): _pid_of(path)
        for path in folder.glob("children.*")
        for line in path.read_text().splitlines()
    }


def read_events(folder: Path) -> Iterator[ProcessEvents]:
    """Yield the events of each process that left any, by pid."""
    for path in sorted(folder.glob("events.*.jsonl"), key=_pid_of):
        yield _read_process(path)


def window_files(folder: Path) -> list[tuple[int, Path]]:
    """Return (pid, Chrome trace) of each finished window of the profiler."""
    return [(_pid_of(path), path) for path in sorted(folder.glob("window.*.json"))]


def _pid_of(path: Path) -> int:
    return int(path.name.split(".")[1])


def _read_process(path: Path) -> ProcessEvents:
    events = ProcessEvents(_pid_of(path), [], [], [])
    by_kind = {
        "p": events.ranges,
        "s": events.ranges,
        "m": events.marks,
        "c": events.collectives,
    }
    is_cut = False
    with path.open(encoding="utf-8", errors="replace") as file:
        next(file, None)  # the line that describes the process
        for line in file:
            try:
                row = json.loads(line)
                by_kind[row[5]].append(row)
            except (ValueError, LookupError, TypeError):
                is_cut = True  # only the line that a dying process did not finish
    return ProcessEvents(events.pid, events.ranges, events.marks, events.collectives, is_cut)
