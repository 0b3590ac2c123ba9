"""`traceprof query` as a user meets it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import traceprof as tp
from tests.builders import TraceBuilder
from traceprof.cli import app
from traceprof.formats.nsys.writer import write_nsys
from traceprof.session.querying import views

FORMULA = '=HYPERLINK("http://x")'
LONG = "a" * 200
ALL = "SELECT name, duration_ns, graph_node FROM kernels ORDER BY start_ns"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    builder = TraceBuilder().kernel(FORMULA, 0, 10).kernel("b|\x1b[31m", 20, 25)
    write_nsys(builder.kernel(LONG, 30, 31).build(), tmp_path / "t.sqlite")
    return tmp_path / "t.sqlite"


def query(*arguments: object, code: int = 0, text: str = "") -> Result:
    runner = CliRunner(env={"COLUMNS": "80"})
    done = runner.invoke(app, ["query", *map(str, arguments)], input=text)
    assert done.exit_code == code, done.output
    return done


def test_text_fits_the_terminal_and_unknown_is_a_dash(trace: Path) -> None:
    lines = query(trace, ALL).stdout.splitlines()
    assert lines[0].split() == ["name", "duration_ns", "graph_node"]
    assert lines[2].split() == [*FORMULA.split(), "10", "–"]
    assert max(map(len, lines)) == 80
    assert "…" in lines[4]
    assert "\x1b" not in "".join(lines)


def test_csv_has_whole_names_and_no_formula(trace: Path) -> None:
    rows = list(csv.reader(query(trace, ALL, "--csv").stdout.splitlines()))
    assert rows[0] == ["name", "duration_ns", "graph_node"]
    assert rows[1] == [f"'{FORMULA}", "10", ""]
    assert rows[3] == [LONG, "1", ""]


def test_json_is_a_list_of_objects(trace: Path) -> None:
    rows = json.loads(query(trace, ALL, "--json").stdout)
    assert rows[0] == {"name": FORMULA, "duration_ns": 10, "graph_node": None}
    assert json.loads(query(trace, "SELECT 1e999 AS a, x'ff' AS b", "--json").stdout) == [
        {"a": None, "b": "x'ff'"}
    ]
    assert json.loads(query(trace, f"{ALL} LIMIT 0", "--json").stdout) == []


def test_markdown_interprets_nothing(trace: Path) -> None:
    lines = query(trace, ALL, "--markdown").stdout.splitlines()
    assert lines[1] == "| :--- | ---: | ---: |"
    assert lines[3].startswith(r"| b\|")


def test_a_query_may_be_longer_than_a_file_name(trace: Path) -> None:
    done = query(trace, f"{ALL} -- {'long ' * 100}", "--csv")
    assert len(done.stdout.splitlines()) == 4


def test_no_rows_are_said(trace: Path) -> None:
    assert query(trace, f"{ALL} LIMIT 0").stdout == "no rows\n"


def test_what_is_cut_is_said(trace: Path) -> None:
    done = query(trace, ALL, "--rows", "2", "--csv")
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == "traceprof: printed only the first 2 rows; use --rows N to print more\n"


def test_what_was_not_recorded_is_said(trace: Path) -> None:
    done = query(trace, "SELECT count(*) AS n FROM ranges", "--csv", code=4)
    assert done.stdout == ""
    assert "no ranges recorded" in done.stderr
    both = query(trace, "SELECT count(*) AS n FROM ranges, kernels", "--csv")
    assert both.stdout == "n\n0\n"
    assert "no ranges recorded" in both.stderr


def test_the_query_comes_from_standard_input_and_goes_to_a_file(
    trace: Path, tmp_path: Path
) -> None:
    query(trace, "-", "--csv", "-o", tmp_path / "out.csv", text="SELECT count(*) AS n FROM kernels")
    assert (tmp_path / "out.csv").read_text("utf-8") == "n\n3\n"
    again = query(trace, "SELECT 1", "-o", tmp_path / "out.csv", code=2)
    assert "--force" in again.stderr


def test_the_schema_names_every_view_and_column() -> None:
    printed = query("--schema").stdout
    for view in views():
        assert f"\n{view.name}: " in f"\n{printed}"
        for name in view.names:
            assert f"\n  {name} " in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "missing TRACE or SQL"),
        (("{0}",), "missing TRACE or SQL"),
        (("{0}", "SELECT nope FROM kernels"), "no such column: nope (use --schema"),
        (("{0}", "ATTACH 'x' AS y"), "ATTACH is not allowed"),
        (("{0}", "SELECT 1", "--timeout", "soon"), "is not a time"),
        (("{0}", "SELECT 1", "--csv", "--json"), "cannot be combined: use only one"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, ...], said: str, trace: Path) -> None:
    done = query(*(one.replace("{0}", str(trace)) for one in arguments), code=2)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_python_gets_a_frame(trace: Path) -> None:
    frame = tp.open(trace).query(ALL, rows=2)
    assert frame["duration_ns"].tolist() == [10, 5]
    assert frame.attrs == {"is_cut": True, "remarks": []}
