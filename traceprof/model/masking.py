"""What of command lines and variables may be shown: secrets are masked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from traceprof.model.text import storable

__all__ = ["MASK", "Secret", "kept_variables", "masked_command", "secrets_of", "without_login"]

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


class Secret(NamedTuple):
    """An argument that holds a secret: as it is, as it may be shown, and the secret alone."""

    argument: str
    shown: str
    hidden: str


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


def without_login(url: str) -> str:
    """Return an address without the name and password in it."""
    return _LOGIN.sub(r"\1", url)
