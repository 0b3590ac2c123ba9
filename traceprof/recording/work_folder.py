"""The work folder of a recording. It contains all captured data until the output is written.

The folder contains a description of its recording from the start, so that another process can later
write the data of an interrupted recording (see `traceprof.recording.session.recover`). Its recorder
locks a file in the folder. The system releases the lock when the recorder dies, in any container.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from traceprof.errors import TraceError
from traceprof.formats.runs.manifest import LOCK, NOTES, is_work_folder
from traceprof.recording.request import Bounds, RecordRequest
from traceprof.secrets import masked_command
from traceprof.version import __version__

if sys.platform != "win32":
    import fcntl

_PREFIX: Final = "traceprof-"
_CAPTURED_PATTERNS: Final = (
    *("events.*.jsonl", "window.*.json", "report.*", "nsys-report-*.qdstrm", "nvprof.*.nvvp"),
    "cupti.*.spool",
)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Lock the file ``path`` while the block runs. The file is created if necessary."""
    with path.open("a") as file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_locked(path: Path) -> bool:
    """Return whether a process has locked the file ``path``."""
    if sys.platform == "win32":
        return False
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@dataclass(frozen=True, slots=True)
class Notes:
    """The description of a recording in its work folder.

    ``command`` is masked. Times are seconds since 1970. ``ended_s`` and ``exit_code`` are None
    until the program ends, and stay None if no recorder observed the end. ``remarks`` are the
    problems to report.
    """

    command: tuple[str, ...]
    output: str
    is_folder: bool
    recorder: str
    started_s: float
    host: str = ""
    layer_depth: int = 0
    bounds: Bounds = field(default_factory=Bounds)
    step_from: str = ""
    is_joining: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    job: str = ""
    exit_code: int | None = None
    ended_s: float | None = None
    remarks: tuple[str, ...] = ()

    def request(self, output: Path | None = None, *, is_folder: bool = False) -> RecordRequest:
        """Return the request of the recording, with another ``output`` if one is given."""
        return RecordRequest(
            command=self.command,
            output=output or Path(self.output),
            is_folder=is_folder if output else self.is_folder,
            recorder=self.recorder,
            layer_depth=self.layer_depth,
            bounds=self.bounds,
            step_from=self.step_from,
        )


@contextmanager
def new_work_folder(notes: Notes) -> Iterator[Path]:
    """Create a work folder, and lock it as its recorder while the block runs."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(folder / LOCK))
            write_notes(folder, notes)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # nothing was recorded yet
            raise
        yield folder


def notes_of(request: RecordRequest, recorder: str, facts: Mapping[str, str], **more: Any) -> Notes:
    """Return the notes of a recording that starts now."""
    return Notes(
        command=tuple(masked_command(request.command)),
        output=str(request.output.absolute()),
        is_folder=request.is_folder,
        recorder=recorder,
        started_s=time.time(),
        host=socket.gethostname(),
        layer_depth=request.layer_depth,
        bounds=request.bounds,
        step_from=request.step_from,
        facts=dict(facts),
        **more,
    )


def write_notes(folder: Path, notes: Notes, **changed: Any) -> Notes:
    """Write the notes of a work folder, with the fields in ``changed``; return them.

    On a full disk the file stays unchanged, because the recording does not depend on it.
    """
    notes = replace(notes, **changed)
    temporary = folder / f"{NOTES}.part"
    with suppress(OSError):
        temporary.write_text(json.dumps({"traceprof": __version__, **asdict(notes)}))
        temporary.replace(folder / NOTES)
    return notes


def read_notes(folder: Path) -> Notes:
    """Return the notes of a work folder.

    Raises:
        TraceError: ``folder`` is not a work folder, or its notes are damaged.
    """
    path = folder / NOTES
    try:
        raw = json.loads(path.read_text("utf-8", "replace"))
        bounds = raw["bounds"]
        steps = bounds["steps"]
        known = {name: raw[name] for name in Notes.__slots__ if name in raw}
        known["bounds"] = Bounds(**{**bounds, "steps": tuple(steps) if steps else None})
        known["command"], known["remarks"] = tuple(raw["command"]), tuple(raw.get("remarks", ()))
        return Notes(**known)
    except OSError as error:
        raise TraceError(f"{folder}: not a work folder of a recording ({error.strerror})") from None
    except (ValueError, LookupError, TypeError) as error:
        raise TraceError(f"{path}: damaged ({error})") from error


def has_captured(folder: Path) -> bool:
    """Return whether a work folder contains data for a trace."""
    return any(
        path.stat().st_size for pattern in _CAPTURED_PATTERNS for path in folder.glob(pattern)
    )


def work_folders() -> list[Path]:
    """Return this user's work folders without an active recorder, oldest first."""
    found = []
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            notes = path / NOTES
            is_of_user = is_work_folder(path) and notes.stat().st_uid == os.geteuid()
            if is_of_user and not is_locked(path / LOCK):  # by its recorder or by recover
                found.append((notes.stat().st_mtime, path))
    return [path for _, path in sorted(found)]
