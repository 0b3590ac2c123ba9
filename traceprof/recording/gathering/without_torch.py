"""What is said of a recording in which no process imported torch or named anything."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["note_without_torch"]

_NAME_THEM: Final = (
    "it names its own by traceprof.step() and traceprof.range(), and --with nsys samples what runs "
    "(--nsys-arg=--sample=process-tree)"
)


def note_without_torch(folder: Path) -> str:
    """Return why there are no ranges: the program used no torch, or the hooks were not there."""
    used = sorted({name for path in folder.glob("python.*") for name in path.read_text().split()})
    if any(folder.glob("python.*")):
        what = f"it used {', '.join(used)}" if used else "only Python"
        return f"the program imported no torch ({what}): no ranges; {_NAME_THEM}"
    return (
        "no process imported torch under the recorder: no ranges (it ended before, python "
        f"-I/-E/-S, or an environment that was replaced); where it uses no torch {_NAME_THEM}"
    )
