"""What is known of the machine and the software, without secrets."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from traceprof.recording.machine.gpus import gpu_facts
from traceprof.recording.machine.host import machine_facts, network_facts
from traceprof.recording.machine.mpi import mpi_facts
from traceprof.secrets import kept_variables, masked_command, storable, without_login

__all__ = ["git_facts", "read_environment"]

_GIT_TIMEOUT_S: Final = 3


def read_environment(command: Sequence[str], folder: Path | None = None) -> dict[str, str]:
    """Return facts (name → value) about this machine, the command and the code in ``folder``."""
    facts = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": socket.gethostname(),
        "command": " ".join(masked_command(command)),
        **machine_facts(),
        **dict(network_facts()),
        **gpu_facts(),
        **mpi_facts(command),
        **git_facts(folder or Path.cwd()),
    }
    variables = {f"env.{name}": value for name, value in kept_variables(os.environ).items()}
    return {name: storable(value) for name, value in (facts | variables).items() if value}


def git_facts(folder: Path) -> dict[str, str]:
    """Return commit, branch and state of the working tree that ``folder`` is in, if it is."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "git.commit": commit,
        "git.branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "git.state": "changed" if changed else "clean",
        "git.remote": without_login(_git(folder, "remote", "get-url", "origin")),
    }


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "--no-optional-locks", *arguments],
            capture_output=True,
            check=False,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""
