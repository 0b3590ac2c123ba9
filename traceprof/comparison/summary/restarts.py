"""Find the restarts of a job, and split the time that each of them lost into its parts.

The cost of a restart is the time from the progress that was kept to the next new step. Times are
ns since 1970. This module reads no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from traceprof.comparison.summary.history import Started
from traceprof.formats.runs.manifest import LAUNCHER
from traceprof.model.ranks import Attempt


@dataclass(frozen=True, slots=True)
class RestartPart:
    """A part of the time that a restart took.

    ``kind`` is redone (steps that run again), noticing (until agents detect the failure), down (no
    agent runs), rendezvous, failed (attempts that never trained), initialization (of process
    groups), loading (checkpoints), or setup (the rest of the start).

    Times are ns since 1970. The parts do not overlap. The rest of the restart time is unexplained.
    """

    kind: str
    at_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Restart:
    """One return to training.

    Work up to ``kept_ns`` was not lost. Training resumed at ``begin_ns``, in attempt ``attempt``,
    at ``epoch`` (None: unknown). ``redone_count`` steps had to run again.
    """

    attempt: int
    kept_ns: int
    begin_ns: int
    epoch: float | None
    redone_count: int
    why: str
    parts: tuple[RestartPart, ...]


def find_restarts(
    attempts: Sequence[Attempt], started: Sequence[Started], agents: Sequence[Mapping[str, Any]]
) -> list[Restart]:
    """Return the restart between each attempt that trained and the next one that did.

    Attempts that ended before their first step are part of the lost time. Two attempts that train
    at the same time are not a restart.
    """
    trained = _by_attempt(started)
    found = []
    concurrent = attempts_at_once(started)
    for before, after in pairwise(trained):
        if (before, after) in concurrent:
            continue
        new_starts = [attempt for attempt in attempts if before < attempt.number <= after]
        found.append(_restart(trained[before], trained[after], new_starts, agents))
    last = max((attempt.number for attempt in attempts), default=0)
    if trained and max(trained) < last:
        found.append(_final_loss(trained[max(trained)], attempts))
    return found


def attempts_at_once(started: Sequence[Started]) -> list[tuple[int, int]]:
    """Return pairs of consecutive attempts that trained at the same time.

    This happens if two jobs were recorded into one folder, and if agents lost contact and each
    started its own job.
    """
    trained = _by_attempt(started)
    return [
        (before, after)
        for before, after in pairwise(trained)
        if min(start.begin_ns or 0 for start in trained[after])
        < max(start.last_work_ns for start in trained[before])
    ]


def attempts_after_end(attempts: Sequence[Attempt], started: Sequence[Started]) -> frozenset[int]:
    """Return the attempts that started after the job had finished and never trained.

    They come from launchers that were started too late, and are not restarts: nothing was lost.
    """
    trained = _by_attempt(started)
    last_attempts = [attempt for attempt in attempts if attempt.number == max(trained, default=-1)]
    if not last_attempts or any(attempt.ended != "finished" for attempt in last_attempts):
        return frozenset()
    end_ns = max(attempt.end_ns for attempt in last_attempts)
    return frozenset(
        attempt.number
        for attempt in attempts
        if attempt.number > max(trained) and attempt.start_ns >= end_ns
    )


def _by_attempt(started: Sequence[Started]) -> dict[int, list[Started]]:
    """Return the starts that trained, by attempt, in order."""
    found: dict[int, list[Started]] = {}
    for start in sorted(started, key=lambda start: start.attempt.number):
        if start.begin_ns is not None:
            found.setdefault(start.attempt.number, []).append(start)
    return found


def _final_loss(previous: Sequence[Started], attempts: Sequence[Attempt]) -> Restart:
    """Return the time from the last work to the end of a job that did not resume."""
    end = max(attempt.end_ns for attempt in attempts)
    kept = min(max(start.last_work_ns for start in previous), end)
    last = max(attempt.number for attempt in attempts)
    return Restart(last, kept, end, None, 0, "training did not resume", ())


def _restart(
    previous: Sequence[Started],
    resumed: Sequence[Started],
    new_starts: Sequence[Attempt],
    agents: Sequence[Mapping[str, Any]],
) -> Restart:
    """Return the restart after ``previous``, split into its parts.

    ``previous`` are the starts of the last attempt that trained, ``resumed`` those of the next one.
    ``new_starts`` are all starts after ``previous``, including failed ones.
    """
    begin_ns = min(start.begin_ns or 0 for start in resumed)
    last_work_ns = max(start.last_work_ns for start in previous)
    epoch, kept_ns = _resume_point(previous, resumed, last_work_ns)
    redone = max(
        int(((start.work[:, 0] >= kept_ns) & (start.work[:, 1] <= last_work_ns)).sum())
        for start in previous
    )
    number = resumed[0].attempt.number
    process_ns = min(attempt.start_ns for attempt in new_starts if attempt.number == number)
    first_ns = min(attempt.start_ns for attempt in new_starts)
    timed_events = [event for event in agents if isinstance(event.get("start_ns"), int)]
    in_between = [event for event in timed_events if last_work_ns < event["start_ns"] < begin_ns]
    changes = [event for event in in_between if event.get("kind") in ("restart", "membership")]
    rendezvous = [event for event in in_between if event.get("kind") == "rendezvous"]
    reports = [*changes, *rendezvous]
    reported_ns = min((int(event["start_ns"]) for event in reports), default=last_work_ns)
    detected_ns = min(max(reported_ns, last_work_ns), first_ns)
    previous_agents = {
        _agent_of(event)
        for event in timed_events
        if event["start_ns"] <= last_work_ns or "agent" not in event
    }
    if reports and previous_agents.isdisjoint(map(_agent_of, reports)):
        # Every agent that reported was started after the failure.
        last_end_ns = max(last_work_ns, *(start.attempt.end_ns for start in previous))
        ended_ns = min(last_end_ns, detected_ns)
        detection = RestartPart("down", ended_ns, detected_ns - ended_ns)
    else:
        detection = RestartPart("noticing", last_work_ns, detected_ns - last_work_ns)
    init_ns, init_length_ns = longest_span(resumed, "initialization", process_ns, begin_ns)
    load_at_ns, load_length_ns = longest_span(resumed, "loads", process_ns, begin_ns)
    parts = (
        RestartPart("redone", kept_ns, last_work_ns - kept_ns),
        detection,
        *((RestartPart("rendezvous", detected_ns, first_ns - detected_ns),) if rendezvous else ()),
        RestartPart("failed", first_ns, process_ns - first_ns),
        *((RestartPart("initialization", init_ns, init_length_ns),) if init_ns else ()),
        *((RestartPart("loading", load_at_ns, load_length_ns),) if load_at_ns else ()),
        RestartPart("setup", process_ns, begin_ns - process_ns - init_length_ns - load_length_ns),
    )
    shown = tuple(
        part for part in parts if part.duration_ns > 0 or part.kind not in _OPTIONAL_PARTS
    )
    return Restart(number, kept_ns, begin_ns, epoch, redone, _why(changes, previous), shown)


_OPTIONAL_PARTS: Final = ("redone", "noticing", "down", "failed")


def _agent_of(event: Mapping[str, Any]) -> tuple[str, int]:
    """Return the launcher and the number of the agent that reported an event."""
    return str(event.get(LAUNCHER, "")), int(event.get("agent", 0))


def longest_span(
    started: Sequence[Started], what: str, first_ns: int, end_ns: int
) -> tuple[int | None, int]:
    """Return the start of the first span ``what`` (None: none), and the longest duration."""
    spans = [(int(a), int(b)) for start in started for a, b in getattr(start, what)]
    in_window = [(a, b) for a, b in spans if first_ns <= a < end_ns]
    return min((a for a, _ in in_window), default=None), max(
        (b - a for a, b in in_window), default=0
    )


def _resume_point(
    previous: Sequence[Started], resumed: Sequence[Started], last_work: int
) -> tuple[float | None, int]:
    """Return the epoch at which training resumed (None: unknown), and when the kept work ended.

    If the program numbers its epochs, work is kept up to the first start of that epoch. Otherwise
    it is kept up to the last saved checkpoint, if one was loaded, or else up to the last step.
    """
    numbered = [start for start in resumed if start.are_numbered and len(start.epochs)]
    epoch = float(numbered[0].epochs["epoch"][0]) if numbered else None
    if epoch is not None:
        tables = [start.epochs for start in previous if start.are_numbered]
        starts = [
            int(at) for epochs in tables for at in epochs["start_ns"][epochs["epoch"] == epoch]
        ]
        return epoch, min([*starts, last_work])
    saves = [int(end) for start in previous for _, end in start.saves]
    is_loaded = any(len(start.loads) for start in resumed)
    return None, min(max(saves), last_work) if is_loaded and saves else last_work


def _why(events: Sequence[Mapping[str, Any]], previous: Sequence[Started]) -> str:
    """Return the reason for a restart in a few words; "" if unknown."""
    kinds = {str(event.get("kind")) for event in events}
    if "restart" in kinds or any(start.attempt.ended == "failed" for start in previous):
        return "a rank failed"
    if "membership" in kinds:
        return "nodes joined"
    return "ranks were killed" if any(start.attempt.ended == "killed" for start in previous) else ""
