"""Combine all attempts of a restarted program into one job: attempts, epochs, events.

The cost of a restart is the time from the progress that was kept to the next new step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from traceprof.comparison.summary.history import Started, read_start
from traceprof.comparison.summary.restarts import (
    Restart,
    attempts_after_end,
    attempts_at_once,
    find_restarts,
    longest_span,
)
from traceprof.formats.runs.files import attempts_of_run
from traceprof.formats.runs.manifest import LAUNCHER
from traceprof.model.grouping import grouped_by
from traceprof.model.ranks import Attempt
from traceprof.model.results import Note
from traceprof.model.summary import SUMMARY, Summary
from traceprof.model.table import Table

_MAX_FILES: Final = 512
_REPLACED_KINDS: Final = ("start", "end", "checkpoint")
"""Events of the summarized attempt that events of all attempts replace."""
_FILES_OMITTED: Final = Note(
    "The job started {n:count} rank processes. Steps and epochs are from the first {shown:count}."
)
_CONCURRENT_ATTEMPTS: Final = Note(
    "Attempts {one:number} and {other:number} trained at the same time. This is not a restart: the "
    "folder has two jobs, or the nodes lost contact with each other."
)
_LATE_LAUNCHERS: Final = Note(
    "{n:count} attempts started after the job had finished. They are not restarts, and their time "
    "is not part of the job."
)
_SEVERAL_ATTEMPTS: Final = Note(
    "The program was started {n:count} times. Steps, results and measures are from attempt "
    "{attempt:number}. Attempts, events and epochs cover all attempts."
)


def with_attempts(
    summary: Summary, paths: Sequence[Path | str], attempt: int | None = None
) -> Summary:
    """Return ``summary`` with the attempts, epochs and events of every start of the program.

    Times then count from the first rendezvous of agents, or else from the start of the first
    process. Without a manifest with process starts, the summary is unchanged.

    Args:
        summary: the summary of one attempt.
        paths: the files of the run.
        attempt: the number of that attempt; None for the one that is chosen by default.
    """
    attempts, agents, chosen = attempts_of_run(paths)
    if not attempts or summary.started_utc_ns is None:
        return summary
    shown = chosen if attempt is None else attempt
    rendezvous = (event.get("start_ns") for event in agents if event.get("kind") == "rendezvous")
    zero = min(
        [
            *(attempt.start_ns for attempt in attempts),
            *(at_ns for at_ns in rendezvous if isinstance(at_ns, int)),
        ]
    )
    nodes = _node_names(attempts)
    started = [start for start in map(read_start, attempts[:_MAX_FILES]) if start is not None]
    late = attempts_after_end(attempts, started)
    of_job = [attempt for attempt in attempts if attempt.number not in late]
    events = [
        *_start_events(of_job),
        *_restart_events(find_restarts(of_job, started, agents)),
        *_agent_events(agents, nodes),
        *_setup_events(attempts, started),
        *_failure_events(of_job, nodes),
        *_checkpoint_events(started),
    ]
    shift_ns = summary.started_utc_ns - zero
    tables = {name: _shift_times(table, shift_ns, shown) for name, table in summary.tables.items()}
    summary_events = tables["events"].rows() if "events" in tables else []
    kept = [row for row in summary_events if row["kind"] not in _REPLACED_KINDS]
    moved = ({**event, "at_ns": event["at_ns"] - zero} for event in events)
    tables["events"] = _numbered([*moved, *kept])
    tables["attempts"] = SUMMARY.table("attempts").of_rows(list(_lives(attempts, nodes, zero)))
    if len(epochs := _epochs(started, zero)):
        tables["epochs"] = SUMMARY.table("epochs").of_rows(epochs)
    notes = list(summary.notes)
    count = len({attempt.number for attempt in attempts})
    if count > 1:
        notes.append(replace(_SEVERAL_ATTEMPTS, values={"n": count, "attempt": shown}))
    if late:
        notes.append(replace(_LATE_LAUNCHERS, values={"n": len(late)}))
    for one, other in attempts_at_once(started):
        notes.append(replace(_CONCURRENT_ATTEMPTS, values={"one": one, "other": other}))
    if len(attempts) > _MAX_FILES:
        notes.append(replace(_FILES_OMITTED, values={"n": len(attempts), "shown": _MAX_FILES}))
    return replace(summary, tables=tables, started_utc_ns=zero, notes=tuple(notes))


def _node_names(attempts: Sequence[Attempt]) -> dict[str, str]:
    """Return the node name of each launcher: its host, with a number if the host has several."""
    hosts: dict[str, list[str]] = {}
    for attempt in attempts:
        of_host = hosts.setdefault(attempt.host, [])
        if attempt.launcher not in of_host:
            of_host.append(attempt.launcher)
    return {
        launcher: host if len(launchers) == 1 else f"{host}#{number}"
        for host, launchers in hosts.items()
        for number, launcher in enumerate(launchers, 1)
    }


def _lives(
    attempts: Sequence[Attempt], nodes: Mapping[str, str], zero: int
) -> Iterator[Mapping[str, Any]]:
    """Yield a row for each start of a rank."""
    for attempt in attempts:
        yield {
            "attempt": attempt.number,
            "rank": attempt.rank,
            "ended": attempt.ended,
            "at_ns": attempt.start_ns - zero,
            "end_ns": attempt.end_ns - zero,
            "node": nodes[attempt.launcher],
            "source": attempt.path,
        }


def _epochs(started: Sequence[Started], zero: int) -> Table:
    """Return the epochs of each attempt, from the first start to the last end over its ranks."""
    rows = []
    for start in started:
        at, sizes = start.batches["at"], start.batches["size"]
        for row in start.epochs.rows():
            begin, end = row["start_ns"], row["end_ns"]
            is_inside = (start.work[:, 0] >= begin) & (start.work[:, 0] < end)
            rows.append(
                {
                    "attempt": start.attempt.number,
                    "epoch": row["epoch"],
                    "begin": begin,
                    "end": end,
                    "steps": int(is_inside.sum()),
                    "samples": float(sizes[(at >= begin) & (at < end)].sum()),
                }
            )
    table = Table.of_rows(rows, ("attempt", "epoch", "begin", "end", "steps", "samples"))
    found, groups = grouped_by(table, "attempt", "epoch")
    begins, trained = groups.reduced(np.minimum, table["begin"]), groups.sums(table["samples"])
    return found.assign(
        at_ns=begins - zero,
        duration_ns=groups.reduced(np.maximum, table["end"]) - begins,
        steps_count=groups.reduced(np.maximum, table["steps"]),
        samples_count=np.where(trained == 0, np.nan, trained),
        ranks_count=groups.counts,
    )


_Event: TypeAlias = dict[str, Any]


def _event(kind: str, at_ns: int, duration_ns: int | None = None, **about: Any) -> _Event:
    """Return an event row, its time in ns since 1970; None means an unknown duration."""
    length = {} if duration_ns is None else {"duration_ns": duration_ns}
    return {"kind": kind, "at_ns": at_ns, **length, **about}


def _start_events(attempts: Sequence[Attempt]) -> Iterator[_Event]:
    """Yield the start and the end of the job, and the number of ranks of each attempt."""
    before: set[str] = set()
    size_before = 0
    for number in sorted({attempt.number for attempt in attempts}):
        members = [attempt for attempt in attempts if attempt.number == number]
        at = min(attempt.start_ns for attempt in members)
        launchers = {attempt.launcher for attempt in members}
        size = max(len(members), *(attempt.world_size for attempt in members))
        if number == 0:
            yield _event("start", at, 0, attempt=0, value=size)
        else:
            yield _event("restart", at, attempt=number, value=size)
            changes = {"nodes joined": launchers - before, "nodes left": before - launchers}
            if any(changes.values()) or size != size_before:
                text = " and ".join(name for name, nodes in changes.items() if nodes)
                yield _event("membership", at, attempt=number, value=size, text=text)
        before, size_before = launchers, size
    last = max(attempt.number for attempt in attempts)
    yield _event("end", max(attempt.end_ns for attempt in attempts), 0, attempt=last)


def _setup_events(attempts: Sequence[Attempt], started: Sequence[Started]) -> Iterator[_Event]:
    """Yield setup and initialization of the first attempt; later ones are lost time."""
    first_starts = [
        start for start in started if start.attempt.number == 0 and start.begin_ns is not None
    ]
    if not first_starts:
        return
    begin = min(attempt.start_ns for attempt in attempts if attempt.number == 0)
    first = min(start.begin_ns for start in first_starts if start.begin_ns is not None)
    at, length = longest_span(first_starts, "initialization", 0, first)
    if at is not None:
        yield _event("initialization", at, length, attempt=0)
    text = "from the start of the first process to the first step, without initialization"
    yield _event("setup", begin, first - begin - length, attempt=0, text=text)


def _restart_events(restarts: Sequence[Restart]) -> Iterator[_Event]:
    """Yield the time lost at each restart, and its parts."""
    for restart in restarts:
        of = {"attempt": restart.attempt, "epoch": restart.epoch}
        yield _event(
            "time_lost",
            restart.kept_ns,
            restart.begin_ns - restart.kept_ns,
            value=restart.redone_count,
            text=restart.why,
            **of,
        )
        for part in restart.parts:
            yield _event(part.kind, part.at_ns, part.duration_ns, **of)


def _failure_events(attempts: Sequence[Attempt], nodes: Mapping[str, str]) -> Iterator[_Event]:
    """Yield an event for each rank that failed or was killed."""
    for attempt in attempts:
        if kind := {"failed": "failure", "killed": "stopped"}.get(attempt.ended):
            who: dict[str, Any] = {
                "attempt": attempt.number,
                "rank": attempt.rank,
                "node": nodes[attempt.launcher],
            }
            yield _event(kind, attempt.end_ns, text=attempt.ended, **who)


def _agent_events(
    agents: Sequence[Mapping[str, Any]], nodes: Mapping[str, str]
) -> Iterator[_Event]:
    """Yield the rendezvous of agents."""
    for event in agents:
        at = event.get("start_ns")
        if event.get("kind") == "rendezvous" and isinstance(at, int):
            node = nodes.get(str(event.get(LAUNCHER)), str(event.get("node", "")))
            yield _event(
                "rendezvous", at, event["end_ns"] - at, node=node, value=event.get("world_size")
            )


def _checkpoint_events(started: Sequence[Started]) -> Iterator[_Event]:
    """Yield the checkpoints that were saved or loaded."""
    for start in started:
        who = {"attempt": start.attempt.number, "rank": start.attempt.rank}
        for text, spans in (("saved", start.saves), ("loaded", start.loads)):
            for begin, end in spans:
                yield _event("checkpoint", int(begin), int(end - begin), text=text, **who)


def _numbered(events: Sequence[Mapping[str, Any]]) -> Table:
    """Return the events as a table, sorted by time and numbered."""
    spec = SUMMARY.table("events")
    table = Table.of_rows(events, [column.name for column in spec]).in_order("at_ns")
    return table.assign(event=np.arange(len(table)))


def _shift_times(table: Table, shift_ns: int, attempt: int) -> Table:
    """Return a table of the summarized attempt with the times and the number within the job."""
    if table.empty:
        return table
    moved = {name: table[name] + shift_ns for name in ("at_ns", "end_ns") if name in table}
    return table.assign(**moved, **({"attempt": attempt} if "attempt" in table else {}))
