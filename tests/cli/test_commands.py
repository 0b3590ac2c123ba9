"""The command line as a user meets it: what it prints, and what it ends with."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from tests import real_traces
from tests.builders import TraceBuilder
from tests.conftest import Run
from tests.measures.generated_run import MS, Plan, make_run
from tests.requirements import ROOT
from traceprof.cli import app
from traceprof.formats.nsys.writer import write_nsys

PARTS = (
    "compute_ns",
    "exposed_communication_ns",
    "exposed_transfer_ns",
    "device_memory_ns",
    "idle_ns",
)
SCHEMA = json.loads((ROOT / "docs" / "schema" / "analysis-2.json").read_text("utf-8"))
runner = CliRunner()


def rows_of(document: dict[str, Any], name: str, table: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table in JSON; of the first table where none is named."""
    tables = document["results"][name]["tables"]
    rows: list[dict[str, Any]] = tables[table or next(iter(tables))]["rows"]
    return rows


def ends_with(arguments: list[str], code: int) -> str:
    """Run in this process (faster than a new one) and return the message on standard error."""
    result = runner.invoke(app, arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stderr


def test_help_needs_neither_torch_nor_plotly_nor_pandas() -> None:
    program = (
        "import sys, traceprof.cli\n"
        "try: traceprof.cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'plotly', 'pandas', 'numpy', 'pyarrow'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "analyze" in done.stdout


def test_import_traceprof_costs_a_training_script_nothing() -> None:
    program = (
        "import sys; before = set(sys.modules); import traceprof\n"
        "new = {m for m in set(sys.modules) - before if not m.startswith('traceprof')}\n"
        "sys.exit(f'imported {new}' if new & {'numpy', 'pandas', 'typer', 'torch'} else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.traces
@pytest.mark.parametrize("name", real_traces.NSYS)
def test_every_real_trace_is_described_and_analyzed_and_left_alone(
    name: str, real_trace: Callable[[str], Path]
) -> None:
    path = real_trace(name)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    siblings = sorted(path.parent.iterdir())

    for arguments in (
        ["info", str(path)],
        ["info", str(path), "--json"],
        ["analyze", str(path)],
        ["analyze", str(path), "--window", "all"],
    ):
        assert runner.invoke(app, arguments).exit_code == 0
    printed = runner.invoke(app, ["analyze", str(path), "--json"])

    assert printed.exit_code == 0
    document = json.loads(printed.stdout)
    assert document["schema"] == "traceprof.analysis/2"
    jsonschema.validate(document, SCHEMA)
    assert set(document["results"]) | set(document["not_recorded"]) >= {"breakdown", "ranges"}
    if "breakdown" in document["results"]:
        for row in rows_of(document, "breakdown"):
            assert sum(row[part] for part in PARTS) == row["duration_ns"]
            assert row["duration_ns"] == document["window"]["duration_ns"]
        for row in rows_of(document, "breakdown", "total"):
            assert sum(row[part] for part in PARTS) == row["duration_ns"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert sorted(path.parent.iterdir()) == siblings


@pytest.mark.traces
def test_a_trace_without_kernels_is_answered_from_its_ranges(
    real_trace: Callable[[str], Path],
) -> None:
    path = str(real_trace("nsys/2022.4-nvtx-only.sqlite"))
    document = json.loads(runner.invoke(app, ["analyze", path, "--json"]).stdout)
    assert "breakdown" in document["not_recorded"]
    assert rows_of(document, "ranges")[0]["name"] == "find_centers"
    message = ends_with(["show", "kernels", path], 4)
    assert "no kernels recorded: record GPU activity" in message


@pytest.mark.traces
def test_a_graph_that_was_traced_whole_is_not_idle(real_trace: Callable[[str], Path]) -> None:
    path = str(real_trace("nsys/2024.6-cuda-graphs-a100.sqlite"))
    document = json.loads(runner.invoke(app, ["show", "breakdown", path, "--json"]).stdout)
    (row,) = rows_of(document, "breakdown")
    assert row["compute_ns"] / row["duration_ns"] > 0.99


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A small export: two kernels of 30 and 10 ns and a range, written in SQL."""
    path = tmp_path / "small.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(
            """
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            INSERT INTO StringIds VALUES (1, 'sgemm'), (2, '=cmd()|<b>\x1b[31m'), (3, 'loop');
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT,
                streamId INT, correlationId INT, globalPid INT, demangledName INT);
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
                (100, 130, 0, 7, 1, 281474993487872, 1), (150, 160, 0, 7, 2, 281474993487872, 2);
            CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT,
                globalTid INT, domainId INT);
            INSERT INTO NVTX_EVENTS VALUES (100, 200, 59, NULL, 3, 281474993487873, 0);
            """
        )
    return path


def test_one_table_or_several_can_be_asked_for(trace: Path) -> None:
    for arguments, names in (
        (["show", "kernels", str(trace)], ["kernels"]),
        (["kernels", str(trace)], ["kernels"]),
        (["show", "ranges,kernels", str(trace)], ["ranges", "kernels"]),
    ):
        document = json.loads(runner.invoke(app, [*arguments, "--json"]).stdout)
        assert list(document["results"]) == names
        assert "verdict" not in document


def test_a_trace_alone_is_analyzed(trace: Path) -> None:
    alone = runner.invoke(app, [str(trace), "--json"])
    assert alone.exit_code == 0
    assert alone.stdout == runner.invoke(app, ["analyze", str(trace), "--json"]).stdout
    assert json.loads(alone.stdout)["verdict"]["sentences"]


def test_the_window_is_what_was_asked_for(trace: Path) -> None:
    arguments = ["show", "breakdown", str(trace), "--json", "--window", "10ns..55ns"]
    document = json.loads(runner.invoke(app, arguments).stdout)
    (row,) = rows_of(document, "breakdown")
    assert (row["duration_ns"], row["compute_ns"], row["idle_ns"]) == (45, 25, 20)


def test_csv_is_safe_for_a_spreadsheet(trace: Path) -> None:
    printed = runner.invoke(app, ["show", "kernels", str(trace), "--csv"]).stdout
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [row["name"] for row in rows] == ["sgemm", "'=cmd()|<b>\\u001b[31m"]
    assert [row["total_ns"] for row in rows] == ["30", "10"]


def test_names_cannot_steer_the_terminal(trace: Path) -> None:
    printed = runner.invoke(app, ["show", "kernels", str(trace)], color=False).stdout
    assert "\x1b" not in printed
    assert "=cmd()|<b>" in printed


def test_rules_of_the_user_decide_what_kernels_do(trace: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nactivity = "communication"\npattern = "sgemm"\n')
    arguments = ["show", "breakdown", str(trace), "--json", "-w", "active", "--rules", str(rules)]
    document = json.loads(runner.invoke(app, arguments).stdout)
    (row,) = rows_of(document, "breakdown")
    assert (row["compute_ns"], row["exposed_communication_ns"]) == (10, 30)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["analyze", "{trace}", "--window", "sometime"], 2, "invalid window 'sometime'"),
        (["analyze", "{trace}", "--window", "1s..2s"], 2, "contains no data"),
        (["analyze", "{trace}", "--window", "range:nothing"], 2, "its ranges: loop"),
        (["analyze", "{trace}", "--window", "step:3"], 4, "the trace contains no steps"),
        (
            ["show", "kernels,copies", "{trace}", "--csv"],
            2,
            "CSV output contains one table: name one",
        ),
        (
            ["show", "kernels", "{trace}", "--csv", "--json"],
            2,
            "--json and --csv cannot be combined",
        ),
        (["show", "kernels"], 2, "missing TRACE: run `traceprof show kernels TRACE`"),
        (["analyze", "{trace}", "other.sqlite"], 3, "other.sqlite: No such file"),
        (["show", "operators", "{trace}"], 4, "no host ops recorded"),
        (["show", "ops", "{trace}"], 4, "no host ops recorded"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    trace: Path, arguments: list[str], code: int, message: str
) -> None:
    printed = ends_with([item.format(trace=trace) for item in arguments], code)
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "empty file"),
        (b"hello\n", "not a trace that traceprof can read"),
        (b'<?xml version="1.0"?><nvvp/>', "Visual Profiler"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"SQLite format 3\x00" + b"\x00" * 30, "SQLite"),
    ],
)
def test_a_wrong_file_gives_one_line_and_code_3(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "wrong"
    if content is not None:
        path.write_bytes(content)
    for command in (["info"], ["analyze"], ["show", "kernels"], ["kernels"]):
        printed = ends_with([*command, str(path)], 3)
        assert message in printed
        assert printed.count("\n") == 1


def test_a_database_of_something_else_and_a_folder_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "photos.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE photos (id INT)")
    assert "without profiler tables" in ends_with(["info", str(path)], 3)
    assert "no traces found" in ends_with(["info", str(tmp_path)], 3)


def test_a_truncated_export_is_refused(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-1000])
    assert "truncated" in ends_with(["analyze", str(trace)], 3)


def test_output_that_nobody_reads_to_the_end_is_no_error(trace: Path, run_traceprof: Run) -> None:
    words = [sys.executable, "-m", "traceprof", "show", "kernels", str(trace), "--json"]
    command = f"{shlex.join(words)} | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


def test_the_program_runs_as_a_module(trace: Path, run_traceprof: Run) -> None:
    done = run_traceprof("info", trace)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 kernels" in done.stdout
    assert run_traceprof("--version").stdout.startswith("traceprof 0.")


@pytest.mark.traces
def test_a_run_is_taken_wherever_a_trace_is(
    real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    for rank in range(4):
        source = real_trace(f"kineto/torchrec-4ranks-v100/rank{rank}.pt.trace.json.gz")
        (tmp_path / source.name).write_bytes(source.read_bytes())
    document = json.loads(runner.invoke(app, ["show", "breakdown", str(tmp_path), "--json"]).stdout)
    rows = rows_of(document, "breakdown")
    assert [row["device"] for row in rows] == [0, 1, 2, 3]
    assert len(rows_of(document, "breakdown", "total")) == 1
    assert all(sum(row[part] for part in PARTS) == row["duration_ns"] for row in rows)

    contents = json.loads(runner.invoke(app, ["info", str(tmp_path), "--json"]).stdout)
    assert [row["rank"] for row in contents["ranks"]] == [0, 1, 2, 3]
    printed = runner.invoke(app, ["info", *map(str, sorted(tmp_path.iterdir())[:2])]).stdout
    assert "Ranks" in printed
    assert "no trace of 2 of the 4 ranks: 2, 3" in " ".join(printed.split())


def test_the_page_draws_the_steps_in_80_columns_without_color(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number, end in enumerate((10, 20, 30, 50)):
        builder.step((0, 10, 20, 30)[number], end, number).kernel("gemm", end - 9, end - 1)
    path = tmp_path / "steps.sqlite"
    write_nsys(builder.build(), path)
    narrow = CliRunner(env={"COLUMNS": "80"})
    printed = narrow.invoke(app, ["analyze", str(path), "--window", "all"], color=False).stdout
    assert "Steps       0–3  ▄▄▄█  0–20 ns" in printed
    *lines, command = printed.splitlines()
    assert max(map(len, lines)) <= 80
    assert command == f"Next        traceprof show kernels --by class {path} --window all"


def run_of_four(folder: Path) -> Path:
    """Write four ranks on node1 and node2, of which the latter's come 40 ms late."""
    extra = {(rank, "forward"): 40 * MS for rank in (2, 3)}
    rows = []
    for member in make_run(Plan(hosts=["node1"] * 2 + ["node2"] * 2, extra_ns=extra)):
        file = f"rank{member.rank}.sqlite"
        write_nsys(member.trace, folder / file)
        rows.append({"rank": member.rank, "file": file, "host": member.host})
    manifest = folder / "run.json"
    manifest.write_text(json.dumps({"traceprof_run": 1, "label": "r", "ranks": rows}))
    return manifest


def test_hosts_and_racks_of_a_run(tmp_path: Path) -> None:
    run = str(run_of_four(tmp_path))
    cluster = tmp_path / "cluster.toml"
    cluster.write_text('[hosts]\nleft = "0,2"\nright = "1,3"\n[racks]\nr9 = "left,right"\n')

    def names(*arguments: str) -> list[tuple[str, bool]]:
        done = CliRunner().invoke(app, ["show", *arguments, run, "--json"])
        assert done.exit_code == 0, done.output
        key = arguments[0].removesuffix("s")
        rows = rows_of(json.loads(done.stdout), arguments[0])
        return [(row[key], row["is_straggler"]) for row in rows]

    assert names("hosts") == [("node2", True), ("node1", False)]
    assert names("hosts", "--cluster", str(cluster)) == [("left", False), ("right", False)]
    assert names("racks", "--cluster", str(cluster)) == [("r9", False)]
    racks = ("--rack", "a=node1", "--rack", "b=node[2-9]")
    assert names("racks", *racks) == [("b", True), ("a", False)]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("racks",), 4, "the rack of the ranks is unknown: specify the rack"),
        (("racks", "--rack", "a"), 2, "expected RACK=HOSTS"),
        (
            ("racks", "--rack", "a=login*"),
            2,
            "the racks contain no host of this trace (node1, node2)",
        ),
        (("hosts", "--cluster", "nowhere.toml"), 3, "nowhere.toml: cannot read the file"),
    ],
)
def test_what_is_said_of_hosts_must_make_sense(
    tmp_path: Path, run_traceprof: Run, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = run_traceprof(*arguments, run_of_four(tmp_path))
    assert done.returncode == code
    assert message in done.stderr


def test_the_page_of_a_run_shows_its_ranks_as_a_heat_map(
    tmp_path: Path, run_traceprof: Run
) -> None:
    text = run_traceprof("analyze", run_of_four(tmp_path), "--full").stdout
    assert "node2  rank 2" in text
    assert re.search(r"rank 3  [▓▒]+ +\+\d", text)
    heat = [line for line in text.splitlines() if "rank " in line and "  +" in line]
    assert max(map(len, heat)) <= 80
