"""What is known of the machine and the software, without secrets."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from traceprof.formats.sqlite.rows import storable
from traceprof.recording.gpu_facts import gpu_facts
from traceprof.recording.machine import machine_facts, network_facts
from traceprof.recording.mpi import mpi_facts

__all__ = [
    "MASK",
    "Secret",
    "git_facts",
    "kept_variables",
    "masked_command",
    "read_environment",
    "secrets_of",
]

_KEPT: Final = re.compile(
    r"(NCCL|RCCL|GLOO|TORCH|PYTORCH|CUDA|CUBLAS|CUDNN|OMP|MKL|KMP|UCX|UCC|FI|PMI)_\w+"
    r"|(OMPI_COMM_WORLD|I_MPI|MPICH|MV2|MVP)_\w+|OMPI_MCA_(btl|pml|mtl|coll|osc|io|op)\w*"
    r"|SLURM_(JOB_ID|NNODES|NTASKS|PROCID|LOCALID|NODEID|JOB_NODELIST|TOPOLOGY_ADDR(_PATTERN)?|GPUS\w*)"
    r"|(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|NVIDIA_VISIBLE_DEVICES"
)
_SECRET_WORDS: Final = frozenset(
    {"password", "passwd", "pass", "secret", "token", "key", "credential", "credentials", "auth"}
    | {"authorization", "cookie", "apikey", "dsn", "webhook", "signature", "pat"}
)
_SECRET_VALUE: Final = re.compile(
    r"^(sk-|ghp_|gho_|ghs_|github_pat_|glpat-|hf_|xox[abpr]-|AKIA|ASIA|eyJ)[\w\-./+=]{8,}$"
)
_LOGIN: Final = re.compile(r"(\w+://)[^/@\s]+@")
MASK: Final = "***"
_GIT_TIMEOUT_S: Final = 3


class Secret(NamedTuple):
    """An argument that holds a secret: as it is, as it may be shown, and the secret alone."""

    argument: str
    shown: str
    hidden: str


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
        "git.remote": _LOGIN.sub(r"\1", _git(folder, "remote", "get-url", "origin")),
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


def kept_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are about training, without those that may hold a secret."""
    return {
        name: MASK if _is_secret(value) else _LOGIN.sub(rf"\g<1>{MASK}@", value)
        for name, value in sorted(environment.items())
        if _KEPT.fullmatch(name) and not _names_secret(name)
    }


def masked_command(command: Sequence[str]) -> list[str]:
    """Return ``command`` with the values of options that hold secrets masked."""
    masked = []
    hide_next = False
    for argument in map(storable, command):
        name, equals, _value = argument.partition("=")
        is_secret_option = argument.startswith("-") and _names_secret(name)
        if hide_next or _is_secret(argument):
            masked.append(MASK)
        elif is_secret_option and equals:
            masked.append(f"{name}={MASK}")
        else:
            masked.append(_LOGIN.sub(rf"\g<1>{MASK}@", argument))
        hide_next = is_secret_option and not equals
    return masked


def secrets_of(command: Sequence[str]) -> list[Secret]:
    """Return what `masked_command` does not show of ``command``."""
    secrets = []
    for argument, shown in zip(map(storable, command), masked_command(command), strict=True):
        if shown != argument:
            before, _, after = shown.partition(MASK)
            hidden = argument[len(before) : len(argument) - len(after)]
            secrets.append(Secret(argument, shown, hidden))
    return secrets


def _names_secret(name: str) -> bool:
    """Return whether a whole word of ``name`` stands for a secret ("num-keys" does not)."""
    return not _SECRET_WORDS.isdisjoint(re.split(r"[\W_]+", name.lower()))


def _is_secret(value: str) -> bool:
    return bool(_SECRET_VALUE.match(value.partition("=")[2] or value))
