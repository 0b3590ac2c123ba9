"""Files that no format takes: each is called what it is, by its content, with what to do."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.formats import kineto_file
from traceprof.errors import TraceError
from traceprof.formats import open_trace
from traceprof.formats.nsys import reports
from traceprof.formats.nsys.reports import version_of_report

REPORT = b"NVIDIA Tegra Profiler Report %b0.\n\x0bLocal (CLI)"
ROCPROF_CSV = b'"Index","KernelName","gpu-id","queue-id"\n0,"gemm",0,0\n'
ROCPROFV3_CSV = b'"Kind","Agent_Id","Queue_Id","Kernel_Id"\n"KERNEL_DISPATCH","Agent 4",1,9\n'
ROCPROFV3_CALLS = b'"Domain","Function","Process_Id"\n"HIP_RUNTIME_API","hipFree",7\n'
CSV_TO_DO = "rocprofv3 --sys-trace --output-format rocpd"


def said_of(path: Path) -> str:
    with pytest.raises(TraceError) as error:
        open_trace(path)
    said = str(error.value)
    assert said.startswith(f"{path}: ")
    return said


@pytest.mark.parametrize(
    ("content", "what", "to_do"),
    [
        (b"NVR\0\0\2\0\0\x08\x07Linux", "Nsight Compute", "ncu --import"),
        (
            pickle.dumps({"segments": [], "device_traces": [[]]}),
            "a PyTorch memory snapshot",
            "traceprof memory",
        ),
        (pickle.dumps({"version": "2.4", "pg_config": {}, "entries": []}), "flight recorder", ""),
        (pickle.dumps([1]), "a Python pickle", ""),
        (b"\x89HDF\r\n\x1a\n\0\0\0", "HDF5", "--type=sqlite"),
        (struct.pack("<iI", -1, 448) + b"\x10\0\0\0", "Arrow file with all tables", "arrowdir"),
        (b"ARROW1\0\0", "a single table (Arrow)", "give the folder"),
        (b"PAR1\x15\x04", "a single table (Parquet)", "give the folder"),
        (b'data: "[Unknown]"\ndata: "[kernel]"\n', "text exports", "--type=sqlite"),
        (b'{"data":["[Unknown]","[kernel]"]}\n', "JSON exports", "--type=sqlite"),
        (b'{\n "VmSystemInformation": []}', "--type=info", "--type=sqlite"),
        (ROCPROFV3_CSV, "rocprofv3 CSV tables", CSV_TO_DO),
        (ROCPROFV3_CALLS, "rocprofv3 CSV tables", CSV_TO_DO),
        (b'"Node_Id","Logical_Node_Id","Agent_Type"\n', "rocprofv3 CSV tables", CSV_TO_DO),
        (b'"Correlation_Id","Dispatch_Id"\n', "rocprofv3 CSV tables", CSV_TO_DO),
        (ROCPROF_CSV, "rocprof CSV tables", CSV_TO_DO),
        (
            b'{"schema": "1.1.0-chakra.0.0.4", "nodes": []}',
            "a PyTorch execution trace",
            "torch.profiler",
        ),
        (b"\n\x16@\x81\x80\x01P\x01\xf2\x03\x02\x08\x01", "Perfetto traces", CSV_TO_DO),
        (
            b"==7== NVPROF is profiling process 7, command: python\n",
            "printed output of nvprof",
            "nvprof -o",
        ),
        (
            b"==PROF== Connected to process 7\n",
            "printed output of Nsight Compute",
            "traceprof record",
        ),
        (b'"ID","Process ID","Kernel Name"\n', "a Nsight Compute table", "traceprof record"),
        (b"Time (%),Total Time (ns),Instances,Name\n", "a `nsys stats` table", "--type=sqlite"),
        (
            b"---\n  Name    Self CPU %   CPU total %\n",
            "printed by torch.profiler",
            "export_chrome",
        ),
        (b"timestamp, utilization.gpu [%]\n", "nvidia-smi samples", "traceprof runs show FILE"),
        (b"{}", "JSON without torch.profiler events", ""),
        (b"\nHello\n", "not a trace that traceprof can read", "runs show"),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_file_is_called_what_it_is(
    content: bytes, what: str, to_do: str, is_packed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "of-any-name"
    path.write_bytes(gzip.compress(content) if is_packed else content)
    said = said_of(path)
    if is_packed and "not a trace" in what:
        assert "a gzip file" in said
        return
    assert what in said
    assert to_do in said


@pytest.mark.parametrize(
    ("tables", "what", "to_do"),
    [
        (("rocpd_api", "rocpd_op", "rocpd_string"), "rocmProfileData", CSV_TO_DO),
        (("read_only_kernels", "read_only_op_instances"), "DLProf", "nsys_profile.sqlite"),
        (("notes",), "without profiler tables", "nsys export"),
    ],
)
def test_a_database_is_called_what_it_is(
    tables: tuple[str, ...], what: str, to_do: str, tmp_path: Path
) -> None:
    path = tmp_path / "some.db"
    with sqlite3.connect(path) as file:
        for table in tables:
            file.execute(f"CREATE TABLE {table} (id INTEGER)")
    file.close()
    said = said_of(path)
    assert what in said
    assert to_do in said


def chrome(path: Path, events: list[dict[str, Any]], **header: Any) -> Path:
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return path


def named(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}


def lasting(category: str | None, phase: str = "X") -> dict[str, Any]:
    own = {"ph": phase, "name": "e", "pid": 7, "tid": 1, "ts": 5, "dur": 2}
    return own if category is None else {**own, "cat": category}


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([lasting("GROUP_API", "b"), lasting("P2P", "b")], ["NCCL's profiler plugin", "GROUP_API"]),
        ([named(7, "Ascend Hardware"), lasting(None)], ["Ascend's profiler", "Ascend Hardware"]),
        (
            [named(7, "/job:localhost/replica:0/task:0/device:GPU:0"), lasting("Op")],
            ["TensorFlow (timeline)", "categories Op"],
        ),
        ([named(2, "1 CPU HIP API"), lasting(None)], ["rocprof or rocmProfileData"]),
        ([named(7, "bpftrace"), lasting("sched")], ["another program", "sched", "bpftrace"]),
    ],
)
def test_a_chrome_trace_of_another_program_is_named(
    events: list[dict[str, Any]], words: list[str], tmp_path: Path
) -> None:
    said = said_of(chrome(tmp_path / "t.json", events))
    assert all(word in said for word in [*words, "ui.perfetto.dev"])
    assert "active step" not in said


def test_only_what_kineto_wrote_was_stopped_before_its_first_active_step(tmp_path: Path) -> None:
    stopped = "profiling stopped before its first active step"
    assert stopped in said_of(kineto_file.write(tmp_path / "a.json", []))
    whole = [{**lasting("Trace"), "name": "PyTorch Profiler (0)"}]
    assert stopped in said_of(chrome(tmp_path / "b.json", whole))
    assert "the Chrome trace is empty" in said_of(chrome(tmp_path / "c.json", []))
    alone = said_of(kineto_file.write(tmp_path / "d.json", [lasting("mtia_ccp_events")]))
    assert stopped not in alone
    assert "mtia_ccp_events" in alone


def test_events_that_are_not_read_are_counted(tmp_path: Path) -> None:
    events = [
        kineto_file.kernel("gemm", 0, 10),
        *(lasting("mtia_ccp_events") for _ in range(3)),
        lasting("hpu_op", "b"),
        *(lasting(category) for category in ("Trace", "gpu_user_annotation", "python_function")),
    ]
    trace = open_trace(kineto_file.write(tmp_path / "t.json", events))
    (warning,) = trace.info.warnings
    assert warning.startswith(
        "traceprof cannot read the categories of 4 events (hpu_op (1), mtia_ccp_events (3))"
    )
    assert len(trace.kernels) == 1


@pytest.mark.parametrize(
    ("head", "tail", "version"),
    [
        (b"2024@4@2@133-243134289181v0", b"\x072024.4.2.133-243134289181v0:\x01", "2024.4.2"),
        (b"1.", b"junk 2023.1.2.43-32377213v0 more", "2023.1.2"),
        (b"2025@6@1@190-256136134751v0", b"no version", "2025.6.1"),
        (b"1.", b"version 1.2.3 of something", ""),
    ],
)
def test_the_version_of_a_report_is_found(
    head: bytes, tail: bytes, version: str, tmp_path: Path
) -> None:
    path = tmp_path / "r.nsys-rep"
    path.write_bytes(REPORT % head + bytes(3_000_000) + tail)
    assert version_of_report(path) == version


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (
            "my report.nsys-rep",
            "nsys export --type=sqlite --include-blobs=true --output='my report.sqlite' "
            "'my report.nsys-rep'",
        ),
        ("a.bin", "nsys export --type=sqlite --include-blobs=true --output=a.sqlite a.bin"),
    ],
)
def test_a_report_newer_than_the_nsys_here_is_said_to_be(
    name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys = tmp_path / "bin" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && '
        "echo NVIDIA Nsight Systems version 2022.4.2.1-df9881f && exit 0\n"
        'echo "Exportation error: ProtobufParseException"; exit 1\n'
    )
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nsys.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TRACEPROF_CACHE", "0")
    path = tmp_path / name
    path.write_bytes(REPORT % b"2024@4@2@133-243134289181v0" + bytes(200))
    said = said_of(path)
    assert "recorded by nsys 2024.4.2, but the installed nsys 2022.4.2" in said
    assert f"`{command}` with nsys 2024.4.2 or newer" in said
    path.write_bytes(REPORT % b"2021@4@2@133-243134289181v0" + bytes(200))
    assert "nsys cannot read this report (Exportation error: Protobuf" in said_of(path)
    stream = tmp_path / "s.qdstrm"
    stream.write_bytes(b"U3w[END]NVIDIA Nsight Systems Stream 2023.1.2.1-df9881f!")
    monkeypatch.setattr(reports, "find_importer", lambda _: shutil.which("false"))
    assert "recorded by nsys 2023.1.2" in said_of(stream)
    assert "QdstrmImporter -i s.qdstrm -o s.nsys-rep && nsys export" in said_of(stream)


def test_categories_that_are_not_read_are_named_as_far_as_they_can_be(tmp_path: Path) -> None:
    """Names may be bytes that are no text, and without end."""
    path = tmp_path / "trace.json"
    odd = [f"gpu_{'x' * 5000}", "gpu\udced", *(f"gpu_{i:02}" for i in range(20))]
    events = [
        {"ph": "X", "cat": kind, "name": "k", "pid": 1, "tid": 1, "ts": i, "dur": 1}
        for i, kind in enumerate(odd)
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    with pytest.raises(TraceError) as error:
        open_trace(path)
    events.append({**events[0], "cat": "kernel", "args": {"device": 0, "stream": 7}})
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    (warning,) = [one for one in open_trace(path).info.warnings if "not read" in one]
    for said in (str(error.value), warning):
        assert len(said) < 600
        assert said.isprintable()
        assert ", …" in said


@pytest.mark.parametrize("n_bytes", [20, 60])
def test_a_truncated_gzip_file_is_called_truncated(n_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    events = [{"ph": "X", "name": f"kernel {i}", "ts": i, "dur": i % 7} for i in range(200)]
    packed = gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())
    path.write_bytes(packed[:n_bytes])
    with pytest.raises(TraceError, match="the gzip file is truncated or damaged"):
        open_trace(path)
