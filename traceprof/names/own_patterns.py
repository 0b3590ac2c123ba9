r"""Regular expressions of the user's own, which may be anything, as may the texts that they meet.

They are matched by RE2, which comes with Arrow, in time that grows as the text does, never by
Python's `re`: to that (a+)+b is a matter of hours on thirty letters. RE2 knows no look-around and
no references to groups; its classes such as \w are of ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import UsageError
from traceprof.secrets import storable

# What is escaped, a class of characters, or the beginning of a group without a name
_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*+\]?|\((?!\?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class OwnPattern:
    """A pattern of the user's: as it was given, as RE2 reads it, and the names of its groups.

    Groups without a name are called "_1", "_2" …
    """

    text: str
    expression: str
    groups: tuple[str, ...]

    def found_in(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return in which of ``texts`` it is found."""
        arrow, compute = _arrow()
        given = arrow.array(map(storable, texts), arrow.string())
        found = compute.match_substring_regex(given, self.expression)
        return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)

    def matched(self, texts: Sequence[str], *, whole: bool = False) -> list[dict[str, str] | None]:
        """Return what its groups hold where it is first found in each text, None where it is not.

        A group that has no part in it holds "". ``whole``: it must match all of a text.
        """
        arrow, compute = _arrow()
        given = arrow.array(map(storable, texts), arrow.string())
        # A group more, since RE2 hands over groups alone.
        expression = f"^(?P<_all>{self.expression})$" if whole else f"(?P<_all>{self.expression})"
        found: list[dict[str, str] | None] = compute.extract_regex(given, expression).to_pylist()
        return found


def own_pattern(text: str, what: str, *, ignore_case: bool = False) -> OwnPattern:
    """Return the pattern ``text`` of the user, who knows it as ``what``.

    Raises:
        UsageError: it is no regular expression, or one that RE2 does not read.
    """
    try:
        groups = re.compile(text).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{what} {text!r} is not a valid regular expression: {error}") from error
    named, n_unnamed = _with_named_groups(text)
    expression = f"(?i:{named})" if ignore_case else named
    compiled = OwnPattern(text, expression, (*groups, *(f"_{i + 1}" for i in range(n_unnamed))))
    try:
        compiled.matched([""])
    except ValueError as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise UsageError(
            f"{what} {text!r}: {reason}. traceprof matches patterns with RE2, which does not "
            "support look-around, backreferences, or possessive quantifiers"
        ) from error
    return compiled


def _with_named_groups(text: str) -> tuple[str, int]:
    """Return a pattern whose groups all have names, which Arrow asks for, and how many had none."""
    numbers = count(1)
    named = _PIECE.sub(lambda m: f"(?P<_{next(numbers)}>" if m[0] == "(" else m[0], text)
    return named, next(numbers) - 1


def _arrow() -> tuple[Any, Any]:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    return pa, pc
