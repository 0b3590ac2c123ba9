"""Python stacks that nsys sampled: what becomes a call, and what is only said."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.builders import TraceBuilder, plain
from tests.requirements import nsys_in_turn, require
from traceprof.formats import open_trace
from traceprof.formats.nsys.python_stacks import add_functions, are_sampled, find_calls
from traceprof.formats.nsys.reports import find_importer
from traceprof.formats.nsys.schema import PYTHON_SAMPLER, global_id
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.timing import PYTHON_SAMPLES_DOMAIN

PROCESS, SAMPLER = 4711, 4720
STRINGS = [
    *("&lt;module&gt;", "main", "load", "_bootstrap", "fetch"),
    *("/app/train.py", "/usr/lib/python3.11/threading.py"),
]
MODULE, MAIN, LOAD, BOOTSTRAP, FETCH, TRAIN, THREADING = range(len(STRINGS))


def test_a_call_lasts_from_its_first_sample_to_the_first_sample_without_it() -> None:
    samples = [(0, ("m", "f")), (10, ("m", "f", "g")), (20, ("m", "h")), (30, ("m", "h"))]
    assert sorted(find_calls(samples)) == [
        (0, 20, "f"),
        (0, 40, "m"),  # the last sample counts for one interval
        (10, 20, "g"),
        (20, 40, "h"),
    ]


def test_a_function_with_other_callers_is_another_call() -> None:
    samples = [(0, ("m", "f", "g")), (10, ("m", "e", "g")), (20, ("m",))]
    assert sorted(find_calls(samples)) == [
        *((0, 10, "f"), (0, 10, "g"), (0, 30, "m"), (10, 20, "e"), (10, 20, "g")),
    ]


def test_a_long_time_without_samples_belongs_to_no_function() -> None:
    samples = [(0, ("f",)), (10, ("f",)), (20, ("f",)), (130, ("f",)), (140, ("f",))]
    assert sorted(find_calls(samples)) == [(0, 30, "f"), (130, 150, "f")]
    samples = [(0, ("f",)), (10, ("f",)), (20, ("f",)), (120, ("f",)), (130, ("f",))]
    assert sorted(find_calls(samples)) == [(0, 140, "f")]


def _line(time: int, number: int, *frames: tuple[int, int, int]) -> str:
    """Return a sample of Python thread ``number`` as nsys writes it; the innermost frame first."""
    data = struct.pack("<IIII", 1, 1, len(frames), 7)
    data += b"".join(struct.pack("<QQII", *frame, 0) for frame in frames)
    payload = {"BinaryData": [{"SchemaId": "1", "Data": base64.b64encode(data).decode()}]}
    event = {"Type": 34, "Timestamp": str(time), "Category": str(number), "Payload": payload}
    event["GlobalTid"] = str(global_id(PROCESS, SAMPLER))
    return json.dumps({"Type": 34, "NvtxEvent": event}, separators=(",", ":"))


def _export(folder: Path) -> Path:
    """Return an export of nsys in which only the marks of the samples are left of the stacks."""
    path = folder / "export.sqlite"
    builder = TraceBuilder().kernel("gemm", 0, 50, launched_ns=(0, 5), process=PROCESS)
    for time in range(0, 40, 10):
        builder.mark("", time, domain=PYTHON_SAMPLES_DOMAIN, process=PROCESS, thread=SAMPLER)
    builder.thread_name(SAMPLER, PYTHON_SAMPLER, process=PROCESS)
    write_nsys(builder.build(), path)
    return path


def test_frames_become_functions_with_the_lines_that_ran(tmp_path: Path) -> None:
    path, exported = _export(tmp_path), tmp_path / "report.json"
    root, waits = (MODULE, TRAIN, 9), (BOOTSTRAP, THREADING, 1002)
    lines = [
        _line(0, 2, (FETCH, TRAIN, 30), waits),
        _line(0, 1, (LOAD, TRAIN, 4), (MAIN, TRAIN, 7), root),
        _line(10, 1, (LOAD, TRAIN, 4), (MAIN, TRAIN, 7), root),
        _line(20, 1, (MAIN, TRAIN, 8), root),
        _line(10, 2, (FETCH, TRAIN, 30), waits),
        "not JSON, although it has a" + '"BinaryData"',
        _line(30, 1, (99, TRAIN, 8)),  # an unknown string
    ]
    strings = json.dumps({"data": STRINGS}, separators=(",", ":"))
    exported.write_text("\n".join([strings, *lines]))
    assert are_sampled(path)
    add_functions(path, exported)
    trace = open_trace(path)
    columns = ("start_ns", "end_ns", "process", "thread", "name")
    assert sorted(plain(trace.functions.to_frame(), *columns)) == [
        (0, 20, PROCESS, 2, "/app/train.py(30): fetch"),
        (0, 20, PROCESS, 2, "threading.py(1002): _bootstrap"),
        (0, 20, PROCESS, PROCESS, "/app/train.py(4): load"),
        (0, 20, PROCESS, PROCESS, "/app/train.py(7): main"),
        (0, 30, PROCESS, PROCESS, "/app/train.py(9): <module>"),
        (20, 30, PROCESS, PROCESS, "/app/train.py(8): main"),
    ]
    assert "functions" in trace.recorded
    assert not trace.info.warnings


def test_stacks_that_the_export_lacks_are_mentioned(tmp_path: Path) -> None:
    path, exported = _export(tmp_path), tmp_path / "report.json"
    exported.write_text('{"data":["a"]}\n')
    add_functions(path, exported)
    trace = open_trace(path)
    assert trace.functions.empty
    assert "functions" not in trace.recorded
    assert any("Python stacks were sampled" in text for text in trace.info.warnings)


def test_backtraces_that_are_not_read_are_named(tmp_path: Path) -> None:
    path = _export(tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE CUDA_CALLCHAINS (id INTEGER)")
        connection.execute("CREATE TABLE SAMPLING_CALLCHAINS (id INTEGER)")
        connection.execute("INSERT INTO SAMPLING_CALLCHAINS VALUES (1)")
    assert open_trace(path).info.unread == ("CPU samples (SAMPLING_CALLCHAINS)",)


PROGRAM = """
import time
def make_batch():
    time.sleep(0.06)
def main():
    for _ in range(8):
        make_batch()
main()
"""


@pytest.mark.newer_nsys
def test_the_real_nsys_samples_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = require("newer_nsys")
    nsys = shutil.which("nsys", path=folder) or folder
    monkeypatch.setenv("PATH", folder, prepend=os.pathsep)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [nsys, "profile", f"--session-new=traceprof-test-{os.getpid()}", "-t", "none"]
    command += ["-s", "none", "--cpuctxsw=none", "--python-sampling=true", "-o", "r"]
    with nsys_in_turn():
        done = [*command, sys.executable, program]
        subprocess.run(done, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    stream = tmp_path / "r.qdstrm"
    assert stream.exists() or (tmp_path / "r.nsys-rep").exists()
    assert find_importer(nsys) is not None
    trace = open_trace(stream if stream.exists() else tmp_path / "r.nsys-rep")
    calls = trace.functions.to_frame()
    name = f"{program}(4): make_batch"
    slept = calls[calls["name"] == name]
    assert len(slept) > 0, set(calls["name"])
    assert set(slept["thread"]) == set(slept["process"])  # the main thread
    callers = calls[calls["name"] == f"{program}(7): main"]
    assert callers["start_ns"].min() <= slept["start_ns"].min()
