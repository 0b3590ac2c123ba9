"""What is known of the machine and the software, without secrets."""

from __future__ import annotations

import os
import platform
import re
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["kept_variables", "masked_command", "read_environment"]

_KEPT: Final = re.compile(
    r"(NCCL|GLOO|TORCH|PYTORCH|CUDA|CUBLAS|CUDNN|OMP|MKL|KMP|UCX|FI|OMPI_COMM_WORLD|PMI)_\w+"
    r"|SLURM_(JOB_ID|NNODES|NTASKS|PROCID|LOCALID|NODEID|JOB_NODELIST|GPUS\w*)"
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
_MASK: Final = "***"


def read_environment(command: Sequence[str]) -> dict[str, str]:
    """Return facts (name → value) about this machine and the command to be recorded."""
    facts = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": socket.gethostname(),
        "command": " ".join(masked_command(command)),
        "os": _os_name(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": _cpu_name(),
        "cpu.count": str(os.cpu_count() or ""),
        "cpu.allowed": str(len(os.sched_getaffinity(0))),
        "ram_bytes": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
    }
    variables = {f"env.{name}": value for name, value in kept_variables(os.environ).items()}
    return {name: value for name, value in (facts | variables).items() if value}


def kept_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are about training, without those that may hold a secret."""
    return {
        name: _MASK if _is_secret(value) else _LOGIN.sub(rf"\g<1>{_MASK}@", value)
        for name, value in sorted(environment.items())
        if _KEPT.fullmatch(name) and not _names_secret(name)
    }


def masked_command(command: Sequence[str]) -> list[str]:
    """Return ``command`` with the values of options that hold secrets masked."""
    masked = []
    hide_next = False
    for argument in command:
        name, equals, _value = argument.partition("=")
        is_secret_option = argument.startswith("-") and _names_secret(name)
        if hide_next or _is_secret(argument):
            masked.append(_MASK)
        elif is_secret_option and equals:
            masked.append(f"{name}={_MASK}")
        else:
            masked.append(_LOGIN.sub(rf"\g<1>{_MASK}@", argument))
        hide_next = is_secret_option and not equals and not hide_next
    return masked


def _names_secret(name: str) -> bool:
    """Return whether a whole word of ``name`` stands for a secret ("num-keys" does not)."""
    return not _SECRET_WORDS.isdisjoint(re.split(r"[\W_]+", name.lower()))


def _is_secret(value: str) -> bool:
    return bool(_SECRET_VALUE.match(value.partition("=")[2] or value))


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.platform()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
