"""``traceprof ops``: every operation as text, CSV, JSON lines, and command lines of ncu."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.builders import TraceBuilder
from traceprof.cli import app
from traceprof.formats.nsys.writer import write_nsys

SHAPE = {
    "grid_x": 1000,
    "grid_y": 2,
    "grid_z": 1,
    "block_x": 128,
    "block_y": 1,
    "block_z": 1,
    "registers": 40,
    "static_shared_bytes": 0,
    "dynamic_shared_bytes": 2048,
    "shared_bytes": 2048,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    trace = (
        TraceBuilder()
        .device(0, "NVIDIA A100-SXM4-80GB", compute_capability=80, sm_count=108)
        .kernel("void ns::gemm<float>(int)", 1_000, 5_000, correlation=3, shape=SHAPE)
        .kernel("=cmd|calc", 6_000, 6_500, correlation=4, shape=SHAPE)
        .kernel("void ns::gemm<half>(int)", 7_000, 8_000, correlation=5, shape=SHAPE)
        .copy("h2d", 8_000, 9_000, n_bytes=4096, src_kind="pinned", dst_kind="device")
        .setting("command", "python train.py")
    )
    target = tmp_path / "trace.sqlite"
    write_nsys(trace.build(), target)
    return target


def ops(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["ops", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def test_operations_are_listed_with_how_they_were_launched(path: Path) -> None:
    lines = ops(path).splitlines()
    assert len(lines) == 5
    assert "(1000 2 1)" in lines[1]
    assert "0 B+2.048 kB" in lines[1]
    assert "75.0%" in lines[1]
    assert lines[1].endswith("void ns::gemm<float>(int)")
    assert "4.096 GB/s" in lines[4]


def test_csv_holds_no_formula_and_nothing_where_nothing_is_known(path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(ops(path, "--csv"))))
    assert [row["name"] for row in rows][1] == "'=cmd|calc"
    assert rows[0]["grid_y"] == "2"
    assert rows[3]["grid_y"] == ""
    assert rows[3]["n_bytes"] == "4096"


def test_json_is_an_object_a_line(path: Path) -> None:
    first, *_ = map(json.loads, ops(path, "--json", "--longest").splitlines())
    assert first["at_ns"] == 0
    assert first["duration_ns"] == 4_000
    assert first["registers"] == 40
    assert first["occupancy_ratio"] == 0.75
    assert "n_bytes" not in first


def test_the_longest_say_what_launched_them(tmp_path: Path) -> None:
    builder = TraceBuilder().range("forward", 0, 100)
    builder.kernel("gemm", 200, 900, launched_ns=(10, 20)).kernel("add", 950, 960)
    write_nsys(builder.build(), tmp_path / "t.sqlite")
    head, first, second = ops(tmp_path / "t.sqlite", "--longest").splitlines()
    assert "launched in" in head
    assert first.split()[-2:] == ["forward", "gemm"]
    assert "forward" not in second
    (told, _) = map(json.loads, ops(tmp_path / "t.sqlite", "--longest", "--json").splitlines())
    assert told["range"] == "forward"
    assert "launched in" not in ops(tmp_path / "t.sqlite")


def test_only_what_is_asked_for(path: Path) -> None:
    assert len(ops(path, "--name", "gemm", "--longer", "2us").splitlines()) == 2
    assert len(ops(path, "--kind", "copy", "--json").splitlines()) == 1
    assert ops(path, "--device", "3") == ""


def test_ncu_profiles_the_launch_again(path: Path) -> None:
    lines = ops(path, "--ncu", "--name", "gemm").splitlines()
    assert [line for line in lines if line.startswith("ncu")] == [
        f"ncu --target-processes all --kernel-name gemm --launch-skip {skip} --launch-count 1 "
        "-- python train.py"
        for skip in (0, 1)
    ]


def test_launches_before_the_window_count_too(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number in range(100):
        builder.kernel("gemm", number * 1000, number * 1000 + 10, correlation=number + 1)
    write_nsys(builder.build(), tmp_path / "t.sqlite")
    (line,) = ops(tmp_path / "t.sqlite", "--ncu", "-w", "90us..90500ns").splitlines()[2:]
    assert "--launch-skip 90 " in line


def test_they_are_written_to_a_file_once(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "ops.csv"
    ops(path, "--csv", "-o", target)
    assert len(target.read_text().splitlines()) == 5
    assert "exists" in ops(path, "--csv", "-o", target, code=2)


def test_mistakes_are_one_line(path: Path) -> None:
    assert "cannot be combined: use only one" in ops(path, "--csv", "--json", code=2)
    assert "not a time" in ops(path, "--longer", "5", code=2)
    assert "such as 0,2..5" in ops(path, "--device", "a", code=2)
