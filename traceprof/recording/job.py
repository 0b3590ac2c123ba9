"""The recording job: its recorder, its other launchers, and the names of its files.

Several agents of one job on one host record into one folder, and so does an agent that starts
later. Other launchers of the run may write to the same folder. No launcher may replace the files of
another one. Each therefore reserves a name by creating the file: two launchers cannot both succeed.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Final

from traceprof.errors import UsageError
from traceprof.formats.runs.manifest import read_manifest
from traceprof.formats.shared.redaction import secrets_to_search, without_secrets
from traceprof.model.trace import Trace
from traceprof.recording.captured import Captured, RankProcesses
from traceprof.recording.machine import utc_text
from traceprof.recording.request import RecordRequest, RunRecorded, writing
from traceprof.recording.work_folder import Notes, hold_lock, is_locked
from traceprof.secrets import masked_command, masked_name, masked_text, secrets_of, storable
from traceprof.version import __version__

if sys.platform != "win32":
    import fcntl

_RUN_VARIABLE: Final = "TRACEPROF_RUN"
_RENDEZVOUS_OPTION: Final = re.compile(r"--rdzv[-_]id(?:=(.+))?")
_WORLD_SIZE_VARIABLES: Final = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_JOB_SIZE_VARIABLES: Final = ("SLURM_NTASKS", "SLURM_NNODES")
_NODE_OPTION: Final = re.compile(
    r"--(nnodes(=(?!1$|1:1$)|$)|node[-_]rank|master[-_]addr|rdzv[-_]endpoint|machine_rank)"
)
"""Options of launchers that run once on each node (torchrun, accelerate)."""
_ALONE_SUFFIX: Final = ".alone"
"""Suffix of the marker of a recording that is its whole job."""
_LABEL_VARIABLES = ("TRACEPROF_RUN", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")


class Places:
    """Reserve file names in a folder, each only once.

    ``started_s`` is the start of the recording on ``host``. With ``replaces``, files that are older
    than the start are replaced.
    """

    def __init__(
        self, folder: Path, started_s: float, *, replaces: bool, host: str | None = None
    ) -> None:
        self._host = host or socket.gethostname()
        self._folder = folder
        self._started_s = started_s
        self._replaces = replaces
        self._made: list[Path] = []
        self._taken: set[Path] = set()

    def take(self, name: str, suffix: str = ".sqlite") -> Path:
        """Reserve a path that no other launcher has, with a name as close to ``name`` as possible.

        Raises:
            UsageError: the folder is not writable.
        """
        for path in self._candidates(name, suffix):
            with writing(path), suppress(FileExistsError):
                if path in self._taken or not self._is_old(path):
                    path.touch(exist_ok=False)
                    self._made.append(path)
                self._taken.add(path)
                return path
        raise AssertionError("names are endless")

    def give_back(self) -> None:
        """Remove the reserved files that are still empty."""
        for path in self._made:
            if path.exists() and not path.stat().st_size:
                path.unlink(missing_ok=True)

    def _candidates(self, name: str, suffix: str) -> Iterator[Path]:
        first = self._folder / f"{name}{suffix}"
        yield first
        if first not in self._taken and not name.endswith(self._host):
            name = f"{name}-{self._host}"
            yield self._folder / f"{name}{suffix}"
        for number in count(2):
            yield self._folder / f"{name}-{number}{suffix}"

    def _is_old(self, path: Path) -> bool:
        return self._replaces and path.exists() and path.stat().st_mtime < self._started_s


def is_joining(request: RecordRequest) -> bool:
    """Return whether a recording adds files to a run that another launcher started in its folder.

    The recording joins a run in two cases: another launcher of the job on this host records into
    the folder now, or the user named the job (``TRACEPROF_RUN``, ``--rdzv-id``) and a manifest in
    the folder has that name.

    Raises:
        UsageError: the recording in progress is not a launcher of this job. Both would write the
            same ranks, and the folder could not be read.
    """
    if not request.is_folder:
        return False
    job = job_of(request.command)
    others = [path for path in request.output.glob(_marker("*")) if is_locked(path)]
    for other in others:
        other_job = other.read_text("utf-8", "replace").partition("\n")[2]
        if (
            other.name.endswith(_ALONE_SUFFIX)
            or not _is_part_of_job(request.command)
            or other_job != job
        ):
            raise UsageError(
                f"{request.output}: another recording writes to this folder; choose another folder "
                "(if both belong to one job, set TRACEPROF_RUN to the same name)"
            )
    if others:
        return True
    manifests = (read_manifest(path) for path in manifests_of_host(request.output))
    return (
        bool(job)
        and not request.force
        and any(manifest and manifest.job == job for manifest in manifests)
    )


def _is_part_of_job(command: Sequence[str]) -> bool:
    """Return whether a command may be one of several launchers, or one rank, of a job."""
    sizes = filter(None, map(os.environ.get, _JOB_SIZE_VARIABLES))
    are_several = any(text.isdecimal() and int(text) > 1 for text in sizes)
    is_node = any(_NODE_OPTION.match(argument) for argument in command)
    return bool(job_of(command)) or is_node or are_several or world_size() > 1


def world_size() -> int:
    """Return the number of ranks in the job of this process, 0 where it is unknown."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    texts = filter(None, map(os.environ.get, _WORLD_SIZE_VARIABLES))
    return next((int(text) for text in texts if text.isdecimal()), 0)


def job_of(command: Sequence[str]) -> str:
    """Return the user's name of the job: that of the run, or of the torchrun rendezvous.

    The name is "" where the user gave none.
    """
    given = os.environ.get(_RUN_VARIABLE)
    if given:
        return given
    for index, argument in enumerate(command):
        found = _RENDEZVOUS_OPTION.fullmatch(argument)
        if found:
            return found.group(1) or next(iter(command[index + 1 : index + 2]), "")
    return ""


def manifests_of_host(folder: Path) -> list[Path]:
    """Return the manifests in ``folder`` that launchers on this host wrote."""
    host = re.escape(socket.gethostname())
    named = re.compile(rf"manifest-{host}(-\d+)?\.json")
    return sorted(path for path in folder.glob("manifest-*.json") if named.fullmatch(path.name))


@contextmanager
def announced(request: RecordRequest) -> Iterator[bool]:
    """Announce to other launchers on this host that this one records into the folder.

    Yields whether the recording joins a run in the folder (see `is_joining`, which also lists the
    errors). The announcement ends with the block.
    """
    if not request.is_folder:
        yield False
        return
    end = "" if _is_part_of_job(request.command) else _ALONE_SUFFIX
    marker = request.output / _marker(f"{secrets.token_hex(8)}{end}")
    with ExitStack() as stack:
        with writing(marker), _locked(request.output):
            joins = is_joining(request)
            marker.write_text(f"{os.getpid()}\n{job_of(request.command)}")
            stack.callback(marker.unlink, missing_ok=True)
            stack.enter_context(hold_lock(marker))
        yield joins


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder while the block checks which launchers record into it.

    Of two launchers that start at the same time, one must find the marker of the other.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # Closing is not enough: a process forked meanwhile also has the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _marker(name: str) -> str:
    """Return the name of the marker file of a recording on this host."""
    return f".recording-{socket.gethostname()}-{name}"


@dataclass(frozen=True)
class Job:
    """All data that the files of a recording are written from.

    ``notes`` are the notes of its work folder.
    """

    request: RecordRequest
    run: RunRecorded
    captured: Captured
    notes: Notes

    @cached_property
    def _ended_s(self) -> float:
        return self.notes.ended_s or self.captured.last_ns() / 1e9 or time.time()

    @cached_property
    def facts(self) -> dict[str, str]:
        """Facts about the machine, the software, the recorder, and the exit code of the program."""
        code = self.run.exit_code
        ended = {} if code is None else {"exit_code": str(code)}
        return {
            **self.notes.facts,
            **self.captured.software(),
            "recorder": self.recorder_name,
            **ended,
        }

    @cached_property
    def places(self) -> Places:
        """The reserved file names in the folder of the recording."""
        notes, output = self.notes, self.request.output
        replaces = self.request.force and not notes.is_joining
        return Places(output, notes.started_s, replaces=replaces, host=notes.host)

    @cached_property
    def secrets(self) -> Sequence[str]:
        """The secrets of the command line that are distinctive enough to search for in names."""
        return secrets_to_search(
            part for secret in secrets_of(self.request.command) for part in secret.hidden
        )

    def shown_name(self, name: str) -> str:
        """Return the name of a range with secrets masked."""
        return masked_name(without_secrets(name, self.secrets))

    @property
    def recorder_name(self) -> str:
        """The recorder that made the recording, which may be the fallback recorder."""
        return self.run.recorder or self.notes.recorder

    def manifest(self) -> dict[str, Any]:
        """Return the head of the manifest: who recorded what, when, and how it ended."""
        notes = self.notes
        return {
            "traceprof": __version__,
            "recorder": self.recorder_name,
            "label": masked_text(notes.label) or f"{notes.host}-{int(notes.started_s)}",
            "job": masked_text(storable(notes.job)),
            "host": notes.host,
            "command": " ".join(masked_command(self.request.command)),
            "exit_code": self.run.exit_code,
            "started": utc_text(notes.started_s),
            "ended": utc_text(self._ended_s),
        }

    def texts(self) -> dict[str, str]:
        """Return the head of the manifest as texts, for the metadata of each file."""
        return {name: str(value) for name, value in self.manifest().items() if value is not None}


def label_of(request: RecordRequest) -> str:
    """Return the label that the nodes of one run share, "" where there is none."""
    given = next(filter(None, map(os.environ.get, _LABEL_VARIABLES)), "")
    return given or (request.output.absolute().name if request.is_folder else "")


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file of a recording, and the processes in it.

    ``is_whole``: the file contains every process. ``is_rest``: the file contains the processes that
    belong to no rank, such as launchers and processes with an unknown parent. ``main`` is the main
    process if the file contains one rank. After the file is written, ``ranks`` lists the ranks in
    it, and ``seen_ns`` is the time of the last event of the rank in the profiler's data, in ns
    since 1970, 0 for none.
    """

    path: Path
    processes: frozenset[int] = frozenset()
    is_whole: bool = False
    is_rest: bool = False
    main: int | None = None
    ranks: tuple[int, ...] = ()
    seen_ns: int = 0

    def holds(self, process: int) -> bool:
        """Return whether the file contains a process."""
        return self.is_whole or process in self.processes


def planned_files(job: Job) -> list[OutputFile]:
    """Return the files of a recording: one file, or in a folder one per rank and attempt.

    Processes without a rank get a separate file if there are ranks. If no process has a rank, a
    single process is rank 0, and several processes get one file each.
    """
    if not job.request.is_folder:
        return [OutputFile(job.request.output, is_whole=True)]
    ranks = job.captured.ranks
    if not ranks:
        return [file_of_node(job)]
    if len(ranks) == 1:
        path = job.places.take(f"rank{ranks[0].rank or 0}")
        return [OutputFile(path, is_whole=True, main=ranks[0].main)]
    numbered = [rank for rank in ranks if rank.rank is not None]

    def order(rank: RankProcesses) -> tuple[int, int]:
        return rank.rank or 0, job.captured.started_ns(rank.main)

    parts = []
    for rank in sorted(numbered or ranks, key=order):
        name = f"process{rank.main}" if rank.rank is None else f"rank{rank.rank}"
        parts.append(OutputFile(job.places.take(name), rank.pids, main=rank.main))
    rest = frozenset[int]().union(*(rank.pids for rank in ranks if rank.rank is None))
    if numbered and rest:
        parts.append(file_of_rest(job, rest))
    return parts


def file_of_rest(job: Job, processes: frozenset[int] = frozenset()) -> OutputFile:
    """Return the file for processes that belong to no rank."""
    return OutputFile(job.places.take(f"others-{job.notes.host}"), processes, is_rest=True)


def file_of_node(job: Job) -> OutputFile:
    """Return the file for all processes of this host, where they cannot be separated."""
    return OutputFile(job.places.take(f"node-{job.notes.host}"), is_whole=True)


def ranks_in(trace: Trace) -> tuple[int, ...]:
    """Return the ranks of the processes in a trace, sorted."""
    return tuple(sorted(int(rank) for rank in trace.processes["rank"] if rank >= 0))
