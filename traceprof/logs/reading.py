"""Read a log: recognize the program that printed it, and return its runs.

User patterns are regular expressions whose named groups define the values. RE2 matches them, in
blocks of lines, because neither the patterns nor the lines can be trusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError, UsageError
from traceprof.logs.gathered import CollectedRun, LogRuns
from traceprof.logs.lines import DAMAGED, LogLine, RawLines, cleaned, damage_of
from traceprof.logs.machine_samples import read_machine_samples
from traceprof.logs.source import PLACES, LogReader, LogSource, Pattern
from traceprof.logs.sources import SOURCES, reader_of
from traceprof.logs.step_tables import read_step_tables
from traceprof.logs.summary import summary_of
from traceprof.model.summary import SourceFile, Summary
from traceprof.names.user_patterns import UserPattern, user_pattern

_ENOUGH_LINES: Final = 50
"""Number of lines of one program that identify it."""
_MAX_SCANNED_LINES: Final = 4_000
"""Number of lines that are scanned even then, because another program may have printed more."""
_MAX_COUNT_FACTOR: Final = 4
"""A program is an alternative if the first one has at most this many times its lines."""
_LINES_PER_BLOCK: Final = 256
"""Number of lines (64 kB at most each) that are matched and kept in memory at once."""
_PATTERN_SOURCE: Final = "pattern"
_SUFFIXES: Final = frozenset({".csv", ".gz", ".log", ".txt", ".out", ".err", ".stdout", ".stderr"})


@dataclass(frozen=True, slots=True)
class Recognized:
    """The source of a log, the number of its lines, and other sources that are possible.

    ``next_source`` is read if the source finds no values in its lines.
    """

    source: LogSource
    count: int
    others: tuple[tuple[LogSource, int], ...] = ()
    next_source: Recognized | None = None


def recognize(lines: Iterable[LogLine]) -> Recognized | None:
    """Return the program that printed ``lines``, or None if no line belongs to a known program.

    A launcher counts only if no program is found, because logs of launchers are read with any
    program.
    """
    counts: Counter[str] = Counter()
    marks = [(source, source.all_marks()) for source in SOURCES]
    for i, line in enumerate(lines):
        for source, regexes in marks:
            if any(mark.search(line.text) for mark in regexes):
                counts[source.name] += 1
                if source.is_decisive:
                    return Recognized(source, 1)
        if i >= _MAX_SCANNED_LINES and max(counts.values(), default=0) >= _ENOUGH_LINES:
            marks = [pair for pair in marks if pair[0].is_decisive]
    programs = [source for source in SOURCES if not source.is_launcher]
    for candidates in (programs, SOURCES):
        found = [(source, counts[source.name]) for source in candidates if counts[source.name]]
        if found:
            return _ranked(sorted(found, key=lambda pair: (pair[0].fallback, -pair[1])))
    return None


def _ranked(found: Sequence[tuple[LogSource, int]]) -> Recognized:
    """Return the first of the sources with their numbers of lines; the next ones follow it."""
    (source, count), *rest = found
    others = (pair for pair in rest if pair[1] * _MAX_COUNT_FACTOR >= count)
    named = tuple(pair for pair in others if not pair[0].fallback)
    return Recognized(source, count, named, _ranked(rest) if rest else None)


def read_log(
    path: Path,
    *,
    source: str | None = None,
    patterns: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[Summary]:
    """Return the runs in the log ``path``: usually one; several in the order of the log.

    The program that printed the log is recognized by its lines; lines of launchers are read with
    it. Memory use is bounded for a log of any size. The log may be compressed with gzip.

    Args:
        path: the log file.
        source: the program, by its name in `traceprof.logs.sources`; None recognizes it.
        patterns: regular expressions with named groups, by names that the user chooses. With
            patterns, the program is recognized only if ``source`` is given.
        columns: the meanings of the columns of a table that a program wrote during training.

    Raises:
        UsageError: the source is unknown, or a pattern is invalid.
        TraceError: the file cannot be read, no known program printed it, or no line matches.
    """
    path = Path(path)
    user_patterns = compiled_patterns(patterns or {})
    if source is None and not user_patterns:
        tables = read_machine_samples(path) or read_step_tables(path, columns)
        if tables:
            return tables
    chosen = _choose_source(path, source, needed=not user_patterns)
    while True:
        book, stem, lines = LogRuns(), _stem(path), RawLines(path)
        pattern = UserPatternReader(
            book, stem, LogSource(_PATTERN_SOURCE, _PATTERN_SOURCE, user_patterns)
        )
        _read_book(book, stem, lines, chosen, [pattern] if user_patterns else [])
        is_empty = all(run.is_empty for run in book.runs)
        if not is_empty or chosen is None or chosen.next_source is None:
            break
        chosen = chosen.next_source
    if is_empty and source is None and chosen is not None and chosen.source.fallback:
        raise _unknown_format(path)
    if user_patterns and chosen is None and not pattern.count:
        raise TraceError(f"{path}: no line matches --pattern")
    _note_file_problems(book, lines, chosen)
    return _summaries(path, book, _PATTERN_SOURCE if chosen is None else chosen.source.name, stem)


def read_lines(
    path: Path,
    lines: Sequence[str],
    name: str,
    prepare: Callable[[CollectedRun], None] | None = None,
) -> list[Summary]:
    """Return the runs in a part of the document ``path``; an empty list if it is no log.

    ``prepare`` completes the facts of each run before its measures are derived.
    """
    chosen = recognize(cleaned(lines))
    if chosen is None:
        return []
    book = LogRuns()
    _read_book(book, name, lines, chosen)
    if all(run.is_empty for run in book.runs):
        return []
    if prepare is not None:
        for run in book.runs:
            prepare(run)
    return _summaries(path, book, chosen.source.name, name)


def _read_book(
    book: LogRuns,
    stem: str,
    lines: Iterable[str],
    chosen: Recognized | None,
    more: Sequence[LogReader] = (),
) -> None:
    """Read all lines with the readers of launchers, of the chosen program, and of patterns."""
    readers = [reader_of(s)(book, stem, s) for s in SOURCES if s.is_launcher]
    if chosen is not None and not chosen.source.is_launcher:
        readers.append(reader_of(chosen.source)(book, stem, chosen.source))
    readers += more
    book.at_end = [reader.end for reader in readers]
    n_invalid = _read_lines(lines, readers)
    for reader in readers:
        reader.end()
    if n_invalid:
        book.run.say("ignored {n:count} line(s) with invalid numbers", n=n_invalid)


def _read_lines(lines: Iterable[str], readers: Sequence[LogReader]) -> int:
    """Pass all lines to every reader; return the number of lines with invalid numbers."""
    n_invalid = 0
    for line, reader in lines_ahead(cleaned(lines), readers):
        try:
            reader.read(line)
        except (ArithmeticError, ValueError):
            # A broken line, for example with the number 1.2.3 or an epoch of 0 steps.
            n_invalid += 1
    return n_invalid


def _choose_source(path: Path, source: str | None, *, needed: bool) -> Recognized | None:
    """Return the requested source, or (if ``needed``) the recognized one.

    Raises:
        UsageError: the requested source is unknown.
        TraceError: no source is recognized.
    """
    if source is not None:
        named = next((candidate for candidate in SOURCES if candidate.name == source), None)
        if named is None:
            names = ", ".join(s.name for s in SOURCES)
            raise UsageError(f"unknown log source {source!r}; choose one of {names}")
        return Recognized(named, 0)
    if not needed:
        return None
    found = recognize(cleaned(RawLines(path)))
    if found is None:
        raise _unknown_format(path)
    return found


def _unknown_format(path: Path) -> TraceError:
    if damage := damage_of(path):
        return TraceError(
            f"{path}: the file is damaged or truncated ({damage}), and the rest is in no known "
            "format; copy it again"
        )
    return TraceError(
        f"{path}: the log format is unknown; describe the numbers of a line with `traceprof "
        r"runs import-log FILE --pattern '(?P<step>\d+) … (?P<samples_per_s>[\d.]+)'`"
    )


def _note_file_problems(book: LogRuns, lines: RawLines, chosen: Recognized | None) -> None:
    """Note other possible sources, damage, and truncated lines."""
    run = book.run
    if chosen is not None and chosen.others:
        names = ", ".join(f"{other.title} ({count})" for other, count in chosen.others)
        run.say(
            "read as a log of {title} ({n:count} line(s)); the log also contains lines of {names} "
            "(use --source {name} to read those)",
            title=chosen.source.title,
            n=chosen.count,
            names=names,
            name=chosen.others[0][0].name,
        )
    if lines.damage:
        run.say(DAMAGED, why=lines.damage)
    if lines.cut_count:
        run.say("only the beginning of {n:count} very long line(s) was read", n=lines.cut_count)


def _stem(path: Path) -> str:
    """Return the name of a file without suffixes of logs and compression."""
    name = path.name
    while Path(name).suffix.lower() in _SUFFIXES and Path(name).stem:
        name = Path(name).stem
    return name or "log"


def _summaries(path: Path, book: LogRuns, source: str, stem: str) -> list[Summary]:
    runs = [run for run in book.runs if not run.is_empty] or book.runs[:1]
    file = SourceFile(str(path), f"log:{source}", path.stat().st_size)
    names = [f"{stem}:{i + 1}" for i in range(len(runs))] if len(runs) > 1 else [stem]
    return [
        summary_of(run, name, f"log:{source}", file) for run, name in zip(runs, names, strict=True)
    ]


def compiled_patterns(patterns: Mapping[str, str]) -> tuple[Pattern, ...]:
    """Return the user patterns; `traceprof.logs.source` documents the names of their groups.

    Raises:
        UsageError: a pattern is not a regular expression, or no named group is a value.
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


class UserPatternReader(LogReader):
    """Read lines with user patterns.

    Each pattern is matched with and without the prefixes of a line.
    """

    by_rank = True
    count = 0
    _ahead: Iterator[tuple[Mapping[str, str] | None, ...]] = iter(())

    def look_ahead(self, lines: Sequence[LogLine]) -> None:
        """Match the next block of lines, because RE2 is called once per block."""
        compiled = [user_pattern(pattern.line, "--pattern") for pattern in self.source.patterns]
        self._ahead = zip(*(_match_lines(pattern, lines) for pattern in compiled), strict=True)

    def read(self, line: LogLine) -> None:
        """Store the values of ``line``, the next line of the block that was matched."""
        for pattern, groups in zip(self.source.patterns, next(self._ahead), strict=True):
            if groups is not None:
                self.count += 1
                texts = {name: text for name, text in groups.items() if text}
                self.take_groups(pattern, texts, line, groups["_all"])


def lines_ahead(
    lines: Iterator[LogLine], readers: Sequence[LogReader]
) -> Iterator[tuple[LogLine, LogReader]]:
    """Yield each line with each reader, after all readers looked ahead at the block of lines."""
    while ahead := list(islice(lines, _LINES_PER_BLOCK)):
        for reader in readers:
            reader.look_ahead(ahead)
        yield from product(ahead, readers)


def _match_lines(pattern: UserPattern, lines: Sequence[LogLine]) -> list[dict[str, str] | None]:
    """Return the groups of each line, matched without prefixes or, failing that, with them.

    None: no match.
    """
    found = pattern.matched([line.text for line in lines])
    with_prefix = pattern.matched([line.raw for line in lines])
    return [
        without_prefix or prefixed
        for without_prefix, prefixed in zip(found, with_prefix, strict=True)
    ]


def source_names() -> tuple[str, ...]:
    """Return the accepted values of ``source``."""
    return tuple(source.name for source in SOURCES)
