"""Each CSV has the rows of the JSON, whatever the names are and whatever program reads it."""

from __future__ import annotations

import csv
import json
import random
import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final
from unicodedata import category, normalize

import pandas as pd
import pytest
from sqlite_utils.utils import Format, rows_from_file
from typer.testing import CliRunner

from tests.requirements import ROOT, require
from tests.summaries import make_summary
from traceprof.cli import app
from traceprof.render.tables_text import csv_lines
from traceprof.store import Store

CORPUS: Final = ROOT.parent / "shared" / "corpus"
N_NAMES: Final = 200
_PIECES: Final = (
    *("\r", "\n", "\r\n", "\n\r", "\0", "\t", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"),
    *('"', '""', "'", ",", ";", "|", "\\", "\\n", "\\r", "\\u000d", "\\u001b", "\\", " ", "  "),
    *("=1+1", '=HYPERLINK("http://x","y")', "+cmd", "-1", "@SUM(A1)", "\uff1d1", "\u22121"),
    *("\ufeff", "\u202e", "\u2066", "\u200b", "\x1b[31m", "\x1b]0;t\x07", "\x7f", "\u0301"),
    *("\ud800", "\udfff", "\ufffd", "\U0001f600", "gemm<float, 4>", "NULL", "NA", "nan", "1e5"),
    *("x" * 20_000, "é" * 999, "#", "--", "a", "0x1F", "TRUE", "007"),
)
Rows = list[dict[str, str]]


@cache
def hostile_names() -> tuple[str, ...]:
    """Return 200 different names: each piece alone, and some after one another."""
    rng = random.Random(11)
    names = dict.fromkeys(_PIECES)
    while len(names) < N_NAMES:
        names["".join(rng.choices(_PIECES, k=rng.randint(2, 5)))] = None
    return tuple(names)


def restored(cell: str) -> str:
    """Return the text of a cell, as docs/export.md says how to get it."""
    text = re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), cell)
    drawn = [one for one in text if one != "'" and category(one)[0] not in "CZ"]
    is_formula = bool(drawn) and normalize("NFKC", drawn[0])[0] in "=+-@\u2212"
    return text[1:] if is_formula and text[0] == "'" else text


def by_csv(path: Path) -> Rows:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def by_lines(path: Path) -> Rows:
    """As a program does that splits the text at whatever Python knows as ends of lines."""
    return list(csv.DictReader(path.read_text("utf-8").splitlines(keepends=True)))


def by_pandas(path: Path) -> Rows:
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.to_numpy().tolist()]


def by_sqlite_utils(path: Path) -> Rows:
    with path.open("rb") as file:
        return [dict(row) for row in rows_from_file(file, Format.CSV)[0]]  # type: ignore[arg-type]


def by_sqlite(path: Path) -> Rows:
    done = subprocess.run(
        [require("sqlite3"), "-json", "-cmd", f".import --csv {path} t", ":memory:"],
        input="SELECT * FROM t;",
        capture_output=True,
        text=True,
        check=True,
    )
    rows: Rows = json.loads(done.stdout or "[]")
    return rows


READERS: Final[tuple[Callable[[Path], Rows], ...]] = (
    *(by_csv, by_lines, by_pandas, by_sqlite_utils, by_sqlite),
)


def said(*words: object) -> str:
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace whose kernels and ranges have the hostile names."""
    folder = tmp_path_factory.mktemp("csv")
    events: list[dict[str, Any]] = []
    for at, name in enumerate(hostile_names()):
        place = {"ph": "X", "ts": 100 * at + 1, "pid": 1, "tid": 1, "args": {}}
        about = {"device": 0, "stream": 7, "correlation": at + 1}
        events += [
            {**place, "cat": "user_annotation", "name": name, "dur": 90},
            {**place, "cat": "kernel", "name": name, "dur": 80, "pid": 0, "tid": 7, "args": about},
        ]
    device = {"id": 0, "name": "GPU", "totalGlobalMem": 1}
    head = {"schemaVersion": 1, "deviceProperties": [device]}
    (folder / "run.json").write_text(json.dumps({**head, "traceEvents": events}))
    store = Store(folder / "runs.db")
    for at, name in enumerate(hostile_names()[::5]):
        labels = {"network": name.encode("utf-8", "replace").decode()}
        store.add(make_summary(f"run-{at}", labels=labels))
    for event in events:
        event["dur"] -= 7
    (folder / "other.json").write_text(json.dumps({**head, "traceEvents": events}))
    said("runs", "add", folder / "run.json", "--name", "kept", "--db", folder / "kept.db")
    return folder / "run.json"


@pytest.mark.parametrize("read", READERS)
def test_hostile_texts_are_read_back_exactly(read: Callable[[Path], Rows], tmp_path: Path) -> None:
    names = hostile_names()
    path = tmp_path / "names.csv"
    rows = [(at, name, names[-at - 1]) for at, name in enumerate(names)]
    path.write_text(csv_lines([("at", "name", "other"), *rows]), "utf-8", newline="")
    found = read(path)
    assert [restored(row["name"]) for row in found] == list(names)
    assert [restored(row["other"]) for row in found] == list(names[::-1])
    assert [row["at"] for row in found] == [str(at) for at in range(N_NAMES)]


def shown(document: Any, table: str) -> Rows:
    """Return the rows of a table of an answer in JSON, each value as the text of a cell."""
    (found,) = (
        one["tables"][table] for one in document["results"].values() if table in one["tables"]
    )
    names = [column["name"] for column in found["columns"]]
    return [{name: text_of(row.get(name)) for name in names} for row in found["rows"]]


def text_of(value: Any) -> str:
    if isinstance(value, dict):
        return str(value["text"])
    if isinstance(value, list):
        return "; ".join(map(text_of, value))
    return "" if value is None else str(value)


def lines(text: str) -> Rows:
    rows = [json.loads(line) for line in text.splitlines()]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: text_of(row.get(name)) for name in names} for row in rows]


def by_query(text: str) -> Rows:
    return [{name: text_of(value) for name, value in row.items()} for row in json.loads(text)]


def rows_of(table: str) -> Callable[[str], Rows]:
    return lambda text: shown(json.loads(text), table)


SQL: Final = "SELECT name, start_ns FROM ranges"
PRINTED: Final[dict[str, tuple[str, str, Callable[[str], Rows]]]] = {
    **{one: (f"show {one} RUN", "", rows_of(one)) for one in ("kernels", "ranges", "gaps")},
    "ops": ("ops RUN --longest", "", lines),
    "query": ("query RUN SQL", "", by_query),
    "compare": ("compare RUN OTHER", "--table kernels", rows_of("kernels")),
    "runs list": ("runs list --column network --db DB", "", rows_of("runs")),
    "runs show": ("runs show kept --db KEPT -t kernels", "", rows_of("kernels")),
    "scaling": ("scaling label:network=* --db DB", "", rows_of("scaling")),
}
"""Commands that print a table, with what only its CSV takes, and how its rows are found in JSON."""
WRITTEN: Final[dict[str, tuple[str, str, str, Callable[[str], Rows]]]] = {
    "runs export": (
        "runs export kept --db KEPT --table kernels -o OUT.csv",
        "",
        "runs show kept --db KEPT -t kernels --json",
        rows_of("kernels"),
    ),
    "results": (
        "export RUN --to csv --results kernels -o OUT",
        "kernels.kernels.csv",
        "show kernels RUN --json",
        rows_of("kernels"),
    ),
    "a table": (
        "export RUN --to csv --tables ranges -o OUT.csv",
        "",
        "query RUN SQL --json",
        by_query,
    ),
    "all tables": (
        "export RUN --to csv -o OUT",
        "ranges.csv",
        "query RUN SQL --json",
        by_query,
    ),
    "ops": ("ops RUN -o OUT.csv", "", "ops RUN --json", lines),
}
"""Commands that write a table, which file it is, and the command that has the same in JSON."""


def asked(words: str, run: Path, out: Path) -> str:
    """Return what the command of ``words`` prints."""
    places = {"RUN": run, "OTHER": run.with_name("other.json"), "SQL": SQL, "OUT": out}
    places |= {
        "OUT.csv": out.with_suffix(".csv"),
        "DB": run.with_name("runs.db"),
        "KEPT": run.with_name("kept.db"),
    }
    return said(*(places.get(word, word) for word in words.split()))


def check_rows(path: Path, wanted: Rows) -> None:
    assert len(wanted) >= N_NAMES // 5
    for read in READERS:
        found = read(path)
        told = [{column: restored(row[column]) for column in wanted[0]} for row in found]
        assert told == wanted, read


@pytest.mark.parametrize("name", PRINTED)
def test_each_command_prints_the_rows_of_its_json(name: str, run: Path, tmp_path: Path) -> None:
    command, of_csv, find = PRINTED[name]
    path = tmp_path / "printed.csv"
    path.write_text(asked(f"{command} {of_csv} --csv", run, path), "utf-8", newline="")
    check_rows(path, find(asked(f"{command} --json", run, path)))


@pytest.mark.parametrize("name", WRITTEN)
def test_each_command_writes_the_rows_of_the_json(name: str, run: Path, tmp_path: Path) -> None:
    command, file, in_json, find = WRITTEN[name]
    out = tmp_path / "out"
    asked(command, run, out)
    check_rows(out / file if file else out.with_suffix(".csv"), find(asked(in_json, run, out)))


@pytest.mark.parametrize("name", ["csv-cr-injection.sqlite", "csv-cr-range.sqlite"])
@pytest.mark.parametrize("command", ["show kernels", "show ranges", "ops", "query"])
def test_a_carriage_return_begins_no_row(command: str, name: str, tmp_path: Path) -> None:
    if not CORPUS.is_dir():
        pytest.skip("there is no corpus on this machine")
    sql = ["SELECT name FROM ranges"] if command == "query" else []
    path = tmp_path / "out.csv"
    path.write_text(said(*command.split(), CORPUS / name, *sql, "--csv"), "utf-8", newline="")
    head, *rows = csv.reader(path.read_text("utf-8").splitlines(keepends=True))
    assert {len(row) for row in rows} == {len(head)}
    assert not [cell for row in rows for cell in row if cell.strip()[:1] in tuple("=+-@")]


def test_names_of_columns_are_cells(run: Path) -> None:
    text = said("query", run, 'SELECT 1 AS "=1+1", 2 AS "a\rb"', "--csv")
    assert text == "'=1+1,a\\u000db\n1,2\n"


def test_a_row_of_one_unknown_value_is_a_row() -> None:
    assert csv_lines([["name"], [None], ["a"]]) == 'name\n""\na\n'
