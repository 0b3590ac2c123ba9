"""`traceprof explain` as a user meets it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from tests.comparison.explaining.planted import MS, Loop
from tests.requirements import ROOT
from traceprof.cli import app
from traceprof.formats.nsys.writer import write_nsys

SCHEMA = json.loads((ROOT / "docs" / "schema" / "analysis-2.json").read_text("utf-8"))


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "trace.sqlite"
    write_nsys(Loop(longer_ns=2 * MS).trace(), path)
    return str(path)


def said(*arguments: str, code: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["explain", *arguments])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def test_it_prints_a_waterfall_of_80_columns(path: str) -> None:
    lines = said(path, "step:3").splitlines()
    assert max(map(len, lines)) <= 80
    assert "step 3 is 2.00 ms longer than step 1" in lines
    start = next(i for i, line in enumerate(lines) if line.startswith("compute"))
    assert lines[start].split()[1:] == ["6.000", "ms", "4.000", "ms", "+2.000", "ms", "█" * 10]
    assert lines[start + 1].split()[:2] == ["gemm", "×1"]
    assert lines[start + 2].split()[:2] == ["other", "(1)"]
    assert "step 1 has the median length of 4 other usual steps." in lines[-1]


def test_json_holds_all_and_follows_the_schema(path: str) -> None:
    found = json.loads(said(path, "step:3", "--against", "step:2", "--json"))
    jsonschema.validate(found, SCHEMA)
    result = found["results"]["explain"]
    rows = result["tables"]["causes"]["rows"]
    assert rows[0]["key"] == "part=compute kind=kernel name=gemm"
    scalars = {name: scalar["value"] for name, scalar in result["scalars"].items()}
    assert sum(row["difference_ns"] for row in rows) == scalars["difference_ns"] == 2 * MS
    assert scalars["reference"] == "step 2"
    assert rows[0]["explained_bytes"] is None


def test_csv_and_markdown_have_the_causes(path: str) -> None:
    rows = list(csv.DictReader(io.StringIO(said(path, "slowest", "--csv"))))
    assert (rows[0]["name"], rows[0]["difference_ns"]) == ("gemm", "2000000")
    assert "| compute | kernel | gemm | 2.000 ms |" in said(path, "step:3", "--markdown")


def test_mistakes_are_told_in_a_line(path: str) -> None:
    assert "choose a reference window" in said(path, "10ms..20ms", code=2)
    assert "no step 99: " in said(path, "step:99", code=2)
