"""The report that nsys left: waiting for it, finding and exporting it, taking secrets out."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final

from traceprof.errors import RecordingError
from traceprof.formats.nsys import secrets as nsys_secrets
from traceprof.formats.nsys.reports import convert_stream, export_report, find_importer
from traceprof.formats.shared.redaction import without_secrets, worth_seeking
from traceprof.recording.orphans import PATIENCE_S, STARTED, end_processes, processes_of
from traceprof.recording.program import last_line, said_in
from traceprof.recording.recorders.nsys.leftovers import remove_temporary
from traceprof.recording.request import RecordRequest, RunRecorded, handling_recorded, writing
from traceprof.secrets import MASK, masked_name, secrets_of

_MENTIONED: Final = re.compile(r"(/\S+\.(?:nsys-rep|qdrep|qdstrm))")
_SUFFIXES: Final = (".nsys-rep", ".qdrep", ".qdstrm")
_LEAST_PART: Final = 6  # every 0 of an export would be lost with a secret "0"
LOG: Final = "nsys.log"
_POLL_S: Final = 0.2
_ONLY_OURS: Final = "the trace has what the hooks saw, and no work of a GPU"


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


def convert_qdstrm(nsys: str, stream: Path) -> Path:
    """Convert a ``.qdstrm`` to a ``.nsys-rep`` beside it, and return that.

    Raises:
        RecordingError: there is no importer, it does not start, or the file is damaged.
    """
    importer = find_importer(nsys)
    if importer is None:
        raise RecordingError(
            f"nsys left {stream.name} and has no QdstrmImporter to convert it: "
            "install the complete Nsight Systems package, or take --keep-report elsewhere"
        )
    report = stream.with_suffix(".nsys-rep")
    with handling_recorded():
        convert_stream(importer, stream, report)
    return report


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
        known = worth_seeking([*hidden, *told.parts])
        nsys_secrets.rename_events(database, lambda name: masked_name(without_secrets(name, known)))


def collected(request: RecordRequest, folder: Path, run: RunRecorded) -> RunRecorded:
    """Return ``run`` with the export of the report of nsys that is in ``folder``, if there is one.

    Where there is none, or it is damaged, a note says so.
    """
    if not (folder / STARTED).exists():
        note = "stopped before nsys had started the program"
        return replace(run, notes=(*run.notes, note))
    _wait_for_nsys(folder)
    try:
        return _collected(request, folder, run)
    finally:
        remove_temporary(folder)


def _collected(request: RecordRequest, folder: Path, run: RunRecorded) -> RunRecorded:
    """Return ``run`` with the export of the report of an nsys that has ended."""
    said = said_in(folder / LOG)
    report = find_report(folder, said)
    if report is None:
        note = f"nsys left no report ({last_line(said)}); {_ONLY_OURS}"
        return replace(run, notes=(*run.notes, note))
    try:
        return replace(run, database=_export(request, folder, report))
    except RecordingError as error:
        kept = f"; it is kept: {_keep(request, report)}" if request.keep_report else ""
        return replace(run, notes=(*run.notes, f"{error}{kept}; {_ONLY_OURS}"))


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
    if report.suffix == ".qdstrm":
        report = convert_qdstrm(nsys, report)
    with handling_recorded():
        export_report(nsys, report, database)
    if not request.keep_environment:
        remove_secrets(database, request.command)
    if request.keep_report:
        _keep(request, report)
    return database


def _keep(request: RecordRequest, report: Path) -> Path:
    target = request.output.with_suffix(report.suffix)
    if request.is_folder:
        target = request.output / f"report-{socket.gethostname()}{report.suffix}"
    with writing(target, kind=RecordingError):
        shutil.copy2(report, target)
    return target
