"""Collect what the processes of a run left in a work folder, grouped by rank.

The collection includes the samples of the machine.
"""

from __future__ import annotations

from collections import Counter
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

_MIN_SAMPLED_NS: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class RankProcesses:
    """The processes of one rank: the main process, which trains, and its helpers (data loaders).

    ``main`` is the process id of the main process. ``rank`` is None where the rank is unknown; the
    main process is then the one that does the work. ``pids`` contains the ids of all processes of
    the rank, with the main process.
    """

    main: int
    rank: int | None
    pids: frozenset[int]


def find_ranks(
    records: Sequence[spool.ProcessRecord], children: Mapping[int, int], n_events: Mapping[int, int]
) -> list[RankProcesses]:
    """Return the ranks of a recording, with their processes.

    Args:
        records: the identity of each process. Child processes inherit the variables of their
            launcher, so the record of a helper may contain the rank of the process that it helps.
        children: child → parent of forked processes.
        n_events: the number of events that each process left. The main processes are among its
            keys.

    A process with events belongs to its nearest ancestor with events, unless the process has a rank
    and the ancestor does not have the same rank. Programs that ran one after another as the same
    rank are one rank; the main process is the one with the most events. Where the torchrun agent
    restarted a rank, each start is a separate rank entry (one attempt each).
    """
    ranks = {record.pid: record.rank for record in records}
    launched = {record.pid for record in records if record.run_id}
    parents = _parents(records, children)
    mains = {pid: _main_process(pid, parents, ranks, n_events) for pid in n_events}
    group_of_start: dict[tuple[int, int], list[int]] = {}
    groups: list[list[int]] = []
    for main in sorted(set(mains.values()), key=lambda pid: (-n_events[pid], pid)):
        rank = ranks.get(main)
        if rank is None:
            groups.append([main])
            continue
        start = (rank, _worker_of_agent(main, parents, launched, ranks))
        if start in group_of_start:
            group_of_start[start].append(main)
        else:
            groups.append(group_of_start.setdefault(start, [main]))
    rank_main = {main: group[0] for group in groups for main in group}
    members: dict[int, set[int]] = {group[0]: set() for group in groups}
    for pid in {*n_events, *ranks, *children}:
        ancestor = next((p for p in _ancestry(pid, parents) if p in mains), None)
        if ancestor is not None:
            members[rank_main[mains[ancestor]]].add(pid)
    found = [RankProcesses(pid, ranks.get(pid), frozenset(pids)) for pid, pids in members.items()]
    return sorted(
        found,
        key=lambda found_rank: (found_rank.rank is None, found_rank.rank or 0, found_rank.main),
    )


def without_inherited_ranks(
    records: Iterable[spool.ProcessRecord], ranks: Iterable[RankProcesses]
) -> list[spool.ProcessRecord]:
    """Return the records, with rank None for helpers, which only inherited their rank."""
    helpers = {pid for rank in ranks for pid in rank.pids if pid != rank.main}
    return [replace(record, rank=None) if record.pid in helpers else record for record in records]


def _worker_of_agent(
    main: int, parents: Mapping[int, int], launched: Collection[int], recorded: Container[int]
) -> int:
    """Return the worker, started by the torchrun agent, that ``main`` is or descends from.

    Returns 0 where no agent started it.
    """
    if main not in launched:
        return 0
    worker = main
    for ancestor in list(_ancestry(main, parents))[1:]:
        if ancestor in recorded and ancestor not in launched:
            return worker  # the agent itself, not a worker
        worker = ancestor
    return main


def _parents(records: Sequence[spool.ProcessRecord], children: Mapping[int, int]) -> dict[int, int]:
    """Return child → parent of all processes, without cycles."""
    chains = [(record.pid, *record.ancestors) for record in records]
    pairs = [pair for chain in chains for pair in pairwise(chain)]
    parents: dict[int, int] = {}
    for pid, parent in (*pairs, *children.items()):
        if pid not in _ancestry(parent, parents):  # the system may have reused an id
            parents[pid] = parent
    return parents


def _ancestry(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """Yield ``pid``, its parent, the parent of its parent, and so on."""
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
    """Return the main process of ``pid``: its farthest ancestor with events.

    The search stops at an ancestor with events and another rank.
    """
    main = pid
    for ancestor in list(_ancestry(pid, parents))[1:]:
        if ancestor not in n_events:
            continue
        if ranks.get(main) not in (None, ranks.get(ancestor)):
            break
        main = ancestor
    return main


@dataclass(frozen=True, slots=True)
class Captured:
    """The content of a work folder. Events and GPU activity stay in their files.

    ``ranks`` assigns processes to ranks. ``pids_without_record`` lists the processes that could not
    write their identity record.
    """

    processes: Sequence[spool.ProcessRecord]
    events: Sequence[spool.ProcessEvents]
    windows: Sequence[tuple[int, KinetoEvents]] = ()
    samples: Sequence[Sample] = ()
    ranks: Sequence[RankProcesses] = ()
    agent_events: Sequence[dict[str, Any]] = ()
    activities: Sequence[DeviceActivity] = ()
    pids_without_record: Sequence[int] = ()

    @property
    def parts(self) -> Sequence[spool.ProcessEvents | DeviceActivity]:
        """The files that processes left and that are read in blocks: events and GPU activity."""
        return (*self.events, *self.activities)

    @property
    def is_empty(self) -> bool:
        """Whether no process left an event."""
        return not self.events and not self.windows and not self.activities

    @property
    def has_enough_data(self) -> bool:
        """Whether a process left an event, or the machine was sampled for at least 2 s."""
        times_ns = [sample.time_ns for sample in self.samples] or [0]
        return not self.is_empty or max(times_ns) - min(times_ns) >= _MIN_SAMPLED_NS

    def pids(self) -> list[int]:
        """Return the processes that left events, sorted."""
        return sorted({part.pid for part in self.parts} | {pid for pid, _ in self.windows})

    def of(self, pids: Collection[int]) -> Captured:
        """Return the data of the processes ``pids``, with the samples of the machine."""
        others = {f"process:{pid}" for rank in self.ranks for pid in rank.pids}
        others -= {f"process:{pid}" for pid in pids}
        return Captured(
            processes=[record for record in self.processes if record.pid in pids],
            events=[part for part in self.events if part.pid in pids],
            windows=[window for window in self.windows if window[0] in pids],
            activities=[part for part in self.activities if part.pid in pids],
            samples=[sample for sample in self.samples if sample.source not in others],
            ranks=[rank for rank in self.ranks if rank.main in pids],
            pids_without_record=self.pids_without_record,
        )

    def losses(self) -> list[str]:
        """Return one sentence for each kind of data that occurred and was not captured."""
        found = [loss for part in self.parts for loss in part.losses()]
        return found + [
            f"process {pid} could not write its record, so its events are lost (is the disk full? "
            "set TMPDIR to record to another disk)"
            for pid in self.pids_without_record
        ]

    def software(self) -> dict[str, str]:
        """Return the software versions in the records; the lowest rank counts where they differ."""
        by_rank = sorted(
            self.processes, key=lambda record: -1_000_000 if record.rank is None else -record.rank
        )
        return {name: value for record in by_rank for name, value in record.software.items()}

    def with_samples(self, samples: Sequence[Sample]) -> Captured:
        """Return a copy with ``samples``.

        Samples of processes without hooks are dropped if any process has hooks.
        """
        sources = {f"process:{record.pid}" for record in self.processes}
        kept = [
            sample
            for sample in samples
            if not sample.source.startswith("process:") or sample.source in sources
        ]
        return replace(self, samples=kept if sources else samples)

    def started_ns(self, main: int) -> int:
        """Return the start time of a process in ns since 1970, 0 where it is unknown."""
        return (
            next((record.started_ns for record in self.processes if record.pid == main), None) or 0
        )

    def attempt_of(self, main: int, seen_ns: int = 0) -> dict[str, Any]:
        """Return start, end, and outcome of the main process of a rank, for the manifest.

        A process that was killed ends at its last event. ``seen_ns`` is the time of the last event
        in the profiler's data, 0 for none. Times are ns since 1970. Unknown facts are omitted.
        """
        found: dict[str, Any] = {"pid": main}
        record = next(
            (record for record in self.processes if record.pid == main), spool.ProcessRecord(main)
        )
        times = [part.last_ns for part in self.parts if part.pid == main and part.last_ns]
        times += [seen_ns] if seen_ns else []
        found["started_ns"] = record.started_ns
        found["ended_ns"] = record.ended_ns or max(times, default=None)
        found["ended"] = self._ended(record)
        for name in ("local_rank", "world_size", "run_id", "restart_count", "group_rank"):
            found[name] = getattr(record, name)
        return {name: value for name, value in found.items() if value not in (None, "")}

    def _ended(self, record: spool.ProcessRecord) -> str:
        """Return how a process ended: from its record, otherwise from the record of its agent."""
        if record.ended:
            return record.ended
        codes = [event.get("exit_codes", {}).get(str(record.pid)) for event in self.agent_events]
        code = next((code for code in codes if code is not None), None)
        if code is not None:
            return "killed" if code < 0 else "failed"
        return "" if is_running(record.identity or ProcessIdentity(record.pid)) else "killed"

    def last_ns(self) -> int:
        """Return the time of the last event in ns since 1970, 0 without events."""
        return max((part.last_ns for part in self.parts if part.last_ns), default=0)

    def first_ns(self) -> int:
        """Return the time of the first event or sample in ns since 1970, 0 without any."""
        times = [part.first_ns for part in self.parts if part.first_ns is not None]
        times += [
            window.base_time_ns + int(window.start_ns.min())
            for _, window in self.windows
            if len(window)
        ]
        return min([*times, *(sample.time_ns for sample in self.samples)], default=0)

    def with_one_attempt(self) -> Captured:
        """Return a copy with one start of each rank: that of the attempt with the most events.

        A single file cannot separate the attempts of a rank. Of the others, only the records stay,
        with rank None.
        """
        n_events = Counter({part.pid: part.n_events for part in self.events})
        attempts = {record.pid: record.restart_count for record in self.processes}
        n_of_attempt = Counter[int | None]()
        for rank in self.ranks:
            n_of_attempt[attempts.get(rank.main)] += n_events[rank.main]
        kept: dict[int | None, RankProcesses] = {}
        for rank in sorted(
            self.ranks,
            key=lambda rank: (n_of_attempt[attempts.get(rank.main)], n_events[rank.main]),
        ):
            kept[rank.rank] = rank
        others = [r for r in self.ranks if r.rank is not None and kept[r.rank] is not r]
        left_out = frozenset[int]().union(*(rank.pids for rank in others))
        records = [replace(r, rank=None) if r.pid in left_out else r for r in self.processes]
        known = {record.pid for record in records} | {*self.pids()}
        found = self.of(known - left_out)
        return replace(found, processes=records, agent_events=self.agent_events)

    def without_samples_outside(self) -> Captured:
        """Return a copy that keeps only the samples within the time range of the events."""
        times = (part.first_ns for part in self.parts if part.first_ns is not None)
        first, last = min(times, default=0), self.last_ns()
        return replace(
            self, samples=[sample for sample in self.samples if first <= sample.time_ns <= last]
        )


def _record_from_cupti(activity: DeviceActivity) -> spool.ProcessRecord:
    """Return the record of a process without hooks (such as C++) from its CUPTI file."""

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
    """Read everything that the processes of a run left in ``folder``.

    ``profiled`` are the processes for which a profiler left data.
    """
    events = [
        replace(part, is_running=not part.has_ended and is_running(identity_of(part.path)))
        for part in spool.read_events(folder)
    ]
    windows = [
        (pid, read_kineto_events(path, with_shapes=True))
        for pid, path in spool.window_files(folder)
    ]
    activities = [
        replace(part, is_running=part.is_cut and is_running(identity_of(part.path)))
        for part in read_activities(folder)
        if part.record_bytes
    ]
    pids = (*(pid for pid, _ in windows), *(activity.pid for activity in activities))
    n_events = dict.fromkeys([*profiled, *pids], 0)
    n_events |= {part.pid: part.n_events for part in events}
    records = spool.read_process_records(folder)
    recorded_pids = {record.pid for record in records}
    records += {
        activity.pid: _record_from_cupti(activity)
        for activity in activities
        if activity.pid not in recorded_pids
    }.values()
    ranks = find_ranks(records, spool.read_children(folder), n_events)
    return Captured(
        processes=without_inherited_ranks(records, ranks),
        events=events,
        windows=windows,
        ranks=ranks,
        agent_events=spool.read_agent_events(folder),
        activities=activities,
        pids_without_record=spool.pids_without_record(folder),
    )
