"""`traceprof cut` as a user meets it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import traceprof as tp
from tests.builders import TraceBuilder
from traceprof.cli import app
from traceprof.formats import open_trace
from traceprof.formats.nsys.writer import write_nsys
from traceprof.formats.sqlite import copying

MS = 1_000_000


def cut(*arguments: str | Path, code: int = 0) -> Result:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["cut", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def _write(path: Path, rank: int = 0) -> Path:
    """Write a trace of six steps of 10 ms each."""
    builder = TraceBuilder()
    process = 10 + rank
    for step in range(6):
        start = (step * 10 + rank) * MS
        builder.range(f"step {step}", start, start + 9 * MS, process=process)
        builder.kernel(
            "gemm", start + MS, start + 8 * MS, launched_ns=(start, start + 10), process=process
        )
    builder.process(process, rank=rank, world_size=2)
    write_nsys(builder.build(), path)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return _write(tmp_path / "whole.sqlite")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(2):
        _write(folder / f"rank{rank}.sqlite", rank)
    return folder


def test_a_window_becomes_a_trace(trace: Path, tmp_path: Path) -> None:
    done = cut(trace, "-w", "20ms..40ms", "-o", tmp_path / "part.sqlite")
    assert "wrote" in done.stderr
    assert len(open_trace(tmp_path / "part.sqlite").kernels.to_frame()) == 2
    with closing(sqlite3.connect(tmp_path / "part.sqlite")) as connection:
        ((text, source),) = connection.execute("SELECT windowText, source FROM TRACEPROF_CUT")
    assert (text, source) == ("20ms..40ms", "whole.sqlite")


def test_a_window_on_the_own_clock_needs_no_reading(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceprof.session.run.open_ranks", None)
    cut(trace, "-w", f"@{20 * MS}..@{40 * MS}", "-o", tmp_path / "part.sqlite")
    assert len(open_trace(tmp_path / "part.sqlite").kernels.to_frame()) == 2


def test_what_is_there_is_not_replaced(trace: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.sqlite"
    part.write_text("mine")
    cut(trace, "-w", "all", "-o", part, code=2)
    assert part.read_text() == "mine"
    cut(trace, "-w", "all", "-o", part, "--force")
    assert len(open_trace(part).kernels.to_frame()) == 6
    assert "is an input file" in cut(trace, "-o", trace, "--force", code=2).stderr


def test_who_interrupts_leaves_no_file(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(copying, "note_cut", interrupted)
    done = CliRunner().invoke(app, ["cut", str(trace), "-w", "all", "-o", str(tmp_path / "p")])
    assert done.exit_code != 0
    assert list(tmp_path.iterdir()) == [trace]


def test_a_full_disk_is_named_with_the_output(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(copying, "note_cut", full)
    said = cut(trace, "-w", "all", "-o", tmp_path / "part.sqlite", code=1).stderr
    assert said.endswith(f"cannot write {tmp_path}/part.sqlite: No space left on device\n")
    assert list(tmp_path.iterdir()) == [trace]


def test_each_step_is_a_file(trace: Path, tmp_path: Path) -> None:
    cut(trace, "--split", "step", "-o", tmp_path / "steps")
    files = sorted((tmp_path / "steps").iterdir())
    assert [file.name for file in files] == [f"step-{n}.sqlite" for n in range(6)]
    assert [len(open_trace(file).kernels.to_frame()) for file in files] == [1] * 6
    assert [int(open_trace(file).kernels.to_frame()["start_ns"][0]) // MS for file in files] == [
        *range(1, 60, 10)
    ]
    for number, file in enumerate(files):
        with closing(sqlite3.connect(file)) as connection:
            notes = connection.execute("SELECT windowText, source FROM TRACEPROF_CUT").fetchall()
        assert notes == [(f"step:{number}", "whole.sqlite")]
    assert (
        "traceprof never replaces a folder"
        in cut(trace, "--split", "step", "-o", tmp_path / "steps", code=2).stderr
    )


def test_a_run_becomes_a_run(run: Path, tmp_path: Path) -> None:
    cut(run, "-w", "20ms..40ms", "-o", tmp_path / "part")
    manifest = json.loads((tmp_path / "part" / "run.json").read_text("utf-8"))
    assert [(row["rank"], row["file"]) for row in manifest["ranks"]] == [
        (0, "rank0.sqlite"),
        (1, "rank1.sqlite"),
    ]
    assert manifest["world_size"] == 2
    found = tp.open(tmp_path / "part").within("all").trace()
    assert len(found.kernels.to_frame()) == 4


def test_ranks_can_be_chosen(run: Path, tmp_path: Path) -> None:
    cut(run, "-w", "all", "--ranks", "1", "-o", tmp_path / "part")
    assert sorted(file.name for file in (tmp_path / "part").iterdir()) == [
        "rank1.sqlite",
        "run.json",
    ]
    assert "no rank 7" in cut(run, "--ranks", "7", "-o", tmp_path / "none", code=2).stderr
    assert not (tmp_path / "none").exists()


def test_lists_of_numbers_are_checked(trace: Path, tmp_path: Path) -> None:
    assert (
        "expected numbers"
        in cut(trace, "--devices", "a", "-o", tmp_path / "p.sqlite", code=2).stderr
    )
    assert (
        "unknown table 'kernel'"
        in cut(trace, "-w", "all", "--tables", "kernel", "-o", tmp_path / "p.sqlite", code=2).stderr
    )
    nothing = cut(trace, "--devices", "1..3", "-o", tmp_path / "p.sqlite", code=2).stderr
    assert "no GPU 1, 2, 3 in the trace; GPUs with activity: 0" in nothing
    assert not (tmp_path / "p.sqlite").exists()


def test_devices_are_those_of_the_run_whatever_files_call_them(run: Path, tmp_path: Path) -> None:
    listed = tp.open(run).within("all").trace().devices.to_frame()
    assert listed["device"].tolist() == [0, 1]
    assert {len(open_trace(file).kernels.to_frame()) for file in run.iterdir()} == {6}
    assert {
        int(d) for file in run.iterdir() for d in open_trace(file).kernels.to_frame()["device"]
    } == {0}
    cut(run, "-w", "all", "--devices", "1", "-o", tmp_path / "part")
    counts = {
        file.name: (
            len(open_trace(file).kernels.to_frame()),
            len(open_trace(file).ranges.to_frame()),
        )
        for file in (tmp_path / "part").glob("*.sqlite")
    }
    assert counts == {"rank0.sqlite": (0, 6), "rank1.sqlite": (6, 6)}
    assert "no GPU 7" in cut(run, "--devices", "7", "-o", tmp_path / "none", code=2).stderr


@pytest.mark.parametrize("window", ["9100us..9200us", "@9100000..@9200000"])
def test_what_was_recorded_stays_recorded_where_nothing_of_it_is(
    trace: Path, tmp_path: Path, window: str
) -> None:
    """Between kernels and ranges there is neither, which is not: not recorded."""
    cut(trace, "-w", window, "-o", tmp_path / "part.sqlite")
    part = open_trace(tmp_path / "part.sqlite")
    assert len(part.kernels.to_frame()) == len(part.ranges.to_frame()) == 0
    assert part.recorded >= {"kernels", "copies", "api_calls", "ranges"}
    assert part.devices.to_frame()["used"].tolist() == [1]
    within = tp.open(tmp_path / "part.sqlite").within(f"@{91 * MS // 10}..@{92 * MS // 10}")
    breakdown = within.breakdown().to_frame()
    assert breakdown["idle_ns"].tolist() == breakdown["duration_ns"].tolist() == [100_000]


def test_what_was_not_asked_for_is_not_said_to_be_none(trace: Path, tmp_path: Path) -> None:
    cut(trace, "-w", "all", "--tables", "kernels", "-o", tmp_path / "part.sqlite")
    recorded = open_trace(tmp_path / "part.sqlite").recorded
    assert "kernels" in recorded
    assert recorded.isdisjoint({"copies", "api_calls", "ranges", "syncs"})
    cut(tmp_path / "part.sqlite", "-w", "9100us..9200us", "-o", tmp_path / "smaller.sqlite")
    recorded = open_trace(tmp_path / "smaller.sqlite").recorded
    assert "kernels" in recorded
    assert recorded.isdisjoint({"copies", "api_calls", "ranges", "syncs"})


def test_python_cuts_too(trace: Path, tmp_path: Path) -> None:
    tp.open(trace).within("20ms..40ms").cut(tmp_path / "part.sqlite", clip=True)
    kernels = open_trace(tmp_path / "part.sqlite").kernels.to_frame()
    assert len(kernels) == 2


@pytest.mark.parametrize("name", ["part.json.gz", "part.json", "part.sqlite.gz", "part.nsys-rep"])
def test_the_name_of_another_format_is_refused(trace: Path, tmp_path: Path, name: str) -> None:
    said = cut(trace, "-w", "all", "-o", tmp_path / name, code=2).stderr
    assert "is written as SQLite" in said
    assert list(tmp_path.iterdir()) == [trace]
