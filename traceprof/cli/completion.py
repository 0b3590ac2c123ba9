"""Shell completion of nouns, `--by` values, windows, steps, columns, and saved runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import typer

from traceprof.errors import TraceprofError
from traceprof.measures import Entry, load_analysis
from traceprof.measures import nouns as known_nouns
from traceprof.processes import run_traceprof

Completions = list[tuple[str, str]]
"""Possible completions, each with a line of help."""

_MAX_STEPS: Final = 100
"""The maximum number of completions for steps. The longest steps are offered first."""
_READING_TIMEOUT_S: Final = 3.0
_EXPORTED_SUFFIXES: Final = (".nsys-rep", ".qdrep", ".qdstrm")
_STEPS_COMMAND: Final = (
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


def _complete_list(incomplete: str, known: Iterable[tuple[str, str]]) -> Completions:
    """Return the names in ``known`` that complete the last item of a comma-separated list."""
    previous, comma, prefix = incomplete.rpartition(",")
    return [
        (f"{previous}{comma}{name}", help_text)
        for name, help_text in known
        if name.startswith(prefix)
    ]


def nouns(incomplete: str) -> Completions:
    """Return the nouns of `traceprof show`."""
    return _complete_list(
        incomplete, ((noun, entries[0].summary) for noun, entries in known_nouns().items())
    )


def _typed_entries(context: typer.Context) -> tuple[Entry, ...]:
    """Return the tables of the noun on the command line, or nothing if it has no noun."""
    known = known_nouns()
    # click does not parse the words before an option without its value. They are in `args`.
    words = (context.params.get("noun"), context.info_name, *context.args)
    return next((known[word] for word in words if word in known), ())


def ways(context: typer.Context, incomplete: str) -> Completions:
    """Return the `--by` values of the noun on the command line."""
    return _complete_list(
        incomplete, ((e.way, e.summary) for e in _typed_entries(context) if e.way)
    )


def columns(context: typer.Context, incomplete: str) -> Completions:
    """Return the columns of the tables of the noun (and `--by` value) on the command line."""
    by = context.params.get("by")
    entries = [e for e in _typed_entries(context) if by is None or e.way in str(by).split(",")]
    specs = (load_analysis(entry.name).spec for entry in entries)
    meanings = {column.name: column.meaning for spec in specs for t in spec.tables for column in t}
    return _complete_list(incomplete, meanings.items())


def windows(incomplete: str) -> Completions:
    """Return common windows, without reading the trace. A trace may lack some of them."""
    return [(name, help_text) for name, help_text in _WINDOWS if name.startswith(incomplete)]


def steps(context: typer.Context, incomplete: str) -> Completions:
    """Return the steps of the traces on the command line, or nothing if it names no trace.

    The shell offers files if there are no completions.
    """
    params = context.params
    typed = [*map(str, params.get("trace") or ()), str(params.get("window") or ""), *context.args]
    # bash splits "step:3" into three words.
    typed_prefix = f"{typed[-2]}:" if typed[-1] == ":" and len(typed) > 1 else ""
    traces = [word for word in typed if word and Path(word).exists()]
    known = list(_steps_of(traces)) if traces else []
    if known:
        known.insert(0, ("slowest", "the longest step"))
    matches = (
        (name, duration)
        for name, duration in known
        if name.startswith(f"{typed_prefix}{incomplete}")
    )
    return [(name.removeprefix(typed_prefix), duration) for name, duration in matches][:_MAX_STEPS]


def _steps_of(traces: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the steps of ``traces`` and their durations, longest first.

    Another process reads the traces, so that nothing is printed here. It is killed after
    `_READING_TIMEOUT_S`. Yield nothing if a trace needs another program to convert it.
    """
    import json

    from traceprof.units import format_duration

    files = (file for one in map(Path, traces) for file in (one, *one.glob("*")))
    if any(file.suffix in _EXPORTED_SUFFIXES for file in files):
        return
    output = run_traceprof((*_STEPS_COMMAND, *traces), _READING_TIMEOUT_S)
    if output is None:
        return
    result = json.loads(output)["results"]["steps"]
    unit = "pattern" if result["scalars"]["is_pattern"]["value"] else "step"
    rows = sorted(result["tables"]["steps"]["rows"], key=lambda row: row["duration_ns"] or 0)
    # Rows are in ascending order, so a step keeps the duration of its slowest rank.
    lengths = {f"{unit}:{row['step']}": row["duration_ns"] for row in rows}
    yield from ((name, format_duration(ns)) for name, ns in reversed(lengths.items()))


def runs(context: typer.Context, incomplete: str) -> Completions:
    """Return the saved runs with their labels; nothing if the database cannot be read.

    The shell offers files if no run matches.
    """
    from traceprof.store import Store

    try:
        saved = Store.at(context.params.get("db")).listed()
    except TraceprofError:
        return []
    return [
        (run.name, ", ".join(f"{key}={value}" for key, value in run.labels.items()))
        for run in saved
        if run.name.startswith(incomplete)
    ]
