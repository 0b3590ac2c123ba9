"""Handle what nsys leaves: its report, a temporary folder, and files in shared memory.

All nsys processes of a machine keep a list of sessions in a file in shared memory (the registry).
Two nsys agents that start or end at the same time can overwrite the head of this file (observed
with 2022.4 on a busy machine). From then on, everything that nsys starts waits for a file that
never becomes ready, until somebody removes the file. nsys only reports 'Agent launcher failed'.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from traceprof.errors import RecordingError
from traceprof.formats.nsys import secrets as nsys_secrets
from traceprof.formats.nsys.reports import convert_stream, export_report
from traceprof.formats.shared.redaction import secrets_to_search, without_secrets
from traceprof.recording.orphans import PATIENCE_S, STARTED, end_processes, processes_of
from traceprof.recording.program import last_line, read_output_log
from traceprof.recording.request import RecordRequest, RunRecorded, handling_recorded, writing
from traceprof.secrets import MASK, masked_name, secrets_of

_REPORT_IN_LOG: Final = re.compile(r"(?<!\S)[^\s/]*+(/\S+\.(?:nsys-rep|qdrep|qdstrm))")
_SUFFIXES: Final = (".nsys-rep", ".qdrep", ".qdstrm")
_MIN_SECRET_CHARACTERS: Final = 6  # a secret "0" would mask every 0 of an export
LOG: Final = "nsys.log"
_POLL_S: Final = 0.2
_NO_GPU_ACTIVITY: Final = "the trace contains ranges and steps, but no GPU activity"
SHARED_MEMORY: Final = Path("/dev/shm")
_REGISTRY_PATTERN: Final = "NSys-*"
_READY_STATE: Final = 2  # first number of a finished boost::interprocess segment
_MAX_CREATION_S: Final = 1.0  # creating a registry takes microseconds
_MAX_PATH_BYTES: Final = 40  # nsys creates sockets in it, with paths of at most 107 bytes
_TEMPORARY_NOTE: Final = "temporary"
_PREFIX: Final = "traceprof-nsys-"


def find_report(folder: Path, log: str) -> Path | None:
    """Return the report of this run, None where there is none.

    nsys may return 0 without a report. If nsys cannot write to the folder, it leaves the report in
    the temporary folder and only mentions the path in its log, which is also in ``folder``. Both
    places are searched for a file that is newer than the program.
    """
    marker = folder / STARTED
    started = marker.stat().st_mtime if marker.exists() else 0.0
    candidates = [folder / f"report{suffix}" for suffix in _SUFFIXES]
    candidates += [Path(text) for text in _REPORT_IN_LOG.findall(log.replace("'", " "))]
    candidates += folder.glob("nsys-report-*.qdstrm")
    whole = [path for path in candidates if _is_new(path, started)]
    return min(whole, key=lambda path: _SUFFIXES.index(path.suffix), default=None)


def _is_new(path: Path, started: float) -> bool:
    """Return whether a file is not empty and not older than the start of the program."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_size > 0 and status.st_mtime >= started - 1


def remove_secrets(database: Path, command: Sequence[str]) -> None:
    """Remove environments and the secrets of ``command`` from an export, in place.

    From version 2023 on the export also contains the command; its secrets are removed too. A secret
    shorter than `_MIN_SECRET_CHARACTERS` is masked only where it is a whole argument. In names of
    events, only these secrets and plain secrets are masked.

    Raises:
        RecordingError: the export cannot be changed.
    """
    secrets = secrets_of(command)
    whole = [(secret.argument, secret.shown) for secret in secrets]
    hidden = [part for secret in secrets for part in secret.hidden]
    parts = [(part, MASK) for part in hidden if len(part) >= _MIN_SECRET_CHARACTERS]
    with handling_recorded():
        exported = nsys_secrets.redaction_in(database)
        whole += exported.whole.items()
        parts += [(part, MASK) for part in exported.parts]
        nsys_secrets.remove_environments(database)
        if whole:
            nsys_secrets.replace_system_texts(database, whole, parts)
        known = secrets_to_search([*hidden, *exported.parts])
        nsys_secrets.rename_events(database, lambda name: masked_name(without_secrets(name, known)))


def collect_export(request: RecordRequest, folder: Path, run: RunRecorded) -> RunRecorded:
    """Return ``run`` with the SQLite export of the nsys report in ``folder``.

    If there is no report, or it is damaged, a note explains it.
    """
    if not (folder / STARTED).exists():
        return replace(run, notes=(*run.notes, "stopped before nsys started the program"))
    _wait_for_nsys(folder)
    output = read_output_log(folder / LOG)
    with ExitStack() as stack:
        stack.callback(remove_temporary, folder)
        report = find_report(folder, output)
        if report is None:
            why = f"nsys wrote no report ({last_line(output)})"
        else:
            try:
                return replace(run, database=_export(request, folder, report))
            except RecordingError as error:
                # The report is the only copy of the data.
                path = _keep(request, find_report(folder, output) or report)
                why = (
                    f"{error}; run `traceprof {path}` (it contains environment variables) when a "
                    "newer nsys can read it"
                )
    return replace(run, notes=(*run.notes, f"{why}; {_NO_GPU_ACTIVITY}"))


def is_of_nsys(command: bytes) -> bool:
    """Return whether a command line belongs to a process of nsys itself."""
    return PurePath(os.fsdecode(command.partition(b"\0")[0])).name.startswith("nsys")


def _wait_for_nsys(folder: Path) -> None:
    """Wait for an nsys that outlived its recorder to write its report; end one that hangs."""
    deadline = time.monotonic() + PATIENCE_S
    while running := processes_of(folder):
        of_nsys = [pid for pid, command in running.items() if is_of_nsys(command)]
        if len(of_nsys) < len(running):
            return  # the program still runs: no report yet
        if time.monotonic() > deadline:
            end_processes(of_nsys)
            return
        time.sleep(_POLL_S)


def _export(request: RecordRequest, folder: Path, report: Path) -> Path:
    """Return the report as SQLite, without environments unless the user requested them."""
    database, nsys = folder / "export.sqlite", shutil.which("nsys") or "nsys"
    with handling_recorded():
        if report.suffix == ".qdstrm":
            stream, report = report, report.with_suffix(".nsys-rep")
            convert_stream(nsys, stream, report)
        export_report(nsys, report, database)
    if not request.keep_environment:
        remove_secrets(database, request.command)
    if request.keep_report:
        _keep(request, report)
    return database


def _keep(request: RecordRequest, report: Path) -> Path:
    """Copy a report next to the trace, readable only by its owner.

    Reports contain environment variables.
    """
    target = request.output.with_suffix(report.suffix)
    if request.is_folder:
        target = request.output / f"report-{socket.gethostname()}{report.suffix}"
    with writing(target, kind=RecordingError):
        target.touch()
        target.chmod(0o600)
        shutil.copyfile(report, target)
    return target


class _Registry(NamedTuple):
    """A file with the list of sessions in shared memory; ``is_ours``: this user owns it."""

    path: Path
    inode: int
    is_ours: bool
    is_ready: bool


def remove_leftovers(
    folder: Path = SHARED_MEMORY,
    processes: Path = Path("/proc"),
    pause: Callable[[float], None] = time.sleep,
) -> list[Path]:
    """Remove unused registries of this user, and return their paths. Call it after nsys failed.

    A registry is unused if no living process has it open. It is also unused if it is not ready now
    and after a pause, because then no process can open it any more. Processes that have a removed
    file open keep its content; processes that start later create a new file. An nsys that is
    recording is therefore not disturbed.
    """
    before = _registries(folder)
    broken = {registry for registry in before if registry.is_ours and not registry.is_ready}
    if broken:
        pause(_MAX_CREATION_S)
        broken &= set(_registries(folder))
    users_registries = [registry for registry in before if registry.is_ours]
    living = list(processes.glob("[0-9]*")) if users_registries else []
    idle = {
        registry
        for registry in users_registries
        if not any(_may_map(process, registry) for process in living)
    }
    removed = []
    for registry in sorted(broken | idle, key=lambda registry: registry.path):
        try:
            if registry.path.stat().st_ino == registry.inode:
                registry.path.unlink()
                removed.append(registry.path)
        except OSError:
            continue
    return removed


def advice_on(folder: Path = SHARED_MEMORY) -> str:
    """Return what to do about damaged registries that still exist, "" for none."""
    broken = [str(registry.path) for registry in _registries(folder) if not registry.is_ready]
    if not broken:
        return ""
    return f"{', '.join(broken)} is damaged; ask its owner to remove it (running sessions continue)"


def _registries(folder: Path) -> list[_Registry]:
    """Return the registries in shared memory that this process can read."""
    found = []
    for path in sorted(folder.glob(_REGISTRY_PATTERN)):
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                continue
            with path.open("rb") as file:
                state = int.from_bytes(file.read(4), "little")
        except OSError:
            continue
        is_ours = status.st_uid == os.geteuid()
        found.append(_Registry(path, status.st_ino, is_ours, state == _READY_STATE))
    return found


def _may_map(folder: Path, registry: _Registry) -> bool:
    """Return whether a living process has the registry in its memory, or might have it."""
    try:
        lines = (folder / "maps").read_text("utf-8", "replace").splitlines()
    except PermissionError:
        return _is_nsys(folder)
    except OSError:
        return False
    name = registry.path.name
    return any(name in line and str(registry.inode) in line.split() for line in lines)


def _is_nsys(folder: Path) -> bool:
    try:
        return "nsys" in (folder / "comm").read_text("utf-8", "replace")
    except OSError:
        return False


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Yield the folder for temporary files of nsys: ``folder``, or a short one in /tmp.

    If the user interrupts the wait for nsys, the folder stays until `remove_temporary`.
    """
    if len(os.fsencode(folder)) <= _MAX_PATH_BYTES:
        yield folder
        return
    short = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
    (folder / _TEMPORARY_NOTE).write_bytes(os.fsencode(short))
    is_left = False
    try:
        yield short
    except KeyboardInterrupt:
        is_left = True
        raise
    finally:
        if not is_left:
            remove_temporary(folder)


def remove_temporary(folder: Path) -> None:
    """Remove the folder that `temporary_folder` created for ``folder``, if there is one."""
    note = folder / _TEMPORARY_NOTE
    if note.exists():
        short = Path(os.fsdecode(note.read_bytes()))
        if short.name.startswith(_PREFIX):
            shutil.rmtree(short, ignore_errors=True)
