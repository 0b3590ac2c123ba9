"""Identify the process that left a file, and number the processes of a trace.

The hooks name their files ``KIND.PID.NAMESPACE-START`` (see the ``identity`` module of the
runtime). The namespace and the start time are necessary because each PID namespace has its own ids,
and because the system reuses ids. A trace identifies a process by a number: its process id. If
several processes of a recording had the same id, all but one of them get a number that cannot be a
process id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

_FILE: Final = re.compile(
    r"(?:process|events|counts|end|window|children|cupti|agent|memory|seen|try|python)"
    r"\.(\d+)(?:\.([0-9a-f]+)-([0-9a-f]+))?(?:\.|$)"
)
_IDENTITY: Final = re.compile(r"(\d+)(?:\.([0-9a-f]+)-([0-9a-f]+))?")
FIRST_NUMBER: Final = 1 << 22
"""The smallest number that cannot be a process id (PID_MAX_LIMIT of Linux)."""


class ProcessIdentity(NamedTuple):
    """A process: its id, the inode of its PID namespace, and its start in clock ticks since boot.

    The namespace and the start are 0 where they are unknown.
    """

    pid: int
    namespace: int = 0
    start: int = 0

    def __str__(self) -> str:
        """Return the form that is used in file names."""
        return f"{self.pid}.{self.namespace:x}-{self.start:x}" if self.start else str(self.pid)

    @property
    def is_local(self) -> bool:
        """Whether ``pid`` is valid in the PID namespace of this process."""
        return self.namespace in (0, _current_namespace())


@cache
def _current_namespace() -> int:
    """Return the inode of the PID namespace of this process, 0 where it is unknown."""
    with suppress(OSError, ValueError):
        return int(str(Path("/proc/self/ns/pid").readlink()).partition("[")[2].rstrip("]"))
    return 0


def identity_of(path: Path) -> ProcessIdentity:
    """Return the process that left the file ``path``.

    Raises:
        ValueError: the name is not that of a file that a process leaves.
    """
    return _identity_from_match(_FILE.match(path.name), path.name)


def parse_identity(text: str) -> ProcessIdentity:
    """Parse ``text``, in the form used in file names, as an identity.

    Raises:
        ValueError: the text is not an identity.
    """
    return _identity_from_match(_IDENTITY.fullmatch(text), text)


def _identity_from_match(match: re.Match[str] | None, text: str) -> ProcessIdentity:
    if match is None:
        raise ValueError(f"{text!r} does not identify a process")
    pid, namespace, start = match.groups("0")
    return ProcessIdentity(int(pid), int(namespace, 16), int(start, 16))


def files_by_process(folder: Path, pattern: str) -> list[tuple[ProcessIdentity, Path]]:
    """Return (process, path) for each file of a work folder that matches ``pattern``, sorted."""
    return sorted(
        (identity_of(path), path) for path in folder.glob(pattern) if _FILE.match(path.name)
    )


def identities_in(folder: Path) -> Iterator[ProcessIdentity]:
    """Yield all processes that left a file in a work folder, and their forked children."""
    yield from (identity for identity, _ in files_by_process(folder, "*"))
    yield from (child for child, _ in read_forks(folder))


def read_forks(folder: Path) -> Iterator[tuple[ProcessIdentity, ProcessIdentity]]:
    """Yield (child, parent) of all forks that the recorded processes reported."""
    for parent, path in files_by_process(folder, "children.*"):
        for line in path.read_text("utf-8", "replace").splitlines():
            with suppress(ValueError):  # an incomplete line
                yield parse_identity(line), parent


class Numbers:
    """Assign each process of a trace its number.

    If several processes have the same id, the one in the PID namespace of this process keeps the id
    as its number; among those, the one that started first.
    """

    def __init__(self, identities: Iterable[ProcessIdentity]) -> None:
        self._number: dict[ProcessIdentity, int] = {}
        self._taken: set[int] = set()
        ordered = sorted(
            {*identities}, key=lambda identity: (not identity.is_local, identity.start, identity)
        )
        for identity in ordered:
            self.of(identity)

    def of(self, identity: ProcessIdentity) -> int:
        """Return the number of a process."""
        if identity not in self._number:
            number = identity.pid
            if number in self._taken:
                number = max(FIRST_NUMBER, max(self._taken) + 1)
            self._taken.add(number)
            self._number[identity] = number
        return self._number[identity]

    def of_pid(self, pid: int, namespace: int, until: float = inf) -> int:
        """Return the number of the process that had ``pid`` in a PID namespace.

        ``until`` is the start of a process that knew ``pid``, in clock ticks since boot. The
        process with ``pid`` started before that time.
        """
        found = [
            identity
            for identity in self._number
            if identity.pid == pid
            and identity.namespace in (0, namespace)
            and identity.start <= until
        ]
        return self.of(
            max(found, key=lambda identity: identity.start, default=ProcessIdentity(pid, namespace))
        )


def numbers_in(folder: Path) -> Numbers:
    """Return the numbers of all processes that left files in a work folder."""
    return Numbers(identities_in(folder))
