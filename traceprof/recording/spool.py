"""The spool: what the hooks leave in the work folder about each process, and its events."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

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


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Who a process is: what it wrote when it imported torch.

    ``ancestors`` are its parent, the parent of that and so on. ``run_id``, ``restart_count`` and
    ``group_rank`` (the number of the node) are what torchrun tells its workers. Times are ns since
    1970; ``ended`` is "finished", "failed", or "" of a process that was killed or is alive.
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


class EventBlock(NamedTuple):
    """Some events of one process: the rows of the spool (see the runtime's ``spool`` module)."""

    pid: int
    ranges: list[Row]
    marks: list[Row]
    collectives: list[Row]


@dataclass(frozen=True, slots=True)
class ProcessEvents:
    """The events of one process: how many there are and when; themselves they stay in their file.

    Times are ns since 1970, None where there is nothing. ``thinned`` is how many ranges of each
    name the process did not keep, and ``is_cut`` that the last line was cut off: it died.
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

    @property
    def n_events(self) -> int:
        """How many events there are."""
        return self.n_ranges + self.n_marks + self.n_collectives

    def blocks(self) -> Iterator[EventBlock]:
        """Read the events, so many at a time that memory stays bounded."""
        for lines in _line_blocks(self.path):
            yield _block(self.pid, lines)


def recorded_pids(folder: Path) -> list[int]:
    """Return the ids of the processes that have left a record in ``folder``."""
    return [_pid_of(path) for path in folder.glob(_PROCESS_RECORDS)]


def has_said_its_end(folder: Path, pid: int) -> bool:
    """Return whether a process has come to its end in order: nothing killed it."""
    return (folder / f"end.{pid}.json").exists()


def read_process_records(folder: Path) -> list[ProcessRecord]:
    """Return the records of all processes that imported torch, by pid."""
    records = []
    for path in folder.glob(_PROCESS_RECORDS):
        raw = read_object(path)
        if not raw:
            continue
        end = read_object(folder / f"end.{_pid_of(path)}.json")
        variables = kept_variables(_texts(raw.get("variables", {})))
        record = ProcessRecord(
            pid=int(raw["pid"]),
            ancestors=tuple(raw.get("ancestors", ())),
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


def read_agent_events(folder: Path) -> list[dict[str, Any]]:
    """Return what torchrun's agents noted, in the order of time: see the hook of agents."""
    events = []
    for path in folder.glob("agent.*.jsonl"):
        for line in path.read_text("utf-8", "replace").splitlines():
            try:
                events.append(dict(json.loads(line), agent=_pid_of(path)))
            except (ValueError, TypeError):
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
    return int(text) if text.isdecimal() else None


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
    """Yield what each process that left events has, by pid."""
    for path in sorted(folder.glob("events.*.jsonl"), key=_pid_of):
        yield _survey(_pid_of(path), path)


def window_files(folder: Path) -> list[tuple[int, Path]]:
    """Return (pid, Chrome trace) of each finished window of the profiler."""
    return [(_pid_of(path), path) for path in sorted(folder.glob("window.*.json"))]


def _pid_of(path: Path) -> int:
    return int(path.name.split(".")[1])


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
