"""What nsys leaves: its report, a temporary folder, a list of sessions in shared memory.

In a file in shared memory every nsys of a machine keeps the list of its sessions. Two of nsys's
agents that come or go at the same time can write over its head (seen with 2022.4 on a busy
machine). Whatever nsys starts from then on waits for a file that never becomes ready, until
somebody removes it: nsys only says 'Agent launcher failed'.
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

_MENTIONED: Final = re.compile(r"(?<!\S)[^\s/]*+(/\S+\.(?:nsys-rep|qdrep|qdstrm))")
_SUFFIXES: Final = (".nsys-rep", ".qdrep", ".qdstrm")
_LEAST_PART: Final = 6  # every 0 of an export would be lost with a secret "0"
LOG: Final = "nsys.log"
_POLL_S: Final = 0.2
_ONLY_OURS: Final = "the trace contains ranges and steps, but no GPU activity"
SHARED_MEMORY: Final = Path("/dev/shm")
_REGISTRIES: Final = "NSys-*"
_READY_STATE: Final = 2  # the first number of a boost::interprocess segment, once it has been made
_CREATION_S: Final = 1.0  # making one takes microseconds
_LONGEST_PATH: Final = 40  # nsys puts sockets there, whose paths must not exceed 107 bytes
_NAME_OF_TEMPORARY: Final = "temporary"
_PREFIX: Final = "traceprof-nsys-"


def find_report(folder: Path, log: str) -> Path | None:
    """Return the report of this run, None where there is none.

    nsys ends with 0 without a report, and where it cannot write to the folder it leaves the
    report in the temporary folder and only mentions it in its log, which is in ``folder``, too: so
    look in both, for a file that is newer than the program.
    """
    marker = folder / STARTED
    started = marker.stat().st_mtime if marker.exists() else 0.0
    candidates = [folder / f"report{suffix}" for suffix in _SUFFIXES]
    candidates += [Path(text) for text in _MENTIONED.findall(log.replace("'", " "))]
    candidates += folder.glob("nsys-report-*.qdstrm")
    whole = [path for path in candidates if _is_new(path, started)]
    return min(whole, key=lambda path: _SUFFIXES.index(path.suffix), default=None)


def _is_new(path: Path, started: float) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_size > 0 and status.st_mtime >= started - 1


def remove_secrets(database: Path, command: Sequence[str]) -> None:
    """Remove environments and the secrets of ``command`` from an export, in place.

    Also those of the command that nsys itself tells, from 2023 on. A short secret is masked only
    where it is a whole argument; of names of events only what is plainly a secret, and those.

    Raises:
        RecordingError: the export cannot be changed.
    """
    secrets = secrets_of(command)
    whole = [(secret.argument, secret.shown) for secret in secrets]
    hidden = [part for secret in secrets for part in secret.hidden]
    parts = [(part, MASK) for part in hidden if len(part) >= _LEAST_PART]
    with handling_recorded():
        told = nsys_secrets.redaction_in(database)
        whole += told.whole.items()
        parts += [(part, MASK) for part in told.parts]
        nsys_secrets.remove_environments(database)
        if whole:
            nsys_secrets.replace_system_texts(database, whole, parts)
        known = secrets_to_search([*hidden, *told.parts])
        nsys_secrets.rename_events(database, lambda name: masked_name(without_secrets(name, known)))


def collected(request: RecordRequest, folder: Path, run: RunRecorded) -> RunRecorded:
    """Return ``run`` with the export of the report of nsys that is in ``folder``, if there is one.

    Where there is none, or it is damaged, a note says so.
    """
    if not (folder / STARTED).exists():
        note = "stopped before nsys started the program"
        return replace(run, notes=(*run.notes, note))
    _wait_for_nsys(folder)
    said = read_output_log(folder / LOG)
    with ExitStack() as stack:
        stack.callback(remove_temporary, folder)
        report = find_report(folder, said)
        if report is None:
            why = f"nsys wrote no report ({last_line(said)})"
        else:
            try:
                return replace(run, database=_export(request, folder, report))
            except RecordingError as error:
                # Nobody else has what it holds, converted or not.
                path = _keep(request, find_report(folder, said) or report)
                why = (
                    f"{error}; run `traceprof {path}` (it contains environment variables) when a "
                    "newer nsys can read it"
                )
    return replace(run, notes=(*run.notes, f"{why}; {_ONLY_OURS}"))


def is_of_nsys(command: bytes) -> bool:
    """Return whether a command line is that of a process of nsys itself."""
    return PurePath(os.fsdecode(command.partition(b"\0")[0])).name.startswith("nsys")


def _wait_for_nsys(folder: Path) -> None:
    """Wait for an nsys that has outlived its recorder to write its report; end one that hangs."""
    until = time.monotonic() + PATIENCE_S
    while own := processes_of(folder):
        of_nsys = [pid for pid, command in own.items() if is_of_nsys(command)]
        if len(of_nsys) < len(own):
            return  # the program runs: there is no report yet
        if time.monotonic() > until:
            end_processes(of_nsys)
            return
        time.sleep(_POLL_S)


def _export(request: RecordRequest, folder: Path, report: Path) -> Path:
    """Return the report as SQLite, without environments unless they were asked for."""
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
    """Copy a report, in which environments are, beside the trace for its owner alone."""
    target = request.output.with_suffix(report.suffix)
    if request.is_folder:
        target = request.output / f"report-{socket.gethostname()}{report.suffix}"
    with writing(target, kind=RecordingError):
        target.touch()
        target.chmod(0o600)
        shutil.copyfile(report, target)
    return target


class _Registry(NamedTuple):
    path: Path
    inode: int
    is_ours: bool
    is_ready: bool


def remove_leftovers(
    folder: Path = SHARED_MEMORY,
    processes: Path = Path("/proc"),
    pause: Callable[[float], None] = time.sleep,
) -> list[Path]:
    """Remove the registries that serve nobody, and return them. To be called when nsys failed.

    One serves nobody where no living process has it open, or where it is not ready now and a
    while later: then nobody can enter it any more. It must be a file of this user. Those who still
    have it open keep what they have, as with any file that is removed; what starts afterwards
    makes a new one. So an nsys that is recording at this time is not disturbed.
    """
    before = _registries(folder)
    broken = {registry for registry in before if registry.is_ours and not registry.is_ready}
    if broken:
        pause(_CREATION_S)
        broken &= set(_registries(folder))
    own = [registry for registry in before if registry.is_ours]
    living = list(processes.glob("[0-9]*")) if own else []
    idle = {one for one in own if not any(_may_map(process, one) for process in living)}
    removed = []
    for registry in sorted(broken | idle, key=lambda one: one.path):
        try:
            if registry.path.stat().st_ino == registry.inode:
                registry.path.unlink()
                removed.append(registry.path)
        except OSError:
            continue
    return removed


def advice_on(folder: Path = SHARED_MEMORY) -> str:
    """Return what to do about the registries that are broken and still there, "" for none."""
    broken = [str(registry.path) for registry in _registries(folder) if not registry.is_ready]
    if not broken:
        return ""
    return f"{', '.join(broken)} is damaged; ask its owner to remove it (running sessions continue)"


def _registries(folder: Path) -> list[_Registry]:
    found = []
    for path in sorted(folder.glob(_REGISTRIES)):
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
    """Return whether a living process has it in its memory, or may have."""
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
    """Yield the folder for a recording in ``folder``.

    It stays where the user does not wait for nsys, until `remove_temporary`.
    """
    if len(os.fsencode(folder)) <= _LONGEST_PATH:
        yield folder
        return
    short = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
    (folder / _NAME_OF_TEMPORARY).write_bytes(os.fsencode(short))
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
    """Remove what `temporary_folder` has made for ``folder``, if there is anything."""
    note = folder / _NAME_OF_TEMPORARY
    if note.exists():
        short = Path(os.fsdecode(note.read_bytes()))
        if short.name.startswith(_PREFIX):
            shutil.rmtree(short, ignore_errors=True)
