"""What some tests need beyond Python: profilers, a browser, real traces and logs, an old torch.

On a stranger's machine such a test skips and says why. Where ``TRACEPROF_REQUIRE`` names the
requirement (CI names them all), its absence is a failure.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from traceprof.formats import compiled

ROOT = Path(__file__).resolve().parent.parent
KERNELS = Path(
    os.environ.get("TRACEPROF_KERNELS", ROOT.parent / "shared" / "kernels" / "kernels.csv")
)
TRACES = Path(os.environ.get("TRACEPROF_TRACES", ROOT.parent / "shared" / "traces"))
LOGS = Path(os.environ.get("TRACEPROF_LOGS", ROOT.parent / "shared" / "logs"))
_FOLDERS = {"traces": TRACES, "logs": LOGS}

NSYS = ("nsys", "newer_nsys")
"""Marks of what starts nsys."""

NOT_QUICK = (*NSYS, "nvprof", "chromium", "traces", "torch", "oldest_torch", "slow")
"""Marks of what `scripts/test` leaves out, unless everything is asked for."""

_PROGRAMS = {
    "nsys": ("nsys",),
    "nvprof": ("nvprof",),
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "node": ("node",),
    "mpirun": ("mpirun",),
    "cc": ("cc", "gcc", "clang"),
    "sqlite3": ("sqlite3",),
}

AXE_VERSION = "4.14.1"
_PACKAGES = (
    *("lightning", "transformers", "accelerate", "nbclient", "mypy", "pyright", "mcp"),
    "mkdocs",
)
_HINTS = {
    **dict.fromkeys(_PACKAGES, ": the extra `programs` brings it"),
    "mkdocs": ": the extra `docs` brings it",
    "axe": ": npm fetches it, or TRACEPROF_AXE names axe.min.js",
    **dict.fromkeys(("mypy", "pyright", "mcp"), ": the extra `dev` brings it"),
    "compiled": ": pip install --editable . compiles it, where there is a C compiler",
    "oldest_torch": ": TRACEPROF_OLDEST_TORCH=$(scripts/oldest-torch) makes and names it",
    "newer_nsys": ": TRACEPROF_NEWER_NSYS=$(scripts/newer-nsys) fetches and names it",
}


def require(name: str) -> str:
    """Return where the requirement ``name`` is; skip the test, or fail it, where it is not."""
    found = _axe() if name == "axe" else _find(name)
    if found:
        return found
    reason = f"{name} is not on this machine{_HINTS.get(name, '')}"
    if name in os.environ.get("TRACEPROF_REQUIRE", "").split(","):
        pytest.fail(f"{reason}, but TRACEPROF_REQUIRE names it")
    pytest.skip(reason)


def _find(name: str) -> str | None:
    if name in _FOLDERS:
        return str(_FOLDERS[name]) if _FOLDERS[name].is_dir() else None
    if name == "kernels":
        return str(KERNELS) if KERNELS.is_file() else None
    if name == "torch":
        return "torch" if importlib.util.find_spec("torch") else None
    if name in _PACKAGES:
        is_there = importlib.util.find_spec(name) and (name != "pyright" or _starts_pyright())
        return name if is_there else None
    if name == "oldest_torch":
        return shutil.which(os.environ.get("TRACEPROF_OLDEST_TORCH", ""))
    if name == "compiled":
        return str(compiled.LIBRARY) if compiled.loaded() else None
    if name == "newer_nsys":
        folder = os.environ.get("TRACEPROF_NEWER_NSYS", "")
        return folder if folder and shutil.which("nsys", path=folder) else None
    return next(filter(None, map(shutil.which, _PROGRAMS[name])), None)


@cache
def _starts_pyright() -> bool:
    """Return whether pyright is here: its package fetches it by npm, once."""
    command = [sys.executable, "-m", "pyright", "--version"]
    return not subprocess.run(command, capture_output=True, check=False, timeout=120).returncode


@cache
def _axe() -> str | None:
    """Return the script of axe-core: TRACEPROF_AXE, or what npm fetches (0.5 MB, once)."""
    named = os.environ.get("TRACEPROF_AXE", "")
    npm = shutil.which("npm")
    if named or not npm:
        return named if Path(named).is_file() else None
    folder = Path(sys.prefix) / "share" / f"axe-core-{AXE_VERSION}"
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file():
        package = f"axe-core@{AXE_VERSION}"
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), package]
        subprocess.run(command, capture_output=True, check=False, timeout=120)
    return str(script) if script.is_file() else None


_TURNS: list[int] = []
"""The worker itself, while it may start nsys."""


@contextmanager
def nsys_in_turn() -> Iterator[None]:
    """Let the tests of all workers start nsys one after the other.

    What a fixture of a session starts is started before those of its first test. A worker that has
    its turn already goes on.
    """
    fcntl = pytest.importorskip("fcntl")
    if _TURNS:
        yield
        return
    with (Path(tempfile.gettempdir()) / f"traceprof-tests-nsys-{os.getuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _TURNS.append(os.getpid())
        try:
            yield
        finally:
            _TURNS.clear()


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack an archive of ours; Python before 3.11.4 has no filters, and needs none for it."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)
