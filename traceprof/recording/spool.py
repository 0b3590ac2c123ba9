"""Read the spool: the files that the hooks write about each process and its events."""

from __future__ import annotations

import errno
import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from traceprof.recording.identities import (
    Numbers,
    ProcessIdentity,
    files_by_process,
    numbers_in,
    read_forks,
)
from traceprof.secrets import kept_variables, masked_command, storable

_PROCESS_RECORDS: Final = "process.*.json"

_NUMBER_FIELDS: Final = (
    *("rank", "local_rank", "world_size", "restart_count", "group_rank", "started_ns"),
)
_LINES_AT_ONCE: Final = 50_000

THINNED: Final = "traceprof.thinned:"
"""Prefix of a mark. Its payload is the number of skipped ranges of the name that follows."""

Row = list[Any]

_THINNED_TEXT: Final = f'"{THINNED}'
_LINE_ENDS: Final = ('"]\n', "}]\n")
_SHORT_KINDS: Final = ('p"', 's"', 'm"')
_MAX_UNORDERED_LINES: Final = 100
_COUNTS: Final = struct.Struct("=72Q")
_COUNTS_MAGIC: Final = 0x31544E4350545054
_N_HEADER_FIELDS: Final = 8
_MAX_DIGITS: Final = 19
_SIZE_LIMIT: Final = 1 << 32
_WHY_STOPPED: Final = {
    _SIZE_LIMIT: "--max-size was reached",
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT),
        "the disk of the work folder was full (set TMPDIR to record to another disk)",
    ),
    **dict.fromkeys(
        (errno.ESTALE, errno.ENOENT), "the event file was removed or replaced while the program ran"
    ),
}


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The identity and environment of a process, written when it imports torch.

    ``ancestors`` are its parent, the parent of its parent, and so on. ``run_id``,
    ``restart_count``, and ``group_rank`` (the number of the node) come from torchrun. Times are ns
    since 1970. ``ended`` is "finished", "failed", or "" for a process that was killed or still
    runs. ``pid`` is the number of the process in the trace, ``identity`` the process on its
    machine.
    """

    pid: int
    ancestors: tuple[int, ...] = ()
    command: str = ""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    software: dict[str, str] = field(default_factory=dict)
    run_id: str = ""
    restart_count: int | None = None
    group_rank: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    ended: str = ""
    identity: ProcessIdentity | None = None


class EventBlock(NamedTuple):
    """Some events of one process, as rows of the spool (see ``spool`` in the runtime)."""

    pid: int
    ranges: list[Row]
    marks: list[Row]
    collectives: list[Row]


@dataclass(frozen=True, slots=True)
class ProcessEvents:
    """Counts and times of the events of one process. The events stay in their file.

    Times are ns since 1970, None without events. ``pid`` is the number of the process in the trace.
    ``thinned`` is the number of ranges that the process skipped, by name. ``is_cut``: a line is
    damaged. The process generated ``n_made`` events (None: unknown) and skipped ``n_thinned`` of
    them. ``stopped`` is the errno because of which it stopped writing, 0 for none. ``has_ended``:
    the process ended normally. ``is_running``: the process still ran when its files were read.
    """

    pid: int
    path: Path
    n_ranges: int = 0
    n_marks: int = 0
    n_collectives: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    thinned: Mapping[str, int] = field(default_factory=dict)
    is_cut: bool = False
    n_made: int | None = None
    n_thinned: int = 0
    stopped: int = 0
    has_ended: bool = False
    is_running: bool = False

    @property
    def n_events(self) -> int:
        """The number of events in the file."""
        return self.n_ranges + self.n_marks + self.n_collectives

    @property
    def n_lost(self) -> int | None:
        """The number of events that were generated and are not in the file, None if unknown."""
        if self.n_made is None:
            return None
        return max(self.n_made - self.n_thinned - self.n_events, 0)

    def losses(self) -> list[str]:
        """Return a sentence with the number of lost events and the reason; [] for no loss."""
        is_whole = self.has_ended and not self.stopped and not self.is_cut
        if self.n_lost == 0 or (self.n_lost is None and is_whole):
            return []
        what = "an unknown number of events"
        if self.n_lost is not None:
            what = f"{self.n_lost:,} of {self.n_made:,} events"
        return [f"process {self.pid} lost {what}: {self._why_lost()}"]

    def _why_lost(self) -> str:
        if self.stopped in _WHY_STOPPED:
            return _WHY_STOPPED[self.stopped]
        if self.stopped:
            return (
                "the event file could not be written "
                f"({errno.errorcode.get(self.stopped, 'unknown error')})"
            )
        if self.is_running:
            return "the process still ran when the trace was written"
        if self.has_ended:
            return "the events were not written before the process ended"
        return "the process was killed, or ended without Python's exit handlers"

    def blocks(self) -> Iterator[EventBlock]:
        """Read the events in blocks that bound memory use."""
        for lines in _line_blocks(self.path):
            yield _parse_block(self.pid, lines)


def recorded_pids(folder: Path) -> list[int]:
    """Return the ids of the processes in ``folder`` that left a record.

    Processes of other PID namespaces are omitted: their ids refer to other processes here.
    """
    return [
        identity.pid
        for identity, _ in files_by_process(folder, _PROCESS_RECORDS)
        if identity.is_local
    ]


def has_records(folder: Path) -> bool:
    """Return whether any process left a record in ``folder``."""
    return any(folder.glob(_PROCESS_RECORDS))


def pids_without_record(folder: Path) -> list[int]:
    """Return the ids of the processes that could not write their record."""
    recorded = dict(files_by_process(folder, _PROCESS_RECORDS))
    return [
        identity.pid
        for identity, _ in files_by_process(folder, f"{_PROCESS_RECORDS}.tmp")
        if identity not in recorded
    ]


def has_ended_normally(folder: Path, pid: int) -> bool:
    """Return whether a process wrote its end file, so that no signal killed it."""
    return any(identity.is_local for identity, _ in files_by_process(folder, f"end.{pid}.*json"))


def read_process_records(folder: Path) -> list[ProcessRecord]:
    """Return the records of all processes that imported torch, sorted by pid."""
    records, numbers = [], numbers_in(folder)
    for identity, path in files_by_process(folder, _PROCESS_RECORDS):
        raw = read_object(path)
        if not raw:
            continue
        end = read_object(folder / f"end.{identity}.json")
        variables = kept_variables(_as_texts(raw.get("variables", {})))
        record = ProcessRecord(
            pid=numbers.of(identity),
            identity=identity,
            ancestors=_ancestor_numbers(raw.get("ancestors"), identity, numbers),
            command=" ".join(masked_command([str(part) for part in raw.get("argv", ())])),
            software=_as_texts(raw.get("software", {}))
            | {f"env.{name}": value for name, value in variables.items()},
            run_id=storable(str(raw.get("run_id") or "")),
            ended_ns=_parse_number(end.get("ended_ns")),
            ended=str(end.get("ended", "")),
            **{name: _parse_number(raw.get(name)) for name in _NUMBER_FIELDS},
        )
        records.append(record)
    return sorted(records, key=lambda record: record.pid)


def _ancestor_numbers(pids: Any, identity: ProcessIdentity, numbers: Numbers) -> tuple[int, ...]:
    """Return the numbers in the trace of the ancestors of a process."""
    listed = [pid for pid in pids if isinstance(pid, int)] if isinstance(pids, list) else []
    return tuple(numbers.of_pid(pid, identity.namespace, identity.start) for pid in listed)


def read_agent_events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of torchrun's agents, sorted by time (see ``hook_agents``)."""
    events, numbers = [], numbers_in(folder)
    for agent, path in files_by_process(folder, "agent.*.jsonl"):
        for line in path.read_text("utf-8", "replace").splitlines():
            try:
                event = dict(json.loads(line), agent=numbers.of(agent))
                if codes := event.get("exit_codes"):
                    of_pid = {pid: numbers.of_pid(int(pid), agent.namespace) for pid in codes}
                    event["exit_codes"] = {str(of_pid[pid]): codes[pid] for pid in codes}
                events.append(event)
            except (ValueError, TypeError, LookupError):
                continue  # an incomplete line
    return sorted(events, key=lambda event: int(event.get("start_ns", 0)))


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, {} where the file is missing or incomplete."""
    try:
        raw = json.loads(path.read_text("utf-8", "replace"))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _parse_number(value: Any) -> int | None:
    """Return a value as an int, None where it is not a decimal number of at most 19 digits."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None


def _as_texts(raw: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in raw.items()}


def read_children(folder: Path) -> dict[int, int]:
    """Return child → parent of all forks that the recorded processes reported."""
    numbers = numbers_in(folder)
    return {numbers.of(child): numbers.of(parent) for child, parent in read_forks(folder)}


def read_events(folder: Path) -> Iterator[ProcessEvents]:
    """Yield the event counts of each process that left events, sorted by pid."""
    numbers = numbers_in(folder)
    found = {one for kind in ("events.*", "counts.*") for one, _ in files_by_process(folder, kind)}
    for identity in sorted(found, key=numbers.of):
        events = _survey_events(numbers.of(identity), folder / f"events.{identity}.jsonl")
        yield _with_counts(events, folder, identity)


def _with_counts(events: ProcessEvents, folder: Path, identity: ProcessIdentity) -> ProcessEvents:
    """Return ``events`` with the counters that the process wrote during the run and at its end."""
    end = read_object(folder / f"end.{identity}.json")
    made, thinned, stopped = (_parse_number(end.get(key)) for key in ("made", "thinned", "stopped"))
    has_ended = bool(end)
    with suppress(OSError, struct.error):
        magic, *fields = _COUNTS.unpack_from((folder / f"counts.{identity}").read_bytes())
        if magic == _COUNTS_MAGIC:
            thinned, stopped = fields[0], fields[1]
            has_ended, made = has_ended or bool(fields[2]), max(fields[_N_HEADER_FIELDS - 1 :])
    return replace(
        events,
        n_made=made,
        n_thinned=thinned or 0,
        stopped=stopped or 0,
        has_ended=has_ended,
    )


def window_files(folder: Path) -> list[tuple[int, Path]]:
    """Return (pid, Chrome trace) of each finished torch.profiler window."""
    numbers = numbers_in(folder)
    return [
        (numbers.of(identity), path) for identity, path in files_by_process(folder, "window.*.json")
    ]


def _survey_events(pid: int, path: Path) -> ProcessEvents:
    """Count the events of a process in one pass, with little parsing, for large files."""
    counts: Counter[str] = Counter()
    first_ns: list[int] = []
    last_ns: list[int] = []
    thinned: dict[str, int] = {}
    for lines in _line_blocks(path):
        if _THINNED_TEXT in "".join(lines):
            marks = _parse_block(pid, [line for line in lines if _THINNED_TEXT in line]).marks
            thinned |= {str(row[2]).removeprefix(THINNED): int(row[3]) for row in marks}
        kinds = Counter([line[-4:] for line in lines])
        try:
            is_whole = all(kind.endswith(_LINE_ENDS) for kind in kinds)
            times_ns = _time_range_ns(lines) if is_whole else None
        except (ValueError, LookupError, TypeError, OverflowError):
            is_whole = False  # lines with a valid end and damage before it
        if not is_whole:
            whole, n_cut = _whole_lines(lines)
            counts["cut"] += n_cut
            kinds = Counter([line[-4:] for line in whole])
            times_ns = _time_range_ns(whole)
        if times_ns is None:
            continue
        for kind, count in kinds.items():
            counts[kind[:2]] += count
        first_ns.append(times_ns[0])
        last_ns.append(times_ns[1])
    return ProcessEvents(
        pid,
        path,
        n_ranges=counts['p"'] + counts['s"'],
        n_marks=counts['m"'],
        n_collectives=sum(counts.values())
        - counts["cut"]
        - sum(counts[kind] for kind in _SHORT_KINDS),
        first_ns=min(first_ns, default=None),
        last_ns=max(last_ns, default=None),
        thinned=thinned,
        is_cut=counts["cut"] > 0,
    )


def _time_range_ns(lines: list[str]) -> tuple[int, int] | None:
    """Return the start of the first event and the end of the last one; None without lines.

    The lines are sorted by the end of the events, except for a few neighbors.
    """
    if not lines:
        return None
    rows = (json.loads(line) for line in lines[-_MAX_UNORDERED_LINES:])
    last_ns = max(int(row[1] or row[0]) for row in rows)
    return min([int(line[1 : line.index(",")]) for line in lines]), last_ns


def _whole_lines(lines: list[str]) -> tuple[list[str], int]:
    """Return the undamaged lines, and the number of damaged ones."""
    whole = []
    for line in lines:
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            row = json.loads(line)
            _split_by_kind(0, [row])
            if not all(isinstance(at, int) for at in (row[0], row[1] or 0)):
                continue
            whole.append(line if line.endswith("\n") else f"{line}\n")
    return whole, len(lines) - len(whole)


def _line_blocks(path: Path) -> Iterator[list[str]]:
    """Yield the event lines of a file in blocks; nothing if the file does not exist."""
    if not path.exists():
        return  # the process could not create it
    with path.open(encoding="utf-8", errors="replace") as file:
        next(file, None)  # skip the line that describes the process
        while lines := list(islice(file, _LINES_AT_ONCE)):
            yield lines


def _parse_block(pid: int, lines: list[str]) -> EventBlock:
    """Return the events in ``lines``, without damaged lines."""
    try:
        # Four times as fast as parsing line by line
        return _split_by_kind(pid, json.loads(f"[{','.join(lines)}]"))
    except (ValueError, LookupError, TypeError):
        return _split_by_kind(pid, [json.loads(line) for line in _whole_lines(lines)[0]])


def _split_by_kind(pid: int, rows: list[Row]) -> EventBlock:
    """Return rows of the spool as ranges, marks, and collectives."""
    ranges = [row for row in rows if row[5] in "ps"]
    if len(ranges) == len(rows):
        return EventBlock(pid, ranges, [], [])
    return EventBlock(
        pid,
        ranges,
        marks=[row for row in rows if row[5] == "m"],
        collectives=[row for row in rows if row[5] == "c"],
    )
