"""What a source of logs is: how it is recognised, and who reads it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping

from traceprof.logs.cleaning import Line
from traceprof.logs.gathered import Book
from traceprof.values import dataclass

__all__ = ["Reader", "Source", "number", "share"]


class Reader(ABC):
    """Reads the lines of one log, one at a time, into a `Book`. ``stem`` names its file."""

    def __init__(self, book: Book, stem: str = "") -> None:
        self.book = book
        self.stem = stem

    @abstractmethod
    def read(self, line: Line) -> None:
        """Note what ``line`` says; most lines say nothing."""

    def end(self) -> None:
        """Note what follows from a whole run, and forget it: another may follow in the log."""
        return


@dataclass(frozen=True, slots=True)
class Source:
    """A program whose logs can be read.

    ``marks`` match lines that it alone prints, anywhere in them; the more of a log they match, the
    more likely it is of this program. Launchers and what else stands beside a program's own lines
    are read with it.
    """

    name: str
    title: str
    marks: tuple[re.Pattern[str], ...]
    reader: type[Reader]
    is_launcher: bool = False


def number(text: str | None) -> float | None:
    """Return a number as logs print it ("1,024", "3e-4", "nan", "9.5%"), None where it is none."""
    if text is None:
        return None
    text = text.strip().rstrip("%,").replace(",", "")
    if text.lower() in ("nan.0", "-nan"):
        text = "nan"
    try:
        return float(text)
    except ValueError:
        return None


def share(text: str | None) -> float | None:
    """Return what is printed in per cent as a share."""
    value = number(text)
    return None if value is None else value / 100


def first(match: re.Match[str] | Mapping[str, str | None], *names: str) -> str | None:
    """Return the first of the groups ``names`` that matched."""
    own = match.groupdict() if isinstance(match, re.Match) else match
    return next((own[name] for name in names if own.get(name) is not None), None)
