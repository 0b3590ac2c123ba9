"""What runs may be called, and which one is meant."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from traceprof.errors import UsageError
from traceprof.secrets import storable

__all__ = ["as_name", "check_name", "find_run"]

_NUMBER: Final = re.compile(r"#?(\d+)")


def check_name(name: str) -> str:
    """Return ``name``, which a run may bear.

    Raises:
        UsageError: it may not: it would be mistaken for something else, or cannot be written.
    """
    name = storable(name)
    if not name.strip() or name != name.strip() or not name.isprintable():
        raise UsageError(f"{name!r} cannot be the name of a run: expected text on one line")
    if _NUMBER.fullmatch(name) or name.startswith(("-", "label:")):
        raise UsageError(f"{name!r} cannot be the name of a run: it means something else")
    return name


def as_name(text: str) -> str:
    """Return a name that a run may bear, made of ``text`` that nobody chose to be one."""
    shown = "".join(c if c.isprintable() else " " for c in storable(text))
    name = " ".join(shown.split()).removeprefix("label:").lstrip("- ")
    if not name:
        return "run"
    return f"run-{name.lstrip('#')}" if _NUMBER.fullmatch(name) else name


def find_run(
    text: str, known: Mapping[str, int], path: Path, *, exactly: bool = False
) -> tuple[int, str]:
    """Return the number and the name of the run that ``text`` means.

    That is its name, its number, or, unless ``exactly`` is asked for, how its name and no other
    begins. ``known`` are the numbers by name of those in the database ``path``.

    Raises:
        UsageError: there is none, or there are several.
    """
    if text in known:
        return known[text], text
    by_number = {number: name for name, number in known.items()}
    match = _NUMBER.fullmatch(text)
    if match and int(match[1]) in by_number:
        return int(match[1]), by_number[int(match[1])]
    found = [name for name in known if text and not exactly and name.startswith(text)]
    if len(found) == 1:
        return known[found[0]], found[0]
    if found:
        raise UsageError(f"{text!r} may be {_some(found)}: write more of the name")
    raise UsageError(f"no run {text!r}: no such file, and {_what_there_is(text, known, path)}")


def _what_there_is(text: str, known: Mapping[str, int], path: Path) -> str:
    if not known:
        return f"{path} holds no runs"
    close = get_close_matches(text, known, n=3)
    hint = f"did you mean {_some(close)}?" if close else f"there are {_some([*known])}"
    return f"none of that name in {path}; {hint}"


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" … ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more
