"""What nsys has left of a program that has ended, or of a recording that was broken off."""

from __future__ import annotations

import os
import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final

from traceprof.errors import RecordingError
from traceprof.recording.processes.orphans import end_processes, processes_of
from traceprof.recording.processes.program import last_line
from traceprof.recording.processes.watchdog import PATIENCE_S, STARTED
from traceprof.recording.recorders.nsys.report import exported, find_report, remove_secrets
from traceprof.recording.recorders.nsys.temporary import remove_temporary
from traceprof.recording.request import RecordRequest, RunRecorded

__all__ = ["LOG", "collected", "is_of_nsys"]

LOG: Final = "nsys.log"
_POLL_S: Final = 0.2
_ONLY_OURS: Final = "the trace has what the hooks saw, and no work of a GPU"


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
    log = folder / LOG
    said = log.read_text("utf-8", "replace") if log.exists() else ""
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
    database = folder / "export.sqlite"
    finished = exported(shutil.which("nsys") or "nsys", report, database)
    if not request.keep_environment:
        remove_secrets(database, request.command)
    if request.keep_report:
        _keep(request, finished)
    return database


def _keep(request: RecordRequest, report: Path) -> Path:
    target = request.output.with_suffix(report.suffix)
    if request.is_folder:
        target = request.output / f"report-{socket.gethostname()}{report.suffix}"
    try:
        shutil.copy2(report, target)
    except OSError as error:
        raise RecordingError(f"{target}: cannot be written ({error.strerror})") from error
    return target
