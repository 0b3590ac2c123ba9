"""Names of tables: in SQL, and with the version of their layout (``…_KIND_KERNEL_V2``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["quoted", "versioned_tables"]

_VERSIONED: Final = re.compile(r"(.+)_V(\d+)")


def quoted(identifier: str) -> str:
    """Return a name as SQL takes it, whatever is in it."""
    return '"' + identifier.replace('"', '""') + '"'


def versioned_tables(names: Iterable[str]) -> dict[str, str]:
    """Return plain name → the table of its highest version, where there is no plain table."""
    present = set(names)
    highest: dict[str, tuple[int, str]] = {}
    for name in present:
        found = _VERSIONED.fullmatch(name)
        if found and found.group(1) not in present:
            plain, version = found.group(1), int(found.group(2))
            highest[plain] = max(highest.get(plain, (0, "")), (version, name))
    return {plain: name for plain, (_, name) in highest.items()}
