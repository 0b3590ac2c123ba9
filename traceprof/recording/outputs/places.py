"""Where the files of a recording go in a folder that other launchers of the run may write to.

Agents of one job on one host, and one that comes later, record into one folder. None may replace
what another has left, so that a name is taken by creating the file: two cannot both succeed.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from traceprof.errors import UsageError
from traceprof.formats.runs.manifest import read_manifest
from traceprof.recording.locks import held, is_held
from traceprof.recording.request import RecordRequest

__all__ = ["Places", "announced", "is_joining", "job_of", "manifests_of_host"]

_RUN_VARIABLE: Final = "TRACEPROF_RUN"
_RENDEZVOUS: Final = re.compile(r"--rdzv[-_]id(?:=(.+))?")


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

    def take(self, name: str, suffix: str) -> Path:
        """Return the path of a file that nobody else has, as near to ``name`` as possible.

        Raises:
            UsageError: the folder cannot be written to.
        """
        for path in self._candidates(name, suffix):
            try:
                if self._is_old(path) and path not in self._taken:
                    self._taken.add(path)
                    return path
                path.touch(exist_ok=False)
            except FileExistsError:
                continue
            except OSError as error:
                raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
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

    So it is while another launcher on this host records into it, and where the user has given the
    job a name (``TRACEPROF_RUN``, ``--rdzv-id``) that a manifest there bears.
    """
    if not request.is_folder:
        return False
    if any(is_held(path) for path in request.output.glob(_marker("*"))):
        return True
    job = job_of(request.command)
    manifests = (read_manifest(path) for path in manifests_of_host(request.output))
    return bool(job) and not request.force and any(one and one.job == job for one in manifests)


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
def announced(request: RecordRequest) -> Iterator[None]:
    """Tell other launchers on this host, for a while, that one records into the folder."""
    if not request.is_folder:
        yield
        return
    marker = request.output / _marker(secrets.token_hex(8))
    try:
        marker.touch()
    except OSError as error:
        raise UsageError(f"{marker}: cannot be written ({error.strerror})") from error
    try:
        with held(marker):
            yield
    finally:
        marker.unlink(missing_ok=True)


def _marker(name: str) -> str:
    return f".recording-{socket.gethostname()}-{name}"
