"""`traceprof memory` as a user meets it, and the snapshot that a recording leaves."""

import json
import sqlite3
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import traceprof as tp
from tests.recording.conftest import environment_of_test
from tests.requirements import require
from tests.snapshots.allocator import Allocator, forward
from traceprof.cli import app

PROGRAM = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["TRACEPROF_DIR"])
data = pathlib.Path(sys.argv[1]).read_bytes()
(folder / f"memory.{os.getpid()}.pickle").write_bytes(data)
import traceprof
with traceprof.range("work"):
    pass
"""


@pytest.fixture
def snapshot(tmp_path):
    allocator = Allocator()
    allocator.alloc(3_000_000, forward(7))
    return allocator.write(tmp_path / "a.pickle")


def said(*arguments, code=0):
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["memory", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def test_it_tells_what_held_the_memory(snapshot):
    text = said(snapshot)
    assert "3.00 MB allocated at the peak" in text
    assert "train.py:7 train" in text


def test_programs_read_it(snapshot):
    found = json.loads(said(snapshot, "--json"))
    assert found["results"]["kinds"]["tables"]["kinds"]["rows"][0]["held_bytes"] == 3_000_000


def test_a_page_is_written(snapshot, tmp_path):
    said(snapshot, "-o", tmp_path / "page.html")
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_python_says_the_same(snapshot):
    assert tp.memory(snapshot).to_frame("holders")["held_bytes"].tolist() == [3_000_000]


def test_what_is_no_snapshot_and_no_trace_is_refused(tmp_path, snapshot):
    other = tmp_path / "b.pickle"
    other.write_bytes(b"\x80\x04N.")
    assert "not a PyTorch memory snapshot" in said(other, code=3)
    text = tmp_path / "c.txt"
    text.write_text("hello")
    assert "specify only snapshots, or only traces" in said(snapshot, text, code=2)


def record(tmp_path, *options, program):
    return subprocess.run(
        [
            *(sys.executable, "-m", "traceprof", "record", "--with", "torch"),
            *("--memory", "1..2", *options, "--", sys.executable, "-c", *program),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=environment_of_test(),
    )


@pytest.mark.parametrize("place", ["run/", "trace.sqlite"])
def test_a_recording_leaves_it_beside_the_trace(tmp_path, snapshot, place):
    output = f"{tmp_path}/{place}"
    done = record(tmp_path, "-o", output, program=(PROGRAM, snapshot))
    (kept,) = tmp_path.rglob("*.memory.pickle")
    assert kept.read_bytes() == snapshot.read_bytes()
    assert f"memory snapshot written; run traceprof memory {kept}" in done.stderr
    assert "3.00 MB allocated" in said(output)
    trace = next(tmp_path.rglob("*.sqlite"))
    assert "3.00 MB allocated" in said(trace)
    with sqlite3.connect(trace) as connection:
        assert connection.execute("SELECT COUNT(*) FROM NVTX_EVENTS").fetchone()[0]


@pytest.mark.torch
def test_a_program_that_used_no_gpu_is_said_to_have_left_none(tmp_path):
    require("torch")
    program = "import torch, traceprof\nwith traceprof.range('work'):\n    pass"
    done = record(tmp_path, "-o", f"{tmp_path}/t.sqlite", program=(program,))
    assert "no memory snapshot" in done.stderr
