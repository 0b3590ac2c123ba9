"""A log, read: of which program it is, and what its runs gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError, UsageError
from traceprof.logs.gathered import Book
from traceprof.logs.lines import LogLine, RawLines, cleaned
from traceprof.logs.own import OwnPatterns, compiled_patterns, lines_ahead
from traceprof.logs.source import LogReader, LogSource
from traceprof.logs.sources import SOURCES, reader_of
from traceprof.logs.step_tables import read_step_tables
from traceprof.logs.summary import summary_of
from traceprof.model.summary import SourceFile, Summary

_ENOUGH: Final = 50
"""Lines of a program after which it is plain."""
_LOOKED_AT: Final = 4_000
"""Lines that are looked at even so: another program may say more."""
_ALSO: Final = 4
"""A program with at least one in so many of the lines of the first could have been meant."""
_OWN: Final = "pattern"
_SUFFIXES: Final = frozenset({".csv", ".gz", ".log", ".txt", ".out", ".err", ".stdout", ".stderr"})


@dataclass(frozen=True, slots=True)
class Recognized:
    """The source of a log, how many lines say so, and which others could be meant."""

    source: LogSource
    count: int
    others: tuple[tuple[LogSource, int], ...] = ()


def recognize(lines: Iterable[LogLine]) -> Recognized | None:
    """Return of which program ``lines`` are; None where no line is of any that is known.

    Launchers count where there is nothing else; all are read beside any program.
    """
    counts: Counter[str] = Counter()
    marks = [(source, source.all_marks()) for source in SOURCES]
    for i, line in enumerate(lines):
        for source, own in marks:
            if any(mark.search(line.text) for mark in own):
                counts[source.name] += 1
                if source.is_decisive:
                    return Recognized(source, 1)
        if i >= _LOOKED_AT and max(counts.values(), default=0) >= _ENOUGH:
            marks = [pair for pair in marks if pair[0].is_decisive]
    programs = [source for source in SOURCES if not source.is_launcher]
    for candidates in (programs, SOURCES):
        found = [(source, counts[source.name]) for source in candidates if counts[source.name]]
        if found:
            # What people's scripts print stands in logs of programs, too.
            found.sort(key=lambda pair: (pair[0].name == "notes", -pair[1]))
            first, count = found[0]
            others = (pair for pair in found[1:] if pair[1] * _ALSO >= count)
            return Recognized(first, count, tuple(p for p in others if p[0].name != "notes"))
    return None


def read_log(
    path: Path,
    *,
    source: str | None = None,
    patterns: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[Summary]:
    """Return the runs that the log ``path`` tells of: usually one, in the order of the log.

    The program that printed it is recognized by its lines; what launchers print beside it is read,
    too. Memory is bounded however large the log is; it may be compressed with gzip. ``source`` is
    the program, by the name that `traceprof.logs.sources` has; ``patterns`` are the user's own
    regular expressions with named groups, by names of the user's: with these, nothing is recognized
    unless ``source`` is given, too. ``columns`` says what columns of a table are that a program
    wrote as it trained.

    Raises:
        UsageError: there is no such source, or a pattern is none.
        TraceError: the file cannot be read, is of no known program, or nothing matches.
    """
    path = Path(path)
    own = compiled_patterns(patterns or {})
    if source is None and not own:
        tables = read_step_tables(path, columns)
        if tables:
            return tables
    chosen = _chosen(path, source, needed=not own)
    book = Book()
    stem = _stem(path)
    readers = [reader_of(s)(book, stem, s) for s in SOURCES if s.is_launcher]
    if chosen is not None and not chosen.source.is_launcher:
        readers.append(reader_of(chosen.source)(book, stem, chosen.source))
    pattern = OwnPatterns(book, stem, LogSource(_OWN, _OWN, own))
    if own:
        readers.append(pattern)
    book.at_end = [reader.end for reader in readers]
    lines = RawLines(path)
    odd = _read(lines, readers)
    for reader in readers:
        reader.end()
    if own and chosen is None and not pattern.count:
        raise TraceError(f"{path}: no line matches --pattern")
    if odd:
        book.run.say("ignored {n:count} line(s) with invalid numbers", n=odd)
    _say_of_the_file(book, lines, chosen)
    return _summaries(path, book, _OWN if chosen is None else chosen.source.name)


def _read(lines: RawLines, readers: Sequence[LogReader]) -> int:
    """Give every reader all lines; return how many hold what is no number."""
    odd = 0
    for line, reader in lines_ahead(cleaned(lines), readers):
        try:
            reader.read(line)
        except (ArithmeticError, ValueError):
            # Numbers of a broken line, such as 1.2.3 or an epoch of 0 steps.
            odd += 1
    return odd


def _chosen(path: Path, source: str | None, *, needed: bool) -> Recognized | None:
    if source is not None:
        named = next((one for one in SOURCES if one.name == source), None)
        if named is None:
            names = ", ".join(s.name for s in SOURCES)
            raise UsageError(f"unknown log source {source!r}; choose one of {names}")
        return Recognized(named, 0)
    if not needed:
        return None
    found = recognize(cleaned(RawLines(path)))
    if found is None:
        raise TraceError(
            f"{path}: the log format is unknown; describe the numbers of a line with "
            r"--pattern '(?P<step>\d+) … (?P<samples_per_s>[\d.]+)'"
        )
    return found


def _say_of_the_file(book: Book, lines: RawLines, chosen: Recognized | None) -> None:
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
        run.say(
            "the file is damaged; traceprof read the part before the damage ({why})",
            why=lines.damage,
        )
    if lines.cut_count:
        run.say("only the beginning of {n:count} very long line(s) was read", n=lines.cut_count)


def _stem(path: Path) -> str:
    name = path.name
    while Path(name).suffix.lower() in _SUFFIXES and Path(name).stem:
        name = Path(name).stem
    return name or "log"


def _summaries(path: Path, book: Book, source: str) -> list[Summary]:
    runs = [run for run in book.runs if not run.is_empty] or book.runs[:1]
    file = SourceFile(str(path), f"log:{source}", path.stat().st_size)
    stem = _stem(path)
    names = [f"{stem}:{i + 1}" for i in range(len(runs))] if len(runs) > 1 else [stem]
    return [summary_of(*of, f"log:{source}", file) for of in zip(runs, names, strict=True)]


def source_names() -> tuple[str, ...]:
    """Return the names that ``source`` may have."""
    return tuple(source.name for source in SOURCES)
