"""Every number of every analysis on every shared trace, as one short text per column.

``tests/golden/numbers.json.gz`` holds them as they were; `tests/golden/test_numbers.py` compares.
A change that is meant is written anew, and listed with its reason in tests/golden/changes.md:

    .venv/bin/python -m tests.golden.numbers [TRACE...]

Names of traces, as the file has them: only their records.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests import real_traces
from tests.requirements import TRACES
from traceprof.errors import NotRecordedError, TraceprofError
from traceprof.measures import ANALYSES
from traceprof.model.results import Note, Result
from traceprof.session.opening import open_ranks
from traceprof.session.options import Opening
from traceprof.session.run import Run, open_run

FILE = Path(__file__).with_name("numbers.json.gz")
BY_ROW = {"findings": "rule", "not_checked": "rule", "checked": "subject"}
"""Tables of which each row is a digest of its own, and the column that names the row."""


def windows(path: Path) -> Iterator[tuple[str, Run]]:
    """Yield the run in its default window, and in the middle third of its time."""
    run = open_run([path])
    yield "default", run
    span = open_ranks([path], Opening(), frozenset())[0].span
    third = span.duration_ns // 3
    middle = f"@{span.start_ns + third}..@{span.start_ns + 2 * third}"
    yield "middle", run.within(middle)


def numbers_of(path: Path) -> dict[str, Any]:
    """Return the digests of all results on a trace: window → analysis → table → column."""
    found: dict[str, Any] = {}
    names = [entry.name for entry in ANALYSES]
    for label, run in windows(path):
        try:
            answers = run.answers(names)
        except TraceprofError as error:
            found[label] = dict.fromkeys(names, _told(error, path))
            continue
        known = {name: digest_of(result) for name, result in answers.results.items()}
        missing = {
            name: _told(NotRecordedError(why), path) for name, why in answers.missing.items()
        }
        found[label] = {name: {**known, **missing}[name] for name in names}
    return found


def _told(error: TraceprofError, path: Path) -> str:
    return f"{type(error).__name__}: {error}".replace(str(path), "TRACE")


def digest_of(result: Result) -> dict[str, Any]:
    """Return the digests of the columns of each table, the scalars and the notes of a result."""
    tables = {
        name: _rows(frame, BY_ROW[name]) if name in BY_ROW else _columns(frame)
        for name, frame in ((own, table.to_frame()) for own, table in result.tables.items())
    }
    scalars = {name: _plain(value) for name, value in result.scalars.items()}
    notes = [
        [note.text, *map(_plain, note.values.values())]
        for note in result.notes
        if not note.text.startswith("not checked")  # a table says so, too
    ]
    return {**tables, "scalars": scalars, "notes": _hash(json.dumps(notes))}


def _columns(frame: pd.DataFrame) -> dict[str, Any]:
    return {str(column): _column(frame[column]) for column in frame}


def _rows(frame: pd.DataFrame, key: str) -> dict[str, Any]:
    """Return the digests of rows by themselves, so that a rule that is added changes no other."""
    found: dict[str, Any] = {}
    for _, row in frame.iterrows():
        name, place = str(row[key]), 0
        while f"{name} {place}" in found:
            place += 1
        found[f"{name} {place}"] = {
            str(column): _hash(_plain(row[column])) for column in frame if column != "number"
        }
    return found


def _column(values: pd.Series) -> str:
    texts = [_plain(value) for value in values.tolist()]
    known = [float(v) for v in values.tolist() if isinstance(v, int | float) and v == v]
    total = f" sum {float(np.sum(known)):.9g}" if known else ""
    return f"{len(texts)}{total} {_hash(json.dumps(texts))}"


def _plain(value: Any) -> str:
    """Return a value as text; floats with nine digits: the order of a sum does not count."""
    if isinstance(value, tuple):
        return " | ".join(map(_plain, value))
    if isinstance(value, Note):
        return " ".join([value.text, *map(_plain, value.values.values())])
    if value is None or value is pd.NaT or (isinstance(value, float) and np.isnan(value)):
        return "–"
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, int | float | np.number):
        return f"{float(value):.9g}" if float(value) != int(value) else str(int(value))
    return str(value)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def main() -> None:
    """Write the file anew from the traces beside the checkout: all, or those that are named."""
    named = sys.argv[1:]
    known = json.loads(gzip.decompress(FILE.read_bytes())) if named else {}
    found = {**known, **{name: numbers_of(TRACES / name) for name in named or real_traces.ALL}}
    text = json.dumps(found, indent=0, sort_keys=True, ensure_ascii=False)
    FILE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
