"""A secret, planted wherever a format has a place for one, is in no byte of what is passed on."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.builders import TraceBuilder
from tests.formats.kineto_file import complete, kernel
from tests.formats.kineto_file import write as write_kineto
from tests.formats.nvprof_database import NvprofDatabase, object_id
from traceprof.cli import app
from traceprof.export import EXPORTERS
from traceprof.formats.nsys.writer import write_nsys
from traceprof.session.querying import views

SECRET: Final = "hunter2-and-more"
MS: Final = 1_000_000
MORE_OF_NSYS: Final = f"""
CREATE TABLE IF NOT EXISTS META_DATA_CAPTURE (name TEXT, value TEXT);
INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', 'API_KEY={SECRET}'),
    ('PROCESS_0:ARGUMENT_0', 'train.py'), ('PROCESS_0:ARGUMENT_1', '--password'),
    ('PROCESS_0:ARGUMENT_2', '{SECRET}'), ('PROCESS_0:COMMAND_LINE', 'train --token={SECRET}');
INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, 'a', 'DeviceEnvironment', 1, 'API_KEY={SECRET}'),
    (1, 'a', 'Hostname', 2, 'node --token={SECRET}');
CREATE TABLE ProcessStreams (globalPid INT, filenameId INT, contentId INT);
INSERT INTO ProcessStreams VALUES (1, 9001, 9002);
CREATE TABLE ANALYSIS_FILE (globalPid INT, filename TEXT, contentId INT);
INSERT INTO ANALYSIS_FILE VALUES (1, 'pip.conf', 9003);
CREATE TABLE DIAGNOSTIC_EVENT (timestamp INT, text TEXT, globalPid INT);
INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 'ran with {SECRET}', 1);
CREATE TABLE Unheard (start INT, what TEXT);
INSERT INTO Unheard VALUES (5, 'login --token={SECRET}');
UPDATE NVTX_EVENTS SET text = 'said {SECRET}', textId = NULL WHERE rowid % 2;
INSERT INTO StringIds VALUES (9001, 'stdout'), (9002, 'the program said {SECRET}'),
    (9003, 'token = {SECRET}');
"""
STRING_WITH_NULS: Final = f"A=1\0API_KEY={SECRET}\0"


def nsys(path: Path) -> Path:
    builder = TraceBuilder()
    for step in range(4):
        start = step * 10 * MS
        builder.range(f"step {step}", start, start + 9 * MS)
        builder.range(f"login {SECRET}", start, start + 5).mark(f"said {SECRET}", start + 6)
        builder.kernel(f"k_{SECRET}", start + MS, start + 8 * MS, launched_ns=(start, start + 10))
        builder.copy("h2d", start + 8 * MS, start + 9 * MS, n_bytes=8)
    builder.process(1, name=f"python --password={SECRET}", rank=0, world_size=1)
    builder.setting("command", f"python train.py --token={SECRET}").setting("API_KEY", SECRET)
    builder.device(0, "NVIDIA A100")
    write_nsys(builder.build(), path / "t.sqlite")
    with closing(sqlite3.connect(path / "t.sqlite")) as connection, connection:
        connection.executescript(MORE_OF_NSYS)
        connection.execute("INSERT INTO StringIds VALUES (9004, ?)", [STRING_WITH_NULS])
        connection.execute("INSERT INTO ProcessStreams VALUES (2, 9004, 9004)")
    return path / "t.sqlite"


def kineto(path: Path) -> Path:
    about = {"ph": "M", "pid": 1, "tid": 1, "args": {"name": f"x --token={SECRET}"}}
    events = [{"name": f"{one}_name", **about} for one in ("process", "thread")]
    events.append(complete("cpu_op", "aten::mm", 0, 40))
    events += [
        complete("cuda_runtime", "cudaLaunchKernel", 5, 8, args={"correlation": 1}),
        kernel("gemm", 10, 30, correlation=1),
        kernel(f"k_{SECRET}", 30, 40, correlation=1),
        complete("user_annotation", f"login {SECRET}", 0, 40, args={f"of {SECRET}": [SECRET]}),
    ]
    header = {
        "env": {"API_KEY": SECRET},
        "said": f"by {SECRET}",
        "command": f"train --api-key={SECRET}",
    }
    return write_kineto(path / "t.json", events, **header)


def nvprof(path: Path) -> Path:
    with NvprofDatabase(path / "t.nvprof") as file:
        times = {"start": 1_600_000_000_000_000_000, "end": 1_600_000_000_000_000_100}
        file.add("CONCURRENT_KERNEL", **times, correlationId=1, name=file.string("gemm"))
        file.add("RUNTIME", **times, cbid=211, processId=7, threadId=5, correlationId=1)
        name = file.string(f"main --token={SECRET}")
        for kind in (1, 2):
            file.add("NAME", objectKind=kind, objectId=object_id(7, 5), name=name)
    with closing(sqlite3.connect(path / "t.nvprof")) as connection, connection:
        connection.execute("CREATE TABLE Unheard (start INT, what TEXT)")
        connection.execute("INSERT INTO Unheard VALUES (5, ?)", [f"login --token={SECRET}"])
    return path / "t.nvprof"


def of_run(path: Path) -> Path:
    (path / "run").mkdir()
    nsys(path / "run")
    return path / "run"


FORMATS: Final = {"nsys": nsys, "kineto": kineto, "nvprof": nvprof, "run": of_run}


def run(*arguments: object) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, arguments)))
    assert done.exit_code in (0, 2, 4), done.output
    return done.output


def everything_in(path: Path) -> str:
    """Return all bytes under a path, and what readers find in files that are packed."""
    found = b""
    for file in [path, *path.rglob("*")]:
        if not file.is_file():
            continue
        found += gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        if file.suffix == ".parquet":
            found += repr(pq.read_table(file).to_pydict()).encode()
        elif file.suffix == ".arrow":
            found += repr(pa.ipc.open_file(file).read_all().to_pydict()).encode()
    return found.decode("utf-8", "replace")


@pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS)
def test_what_is_printed_has_no_secret(make: Callable[[Path], Path], tmp_path: Path) -> None:
    trace = make(tmp_path)
    printed = [run("ops", trace, *more, "--no-cache") for more in ([], ["--csv"], ["--json"])]
    printed += [run("ops", trace, "--ncu"), run("info", trace), run("analyze", trace, "-w", "all")]
    printed += [run("show", name, trace, "-w", "all") for name in ("kernels", "ranges", "summary")]
    for view in views():
        printed.append(run("query", trace, f"SELECT * FROM {view.name}", "--csv"))
    assert "gemm" in "".join(printed) or "k_***" in "".join(printed)
    assert SECRET not in "".join(printed)


@pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS)
def test_what_is_written_has_no_secret(make: Callable[[Path], Path], tmp_path: Path) -> None:
    trace = make(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    for one in EXPORTERS:
        run("export", trace, "--to", one.name, "-w", "all", "-o", out / one.name)
    for form in ("parquet", "arrow", "csv", "openmetrics"):
        results = ["--results", "kernels,ranges,operators,summary,findings", "-w", "all"]
        run("export", trace, "--to", form, *results, "-o", out / f"results.{form}")
    run("cut", trace, "-w", "all", "-o", out / f"cut{trace.suffix}")
    run("cut", trace, "-w", "all", "--clip", "-o", out / f"clipped{trace.suffix}")
    run("cut", trace, "--split", "step", "-o", out / "steps")
    run("report", trace, "-w", "all", "-o", out / "report.html")
    run("timeline", trace, "-w", "all", "-o", out / "timeline.html")
    written = {file.name: everything_in(file) for file in out.iterdir()}
    assert {"perfetto", "parquet", "results.csv", f"cut{trace.suffix}", "report.html"} <= set(
        written
    )
    assert [name for name, text in written.items() if SECRET in text] == []


def test_secrets_are_passed_on_where_that_is_asked_for(tmp_path: Path) -> None:
    trace = nsys(tmp_path)
    for results in ([], ["--results", "kernels", "-w", "all"]):
        out = tmp_path / f"out{len(results)}"
        run("export", trace, "--to", "csv", *results, "--keep-secrets", "-o", out)
        assert f"k_{SECRET}" in everything_in(out)
    run("cut", trace, "-w", "all", "--keep-environment", "-o", tmp_path / "whole.sqlite")
    assert everything_in(tmp_path / "whole.sqlite").count(SECRET) >= 10
