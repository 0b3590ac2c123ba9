"""Parse the values of arguments and options: paths of traces, labels, numbers, and lists."""

from __future__ import annotations

from collections.abc import Sequence

from traceprof.errors import UsageError


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
