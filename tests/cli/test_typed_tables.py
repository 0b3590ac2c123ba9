"""Tables that people typed: kept in the database of runs, found there, and printed as they were."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.logs.reading import shared
from traceprof.cli import app
from traceprof.store import VARIABLE

EXPERIMENTS = """Description,Storage options,workload,Cluster,#of servers,Expected results
"1 Node, 1GPU",COS w S3FS,TF1.4+ResNet50,Cruiser10,1,Scale as good as local disk
"1 Node, 2GPU",NFS,DDL+TF1.4,Cruiser10,1,Scale as good as local disk
"1 Node, 4GPU",COS native,DDL+TF1.4,Cruiser5,1,"<b>better</b> | faster, see https://a.example/x_y"
"""


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "runs.db"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def traceprof(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["runs", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "experiments.csv"
    path.write_text(EXPERIMENTS)
    traceprof("add", path)
    return path


def rows_of(markdown: str) -> list[list[str]]:
    """Return the cells of the tables in a text, without the rules."""
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    lines = [line.replace(r"\|", "¦") for line in lines if not line.startswith("| :--")]
    return [[cell.strip().replace("¦", "|") for cell in line[1:-1].split("|")] for line in lines]


def test_records_without_a_rate_are_found_by_what_they_say(kept: Path) -> None:
    listed = traceprof("list", "-l", "storage=COS*", "-c", "storage", "-c", "#of servers",
                       "--markdown")  # fmt: skip
    rows = rows_of(listed)
    assert rows[0][:3] == ["name", "storage", r"\#of servers"]
    assert [row[:3] for row in rows[1:]] == [
        ["experiments:1", "COS w S3FS", "1"],
        ["experiments:3", "COS native", "1"],
    ]
    assert not rows_of(traceprof("list", "-l", "storage=COS", "--markdown"))


def test_runs_are_sorted_by_labels(kept: Path) -> None:
    rows = rows_of(traceprof("list", "--sort", "storage", "--markdown"))
    assert [row[1] for row in rows[1:]] == ["COS native", "COS w S3FS", "NFS"]
    rows = rows_of(traceprof("list", "--sort", "storage", "--reverse", "--markdown"))
    assert [row[1] for row in rows[1:]] == ["NFS", "COS w S3FS", "COS native"]


def test_a_label_that_no_run_has_is_refused(kept: Path) -> None:
    done = CliRunner().invoke(app, ["runs", "list", "-c", "color"])
    assert done.exit_code == 2 and "color" in done.output


def test_nothing_that_was_typed_is_interpreted(kept: Path) -> None:
    shown = traceprof("list", "--as-typed", "--markdown")
    assert r"\<b\>better\</b\> \| faster" in shown


@pytest.mark.parametrize("name", ["real2", "syn", "pipe2", "acc", "exp", "su", "real"])
def test_tables_come_out_as_they_went_in(name: str) -> None:
    path = shared(f"tables/{name}.csv")
    traceprof("add", path)
    with path.open(newline="") as file:
        typed = [[cell.strip() for cell in row] for row in csv.reader(file)]
    assert rows_of(traceprof("list", "--as-typed", "--markdown", "-n", 1000)) == typed


def test_markdown_goes_in_and_comes_out_the_same(tmp_path: Path) -> None:
    text = "| GPUs | rate | note |\n| :--- | :--- | :--- |\n| 6 | 4.487x | [log](a_b.txt) \\| x |"
    (path := tmp_path / "notes.md").write_text(f"# Speed-ups\n\n{text}\n")
    traceprof("add", path)
    shown = traceprof("list", "--as-typed", "--markdown")
    assert text in shown and "## Speed-ups" in shown
    path.write_text(shown)
    traceprof("add", "--force", path)
    assert traceprof("list", "--as-typed", "--markdown") == shown


def test_runs_that_were_not_typed_have_no_such_table(tmp_path: Path) -> None:
    (path := tmp_path / "a.log").write_text("iter 0: loss 1.0, time 5.00ms\n")
    traceprof("import-log", path)
    done = CliRunner().invoke(app, ["runs", "list", "--as-typed"])
    assert done.exit_code == 2 and "entered in a table" in done.output
