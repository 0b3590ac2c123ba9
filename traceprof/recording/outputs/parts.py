"""What of a recording goes into which file."""

from __future__ import annotations

from pathlib import Path

from traceprof.model.trace import Trace
from traceprof.recording.gathering.ranks import RankProcesses
from traceprof.recording.outputs.job import Job
from traceprof.values import dataclass

__all__ = ["Part", "WrittenFile", "node_part", "parts_of", "ranks_in", "rest_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """One file to be written, and the processes that are in it.

    ``is_whole`` says that it gets every process, ``is_rest`` that what it holds belongs to no
    rank: launchers, and processes of which nobody knows who started them. ``main`` is the process
    that is the rank, where it is one rank.
    """

    path: Path
    processes: frozenset[int] = frozenset()
    is_whole: bool = False
    is_rest: bool = False
    main: int | None = None

    def holds(self, process: int) -> bool:
        """Return whether this process goes into the file."""
        return self.is_whole or process in self.processes


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One file of a recording, and the ranks that are in it.

    ``main`` is the process of the rank, where it is one; ``seen_ns`` when a profiler saw it for the
    last time, in ns since 1970, 0 where none did.
    """

    path: Path
    ranks: tuple[int, ...]
    is_rest: bool = False
    main: int | None = None
    seen_ns: int = 0


def parts_of(job: Job) -> list[Part]:
    """Return the files of a recording: one, or in a folder one per rank, and per life of it.

    Processes of no rank have a file of their own beside those of ranks. Where there are no ranks
    at all a lone process is rank 0; several have a file each.
    """
    if not job.request.is_folder:
        return [Part(job.request.output, is_whole=True)]
    ranks = job.captured.ranks
    if not ranks:
        return [node_part(job)]
    if len(ranks) == 1:
        path = _path(job, f"rank{ranks[0].rank or 0}")
        return [Part(path, is_whole=True, main=ranks[0].main)]
    known = [one for one in ranks if one.rank is not None]

    def order(one: RankProcesses) -> tuple[int, int]:
        return one.rank or 0, job.captured.started_ns(one.main)

    in_order = sorted(known or ranks, key=order)
    parts = [Part(_path(job, _name(one)), one.pids, main=one.main) for one in in_order]
    rest = frozenset[int]().union(*(one.pids for one in ranks if one.rank is None))
    if known and rest:
        parts.append(rest_of(job, rest))
    return parts


def rest_of(job: Job, processes: frozenset[int] = frozenset()) -> Part:
    """Return the file for what belongs to no rank."""
    return Part(_path(job, f"others-{job.host}"), processes, is_rest=True)


def node_part(job: Job) -> Part:
    """Return the file for everything on this host, where it cannot be told apart."""
    return Part(_path(job, f"node-{job.host}"), is_whole=True)


def ranks_in(trace: Trace) -> tuple[int, ...]:
    """Return the ranks whose processes are in a trace."""
    return tuple(sorted(int(rank) for rank in trace.processes["rank"] if rank >= 0))


def _name(one: RankProcesses) -> str:
    return f"process{one.main}" if one.rank is None else f"rank{one.rank}"


def _path(job: Job, name: str) -> Path:
    """Return a path of that name; a file that somebody else has left there is not overwritten."""
    return job.places.take(name, ".sqlite")
