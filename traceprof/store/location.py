"""Where the database of runs lies unless the user says where."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["VARIABLE", "default_path"]

VARIABLE: Final = "TRACEPROF_RUNS"
_FILE: Final = ("traceprof", "runs.db")


def default_path(
    environment: Mapping[str, str] | None = None, platform: str = sys.platform
) -> Path:
    """Return the file that ``TRACEPROF_RUNS`` names, else one in the user's folder of data.

    That folder is the platform's: ``XDG_DATA_HOME`` or ``~/.local/share``, on macOS
    ``~/Library/Application Support``, on Windows ``%LOCALAPPDATA%``.
    """
    said = os.environ if environment is None else environment
    if said.get(VARIABLE):
        return Path(said[VARIABLE]).expanduser()
    home = Path(said["HOME"]) if said.get("HOME") else Path.home()
    if platform == "win32":
        folder = Path(said.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        folder = home / "Library" / "Application Support"
    else:
        given = Path(said.get("XDG_DATA_HOME") or "")
        # The convention: a path that is not absolute is ignored.
        folder = given if given.is_absolute() else home / ".local" / "share"
    return folder.joinpath(*_FILE)
