"""Parse the values of arguments and options: paths of traces, labels, numbers, and lists."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from traceprof.errors import UsageError
from traceprof.files import is_there
from traceprof.measures import analysis_names


def looks_like_a_path(text: str) -> bool:
    """Return whether ``text`` is an existing path, or probably meant as a path or pattern."""
    return Path(text).exists() or any(mark in text for mark in "./\\*?[")


def check_paths(paths: list[Path]) -> list[Path]:
    """Return ``paths`` unchanged if each of them can be a trace.

    Raises:
        UsageError: one is an option, or the name of a table. The message names the right command.
    """
    for path in paths:
        name = str(path)
        if is_there(name):
            continue
        if name.startswith("-"):
            raise UsageError(f"expected a trace, not {name!r}: put options before `--`")
        close_names = (
            [] if looks_like_a_path(name) else get_close_matches(name, analysis_names(), n=1)
        )
        if close_names:
            files = (
                shlex.join(text for text in map(str, paths) if looks_like_a_path(text)) or "TRACE"
            )
            mistake = (
                "is a table, not a trace" if close_names[0] == name else "is not a table or a trace"
            )
            raise UsageError(f"{name!r} {mistake}: run `traceprof show {close_names[0]} {files}`")
    return paths


def labels_of(texts: Sequence[str] | None) -> dict[str, str]:
    """Return the labels in ``texts`` of the form "network=calico", by key.

    Raises:
        UsageError: a text is not KEY=VALUE.
    """
    labels = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise UsageError(f"label {text!r}: expected KEY=VALUE, such as network=calico")
        labels[name.strip()] = value
    return labels


def numbers_of(text: str | None) -> list[int] | None:
    """Return the numbers in a list such as ``0,2..5``; None without ``text``.

    Raises:
        UsageError: ``text`` is not a list of numbers and ranges.
    """
    if text is None:
        return None
    numbers: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not first.isdecimal() or (dots and not last.isdecimal()):
            raise UsageError(f"{text}: expected numbers, such as 0,2..5")
        numbers += range(int(first), int(last if dots else first) + 1)
    return numbers


def split_lists(texts: list[str] | None) -> list[str]:
    """Return the values of an option that was repeated, or given a comma-separated list."""
    parts = (part.strip() for text in texts or () for part in text.split(","))
    return [part for part in parts if part]
