"""Which MPI starts the program: the launcher's own word for its name and version."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["mpi_facts"]

_LAUNCHERS: Final = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "mpirun_rsh")
_TIMEOUT_S: Final = 3
_NAMES: Final = (
    ("Open MPI", re.compile(r"\(Open MPI\) (\S+)")),
    ("Open MPI", re.compile(r"\(OpenRTE\) (\S+)")),
    ("Intel MPI", re.compile(r"Intel\(R\) MPI Library.*?, Version ([\d.]+(?: Update \d+)?)")),
    ("IBM Spectrum MPI", re.compile(r"IBM Spectrum MPI\D*([\d.]+)")),
    ("MVAPICH", re.compile(r"^MVAPICH2?[ -]Version:\s*(\S+)", re.MULTILINE)),
    ("MPICH", re.compile(r"^MPICH Version:\s*(\S+)", re.MULTILINE)),
    ("MPICH or a relative", re.compile(r"HYDRA build details:\s+Version:\s*(\S+)")),
)


def mpi_facts(command: Sequence[str] = ()) -> dict[str, str]:
    """Return name, version and path of the MPI whose launcher is in ``command`` or on PATH.

    MVAPICH starts programs with MPICH's launcher (Hydra): ``mpichversion`` beside it tells them
    apart.
    """
    launcher = _launcher(command)
    if launcher is None:
        return {}
    said = _output([str(launcher), "--version"])
    if "HYDRA" in said:
        said = _output([str(launcher.parent / "mpichversion")]) + said
    found = (f"{name} {match[1]}" for name, pattern in _NAMES if (match := pattern.search(said)))
    return {"mpi": next(found, ""), "mpi.launcher": str(launcher)}


def _launcher(command: Sequence[str]) -> Path | None:
    named = [part for part in command[:1] if Path(part).name in _LAUNCHERS]
    found = next(filter(None, map(shutil.which, (*named, *_LAUNCHERS))), None)
    return None if found is None else Path(found).resolve()


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).decode("utf-8", "replace")
