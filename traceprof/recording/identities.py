"""Which process left a file, and the number that each process has in a trace.

The hooks name their files ``KIND.PID.NAMESPACE-START`` (see the runtime's ``identity`` module): a
PID namespace has ids of its own, and the system gives an id again. In a trace a process is a
number: its id, and where several processes of a recording had that id, for all but one of them a
number that no process can have as its id.
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
"""The first number of those that no process has as its id (PID_MAX_LIMIT of Linux)."""


class ProcessIdentity(NamedTuple):
    """A process: its id, the inode of its PID namespace, and its start in ticks since boot.

    The last two are 0 where they are not known.
    """

    pid: int
    namespace: int = 0
    start: int = 0

    def __str__(self) -> str:
        """Return it as the names of files have it."""
        return f"{self.pid}.{self.namespace:x}-{self.start:x}" if self.start else str(self.pid)

    @property
    def is_local(self) -> bool:
        """Whether ``pid`` is its id in the PID namespace of this process, too."""
        return self.namespace in (0, _own_namespace())


@cache
def _own_namespace() -> int:
    with suppress(OSError, ValueError):
        return int(str(Path("/proc/self/ns/pid").readlink()).partition("[")[2].rstrip("]"))
    return 0


def identity_of(path: Path) -> ProcessIdentity:
    """Return whose file ``path`` is.

    Raises:
        ValueError: it is not a file that a process has left.
    """
    return _identity(_FILE.match(path.name), path.name)


def parse_identity(text: str) -> ProcessIdentity:
    """Return the identity that ``text`` is.

    Raises:
        ValueError: it is none.
    """
    return _identity(_IDENTITY.fullmatch(text), text)


def _identity(match: re.Match[str] | None, text: str) -> ProcessIdentity:
    if match is None:
        raise ValueError(f"{text!r} does not identify a process")
    pid, namespace, start = match.groups("0")
    return ProcessIdentity(int(pid), int(namespace, 16), int(start, 16))


def left_in(folder: Path, pattern: str) -> list[tuple[ProcessIdentity, Path]]:
    """Return the files of a work folder that match ``pattern``, each with who left it, sorted."""
    return sorted(
        (identity_of(path), path) for path in folder.glob(pattern) if _FILE.match(path.name)
    )


def identities_in(folder: Path) -> Iterator[ProcessIdentity]:
    """Yield the identities of all processes that have left a file in a work folder, or a child."""
    yield from (identity for identity, _ in left_in(folder, "*"))
    yield from (child for child, _ in forked_in(folder))


def forked_in(folder: Path) -> Iterator[tuple[ProcessIdentity, ProcessIdentity]]:
    """Yield (child, parent) of the processes that recorded ones forked."""
    for parent, path in left_in(folder, "children.*"):
        for line in path.read_text("utf-8", "replace").splitlines():
            with suppress(ValueError):  # a line that was not finished
                yield parse_identity(line), parent


class Numbers:
    """The numbers of processes in a trace.

    Of several processes with one id that of this PID namespace has the id as its number, of these
    the one that was started first.
    """

    def __init__(self, identities: Iterable[ProcessIdentity]) -> None:
        self._number: dict[ProcessIdentity, int] = {}
        self._taken: set[int] = set()
        ordered = sorted({*identities}, key=lambda one: (not one.is_local, one.start, one))
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
        """Return the number of the process that had ``pid`` in a PID namespace at a time.

        ``until`` is the start of a process that knew it, in ticks: it was started before that.
        """
        found = [
            one
            for one in self._number
            if one.pid == pid and one.namespace in (0, namespace) and one.start <= until
        ]
        return self.of(
            max(found, key=lambda one: one.start, default=ProcessIdentity(pid, namespace))
        )


def numbers_in(folder: Path) -> Numbers:
    """Return the numbers of the processes that have left files in a work folder."""
    return Numbers(identities_in(folder))
