"""What the processes of a run have left, by rank, with the samples of the machine."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from traceprof.formats.kineto.events import KinetoEvents, read_kineto_events
from traceprof.recording import spool
from traceprof.recording.cupti.spool import DeviceActivity, read_activities
from traceprof.recording.identities import ProcessIdentity, identity_of
from traceprof.recording.orphans import is_running
from traceprof.recording.sampling.sampler import Sample

_A_WHILE_NS: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class RankProcesses:
    """The main process of a rank, which trains, and its helpers, such as data loaders.

    ``rank`` is None where it is not known: what then does the work is the main process. ``pids``
    are the ids of all of them.
    """

    main: int
    rank: int | None
    pids: frozenset[int]


def find_ranks(
    records: Sequence[spool.ProcessRecord], children: Mapping[int, int], n_events: Mapping[int, int]
) -> list[RankProcesses]:
    """Return the ranks of a recording, with their processes.

    Args:
        records: who the processes are. A launcher hands its variables down, so that a helper may
            have a record with the rank of the process that it helps.
        children: child → parent of processes that were forked.
        n_events: how many events each process left; the main processes are among these.

    A process with events belongs to the nearest process above it that left some, unless it has a
    rank that this one has not. Programs that ran as the same rank one after another are one
    rank: its main process is the one with the most events. Where torchrun's agent started the
    rank again, each start is a rank of its own: one of its attempts.
    """
    ranks = {record.pid: record.rank for record in records}
    launched = {record.pid for record in records if record.run_id}
    parents = _parents(records, children)
    mains = {pid: _main_process(pid, parents, ranks, n_events) for pid in n_events}
    of_rank: dict[tuple[int, int], list[int]] = {}
    groups: list[list[int]] = []
    for main in sorted(set(mains.values()), key=lambda pid: (-n_events[pid], pid)):
        rank = ranks.get(main)
        if rank is None:
            groups.append([main])
            continue
        start = (rank, _started_as(main, parents, launched, ranks))
        if start in of_rank:
            of_rank[start].append(main)
        else:
            groups.append(of_rank.setdefault(start, [main]))
    owners = {main: group[0] for group in groups for main in group}
    members: dict[int, set[int]] = {group[0]: set() for group in groups}
    for pid in {*n_events, *ranks, *children}:
        above = next((p for p in _line(pid, parents) if p in mains), None)
        if above is not None:
            members[owners[mains[above]]].add(pid)
    found = [RankProcesses(pid, ranks.get(pid), frozenset(own)) for pid, own in members.items()]
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.main))


def without_inherited_ranks(
    records: Iterable[spool.ProcessRecord], ranks: Iterable[RankProcesses]
) -> list[spool.ProcessRecord]:
    """Return the records without the ranks that helpers have only inherited."""
    helpers = {pid for rank in ranks for pid in rank.pids if pid != rank.main}
    return [replace(record, rank=None) if record.pid in helpers else record for record in records]


def _started_as(
    main: int, parents: Mapping[int, int], launched: Collection[int], records: Container[int]
) -> int:
    """Return which process torchrun's agent started for ``main``; 0 where no agent did."""
    if main not in launched:
        return 0
    started = main
    for above in list(_line(main, parents))[1:]:
        if above in records and above not in launched:
            return started  # the agent itself, which is no worker
        started = above
    return main


def _parents(records: Sequence[spool.ProcessRecord], children: Mapping[int, int]) -> dict[int, int]:
    lines = [(record.pid, *record.ancestors) for record in records]
    pairs = [pair for line in lines for pair in pairwise(line)]
    parents: dict[int, int] = {}
    for pid, parent in (*pairs, *children.items()):
        if pid not in _line(parent, parents):  # an id may have been given twice
            parents[pid] = parent
    return parents


def _line(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """Yield ``pid``, its parent and so on."""
    yield pid
    while pid in parents:
        pid = parents[pid]
        yield pid


def _main_process(
    pid: int,
    parents: Mapping[int, int],
    ranks: Mapping[int, int | None],
    n_events: Mapping[int, int],
) -> int:
    main = pid
    for above in list(_line(pid, parents))[1:]:
        if above not in n_events:
            continue
        if ranks.get(main) not in (None, ranks.get(above)):
            break
        main = above
    return main


@dataclass(frozen=True, slots=True)
class Captured:
    """Everything in a work folder; events and what devices did stay in their files.

    ``ranks`` says which processes are whose, ``without_record`` which could not write who they are.
    """

    processes: Sequence[spool.ProcessRecord]
    events: Sequence[spool.ProcessEvents]
    windows: Sequence[tuple[int, KinetoEvents]] = ()
    samples: Sequence[Sample] = ()
    ranks: Sequence[RankProcesses] = ()
    agent_events: Sequence[dict[str, Any]] = ()
    activities: Sequence[DeviceActivity] = ()
    without_record: Sequence[int] = ()

    @property
    def parts(self) -> Sequence[spool.ProcessEvents | DeviceActivity]:
        """What processes have left in files that are read in blocks."""
        return (*self.events, *self.activities)

    @property
    def is_empty(self) -> bool:
        """Whether no process left any event."""
        return not self.events and not self.windows and not self.activities

    @property
    def has_enough_for_a_trace(self) -> bool:
        """Whether any process left an event, or the machine was looked at for a while."""
        looks = [one.time_ns for one in self.samples] or [0]
        return not self.is_empty or max(looks) - min(looks) >= _A_WHILE_NS

    def pids(self) -> list[int]:
        """Return the processes that left events."""
        return sorted({part.pid for part in self.parts} | {pid for pid, _ in self.windows})

    def of(self, pids: Collection[int]) -> Captured:
        """Return the part of some processes, with the samples of the machine."""
        others = {f"process:{pid}" for rank in self.ranks for pid in rank.pids}
        others -= {f"process:{pid}" for pid in pids}
        return Captured(
            processes=[record for record in self.processes if record.pid in pids],
            events=[part for part in self.events if part.pid in pids],
            windows=[window for window in self.windows if window[0] in pids],
            activities=[part for part in self.activities if part.pid in pids],
            samples=[sample for sample in self.samples if sample.source not in others],
            ranks=[rank for rank in self.ranks if rank.main in pids],
            without_record=self.without_record,
        )

    def losses(self) -> list[str]:
        """Return, in a sentence each, what happened and is not here."""
        found = [loss for part in self.parts for loss in part.losses()]
        return found + [
            f"process {pid} could not write its record, so its events are lost (is the disk full? "
            "set TMPDIR to record to another disk)"
            for pid in self.without_record
        ]

    def software(self) -> dict[str, str]:
        """Return the versions in the records; where they differ those of the lowest rank."""
        by_rank = sorted(
            self.processes, key=lambda one: -1_000_000 if one.rank is None else -one.rank
        )
        return {name: value for record in by_rank for name, value in record.software.items()}

    def with_samples(self, samples: Sequence[Sample]) -> Captured:
        """Return it with ``samples``, of processes those that have hooks, where there are any."""
        known = {f"process:{one.pid}" for one in self.processes}
        kept = [
            one for one in samples if not one.source.startswith("process:") or one.source in known
        ]
        return replace(self, samples=kept if known else samples)

    def started_ns(self, main: int) -> int:
        """Return when a process was started, 0 where it is not known; in ns since 1970."""
        known = (one.started_ns for one in self.processes if one.pid == main)
        return next(known, None) or 0

    def attempt_of(self, main: int, seen_ns: int = 0) -> dict[str, Any]:
        """Return when the main process of a rank was started and ended, and how.

        Of one that was killed the end is that of its last event; ``seen_ns`` is the last of which
        a profiler knows, 0 for none.
        """
        found: dict[str, Any] = {"pid": main}
        record = next((one for one in self.processes if one.pid == main), spool.ProcessRecord(main))
        times = [part.last_ns for part in self.parts if part.pid == main and part.last_ns]
        times += [seen_ns] if seen_ns else []
        found["started_ns"] = record.started_ns
        found["ended_ns"] = record.ended_ns or max(times, default=None)
        found["ended"] = self._ended(record)
        for name in ("local_rank", "world_size", "run_id", "restart_count", "group_rank"):
            found[name] = getattr(record, name)
        return {name: value for name, value in found.items() if value not in (None, "")}

    def _ended(self, record: spool.ProcessRecord) -> str:
        """Return how a process ended: as it said itself, else as its agent did."""
        if record.ended:
            return record.ended
        codes = [event.get("exit_codes", {}).get(str(record.pid)) for event in self.agent_events]
        code = next((code for code in codes if code is not None), None)
        if code is not None:
            return "killed" if code < 0 else "failed"
        return "" if is_running(record.identity or ProcessIdentity(record.pid)) else "killed"

    def last_ns(self) -> int:
        """Return the time of the last event, 0 where there is none; in ns since 1970."""
        return max((part.last_ns for part in self.parts if part.last_ns), default=0)

    def first_ns(self) -> int:
        """Return the time of the first event, in ns since 1970."""
        times = [part.first_ns for part in self.parts if part.first_ns is not None]
        windows = (events for _, events in self.windows if len(events))
        times += [one.base_time_ns + int(one.start_ns.min()) for one in windows]
        return min([*times, *(sample.time_ns for sample in self.samples)], default=0)

    def with_one_attempt(self) -> Captured:
        """Return the same with one process for each rank: of several starts that with most events.

        One file cannot keep the starts of a rank apart: the others are then of no rank.
        """
        n_events = {part.pid: part.n_events for part in self.events}
        kept: dict[int, int] = {}
        for one in sorted(self.ranks, key=lambda one: n_events.get(one.main, 0)):
            if one.rank is not None:
                kept[one.rank] = one.main
        others = {one.main for one in self.ranks if one.rank is not None} - set(kept.values())
        records = [replace(one, rank=None) if one.pid in others else one for one in self.processes]
        ranks = [replace(one, rank=None) if one.main in others else one for one in self.ranks]
        return replace(self, processes=records, ranks=ranks)

    def without_samples_outside(self) -> Captured:
        """Return the same with samples only from the time that the events cover."""
        times = (part.first_ns for part in self.parts if part.first_ns is not None)
        first, last = min(times, default=0), self.last_ns()
        inside = [sample for sample in self.samples if first <= sample.time_ns <= last]
        return replace(self, samples=inside)


def _record_of(activity: DeviceActivity) -> spool.ProcessRecord:
    """Return what CUPTI's recorder tells of a process that is no Python, or has no hooks."""

    def number(name: str) -> int | None:
        text = activity.notes.get(name, "")
        return int(text) if text.isdecimal() else None

    return spool.ProcessRecord(
        activity.pid,
        command=activity.notes.get("command", ""),
        rank=number("rank"),
        local_rank=number("local_rank"),
        world_size=number("world_size"),
        started_ns=activity.clocks[0].wall_ns if activity.clocks else None,
        ended="" if activity.is_cut else "finished",
        identity=identity_of(activity.path),
    )


def gather(folder: Path, profiled: Iterable[int] = ()) -> Captured:
    """Return what the processes of a run left in ``folder``.

    ``profiled`` are the processes of which a profiler left something.
    """
    events = [
        replace(one, is_running=not one.has_ended and is_running(identity_of(one.path)))
        for one in spool.read_events(folder)
    ]
    windows = [
        (pid, read_kineto_events(path, with_shapes=True))
        for pid, path in spool.window_files(folder)
    ]
    activities = [
        replace(one, is_running=one.is_cut and is_running(identity_of(one.path)))
        for one in read_activities(folder)
        if one.record_bytes
    ]
    pids = (*(pid for pid, _ in windows), *(one.pid for one in activities))
    n_events = dict.fromkeys([*profiled, *pids], 0)
    n_events |= {part.pid: part.n_events for part in events}
    records = spool.read_process_records(folder)
    known = {record.pid for record in records}
    records += {one.pid: _record_of(one) for one in activities if one.pid not in known}.values()
    ranks = find_ranks(records, spool.read_children(folder), n_events)
    return Captured(
        processes=without_inherited_ranks(records, ranks),
        events=events,
        windows=windows,
        ranks=ranks,
        agent_events=spool.read_agent_events(folder),
        activities=activities,
        without_record=spool.without_record(folder),
    )
