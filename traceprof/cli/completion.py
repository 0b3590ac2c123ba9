"""What the shell offers while one types: nouns and their ways, windows, columns, kept runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import typer

from traceprof.errors import TraceprofError
from traceprof.measures import Entry, load_analysis
from traceprof.measures import nouns as known_nouns
from traceprof.processes import run_traceprof

Offered = list[tuple[str, str]]
"""What may stand there, each with a line of help."""

_MOST: Final = 100
"""Of more steps those that take the longest are offered."""
_PATIENCE_S: Final = 3.0
_CONVERTED: Final = (".nsys-rep", ".qdrep", ".qdstrm")
_ASKED: Final = (
    *("show", "steps", "--window", "all", "--jobs", "1"),
    *("--json", "--columns", "step,duration_ns", "--"),
)
_WINDOWS = (
    ("steady", "the steps after warm-up"),
    ("active", "from the first to the last GPU operation"),
    ("all", "the whole trace"),
    ("step:1..", "all steps from step 1; step:3..5 is steps 3 to 5"),
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
        incomplete, ((noun, entries[0].summary) for noun, entries in known_nouns().items())
    )


def _shown(context: typer.Context) -> tuple[Entry, ...]:
    known = known_nouns()
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
    specs = (load_analysis(entry.name).spec for entry in entries)
    found = {column.name: column.meaning for spec in specs for t in spec.tables for column in t}
    return _beginning(incomplete, found.items())


def windows(incomplete: str) -> Offered:
    """Return windows that every trace has, or may have."""
    return [(name, told) for name, told in _WINDOWS if name.startswith(incomplete)]


def steps(context: typer.Context, incomplete: str) -> Offered:
    """Return the steps of the trace that was typed; without one the shell offers files."""
    given = context.params
    typed = [*map(str, given.get("trace") or ()), str(given.get("window") or ""), *context.args]
    # bash takes "step:3" for three words
    before = f"{typed[-2]}:" if typed[-1] == ":" and len(typed) > 1 else ""
    traces = [word for word in typed if word and Path(word).exists()]
    known = list(_steps_of(traces)) if traces else []
    if known:
        known.insert(0, ("slowest", "the longest step"))
    fit = ((name, told) for name, told in known if name.startswith(f"{before}{incomplete}"))
    return [(name.removeprefix(before), told) for name, told in fit][:_MOST]


def _steps_of(traces: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the steps, the longest first, of traces that need no other program to be read.

    Another process tells them, which prints nothing here, and is ended where that takes long.
    """
    import json

    from traceprof.units import format_duration

    files = (file for one in map(Path, traces) for file in (one, *one.glob("*")))
    if any(file.suffix in _CONVERTED for file in files):
        return
    said = run_traceprof((*_ASKED, *traces), _PATIENCE_S)
    if said is None:
        return
    found = json.loads(said)["results"]["steps"]
    what = "pattern" if found["scalars"]["is_pattern"]["value"] else "step"
    rows = sorted(found["tables"]["steps"]["rows"], key=lambda row: row["duration_ns"] or 0)
    lengths = {f"{what}:{row['step']}": row["duration_ns"] for row in rows}  # of the slowest rank
    yield from ((name, format_duration(ns)) for name, ns in reversed(lengths.items()))


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
