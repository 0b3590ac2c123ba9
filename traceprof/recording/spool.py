"""The spool: what the hooks leave in the work folder about each process, and its events."""

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

from traceprof.recording.identities import Numbers, ProcessIdentity, forked_in, left_in, numbers_in
from traceprof.secrets import kept_variables, masked_command, storable

_PROCESS_RECORDS: Final = "process.*.json"

_NUMBERS: Final = (
    *("rank", "local_rank", "world_size", "restart_count", "group_rank", "started_ns"),
)
_LINES_AT_ONCE: Final = 50_000

THINNED: Final = "traceprof.thinned:"
"""The name of a mark: its payload is how many ranges of the name behind it were not kept so far."""

Row = list[Any]

_THINNED_TEXT: Final = f'"{THINNED}'
_ENDS: Final = ('"]\n', "}]\n")
_SHORT: Final = ('p"', 's"', 'm"')
_LAST_LINES: Final = 100
_COUNTS: Final = struct.Struct("=72Q")
_COUNTS_MARK: Final = 0x31544E4350545054
_N_FACTS: Final = 8
_MOST_DIGITS: Final = 19
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
    """Who a process is: what it wrote when it imported torch.

    ``ancestors`` are its parent, the parent of that and so on. ``run_id``, ``restart_count`` and
    ``group_rank`` (the number of the node) are what torchrun tells its workers. Times are ns since
    1970; ``ended`` is "finished", "failed", or "" of a process that was killed or is alive. ``pid``
    is its number in the trace, ``identity`` says which process of the machine it was.
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
    """Some events of one process: the rows of the spool (see the runtime's ``spool`` module)."""

    pid: int
    ranges: list[Row]
    marks: list[Row]
    collectives: list[Row]


@dataclass(frozen=True, slots=True)
class ProcessEvents:
    """The events of one process: how many there are and when; themselves they stay in their file.

    Times are ns since 1970, None where there is nothing. ``pid`` is the number of the process in
    the trace. ``thinned`` is how many ranges of each name the process did not keep, and ``is_cut``
    that a line is damaged. The process made ``n_made`` events (None: not known) of which it did not
    keep ``n_thinned``; ``stopped`` is the errno for which it wrote no more, 0 for none.
    ``has_ended``: it came to its end in order. ``is_running``: it still ran when it was looked at.
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
        """How many events there are."""
        return self.n_ranges + self.n_marks + self.n_collectives

    @property
    def n_lost(self) -> int | None:
        """How many events the process made that are not here, None where it is not known."""
        if self.n_made is None:
            return None
        return max(self.n_made - self.n_thinned - self.n_events, 0)

    def losses(self) -> list[str]:
        """Return, in a sentence, how many events were lost, and why; nothing where none were."""
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
            why = errno.errorcode.get(self.stopped, "unknown error")
            return f"the event file could not be written ({why})"
        if self.is_running:
            return "the process still ran when the trace was written"
        if self.has_ended:
            return "the events were not written before the process ended"
        return "the process was killed, or skipped Python's exit handlers (os._exit)"

    def blocks(self) -> Iterator[EventBlock]:
        """Read the events, so many at a time that memory stays bounded."""
        for lines in _line_blocks(self.path):
            yield _block(self.pid, lines)


def recorded_pids(folder: Path) -> list[int]:
    """Return the ids of the processes that have left a record in ``folder``.

    Those of other PID namespaces are left out: here their ids are those of other processes.
    """
    return [one.pid for one, _ in left_in(folder, _PROCESS_RECORDS) if one.is_local]


def has_records(folder: Path) -> bool:
    """Return whether any process has left a record in ``folder``."""
    return any(folder.glob(_PROCESS_RECORDS))


def without_record(folder: Path) -> list[int]:
    """Return the ids of the processes that could not write their record."""
    written = dict(left_in(folder, _PROCESS_RECORDS))
    begun = left_in(folder, f"{_PROCESS_RECORDS}.tmp")
    return [one.pid for one, _ in begun if one not in written]


def has_said_its_end(folder: Path, pid: int) -> bool:
    """Return whether a process has come to its end in order: nothing killed it."""
    return any(one.is_local for one, _ in left_in(folder, f"end.{pid}.*json"))


def read_process_records(folder: Path) -> list[ProcessRecord]:
    """Return the records of all processes that imported torch, by pid."""
    records, numbers = [], numbers_in(folder)
    for identity, path in left_in(folder, _PROCESS_RECORDS):
        raw = read_object(path)
        if not raw:
            continue
        end = read_object(folder / f"end.{identity}.json")
        variables = kept_variables(_texts(raw.get("variables", {})))
        record = ProcessRecord(
            pid=numbers.of(identity),
            identity=identity,
            ancestors=_numbered(raw.get("ancestors"), identity, numbers),
            command=" ".join(masked_command([str(part) for part in raw.get("argv", ())])),
            software=_texts(raw.get("software", {}))
            | {f"env.{name}": value for name, value in variables.items()},
            run_id=storable(str(raw.get("run_id") or "")),
            ended_ns=_number(end.get("ended_ns")),
            ended=str(end.get("ended", "")),
            **{name: _number(raw.get(name)) for name in _NUMBERS},
        )
        records.append(record)
    return sorted(records, key=lambda record: record.pid)


def _numbered(pids: Any, identity: ProcessIdentity, numbers: Numbers) -> tuple[int, ...]:
    """Return the numbers of the ancestors of a process."""
    listed = [pid for pid in pids if isinstance(pid, int)] if isinstance(pids, list) else []
    return tuple(numbers.of_pid(pid, identity.namespace, identity.start) for pid in listed)


def read_agent_events(folder: Path) -> list[dict[str, Any]]:
    """Return what torchrun's agents noted, in the order of time: see the hook of agents."""
    events, numbers = [], numbers_in(folder)
    for agent, path in left_in(folder, "agent.*.jsonl"):
        for line in path.read_text("utf-8", "replace").splitlines():
            try:
                event = dict(json.loads(line), agent=numbers.of(agent))
                if codes := event.get("exit_codes"):
                    of_pid = {pid: numbers.of_pid(int(pid), agent.namespace) for pid in codes}
                    event["exit_codes"] = {str(of_pid[pid]): codes[pid] for pid in codes}
                events.append(event)
            except (ValueError, TypeError, LookupError):
                continue  # a line that was not finished
    return sorted(events, key=lambda event: int(event.get("start_ns", 0)))


def read_object(path: Path) -> dict[str, Any]:
    """Return an object of JSON, empty where there is none or it was not finished."""
    try:
        raw = json.loads(path.read_text("utf-8", "replace"))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _number(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _texts(raw: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in raw.items()}


def read_children(folder: Path) -> dict[int, int]:
    """Return child → parent of the processes that recorded ones forked."""
    numbers = numbers_in(folder)
    return {numbers.of(child): numbers.of(parent) for child, parent in forked_in(folder)}


def read_events(folder: Path) -> Iterator[ProcessEvents]:
    """Yield what each process that left events has, by pid."""
    numbers = numbers_in(folder)
    found = {one for kind in ("events.*", "counts.*") for one, _ in left_in(folder, kind)}
    for identity in sorted(found, key=numbers.of):
        events = _survey(numbers.of(identity), folder / f"events.{identity}.jsonl")
        yield _with_counts(events, folder, identity)


def _with_counts(events: ProcessEvents, folder: Path, identity: ProcessIdentity) -> ProcessEvents:
    """Return ``events`` with what their process counted, and said at its end."""
    end = read_object(folder / f"end.{identity}.json")
    made, thinned, stopped = (_number(end.get(one)) for one in ("made", "thinned", "stopped"))
    has_ended = bool(end)
    with suppress(OSError, struct.error):
        mark, *facts = _COUNTS.unpack_from((folder / f"counts.{identity}").read_bytes())
        if mark == _COUNTS_MARK:
            thinned, stopped = facts[0], facts[1]
            has_ended, made = has_ended or bool(facts[2]), max(facts[_N_FACTS - 1 :])
    return replace(
        events,
        n_made=made,
        n_thinned=thinned or 0,
        stopped=stopped or 0,
        has_ended=has_ended,
    )


def window_files(folder: Path) -> list[tuple[int, Path]]:
    """Return (pid, Chrome trace) of each finished window of the profiler."""
    numbers = numbers_in(folder)
    found = left_in(folder, "window.*.json")
    return [(numbers.of(identity), path) for identity, path in found]


def _survey(pid: int, path: Path) -> ProcessEvents:
    """Go through the events of a process once, without making much of them: there may be many."""
    counts: Counter[str] = Counter()
    first_ns: list[int] = []
    last_ns: list[int] = []
    thinned: dict[str, int] = {}
    for lines in _line_blocks(path):
        if _THINNED_TEXT in "".join(lines):
            marks = _block(pid, [line for line in lines if _THINNED_TEXT in line]).marks
            thinned |= {str(row[2]).removeprefix(THINNED): int(row[3]) for row in marks}
        kinds = Counter([line[-4:] for line in lines])
        try:
            is_whole = all(kind.endswith(_ENDS) for kind in kinds)
            times_ns = _extent_ns(lines) if is_whole else None
        except (ValueError, LookupError, TypeError, OverflowError):
            is_whole = False  # lines that end well and are damaged further in
        if not is_whole:
            whole, n_cut = _whole_lines(lines)
            counts["cut"] += n_cut
            kinds = Counter([line[-4:] for line in whole])
            times_ns = _extent_ns(whole)
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
        n_collectives=sum(counts.values()) - counts["cut"] - sum(counts[one] for one in _SHORT),
        first_ns=min(first_ns, default=None),
        last_ns=max(last_ns, default=None),
        thinned=thinned,
        is_cut=counts["cut"] > 0,
    )


def _extent_ns(lines: list[str]) -> tuple[int, int] | None:
    """Return when the first event began and the last one ended; they are in order of their ends."""
    if not lines:
        return None
    rows = (json.loads(line) for line in lines[-_LAST_LINES:])
    last_ns = max(int(row[1] or row[0]) for row in rows)
    return min([int(line[1 : line.index(",")]) for line in lines]), last_ns


def _whole_lines(lines: list[str]) -> tuple[list[str], int]:
    """Return the lines that are whole, and how many are not."""
    whole = []
    for line in lines:
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            row = json.loads(line)
            _by_kind(0, [row])
            if not all(isinstance(at, int) for at in (row[0], row[1] or 0)):
                continue
            whole.append(line if line.endswith("\n") else f"{line}\n")
    return whole, len(lines) - len(whole)


def _line_blocks(path: Path) -> Iterator[list[str]]:
    if not path.exists():
        return  # it could not be made
    with path.open(encoding="utf-8", errors="replace") as file:
        next(file, None)  # the line that describes the process
        while lines := list(islice(file, _LINES_AT_ONCE)):
            yield lines


def _block(pid: int, lines: list[str]) -> EventBlock:
    try:
        # Four times as fast as line by line
        return _by_kind(pid, json.loads(f"[{','.join(lines)}]"))
    except (ValueError, LookupError, TypeError):
        return _by_kind(pid, [json.loads(line) for line in _whole_lines(lines)[0]])


def _by_kind(pid: int, rows: list[Row]) -> EventBlock:
    ranges = [row for row in rows if row[5] in "ps"]
    if len(ranges) == len(rows):
        return EventBlock(pid, ranges, [], [])
    marks = [row for row in rows if row[5] == "m"]
    calls = [row for row in rows if row[5] == "c"]
    return EventBlock(pid, ranges, marks, calls)
