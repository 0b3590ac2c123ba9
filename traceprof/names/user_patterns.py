r"""Regular expressions from the user, matched against arbitrary texts.

RE2 matches them in time linear in the length of the text. Python's `re`
is never used for that: it needs hours for (a+)+b on thirty letters. RE2 supports neither
look-around nor backreferences, and its classes such as \w are ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import UsageError
from traceprof.secrets import storable

# An escape, a character class, or the start of an unnamed group
_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*+\]?|\((?!\?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class UserPattern:
    """A pattern of the user: the original text, its form for RE2, and the names of its groups.

    Groups without a name are called "_1", "_2" …
    """

    text: str
    expression: str
    groups: tuple[str, ...]

    def found_in(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return which of ``texts`` contain a match."""
        search = _search(self.expression)
        found = (search(storable(text)) is not None for text in texts)
        return np.fromiter(found, np.bool_, len(texts))

    def matched(self, texts: Sequence[str], *, whole: bool = False) -> list[dict[str, str] | None]:
        """Return the groups of the first match in each text; None without a match.

        A group that did not take part is "". ``whole``: the pattern must match the whole text.
        """
        # The group around the pattern is the whole match.
        expression = f"^(?P<_all>{self.expression})$" if whole else f"(?P<_all>{self.expression})"
        search = _search(expression)
        return [
            found and {name: group or "" for name, group in found.groupdict().items()}
            for found in map(search, map(storable, texts))
        ]


def user_pattern(text: str, what: str, *, ignore_case: bool = False) -> UserPattern:
    """Return the user's pattern ``text``; ``what`` names it in error messages.

    Raises:
        UsageError: the text is not a regular expression, or RE2 does not support it.
    """
    try:
        groups = re.compile(text).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{what} {text!r} is not a valid regular expression: {error}") from error
    named, n_unnamed = _with_named_groups(text)
    expression = f"(?i:{named})" if ignore_case else named
    compiled = UserPattern(text, expression, (*groups, *(f"_{i + 1}" for i in range(n_unnamed))))
    try:
        compiled.matched([""])
    except ValueError as error:
        raise UsageError(
            f"{what} {text!r}: {error}. traceprof matches patterns with RE2, which does not "
            "support look-around, backreferences, or possessive quantifiers"
        ) from error
    return compiled


def _with_named_groups(text: str) -> tuple[str, int]:
    """Return the pattern with all groups named, and how many were unnamed."""
    numbers = count(1)
    named = _PIECE.sub(lambda m: f"(?P<_{next(numbers)}>" if m[0] == "(" else m[0], text)
    return named, next(numbers) - 1


@cache
def _search(expression: str) -> Callable[[str], Any]:
    """Return a function that returns the first match in a text, or None.

    Raises:
        ValueError: RE2 does not support the expression.
    """
    import re2  # noqa: PLC0415 (only needed where the user gives a pattern)

    options = re2.Options()
    options.log_errors = False
    try:
        search: Callable[[str], Any] = re2.compile(expression, options).search
    except re2.error as error:
        raise ValueError(error.args[0].decode("utf-8", "replace")) from error
    return search
