"""One question in every form: the same numbers, or the same reason why there are none.

A damaged file is asked for its kernels in JSON, CSV, Markdown and text, by SQL, as a list of
operations, and from Python. What a reader warned of must be said by each of them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner, Result

import traceprof as tp
from traceprof.cli import app
from traceprof.errors import TraceError, TraceprofError

ASKED: Final = ("show", "kernels", "--window", "all")
_FORMS: Final = (("--csv",), ("--markdown",), ())
_SQL: Final = "SELECT count(*) AS n, coalesce(sum(duration_ns), 0) AS ns FROM kernels"
_EVERYTHING: Final = "SELECT * FROM kernels ORDER BY start_ns, name"
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
    for asked in (ASKED, ("ops",), ("query", _EVERYTHING)):
        words = (asked[0], str(path), *asked[1:], "--csv")
        done = _run(*words)
        if not done.exit_code:
            yield from wrong_rows(words, done.stdout_bytes)
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


def wrong_rows(asked: Sequence[str], printed: bytes) -> Iterator[str]:
    """Yield where the CSV that ``asked`` printed has other rows than JSON, cell by cell."""
    words = ["--json" if word == "--csv" else word for word in asked]
    done = _run(*words)
    if done.exit_code:
        yield f"JSON: exit {done.exit_code}: {_last(done.stderr)}"
        return
    header, *rows = csv.reader(io.StringIO(printed.decode(), newline=""))
    names, expected = _json_rows(asked[0], done.stdout)
    if header != (names or header):
        yield f"CSV has columns {header}, JSON {names}"
    if len(rows) != len(expected):
        yield f"CSV has {len(rows)} rows, JSON {len(expected)}"
    for number, (row, values) in enumerate(zip(rows, expected, strict=False)):
        if len(row) != len(header):
            yield f"CSV row {number} has {len(row)} cells: {row}"
            continue
        for name, cell in zip(header, row, strict=True):
            if not _is_same(cell, values.get(name)):
                yield f"CSV row {number} {name}: {cell!r}, JSON {values.get(name)!r}"


def _json_rows(command: str, printed: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the columns of the table that answers, [] where JSON names none, and its rows."""
    if command == "query":
        return [], json.loads(printed)
    if command == "ops":
        return [], [json.loads(line) for line in printed.split("\n") if line]
    (result,) = json.loads(printed)["results"].values()
    table = next(iter(result["tables"].values()))
    return [column["name"] for column in table["columns"]], table["rows"]


def _is_same(cell: str, value: Any) -> bool:
    """Return whether a cell says what JSON does; sentences have their numbers worded in CSV."""
    if isinstance(value, dict | list):
        return bool(cell) == bool(value)
    if value is None:
        return cell == ""
    if isinstance(value, bool):
        return cell == str(value)
    if isinstance(value, int | float):
        return (int(cell) if isinstance(value, int) else float(cell)) == value
    # What a spreadsheet would take for a formula has a quotation mark in front.
    return cell == value or (cell == f"'{value}" and not value.lstrip()[:1].isalnum())


def _wrong_operations(path: Path, warnings: list[str], expected: _Sums) -> Iterator[str]:
    done = _run("ops", str(path), "--kind", "kernel", "--csv")
    if done.exit_code == TraceError.exit_code and " contains non-integer values" in _last(
        done.stderr
    ):
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
