"""Where the cache lies, and whether there is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["VARIABLE", "cache_folder"]

VARIABLE: Final = "TRACEPROF_CACHE"
_OFF: Final = frozenset({"0", "off", "no", "false"})


def cache_folder(
    environment: Mapping[str, str] | None = None, platform: str = sys.platform
) -> Path | None:
    """Return the folder of the cache; None where ``TRACEPROF_CACHE`` is 0, or there is no home.

    ``TRACEPROF_CACHE`` may also name a folder, in which it is made. Else that is the platform's:
    ``XDG_CACHE_HOME`` or ``~/.cache``, on macOS ``~/Library/Caches``, on Windows
    ``%LOCALAPPDATA%``.
    """
    said = os.environ if environment is None else environment
    given = said.get(VARIABLE, "").strip()
    if given.lower() in _OFF:
        return None
    try:
        if given:
            return Path(given).expanduser().absolute() / "traceprof"
        home = Path(said["HOME"]) if said.get("HOME") else Path.home()
    except RuntimeError:
        return None
    if platform == "win32":
        local = Path(said.get("LOCALAPPDATA") or home / "AppData" / "Local")
        return local / "traceprof" / "Cache"
    if platform == "darwin":
        return home / "Library" / "Caches" / "traceprof" / "kept"
    named = Path(said.get("XDG_CACHE_HOME") or "")
    # The convention: a path that is not absolute is ignored.
    return (named if named.is_absolute() else home / ".cache") / "traceprof" / "kept"
