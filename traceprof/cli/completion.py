"""What the shell offers while one types: nouns and their ways, windows, columns, kept runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import typer

from traceprof import measures
from traceprof.errors import TraceprofError

Offered = list[tuple[str, str]]
"""What may stand there, each with a line of help."""

_WINDOWS = (
    ("steady", "the steps without the warm-up"),
    ("active", "while devices worked"),
    ("all", "everything"),
    ("step:1..", "from step 1 on; step:3..5 are three of them"),
    ("first:1s", "the first second"),
    ("last:1s", "the last second"),
    ("50%..", "the second half"),
)


def _beginning(incomplete: str, known: Iterable[tuple[str, str]]) -> Offered:
    """Return those of ``known`` that go on as the last part of a list with commas does."""
    done, comma, begun = incomplete.rpartition(",")
    return [(f"{done}{comma}{name}", told) for name, told in known if name.startswith(begun)]


def nouns(incomplete: str) -> Offered:
    """Return what there is to show."""
    return _beginning(
        incomplete, ((noun, own[0].summary) for noun, own in measures.nouns().items())
    )


def _shown(context: typer.Context) -> tuple[measures.Entry, ...]:
    known = measures.nouns()
    # What stands before an option without its value is not read, only kept.
    said = (context.params.get("noun"), context.info_name, *context.args)
    return next((known[word] for word in said if word in known), ())


def ways(context: typer.Context, incomplete: str) -> Offered:
    """Return by what the noun that was typed is shown."""
    return _beginning(incomplete, ((e.way, e.summary) for e in _shown(context) if e.way))


def columns(context: typer.Context, incomplete: str) -> Offered:
    """Return the columns of the tables that the noun is shown by."""
    by = context.params.get("by")
    entries = [e for e in _shown(context) if by is None or e.way in str(by).split(",")]
    specs = (measures.load_analysis(entry.name).spec for entry in entries)
    found = {column.name: column.meaning for spec in specs for t in spec.tables for column in t}
    return _beginning(incomplete, found.items())


def windows(incomplete: str) -> Offered:
    """Return windows that every trace has, or may have."""
    return [(name, told) for name, told in _WINDOWS if name.startswith(incomplete)]


def runs(context: typer.Context, incomplete: str) -> Offered:
    """Return the runs that are kept; files are offered by the shell where none begins so."""
    return [(name, told) for name, told in _kept(context) if name.startswith(incomplete)]


def _kept(context: typer.Context) -> Iterator[tuple[str, str]]:
    from traceprof.store import Store

    try:
        for run in Store.at(context.params.get("db")).listed():
            yield run.name, ", ".join(f"{key}={value}" for key, value in run.labels.items())
    except TraceprofError:
        return
