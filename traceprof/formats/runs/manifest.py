"""Read manifests: JSON files that list the traces of a run, and the attempts of its program.

``{"traceprof_run": 1, "label": … (or "run_id"), "world_size": …, "ranks": [{"rank": 0, "file": …,
"local_rank": 0, "host": …, "rack": …}]}``, with paths relative to the manifest. Each launcher
writes one into the folder of a run; users can write one for files from elsewhere.

If ranks were started more than once, the entries have the times of each attempt, in ns since 1970:
``"started_ns"``, ``"ended_ns"``, ``"ended"`` (finished, failed, killed), ``"restart_count"``.
``"agents"`` are the events of torchrun's agents.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from traceprof.errors import TraceError, UsageError
from traceprof.files import special_file_kind
from traceprof.model.ranks import Attempt
from traceprof.model.tables import ABSENT
from traceprof.secrets import storable
from traceprof.units import format_duration

MANIFEST_KEY: Final = "traceprof_run"
"""The key that marks a JSON object as a manifest; its value is the version, 1."""

BESIDE: Final = ".memory.pickle"
"""The ending of a memory snapshot that was taken with a trace, in place of .sqlite."""

LAUNCHER: Final = "launcher"
"""The key that is added to each entry: the name of its manifest, one per launcher."""

_MAX_MANIFEST_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class RunManifest:
    """The files of a run (or of one of its hosts), each with its entry in the manifest.

    ``others`` are the files of processes without a rank.
    """

    label: str
    files: Mapping[Path, Mapping[str, Any]]
    world_size: int = ABSENT
    job: str = ""
    agents: Sequence[Mapping[str, Any]] = ()
    others: Sequence[Path] = ()


def read_manifest(path: Path) -> RunManifest | None:
    """Return the manifest in ``path``; None if the file is no manifest.

    Raises:
        TraceError: the manifest does not list files.
    """
    value = _read_object(path)
    if MANIFEST_KEY not in value:
        return None
    rows = value.get("ranks")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TraceError(f'{path}: the manifest has no "ranks" list of objects')
    launcher = {LAUNCHER: storable(path.name)}
    size, agents = value.get("world_size"), value.get("agents")
    events = agents if isinstance(agents, list) else []
    others = value.get("others")
    rest = [name for name in others if isinstance(name, str)] if isinstance(others, list) else []
    return RunManifest(
        str(value.get("label") or value.get("run_id", "")),
        {_file(path, row): {**row, **launcher} for row in rows},
        size if isinstance(size, int) else len(rows),
        str(value.get("job") or ""),
        [{**event, **launcher} for event in events if isinstance(event, dict)],
        [_file(path, {"file": name}) for name in rest],
    )


def _file(path: Path, row: Mapping[str, Any]) -> Path:
    """Return the path of the file in an entry of the manifest ``path``.

    Raises:
        TraceError: the entry has no file, or an invalid file name.
    """
    name = row.get("file")
    if not isinstance(name, str):
        raise TraceError(f'{path}: an entry in "ranks" has no "file"; add "file" to every entry')
    encoded = b"\0"
    with suppress(UnicodeEncodeError):
        encoded = os.fsencode(name)
    if b"\0" in encoded:
        raise TraceError(f"{path}: {name!a} is not a valid file name")
    return path.parent / name


def _with_texts(found: dict[str, Any]) -> dict[str, Any]:
    """Return an object with storable texts; the name of a file stays unchanged."""
    return {
        key: storable(value) if isinstance(value, str) and key != "file" else value
        for key, value in found.items()
    }


def _read_object(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in ``path`` if it may be a manifest; otherwise an empty object."""
    if special_file_kind(path):
        return {}
    try:
        with path.open("rb") as file:
            head = file.read(4096)
            if not head.lstrip().startswith(b"{") or b'"traceprof' not in head:
                return {}
            value = json.loads(head + file.read(_MAX_MANIFEST_BYTES), object_hook=_with_texts)
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


_ASSUMED_DURATION_NS: Final = 1_000_000_000
"""The assumed duration of an attempt whose end is unknown."""


def attempts_in(entries: Mapping[Path, Mapping[str, Any]]) -> tuple[Attempt, ...]:
    """Return all attempts of all ranks in the order of time; none if manifests lack the times.

    All ranks that were started together are one attempt of the program, numbered by ``number``.
    They ran at the same time and have the same world size, and no rank occurs twice. The entry of a
    launcher that never got a rank is ignored.
    """
    rank_entries = (
        attempt
        for attempt in entries.items()
        if attempt[1].keys() & {"rank", "ranks", "started_ns"}
    )
    rows = [_attempt(path, row) for path, row in rank_entries]
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return ()
    known.sort(key=lambda attempt: (attempt.start_ns, attempt.rank))
    has_no_restarts = len({attempt.rank for attempt in known}) == len(known)
    if has_no_restarts and not any(row.get("run_id") for row in entries.values()):
        return tuple(known)
    groups: list[list[Attempt]] = []
    for attempt in known:
        if groups and _belongs_to(attempt, groups[-1]):
            groups[-1].append(attempt)
        else:
            groups.append([attempt])
    return tuple(
        attempt.numbered(number) for number, group in enumerate(groups) for attempt in group
    )


def chosen_attempt(attempts: Sequence[Attempt], wanted: int | None) -> int:
    """Return the attempt to analyze: ``wanted``, or the longest one; of equally long ones the last.

    Raises:
        UsageError: there is no such attempt.
    """
    numbers = sorted({attempt.number for attempt in attempts})
    if wanted is None:
        return max(numbers, key=lambda number: (_duration_ns(attempts, number), number), default=0)
    if wanted not in (numbers or [0]):
        known = ", ".join(map(str, numbers)) or "0"
        raise UsageError(f"--attempt {wanted}: no such attempt; choose one of {known}")
    return wanted


def warning_on_unlisted(paths: Sequence[Path]) -> list[str]:
    """Return a warning about traces that are not part of the run, or nothing."""
    if not paths:
        return []
    names = ", ".join(path.name for path in paths[:3]) + (" …" if len(paths) > 3 else "")
    n, verb = (f"{len(paths)} traces", "one") if len(paths) > 1 else ("a trace", "it")
    return [
        f"traceprof ignored {n} that the manifest of the run does not list ({names}); to analyze "
        f"{verb}, run `traceprof {shlex.quote(str(paths[0]))}`"
    ]


def warning_on_attempts(attempts: Sequence[Attempt], chosen: int, *, is_wanted: bool) -> str:
    """Return a warning that says which of several attempts is shown; "" if there is one attempt."""
    numbers = sorted({attempt.number for attempt in attempts})
    if len(numbers) < 2:
        return ""
    why = "" if is_wanted else ", the longest"
    summaries = "; ".join(
        f"attempt {number}: {_ranks_of_attempt(attempts, number)}, "
        f"{format_duration(_duration_ns(attempts, number))}"
        for number in numbers
    )
    return (
        f"the job was started {len(numbers)} times; traceprof shows attempt {chosen}{why} "
        f"({summaries}); use --attempt N to choose another attempt, "
        "`traceprof elastic` to compare all"
    )


def _attempt(path: Path, row: Mapping[str, Any]) -> Attempt | None:
    """Return the attempt in an entry of a manifest; None if the entry lacks rank or start."""
    started, ended, size = (row.get(name) for name in ("started_ns", "ended_ns", "world_size"))
    if not isinstance(row.get("rank"), int) or not isinstance(started, int):
        return None
    return Attempt(
        number=0,
        rank=int(row["rank"]),
        path=str(path),
        host=str(row.get("host", "")),
        start_ns=started,
        # The end of a rank that was killed at once is unknown.
        end_ns=max(ended, started) if isinstance(ended, int) else started,
        ended=str(row.get("ended", "")),
        world_size=size if isinstance(size, int) else ABSENT,
        launcher=str(row.get(LAUNCHER, "")),
    )


def _belongs_to(attempt: Attempt, group: Sequence[Attempt]) -> bool:
    """Return whether a rank belongs to the attempt whose ranks are ``group``."""
    return (
        attempt.rank not in {other.rank for other in group}
        and attempt.world_size == group[0].world_size
        and attempt.start_ns < min(_end_ns(other) for other in group)
    )


def _end_ns(attempt: Attempt) -> int:
    """Return the end of an attempt; if it is unknown, an assumed end soon after the start."""
    return (
        attempt.end_ns
        if attempt.end_ns > attempt.start_ns
        else attempt.start_ns + _ASSUMED_DURATION_NS
    )


def _duration_ns(attempts: Sequence[Attempt], number: int) -> int:
    """Return the time from the first start to the last end of an attempt."""
    members = [attempt for attempt in attempts if attempt.number == number]
    return max(attempt.end_ns for attempt in members) - min(attempt.start_ns for attempt in members)


def _ranks_of_attempt(attempts: Sequence[Attempt], number: int) -> str:
    """Return the ranks of an attempt as text: a range, or up to 8 numbers."""
    ranks = sorted({attempt.rank for attempt in attempts if attempt.number == number})
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    is_whole = ranks == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 2
    shown = f"{ranks[0]}–{ranks[-1]}" if is_whole else ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}"


NOTES: Final = "recording.json"
LOCK: Final = "in_use"


def is_work_folder(path: Path) -> bool:
    """Return whether ``path`` is the work folder of a recording."""
    return (path / NOTES).is_file() and (path / LOCK).is_file()
