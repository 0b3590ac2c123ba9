"""Where nsys puts what it needs for a while: the work folder, or where its name is long another."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["remove_temporary", "temporary_folder"]

_LONGEST: Final = 40  # nsys puts sockets there, whose paths must not exceed 107 bytes
_NOTE: Final = "temporary"
_PREFIX: Final = "traceprof-nsys-"


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
