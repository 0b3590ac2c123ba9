"""The user's own patterns: regular expressions whose groups say what values are.

They are matched by RE2, many lines at a time, since neither patterns nor lines need be harmless.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Final

from traceprof.errors import UsageError
from traceprof.logs.lines import LogLine
from traceprof.logs.source import PLACES, LogReader, Pattern
from traceprof.names.user_patterns import UserPattern, user_pattern

_AHEAD: Final = 256
"""Lines that are at hand at once, of at most 64 kB each."""


def compiled_patterns(patterns: Mapping[str, str]) -> tuple[Pattern, ...]:
    """Return the user's own patterns; see the module for what their groups mean.

    Raises:
        UsageError: one is no regular expression, or has no named group that is a value.
    """
    found = []
    for text in patterns.values():
        named = (name for name in user_pattern(text, "--pattern").groups if name[0] != "_")
        if not {*named} - PLACES:
            raise UsageError(
                f"--pattern {text!r}: no named group; name the groups that are values, for "
                r"example (?P<step>\d+) and (?P<samples_per_s>[\d.]+)"
            )
        found.append(Pattern(text))
    return tuple(found)


class OwnPatterns(LogReader):
    """Reads the user's own patterns: each may match a line, with or without its prefixes."""

    by_rank = True
    count = 0
    _ahead: Iterator[tuple[Mapping[str, str] | None, ...]] = iter(())

    def look_ahead(self, lines: Sequence[LogLine]) -> None:
        """Match the lines that are read next, since Arrow takes many at a time."""
        own = [user_pattern(pattern.line, "--pattern") for pattern in self.source.patterns]
        self._ahead = zip(*(_matched(pattern, lines) for pattern in own), strict=True)

    def read(self, line: LogLine) -> None:
        """Note what ``line``, the next of those that were looked at, says."""
        for pattern, groups in zip(self.source.patterns, next(self._ahead), strict=True):
            if groups is not None:
                self.count += 1
                texts = {name: text for name, text in groups.items() if text}
                self.take_groups(pattern, texts, line, groups["_all"])


def lines_ahead(
    lines: Iterator[LogLine], readers: Sequence[LogReader]
) -> Iterator[tuple[LogLine, LogReader]]:
    """Yield each line with each reader, which has looked at it and at some hundreds beside it."""
    while ahead := list(islice(lines, _AHEAD)):
        for reader in readers:
            reader.look_ahead(ahead)
        yield from product(ahead, readers)


def _matched(pattern: UserPattern, lines: Sequence[LogLine]) -> list[dict[str, str] | None]:
    found = pattern.matched([line.text for line in lines])
    with_prefix = pattern.matched([line.raw for line in lines])
    return [one or other for one, other in zip(found, with_prefix, strict=True)]
