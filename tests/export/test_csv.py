"""CSV of a trace: safe in a spreadsheet, nothing invented."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from traceprof.errors import UsageError
from traceprof.export import exporter_called
from traceprof.export.request import Request
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.ranks import Ranks
from traceprof.model.tables import TABLES
from traceprof.render.tables_text import csv_cell
from traceprof.session.run import open_run, run_of

FORMULA = '=HYPERLINK("http://x","a, b")'


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    builder = TraceBuilder().range(FORMULA, 0, 100).range("two\nlines \x1b[31m", 10, 20)
    builder.kernel("gemm", 120, 180, launched_ns=(10, 15)).kernel("gelu", 190, 200)
    write_nsys(builder.build(), tmp_path / "t.sqlite")
    return tmp_path / "t.sqlite"


def export(path: Path, output: Path, tables: list[str] | None = None) -> None:
    exporter_called("csv").load()(open_run([path]), Request(output, tables))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_table_is_a_file_with_its_columns(trace: Path, tmp_path: Path) -> None:
    export(trace, tmp_path / "out")
    for name, table in TABLES.items():
        with (tmp_path / "out" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            assert next(csv.reader(file)) == list(table.columns)
    assert [row["start_ns"] for row in rows(tmp_path / "out" / "kernels.csv")] == ["120", "190"]


def test_what_is_not_known_is_empty(trace: Path, tmp_path: Path) -> None:
    export(trace, tmp_path / "kernels.csv", ["kernels"])
    assert [row["correlation"] for row in rows(tmp_path / "kernels.csv")] == ["1", ""]


def test_no_cell_is_a_formula_or_obeyed_by_a_terminal(trace: Path, tmp_path: Path) -> None:
    export(trace, tmp_path / "ranges.csv", ["ranges"])
    names = [row["name"] for row in rows(tmp_path / "ranges.csv")]
    assert names == [f"'{FORMULA}", "two\nlines \\u001b[31m"]


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", " =1", "\t=1", "\n@a", "'=1", "''@a"])
def test_what_may_be_a_formula_gets_a_quote(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "gemm", "a=1", "1-2", "'a'", "C:\\users"])
def test_other_texts_stay(text: str) -> None:
    assert csv_cell(text) == text


def test_one_table_is_a_file_that_is_not_replaced(trace: Path, tmp_path: Path) -> None:
    export(trace, tmp_path / "kernels.csv", ["kernels"])
    with pytest.raises(UsageError, match="exists"):
        export(trace, tmp_path / "kernels.csv", ["kernels"])


def test_csv_needs_no_optional_library(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("pyarrow", "traceprof.export."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="needs pyarrow"):
        exporter_called("parquet").load()
    export(trace, tmp_path / "kernels.csv", ["kernels"])
    assert [row["name"] for row in rows(tmp_path / "kernels.csv")] == ["gemm", "gelu"]
    exporter_called("csv").load()(
        open_run([trace]), Request(tmp_path / "results", results=("kernels",))
    )
    (row, _) = rows(tmp_path / "results" / "kernels.kernels.csv")
    assert (row["name"], row["total_ns"]) == ("gemm", "60")


def test_all_kinds_of_values_are_written_exactly(tmp_path: Path) -> None:
    builder = TraceBuilder().sample("util", 5, 0.1).sample("util", 2**53 + 1, float("nan"))
    run = run_of(Ranks.of(builder.mark("a\rb\ud800", 7).build()))
    exporter_called("csv").load()(run, Request(tmp_path / "out"))
    assert (tmp_path / "out" / "samples.csv").read_text() == (
        f"start_ns,source,metric,value\n5,gpu 0,util,0.1\n{2**53 + 1},gpu 0,util,\n"
    )
    (mark,) = rows(tmp_path / "out" / "marks.csv")
    assert mark["name"] == "a\\u000db\\ud800"
