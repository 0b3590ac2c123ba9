"""One recording as it takes shape: who made it, which files it gets, where they go.

Agents of one job on one host, and one that comes later, record into one folder that other
launchers of the run may write to, too. None may replace what another has left, so that a name is
taken by creating the file: two cannot both succeed.
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
from traceprof.recording.work_folder import Notes, held, is_held
from traceprof.secrets import masked_command, masked_name, masked_text, secrets_of, storable
from traceprof.version import __version__

if sys.platform != "win32":
    import fcntl

_RUN_VARIABLE: Final = "TRACEPROF_RUN"
_RENDEZVOUS: Final = re.compile(r"--rdzv[-_]id(?:=(.+))?")
_SIZES: Final = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_SIZES_OF_JOB: Final = ("SLURM_NTASKS", "SLURM_NNODES")
_OF_ONE_NODE: Final = re.compile(
    r"--(nnodes(=(?!1$|1:1$)|$)|node[-_]rank|master[-_]addr|rdzv[-_]endpoint|machine_rank)"
)
"""Options of launchers that are started once on each node (torchrun, accelerate)."""
_ALONE: Final = ".alone"
"""How the name of a marker ends whose recording is all of its job."""
_LABEL_VARIABLES = ("TRACEPROF_RUN", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")


class Places:
    """Gives names in a folder, each once.

    ``started_s`` is when the recording, on ``host``, began: with ``replaces`` files that are older
    make way.
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
        """Return the path of a file that nobody else has, as near to ``name`` as possible.

        Raises:
            UsageError: the folder cannot be written to.
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
        """Remove the files that were taken and got nothing."""
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
    """Return whether a recording adds to a run in its folder, which others of the job began.

    So it is while another launcher of the job on this host records into it, and where the user has
    given the job a name (``TRACEPROF_RUN``, ``--rdzv-id``) that a manifest there bears.

    Raises:
        UsageError: what records into the folder is no launcher of this job: both would have the
            same ranks, and the folder could not be read.
    """
    if not request.is_folder:
        return False
    job = job_of(request.command)
    others = [path for path in request.output.glob(_marker("*")) if is_held(path)]
    for other in others:
        named = other.read_text("utf-8", "replace").partition("\n")[2]
        if other.name.endswith(_ALONE) or not _is_part_of_job(request.command) or named != job:
            raise UsageError(
                f"{request.output}: another recording writes to this folder; choose another folder "
                "(if both belong to one job, set TRACEPROF_RUN to the same name)"
            )
    if others:
        return True
    manifests = (read_manifest(path) for path in manifests_of_host(request.output))
    return bool(job) and not request.force and any(one and one.job == job for one in manifests)


def _is_part_of_job(command: Sequence[str]) -> bool:
    """Return whether a command may be one launcher, or one rank, of a job with several."""
    sizes = filter(None, map(os.environ.get, _SIZES_OF_JOB))
    are_several = any(text.isdecimal() and int(text) > 1 for text in sizes)
    is_node = any(_OF_ONE_NODE.match(argument) for argument in command)
    return bool(job_of(command)) or is_node or are_several or world_size() > 1


def world_size() -> int:
    """Return of how many ranks this process is one, 0 where it is not known."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    texts = filter(None, map(os.environ.get, _SIZES))
    return next((int(text) for text in texts if text.isdecimal()), 0)


def job_of(command: Sequence[str]) -> str:
    """Return the name that the user gave the job: of the run, or of torchrun's rendezvous."""
    given = os.environ.get(_RUN_VARIABLE)
    if given:
        return given
    for place, argument in enumerate(command):
        found = _RENDEZVOUS.fullmatch(argument)
        if found:
            return found.group(1) or next(iter(command[place + 1 : place + 2]), "")
    return ""


def manifests_of_host(folder: Path) -> list[Path]:
    """Return the manifests that launchers on this host have left."""
    host = re.escape(socket.gethostname())
    named = re.compile(rf"manifest-{host}(-\d+)?\.json")
    return sorted(path for path in folder.glob("manifest-*.json") if named.fullmatch(path.name))


@contextmanager
def announced(request: RecordRequest) -> Iterator[bool]:
    """Tell other launchers on this host, for a while, that one records into the folder.

    Yields whether it joins a run there, see `is_joining`, which says what is raised.
    """
    if not request.is_folder:
        yield False
        return
    end = "" if _is_part_of_job(request.command) else _ALONE
    marker = request.output / _marker(f"{secrets.token_hex(8)}{end}")
    with ExitStack() as stack:
        with writing(marker), _alone_in(request.output):
            joins = is_joining(request)
            marker.write_text(f"{os.getpid()}\n{job_of(request.command)}")
            stack.callback(marker.unlink, missing_ok=True)
            stack.enter_context(held(marker))
        yield joins


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep others from looking who records into a folder: of two one must see the other."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # Closing is not enough: a process that was forked meanwhile has the descriptor, too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _marker(name: str) -> str:
    return f".recording-{socket.gethostname()}-{name}"


@dataclass(frozen=True)
class Job:
    """Everything that the files of a recording are written from.

    ``notes`` are those of its work folder.
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
        """What is known of the machine and the software, what recorded it and how it ended."""
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
        """The names of files in the folder of the recording."""
        notes, output = self.notes, self.request.output
        replaces = self.request.force and not notes.is_joining
        return Places(output, notes.started_s, replaces=replaces, host=notes.host)

    @cached_property
    def secrets(self) -> Sequence[str]:
        """The secrets of the command line that are looked for in names, too."""
        found = secrets_of(self.request.command)
        return secrets_to_search(part for secret in found for part in secret.hidden)

    def shown_name(self, name: str) -> str:
        """Return the name of a range, as it may be shown."""
        return masked_name(without_secrets(name, self.secrets))

    @property
    def recorder_name(self) -> str:
        """The recorder that did it in the end."""
        return self.run.recorder or self.notes.recorder

    def manifest(self) -> dict[str, Any]:
        """Return who recorded what, when and how."""
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
        """Return the manifest as every file of the recording repeats it."""
        found = self.manifest().items()
        return {name: str(value) for name, value in found if value is not None}


def label_of(request: RecordRequest) -> str:
    """Return what the nodes of one run share where somebody says it, "" where nobody does."""
    given = next(filter(None, map(os.environ.get, _LABEL_VARIABLES)), "")
    return given or (request.output.absolute().name if request.is_folder else "")


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file of a recording, and the processes that are in it.

    ``is_whole`` says that it gets every process, ``is_rest`` that what it holds belongs to no
    rank: launchers, and processes of which nobody knows who started them. ``main`` is the process
    that is the rank, where it is one rank. Once it is written, ``ranks`` are those in it, and
    ``seen_ns`` is when a profiler saw the rank last, in ns since 1970, 0 where none did.
    """

    path: Path
    processes: frozenset[int] = frozenset()
    is_whole: bool = False
    is_rest: bool = False
    main: int | None = None
    ranks: tuple[int, ...] = ()
    seen_ns: int = 0

    def holds(self, process: int) -> bool:
        """Return whether this process goes into the file."""
        return self.is_whole or process in self.processes


def planned_files(job: Job) -> list[OutputFile]:
    """Return the files of a recording: one, or in a folder one per rank, and per start of it.

    Processes of no rank have a file of their own beside those of ranks. Where there are no ranks
    at all a lone process is rank 0; several have a file each.
    """
    if not job.request.is_folder:
        return [OutputFile(job.request.output, is_whole=True)]
    ranks = job.captured.ranks
    if not ranks:
        return [file_of_node(job)]
    if len(ranks) == 1:
        path = job.places.take(f"rank{ranks[0].rank or 0}")
        return [OutputFile(path, is_whole=True, main=ranks[0].main)]
    known = [one for one in ranks if one.rank is not None]

    def order(one: RankProcesses) -> tuple[int, int]:
        return one.rank or 0, job.captured.started_ns(one.main)

    parts = []
    for one in sorted(known or ranks, key=order):
        name = f"process{one.main}" if one.rank is None else f"rank{one.rank}"
        parts.append(OutputFile(job.places.take(name), one.pids, main=one.main))
    rest = frozenset[int]().union(*(one.pids for one in ranks if one.rank is None))
    if known and rest:
        parts.append(file_of_rest(job, rest))
    return parts


def file_of_rest(job: Job, processes: frozenset[int] = frozenset()) -> OutputFile:
    """Return the file for what belongs to no rank."""
    return OutputFile(job.places.take(f"others-{job.notes.host}"), processes, is_rest=True)


def file_of_node(job: Job) -> OutputFile:
    """Return the file for everything on this host, where it cannot be told apart."""
    return OutputFile(job.places.take(f"node-{job.notes.host}"), is_whole=True)


def ranks_in(trace: Trace) -> tuple[int, ...]:
    """Return the ranks whose processes are in a trace."""
    return tuple(sorted(int(rank) for rank in trace.processes["rank"] if rank >= 0))
