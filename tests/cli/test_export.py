"""`traceprof export` as a user meets it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from tests.builders import TraceBuilder
from traceprof.cli import app
from traceprof.export import EXPORTERS
from traceprof.formats.nsys.writer import write_nsys

SECRET = "hunter2-and-more"
MS = 1_000_000


def export(*arguments: object, code: int = 0) -> Result:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["export", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a trace whose environment, arguments, names and texts tell a secret."""
    builder = TraceBuilder()
    for step in range(4):
        start = step * 10 * MS
        builder.range(f"step {step}", start, start + 9 * MS)
        builder.kernel("gemm", start + MS, start + 8 * MS, launched_ns=(start, start + 10))
    builder.range(f"login {SECRET}", 0, 5).kernel(f"k_{SECRET}", 5, 10)
    builder.process(1, name=f"python --password={SECRET}", rank=0, world_size=1)
    path = tmp_path / "t.sqlite"
    write_nsys(builder.build(), path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS META_DATA_CAPTURE (name TEXT, value TEXT)")
        connection.executemany(
            "INSERT INTO META_DATA_CAPTURE VALUES (?, ?)",
            [("PROCESS_0:ENVIRONMENT_VARIABLE", f"API_KEY={SECRET}")],
        )
    return path


def everything_in(output: Path) -> bytes:
    if output.is_dir():
        return b"".join(path.read_bytes() for path in output.rglob("*") if path.is_file())
    return output.read_bytes()


@pytest.mark.parametrize("to", [one.name for one in EXPORTERS])
def test_every_form_is_written_without_the_secret(to: str, trace: Path, tmp_path: Path) -> None:
    done = export(trace, "--to", to, "-o", tmp_path / "out")
    assert f"wrote {tmp_path / 'out'}" in done.output.replace("\n", "")
    written = everything_in(tmp_path / "out")
    assert written
    assert SECRET.encode() not in unpacked(tmp_path / "out")


def unpacked(output: Path) -> bytes:
    """Return what is written, of Parquet and Arrow what a reader finds in it."""

    found = everything_in(output)
    for path in output.rglob("*"):
        if path.suffix == ".parquet":
            found += repr(pq.read_table(path).to_pydict()).encode()
        elif path.suffix == ".arrow":
            found += repr(pa.ipc.open_file(path).read_all().to_pydict()).encode()
    return found


def test_gauges_of_names_are_without_the_secret(trace: Path, tmp_path: Path) -> None:
    arguments = ("--to", "openmetrics", "--results", "kernels,ranges", "-w", "all")
    export(trace, *arguments, "-o", tmp_path / "out")
    text = (tmp_path / "out").read_text("utf-8")
    assert 'name="k_' in text
    assert SECRET not in text
    export(trace, *arguments, "-o", tmp_path / "kept", "--keep-secrets")
    assert f'name="k_{SECRET}"' in (tmp_path / "kept").read_text("utf-8")


def test_secrets_are_passed_on_where_they_are_asked_for(trace: Path, tmp_path: Path) -> None:
    export(trace, "--to", "csv", "-o", tmp_path / "out", "--keep-secrets")
    assert f"k_{SECRET}".encode() in everything_in(tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--to", "pdf"], "--to pdf: choose one of"),
        (["--to", "csv", "--tables", "kernel"], "unknown table kernel; choose kernels"),
        (["--to", "parquet", "--results", "kernel"], "unknown analysis kernel"),
        (
            ["--to", "tensorboard", "--results", "steps"],
            "--results does not work with --to tensorboard",
        ),
        (["--to", "parquet", "-w", "step:99"], "step"),
        (["--to", "parquet", "--ranks", "x"], "expected numbers"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    arguments: list[str], told: str, trace: Path, tmp_path: Path
) -> None:
    done = export(trace, "-o", tmp_path / "out", *arguments, code=2)
    assert told in done.output
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".traceprof*"))


def test_a_folder_that_is_there_is_never_replaced(trace: Path, tmp_path: Path) -> None:
    export(trace, "--to", "parquet", "-o", tmp_path / "out")
    done = export(trace, "--to", "parquet", "-o", tmp_path / "out", "--force", code=2)
    assert "traceprof never replaces a folder" in done.output
