"""Secrets that a file tells: whatever else it says is searched for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from traceprof.secrets import secrets_of

__all__ = ["secrets_of_values", "sought"]

_SHORTEST: Final = 6
"""Shorter secrets are masked where they stand, but not looked for elsewhere."""
_LINES: Final = re.compile(r"[\0\r\n]+")
_VERSION: Final = re.compile(r"=*\d+(\.\w+)+")
"""As in a list of packages: google-auth==2.40.3 is no secret."""


def sought(secrets: Iterable[str]) -> list[str]:
    """Return the secrets to look for elsewhere, those that hold others first."""
    found = {one for one in secrets if len(one) >= _SHORTEST and not _VERSION.fullmatch(one)}
    return sorted(found, key=lambda one: (-len(one), one))


def secrets_of_values(values: Mapping[str, Any]) -> Sequence[str]:
    """Return the secrets to look for that named values tell: by their names, or by their shape.

    Values may be texts, numbers, command lines, and mappings of such.
    """
    return sought(_told(values, ""))


def _told(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _told(inner, str(key))
    elif isinstance(value, list):
        yield from _hidden([one for one in value if isinstance(one, str)])
        for inner in value:
            yield from _told(inner, name)
    elif isinstance(value, str | int):
        text = str(value)
        for line in (f"{name}={text}", *_LINES.split(text)):
            yield from (one.rstrip("\0\r\n") for one in _hidden([line]))


def _hidden(arguments: Sequence[str]) -> Iterator[str]:
    for secret in secrets_of(arguments):
        yield from secret.hidden
