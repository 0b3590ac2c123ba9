"""A refusal says what is wrong with the file; nothing is refused for what it does not need."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

import traceprof
from tests.builders import TraceBuilder
from tests.cli.test_caveats import CUT, kineto
from traceprof.cli import app
from traceprof.errors import NotRecordedError, TraceError
from traceprof.formats.nsys.writer import write_nsys

runner = CliRunner()
REFUSED = [
    "show kernels FILE",
    "show kernels FILE --csv",
    "show kernels FILE --json",
    "show idle FILE -w step:2",
    "kernels FILE",
    "ops FILE",
    "ops FILE --ncu",
    "query FILE SQL",
    "explain FILE step:2 --against step:3",
    "memory FILE",
    "show kernels STEPLESS -w step:3",
    "cut STEPLESS -w step:3 -o OUT",
    "timeline STEPLESS -w step:3 -o OUT.html",
    "report STEPLESS -w step:3 -o OUT.html",
    "export STEPLESS --to perfetto -w step:3 -o OUT",
    "export FILE --to csv --results kernels -o OUT",
    "compare STEPLESS STEPLESS -w step:3",
]
"""What a file that is cut off before its first kernel does not answer."""
ANSWERED = ["analyze FILE", "findings FILE", "compare WHOLE FILE"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace whose kernels are the last of the file, and one that is cut off before them."""
    folder = tmp_path_factory.mktemp("refusals")
    document = json.loads(kineto(folder / "good.json").read_text("utf-8"))
    order = ["user_annotation", "cuda_runtime", "kernel"]
    events = sorted(document["traceEvents"], key=lambda event: order.index(event["cat"]))
    text = json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=1)
    (folder / "whole.json").write_text(text)
    (folder / "cut.json").write_text(text[: text.index('"cat": "cuda_runtime"') - 30])
    place = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "dur": 5}
    ops = json.dumps({"schemaVersion": 1, "traceEvents": [{**place, "ts": at} for at in range(9)]})
    (folder / "stepless.json").write_text(ops[: len(ops) * 2 // 3])
    return folder


def run(command: str, file: Path, out: Path, other: Path = Path()) -> tuple[int, str, str]:
    places = {"FILE": file, "WHOLE": file.with_name("whole.json"), "SQL": "SELECT * FROM kernels"}
    places |= {"FILE2": other, "SHAPES": "SELECT * FROM kernel_shapes"}
    places |= {
        "STEPLESS": file.with_name("stepless.json"),
        "OUT": out / "out",
        "OUT.html": out / "out.html",
    }
    done = runner.invoke(app, [str(places.get(word, word)) for word in command.split()])
    assert isinstance(done.exception, SystemExit | None), done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("command", REFUSED)
def test_a_refusal_says_that_the_file_is_cut_off(command: str, files: Path, tmp_path: Path) -> None:
    code, _, said = run(command, files / "cut.json", tmp_path)
    assert code in (2, 4)
    assert said.startswith(("traceprof: no", "traceprof: the trace contains no"))
    assert f"; incomplete: {CUT}" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", ANSWERED)
def test_an_answer_says_so_too(command: str, files: Path, tmp_path: Path) -> None:
    code, text, said = run(command, files / "cut.json", tmp_path)
    assert code == 0
    assert CUT in " ".join((text + said).split())


@pytest.mark.parametrize("command", ["show memory FILE", "show kernels FILE -w pattern:x"])
def test_a_whole_file_is_refused_without_it(command: str, files: Path, tmp_path: Path) -> None:
    code, _, said = run(command, files / "whole.json", tmp_path)
    assert code in (2, 4)
    assert "incomplete" not in said


ASKED: dict[str, tuple[str, Callable[[traceprof.Run], object]]] = {
    "a table": ("cut.json", lambda run: run.kernels()),
    "operations": ("cut.json", lambda run: run.ops()),
    "explain": ("cut.json", lambda run: run.explain("step:2", "step:3")),
    "page": ("stepless.json", lambda run: run.within("step:3").page()),
    "figure": ("stepless.json", lambda run: run.within("step:3").figure()),
}


@pytest.mark.parametrize("what", ASKED)
def test_python_says_so(what: str, files: Path) -> None:
    name, ask = ASKED[what]
    with pytest.raises(NotRecordedError, match=CUT):
        ask(traceprof.open(files / name))


@pytest.mark.parametrize("command", ["scaling STEPLESS", "accuracy STEPLESS"])
def test_runs_that_are_compared_say_so(command: str, files: Path, tmp_path: Path) -> None:
    code, _, said = run(command, files / "cut.json", tmp_path)
    assert (code, CUT in said) == (4, True), said


def test_assistants_are_told_so(files: Path) -> None:
    server = pytest.importorskip("traceprof.mcp_server")
    tools = server.Tools(server.Folders([files]))
    with pytest.raises(TraceError, match=CUT):
        tools.tables("cut.json", "kernels")


SPARE = {
    "CUPTI_ACTIVITY_KIND_KERNEL.gridX": ("ops FILE", "analyze FILE", "query FILE SHAPES"),
    "CUPTI_ACTIVITY_KIND_KERNEL.registersPerThread": ("ops FILE", "analyze FILE"),
    "ThreadNames.nameId": ("ops FILE", "analyze FILE", "query FILE SQL", "info FILE"),
    "ThreadNames.globalTid": ("ops FILE", "analyze FILE", "query FILE SQL"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION.deviceId": ("analyze FILE",),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION.syncType": ("analyze FILE",),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION.start": ("show kernels FILE", "analyze FILE"),
    "PROFILER_OVERHEAD.nameId": ("analyze FILE",),
    "TRACEPROF_HOST_OPS.nameId": ("analyze FILE",),
}
"""Columns that most tables do not need, and commands that read them."""
EVERY = (
    *("show kernels FILE", "show kernels FILE --csv", "ops FILE", "ops FILE --longest"),
    *("query FILE SQL", "query FILE SHAPES", "analyze FILE", "findings FILE", "info FILE"),
    *("explain FILE step:2", "compare FILE FILE2", "report FILE -o OUT.html"),
    *("timeline FILE -o OUT.html", "export FILE --to csv -o OUT", "cut FILE -w all -o OUT"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace that has what most tables do not need."""
    builder = TraceBuilder().thread_name(1, "main").overhead("instrumentation", 1, 2)
    shape = {f"{what}_{axis}": 1 for what in ("grid", "block") for axis in "xyz"} | {"registers": 9}
    for step in range(6):
        at = 1_000 * step
        builder.step(at, at + 900, step).sync("stream", at + 810, at + 820)
        builder.kernel(f"gemm_{step}", at + 100, at + 800, launched_ns=(at, at + 9), shape=shape)
        builder.host_op("read", at + 1, at + 2, source="osrt")
    path = tmp_path_factory.mktemp("spare") / "whole.sqlite"
    write_nsys(builder.build(), path)
    return path


def damaged(whole: Path, column: str, folder: Path) -> Path:
    """Return a copy in which a text stands in the last row of a column."""
    table, name = column.split(".")
    path = folder / "damaged.sqlite"
    shutil.copy(whole, path)
    with closing(sqlite3.connect(path)) as database:
        last = f"(SELECT max(rowid) FROM {table})"
        database.execute(f"UPDATE {table} SET {name} = 'x' WHERE rowid = {last}")
        assert database.total_changes == 1
        database.commit()
    return path


@pytest.mark.parametrize("column", SPARE)
def test_a_column_that_is_not_needed_refuses_nothing(
    column: str, whole: Path, tmp_path: Path
) -> None:
    path = damaged(whole, column, tmp_path)
    for number, command in enumerate(EVERY):
        out = tmp_path / str(number)
        out.mkdir()
        code, text, said = run(command, path, out, whole)
        assert code == 0, f"{command}: {said}"
        if command in SPARE[column]:
            assert f"column {column} contains non-integer values" in " ".join((text + said).split())


def test_numbers_are_those_without_the_column(whole: Path, tmp_path: Path) -> None:
    path = damaged(whole, "CUPTI_ACTIVITY_KIND_KERNEL.gridY", tmp_path)
    for command in ("show kernels FILE --csv", "query FILE SQL", "show steps FILE --csv"):
        assert run(command, path, tmp_path)[1] == run(command, whole, tmp_path)[1]
    rows = [json.loads(line) for line in run("ops FILE --json", path, tmp_path)[1].splitlines()]
    assert [row.get("grid_y") for row in rows] == [None] * 6
    assert [row["registers"] for row in rows] == [9] * 6


def test_what_is_left_out_is_not_recorded_and_a_refusal_says_why(
    whole: Path, tmp_path: Path
) -> None:
    path = damaged(whole, "CUPTI_ACTIVITY_KIND_KERNEL.gridX", tmp_path)
    code, _, said = run("show occupancy FILE", path, tmp_path)
    assert code == 4
    assert "warning: traceprof ignored a column: " in said
    assert "CUPTI_ACTIVITY_KIND_KERNEL.gridX contains non-integer values" in said


@pytest.mark.parametrize("column", ["CUPTI_ACTIVITY_KIND_KERNEL.start", "NVTX_EVENTS.domainId"])
def test_a_column_that_all_numbers_need_refuses_everything(
    column: str, whole: Path, tmp_path: Path
) -> None:
    path = damaged(whole, column, tmp_path)
    for command in ("show kernels FILE", "ops FILE", "query FILE SQL", "analyze FILE"):
        code, _, said = run(command, path, tmp_path)
        assert (code, f"column {column} contains non-integer values" in said) == (3, True), command
