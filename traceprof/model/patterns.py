"""Regular expressions that are compiled when something is first sought by them.

Lists of them take a command long to import (0.2 ms each), and it may ask none of them.
"""

from __future__ import annotations

import re
from typing import Any, cast

__all__ = ["pattern"]


class _Pattern:
    """Stands for a compiled expression, of which it has the methods once they are asked for."""

    def __init__(self, expression: str, flags: int) -> None:
        self._expression, self._flags = expression, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._expression, self._flags), name)
        setattr(self, name, found)
        return found


def pattern(expression: str, flags: int = 0) -> re.Pattern[str]:
    """Return the expression with the methods of a compiled one; it is no argument of ``re``'s."""
    return cast("re.Pattern[str]", _Pattern(expression, flags))
