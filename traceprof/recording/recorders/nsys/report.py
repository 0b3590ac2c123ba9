"""The report that nsys left: finding it, exporting it to SQLite, taking secrets out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from traceprof.errors import RecordingError, TraceError
from traceprof.formats.nsys.reports import convert_stream, export_report, find_importer
from traceprof.formats.nsys.secrets import (
    redaction_in,
    remove_environments,
    rename_events,
    replace_system_texts,
)
from traceprof.formats.shared.redaction import without_secrets, worth_seeking
from traceprof.recording.processes.watchdog import STARTED
from traceprof.secrets import MASK, masked_name, secrets_of

__all__ = ["convert_qdstrm", "exported", "find_report", "remove_secrets"]

_MENTIONED: Final = re.compile(r"(/\S+\.(?:nsys-rep|qdrep|qdstrm))")
_SUFFIXES: Final = (".nsys-rep", ".qdrep", ".qdstrm")
_LEAST_PART: Final = 6  # every 0 of an export would be lost with a secret "0"


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
    try:
        convert_stream(importer, stream, report)
    except TraceError as error:
        raise RecordingError(str(error)) from error
    return report


def exported(nsys: str, report: Path, database: Path) -> Path:
    """Export ``report`` to the SQLite file ``database``; return the report that was exported.

    Args:
        nsys: the program.
        report: a .nsys-rep, .qdrep or .qdstrm file.
        database: is overwritten.

    Raises:
        RecordingError: nsys could not.
    """
    if report.suffix == ".qdstrm":
        report = convert_qdstrm(nsys, report)
    try:
        export_report(nsys, report, database)
    except TraceError as error:
        raise RecordingError(str(error)) from error
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
    try:
        told = redaction_in(database)
        whole += told.whole.items()
        parts += [(part, MASK) for part in told.parts]
        remove_environments(database)
        if whole:
            replace_system_texts(database, whole, parts)
        known = worth_seeking([*hidden, *told.parts])
        rename_events(database, lambda name: masked_name(without_secrets(name, known)))
    except TraceError as error:
        raise RecordingError(str(error)) from error
