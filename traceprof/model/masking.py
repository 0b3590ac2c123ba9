"""What of command lines and variables may be shown or kept: secrets are masked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from traceprof.model.summary import Summary
from traceprof.model.text import storable

__all__ = [
    "MASK",
    "Secret",
    "is_secret",
    "masked_command",
    "masked_login",
    "masked_run",
    "names_secret",
    "secrets_of",
    "without_login",
]

_SECRET_WORDS: Final = frozenset(
    {"password", "passwd", "pass", "secret", "token", "key", "credential", "credentials", "auth"}
    | {"authorization", "cookie", "apikey", "dsn", "webhook", "signature", "pat"}
)
_SECRET_VALUE: Final = re.compile(
    r"^(sk-|ghp_|gho_|ghs_|github_pat_|glpat-|hf_|xox[abpr]-|AKIA|ASIA|eyJ)[\w\-./+=]{8,}$"
)
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")
_LOGIN: Final = re.compile(r"(\w+://)[^/@\s]+@")
MASK: Final = "***"


class Secret(NamedTuple):
    """An argument that holds a secret: as it is, as it may be shown, and the secret alone."""

    argument: str
    shown: str
    hidden: str


def masked_command(command: Sequence[str]) -> list[str]:
    """Return ``command`` with the values of options that hold secrets masked."""
    masked = []
    hide_next = False
    for argument in map(storable, command):
        name, equals, _value = argument.partition("=")
        can_set = argument.startswith("-") or (equals and _VARIABLE.fullmatch(name))
        is_secret_option = bool(can_set) and names_secret(name)
        if hide_next or is_secret(argument):
            masked.append(MASK)
        elif is_secret_option and equals:
            masked.append(f"{name}={MASK}")
        else:
            masked.append(masked_login(argument))
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


def masked_run(run: Summary) -> Summary:
    """Return ``run`` as it may be kept, whoever wrote its command and its variables."""
    return replace(
        run,
        command=_masked(run.command),
        environment={
            name: MASK if names_secret(name) else _masked(value)
            for name, value in run.environment.items()
        },
        sources=tuple(replace(s, path=masked_login(s.path)) for s in run.sources),
    )


def _masked(text: str) -> str:
    return " ".join(masked_command(text.split(" ")))


def names_secret(name: str) -> bool:
    """Return whether a whole word of ``name`` stands for a secret ("num-keys" does not)."""
    return not _SECRET_WORDS.isdisjoint(re.split(r"[\W_]+", name.lower()))


def is_secret(value: str) -> bool:
    """Return whether ``value``, or what stands behind an equals sign in it, is a known token."""
    return bool(_SECRET_VALUE.match(value.partition("=")[2] or value))


def masked_login(url: str) -> str:
    """Return an address with the name and password in it masked."""
    return _LOGIN.sub(rf"\g<1>{MASK}@", url)


def without_login(url: str) -> str:
    """Return an address without the name and password in it."""
    return _LOGIN.sub(r"\1", url)
