"""What nsys leaves on a machine: its list of sessions in shared memory, its temporary folder.

In a file in shared memory every nsys of a machine keeps the list of its sessions. Two of nsys's
agents that come or go at the same time can write over its head (seen with 2022.4 on a busy
machine). Whatever nsys starts from then on waits for a file that never becomes ready, until
somebody removes it: nsys only says 'Agent launcher failed'.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

SHARED_MEMORY: Final = Path("/dev/shm")
_NAMES: Final = "NSys-*"
_READY: Final = 2  # the first number of a boost::interprocess segment, once it has been made
_CREATION_S: Final = 1.0  # making one takes microseconds
_LONGEST: Final = 40  # nsys puts sockets there, whose paths must not exceed 107 bytes
_NOTE: Final = "temporary"
_PREFIX: Final = "traceprof-nsys-"


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
    return f"{', '.join(broken)} is broken: have its owner remove it, running sessions do not mind"


def _registries(folder: Path) -> list[_Registry]:
    found = []
    for path in sorted(folder.glob(_NAMES)):
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                continue
            with path.open("rb") as file:
                state = int.from_bytes(file.read(4), "little")
        except OSError:
            continue
        is_ours = status.st_uid == os.geteuid()
        found.append(_Registry(path, status.st_ino, is_ours, state == _READY))
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
    if len(os.fsencode(folder)) <= _LONGEST:
        yield folder
        return
    short = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
    (folder / _NOTE).write_bytes(os.fsencode(short))
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
    note = folder / _NOTE
    if note.exists():
        short = Path(os.fsdecode(note.read_bytes()))
        if short.name.startswith(_PREFIX):
            shutil.rmtree(short, ignore_errors=True)
