"""`traceprof compare` as a user meets it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import traceprof as tp
from tests.comparison.generated import KERNELS, MS, Program
from traceprof.cli import app
from traceprof.errors import UsageError
from traceprof.formats.nsys.writer import write_nsys


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """Two runs of nine steps of 100 ms, of which the second has kernels that take 10% longer."""
    paths = tmp_path / "base.sqlite", tmp_path / "new.sqlite"
    write_nsys(Program(n_steps=9).trace(), paths[0])
    longer = {name: round(1.1 * ns) for name, ns in KERNELS.items()}
    write_nsys(Program(kernels=longer, idle_ns=4 * MS, n_steps=9).trace(), paths[1])
    return str(paths[0]), str(paths[1])


def said(*arguments: str, code: int = 0, command: str = "compare") -> str:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, [command, *arguments])
    assert done.exit_code == code, done.output + done.stderr
    return done.stdout if code in (0, 6) else done.stderr


def test_it_answers_in_80_columns(pair: tuple[str, str]) -> None:
    text = said(*pair)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("new compared with base\n")
    assert "compute" in text
    assert "+9.600 ms" in text


def test_json_holds_all_and_the_causes_add_up(pair: tuple[str, str]) -> None:
    found = json.loads(said(*pair, "--json"))
    assert found["schema"] == "traceprof.comparison/1"
    difference = found["results"]["difference"]
    causes = difference["tables"]["causes"]["rows"]
    whole = difference["scalars"]["difference_ns"]["value"]
    assert sum(row["difference_ns"] for row in causes) == whole
    assert {"judged", "kernels", "measures", "steps"} <= set(found["results"])


def test_csv_is_one_table(pair: tuple[str, str]) -> None:
    rows = list(csv.DictReader(io.StringIO(said(*pair, "--csv", "--table", "parts"))))
    assert [row["part"] for row in rows][-1] == "idle"
    (judged, *_) = csv.DictReader(io.StringIO(said(*pair, "--csv")))
    assert judged["measure"]
    assert "unknown table" in said(*pair, "--csv", "--table", "nothing", code=2)
    assert "--csv" in said(*pair, "--table", "parts", code=2)


def test_markdown_is_short_enough_for_a_pull_request(pair: tuple[str, str]) -> None:
    text = said(*pair, "--markdown", "--rows", "3")
    assert text.startswith("# new compared with base\n")
    assert len(text) < 8_000
    assert "| part |" in text


def test_the_page_holds_its_charts_and_loads_nothing(pair: tuple[str, str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    said(*pair, "-o", str(page))
    html = page.read_text("utf-8")
    assert html.count("<svg") == 2
    assert "Step time changes from base to new" in html
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", html)
    assert "exists" in said(*pair, "-o", str(page), code=2)
    said(*pair, "--html", str(page), "--force")


def test_a_regression_beyond_the_limit_exits_with_6(pair: tuple[str, str]) -> None:
    base, new = pair
    done = CliRunner().invoke(app, ["compare", base, new, "--max-regression", "5%"])
    assert done.exit_code == 6
    assert "regression in new compared with base: " in done.stderr
    assert "worse (limit 5.0%)" in done.stderr
    assert "Regression limits" in done.stdout
    said(base, new, "--max-regression", "90%")
    said(new, base, "--max-regression", "5%")
    assert "invalid limit" in said(base, new, "--max-regression", "much", code=2)


def test_a_limit_that_cannot_be_checked_exits_with_7(tmp_path: Path) -> None:
    for name, idle_ns in (("base", 4_000_000), ("new", 4_100_000)):
        write_nsys(Program(n_steps=4, idle_ns=idle_ns).trace(), tmp_path / f"{name}.sqlite")
    files = [str(tmp_path / f"{name}.sqlite") for name in ("base", "new")]
    done = CliRunner().invoke(app, ["compare", *files, "--max-regression", "5%"])
    assert done.exit_code == 7
    assert "not enough data to check the limit for new compared with base: " in done.stderr


def test_several_runs_of_each_stand_on_either_side_of_vs(pair: tuple[str, str]) -> None:
    base, new = pair
    text = said(base, base, "vs", new, new)
    assert text.startswith("new, new compared with base, base\n")
    assert "traceprof compares runs: geometric means of the medians of 2 and 2 runs" in " ".join(
        text.split()
    )
    for wrong in ((base,), (base, new, new), ("vs", new), (base, "vs")):
        assert "BASE and NEW" in said(*wrong, code=2)


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        write_nsys(Program(n_steps=5).trace(), tmp_path / folder / "trace.sqlite")
    text = said(*(str(tmp_path / folder / "trace.sqlite") for folder in ("old", "new")))
    assert text.startswith("new/trace compared with old/trace\n")


def test_what_is_no_run_is_said(pair: tuple[str, str], tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.sqlite"
    assert "nothing" in said(pair[0], str(nothing), code=3)


def test_a_report_of_two_runs_is_their_comparison(pair: tuple[str, str], tmp_path: Path) -> None:
    page = tmp_path / "two.html"
    said(*pair, "-o", str(page), command="report")
    assert "Step time changes from base to new" in page.read_text("utf-8")


def test_the_same_in_python(pair: tuple[str, str]) -> None:
    found = tp.compare(*pair, max_regression="5%")
    assert found.to_frame("limits")["is_exceeded"].tolist() == [True]
    assert found.to_frame("parts")["difference_ns"].sum() > 0
    assert "<traceprof comparison new compared with base: " in repr(found)
    assert "new compared with base" in found._repr_html_()
    assert any("longer" in text for text in found.sentences)
    with pytest.raises(UsageError, match="unknown table 'nothing'"):
        found.to_frame("nothing")
    with pytest.raises(UsageError):
        tp.compare(*pair, max_regression="x")


def test_runs_that_are_kept_are_compared_as_their_traces_are(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    db = str(tmp_path / "runs.db")
    for path in pair:
        done = CliRunner().invoke(app, ["runs", "add", path, "--db", db])
        assert done.exit_code == 0, done.stderr
    assert said("base", "new", "--db", db, "--json") == said(*pair, "--json")
