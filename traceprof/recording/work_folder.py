"""The work folder of a recording: everything is captured in it; it goes when the output is there.

What it was made for stands in it from the start, so that what a broken-off recording has left can
be written by somebody else, later: see `traceprof.recording.session.recover`. Its recorder holds a
file in it, which the system lets go when the recorder dies, in whatever container it is.
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
_CAPTURED: Final = (
    *("events.*.jsonl", "window.*.json", "report.*", "nsys-report-*.qdstrm", "nvprof.*.nvvp"),
    "cupti.*.spool",
)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the file ``path``, which is made where it is not there, while the block runs."""
    with path.open("a") as file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_held(path: Path) -> bool:
    """Return whether a process holds the file ``path``."""
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
    """What a work folder says of its recording.

    ``command`` is masked. Times are seconds since 1970; ``ended_s`` and ``exit_code`` are None
    until the program has ended, and for ever where nobody was left to see it. ``remarks`` are what
    was odd.
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
        """Return the request that the recording was made for, or with another ``output``."""
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
    """Make a work folder, and hold it as its recorder for as long as the block runs."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with ExitStack() as stack:
        try:
            stack.enter_context(held(folder / LOCK))
            write_notes(folder, notes)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # nothing was recorded yet
            raise
        yield folder


def notes_of(request: RecordRequest, recorder: str, facts: Mapping[str, str], **more: Any) -> Notes:
    """Return what a work folder is to say of a recording that begins now."""
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
    """Write the notes of a work folder, with what has changed; return them.

    On a disk that is full they stay as they were: the recording can do without.
    """
    notes = replace(notes, **changed)
    beside = folder / f"{NOTES}.part"
    with suppress(OSError):
        beside.write_text(json.dumps({"traceprof": __version__, **asdict(notes)}))
        beside.replace(folder / NOTES)
    return notes


def read_notes(folder: Path) -> Notes:
    """Return the notes of a work folder.

    Raises:
        TraceError: it is none, or its notes are damaged.
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
    """Return whether there is anything in a work folder that a trace could be made of."""
    return any(path.stat().st_size for one in _CAPTURED for path in folder.glob(one))


def work_folders() -> list[Path]:
    """Return the work folders of this user that recordings have left, the oldest first."""
    found = []
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            notes = path / NOTES
            is_own = is_work_folder(path) and notes.stat().st_uid == os.geteuid()
            if is_own and not is_held(path / LOCK):  # by its recorder, or who recovers it
                found.append((notes.stat().st_mtime, path))
    return [path for _, path in sorted(found)]
