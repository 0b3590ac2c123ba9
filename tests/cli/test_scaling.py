"""`traceprof scaling` and `traceprof nodes` as a user meets them."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import traceprof as tp
from tests.builders import TraceBuilder
from traceprof.cli import app
from traceprof.formats.nsys.writer import write_nsys

TABLE = """\
model,gpus,images_per_s,network,printed_efficiency_percent
resnet50,1,226,,100
resnet50,2,426,,95
resnet50,4,704,calico,77
resnet50,8,1368,calico,76
resnet50,16,2576,calico,71
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "rates.csv"
    path.write_text(TABLE, "utf-8")
    return str(path)


def said(*arguments: str, code: int = 0, width: int = 80) -> str:
    done = CliRunner(env={"COLUMNS": str(width)}).invoke(app, arguments)
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def test_a_table_of_rates_becomes_efficiencies(table: str) -> None:
    lines = said("scaling", table).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "5 runs on 1, 2, 4, 8, 16 GPUs"
    rows = [re.search(r"^ +(\d+) .* ([\d.]+)%  █", line) for line in lines]
    found = [match.groups() for match in rows if match]
    assert [size for size, _ in found] == ["1", "2", "4", "8", "16"]
    assert [ratio for _, ratio in found] == ["100.0", "94.2", "77.9", "75.7", "71.2"]
    assert "input file: 95% (not from rates)" in said("scaling", table, width=110)
    assert "input file: 77% (truncated)" in said("scaling", table, width=110)


def test_csv_and_json_hold_all(table: str) -> None:
    rows = list(csv.DictReader(io.StringIO(said("scaling", table, "--csv", "--base", "2"))))
    assert [row["base_count"] for row in rows] == ["2.0"] * 5
    assert float(rows[-1]["efficiency_ratio"]) == pytest.approx(2576 / 16 / 213)
    found = json.loads(said("scaling", table, "--json"))
    tables = found["results"]["scaling"]["tables"]
    assert tables["scaling"]["rows"][1]["printed_is"] == "does not follow from the rates"
    assert len(tables["runs"]["rows"]) == 5


def test_the_same_from_python(table: str) -> None:
    found = tp.scaling(table)
    assert found.to_frame("scaling")["efficiency_ratio"].iloc[-1] == pytest.approx(0.7124, abs=1e-4)
    assert "71.2% scaling efficiency on 16 GPUs" in found.sentences[0]
    assert "efficiency" in found._repr_html_()


def test_a_page_has_the_chart_and_runs_nothing(table: str, tmp_path: Path) -> None:
    page = tmp_path / "scaling.html"
    said("scaling", table, "-o", str(page))
    text = page.read_text("utf-8")
    assert 'class="ideal"' in text
    assert text.count("<circle") == 5
    assert "<script" not in text
    assert "exists" in said("scaling", table, "-o", str(page), code=2)


def test_a_size_that_is_not_known_is_said(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("model,images_per_s\na,3\n", "utf-8")
    assert "label gpus=8" in said("scaling", str(path), code=4)


def forward(path: Path, length_ns: int) -> str:
    builder = TraceBuilder()
    for step in range(6):
        start = 10 * length_ns * step
        builder.phase("data", start, start + length_ns)
        builder.phase("forward", start + length_ns, start + 3 * length_ns)
    write_nsys(builder.build(), path)
    return str(path)


def test_nodes_stand_beside_one_another(tmp_path: Path) -> None:
    paths = [forward(tmp_path / f"{name}.sqlite", ns) for name, ns in (("a", 1000), ("b", 3000))]
    lines = said("nodes", *paths).splitlines()
    assert max(map(len, lines)) <= 80
    rows = list(csv.DictReader(io.StringIO(said("nodes", *paths, "--csv"))))
    assert [(row["run"], row["mode"], row["ranks"]) for row in rows] == [
        ("a", "forward", "one"),
        ("b", "forward", "one"),
    ]
    assert [float(row["forward_ns"]) for row in rows] == [2000, 6000]
