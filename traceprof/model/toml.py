"""TOML files of the user: rules, hardware, clusters."""

from __future__ import annotations

import tomllib
from typing import Any

from traceprof.errors import UsageError

__all__ = ["parse_toml"]


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Return the TOML document ``text``; ``what`` it is begins the message.

    Raises:
        UsageError: it is not TOML, or nested too deeply, or holds a number of thousands of digits.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise UsageError(f"{what}: not a TOML file: nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"{what}: not a TOML file: {error}") from error
