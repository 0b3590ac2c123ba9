"""One question in every form: the same numbers, or the same reason why there are none.

A damaged file is asked for its kernels in JSON, CSV, Markdown and text, by SQL, as a list of
operations, and from Python. What a reader warned of must be said by each of them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner, Result

import traceprof as tp
from traceprof.cli import app
from traceprof.errors import TraceError, TraceprofError

ASKED: Final = ("show", "kernels", "--window", "all")
_FORMS: Final = (("--csv",), ("--markdown",), ())
_SQL: Final = "SELECT count(*) AS n, coalesce(sum(duration_ns), 0) AS ns FROM kernels"
_Sums = tuple[int, int]


def differences(path: Path, code: int, printed: str, said: str) -> Iterator[str]:
    """Yield where another form says something else than JSON, which was answered with ``code``."""
    if code:
        for form in _FORMS:
            done = _run(*ASKED, str(path), *form)
            if (done.exit_code, _last(done.stderr)) != (code, _last(said)):
                yield f"{form}: exit {done.exit_code}, {_last(done.stderr)}, not {code}"
        try:
            tp.open(path).within("all").result("kernels")
        except TraceprofError:
            return
        yield "Python answers"
        return
    document = json.loads(printed)
    warnings = document["trace"]["warnings"]
    expected = _sums_of(document["results"]["kernels"]["tables"]["kernels"]["rows"])
    for form in _FORMS:
        done = _run(*ASKED, str(path), *form)
        yield from (f"{form}: {one}" for one in _wrongs(done, warnings))
        if form == ("--csv",) and _sums_of(_rows_of(done.stdout)) != expected:
            yield f"CSV: {_sums_of(_rows_of(done.stdout))} of {expected}"
    done = _run("query", str(path), _SQL, "--csv")
    yield from (f"query: {one}" for one in _wrongs(done, warnings))
    found = [(int(row["n"]), int(row["ns"])) for row in _rows_of(done.stdout)]
    if found != [expected]:
        yield f"query: {found} of {expected}"
    yield from _wrong_operations(path, warnings, expected)
    run = tp.open(path).within("all")
    table = run.result("kernels").table
    if (int(table["count"].sum()), int(table["total_ns"].sum())) != expected:
        yield f"Python: {int(table['count'].sum())} of {expected}"
    frame = run.query(_SQL)
    if (int(frame["n"].iloc[0]), int(frame["ns"].iloc[0])) != expected:
        yield f"query from Python: {frame.to_dict()} of {expected}"


def _wrong_operations(path: Path, warnings: list[str], expected: _Sums) -> Iterator[str]:
    done = _run("ops", str(path), "--kind", "kernel", "--csv")
    if done.exit_code == TraceError.exit_code and " is not of whole numbers" in _last(done.stderr):
        return  # grids and blocks of kernels, which nothing else reads here
    yield from (f"ops: {one}" for one in _wrongs(done, warnings))
    lengths = [int(row["duration_ns"]) for row in _rows_of(done.stdout)]
    if (len(lengths), sum(lengths)) != expected:
        yield f"ops: {len(lengths)}, {sum(lengths)} of {expected}"


def _run(*words: str) -> Result:
    done = CliRunner().invoke(app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def _wrongs(done: Result, warnings: list[str]) -> Iterator[str]:
    if done.exit_code:
        yield f"exit {done.exit_code}: {_last(done.stderr)}"
    told = "".join(f"{done.stdout}\n{done.stderr}".split())
    for warning in warnings:
        # Lines are broken where they are long, and Markdown escapes what it would obey.
        if "".join(warning.split()) not in told.replace("\\", ""):
            yield f"says nothing of {warning!r}"


def _rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def _sums_of(rows: list[Any]) -> _Sums:
    return sum(int(row["count"]) for row in rows), sum(int(row["total_ns"]) for row in rows)


def _last(said: str) -> str:
    lines = [line for line in said.splitlines() if not line.startswith("traceprof: warning")]
    return lines[-1] if lines else ""
