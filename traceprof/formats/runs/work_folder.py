"""Telling the work folder of a recording that was broken off from a run: it is no trace yet."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["LOCK", "NOTES", "is_work_folder"]

NOTES: Final = "recording.json"
LOCK: Final = "in_use"


def is_work_folder(path: Path) -> bool:
    """Return whether ``path`` is the work folder of a recording."""
    return (path / NOTES).is_file() and (path / LOCK).is_file()
