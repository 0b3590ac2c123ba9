import os
from pathlib import Path

import pytest

from tests.requirements import require
from traceprof.errors import RecordingError, UsageError
from traceprof.recording import RECORDERS, choose_recorder
from traceprof.recording.child import ignores_injection
from traceprof.recording.nsys import nsys_options, profile_options
from traceprof.recording.nsys_report import convert_qdstrm, find_importer, find_report

OLD = frozenset({"--force-overwrite", "--output", "--trace", "--sample"})


def test_only_options_that_this_version_knows_are_used():
    chosen = profile_options(OLD, Path("/t/report"), "s1", with_gpu=True)
    assert chosen == [
        "--force-overwrite=true",
        "--output=/t/report",
        "--trace=cuda,nvtx",
        "--sample=none",
    ]
    newer = OLD | {"--session-new", "--cuda-graph-trace", "--wait"}
    chosen = profile_options(newer, Path("/t/report"), "s1", with_gpu=False)
    assert chosen[1:] == [
        "--output=/t/report",
        "--session-new=s1",
        "--trace=nvtx",
        "--sample=none",
        "--cuda-graph-trace=node",
        "--wait=primary",
    ]


@pytest.mark.nsys
def test_the_installed_nsys_tells_its_options():
    options = nsys_options(require("nsys"), "profile")
    assert {"--output", "--trace", "--wait", "--session-new", "--capture-range"} <= options
    assert "--type" in nsys_options(require("nsys"), "export")


def test_a_report_left_in_the_temporary_folder_is_found(tmp_path):
    assert find_report(tmp_path, "Generated:\n", 0) is None
    left = tmp_path / "nsys-report-55c3.qdstrm"
    left.write_bytes(b"x")
    log = f"Generating '{left}'\nFailed to create report: File exists\n"
    assert find_report(tmp_path, log, 0) == left
    whole = tmp_path / "report.nsys-rep"
    whole.write_bytes(b"x")
    assert find_report(tmp_path, log, 0) == whole
    os.utime(whole, (100, 100))  # from an earlier run
    assert find_report(tmp_path, log, 1000) == left


def test_without_an_importer_the_message_says_what_to_install(tmp_path):
    stream = tmp_path / "x.qdstrm"
    stream.write_bytes(b"x")
    assert find_importer(str(tmp_path / "bin" / "nsys"), packages=()) is None
    with pytest.raises(RecordingError, match="complete Nsight Systems package"):
        convert_qdstrm(str(tmp_path / "bin" / "nsys"), stream, packages=())


@pytest.mark.nsys
def test_a_damaged_stream_is_said(tmp_path):
    stream = tmp_path / "x.qdstrm"
    stream.write_bytes(b"x" * 1000)
    with pytest.raises(RecordingError, match="damaged or was cut off"):
        convert_qdstrm(require("nsys"), stream)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["python", "-I", "train.py"], "-I"),
        (["/usr/bin/python3.12", "-uE", "train.py"], "-uE"),
        (["python", "-m", "x", "-S"], None),
        (["python", "train.py", "-I"], None),
        (["torchrun", "-I"], None),
        (["python"], None),
    ],
)
def test_options_of_python_that_ignore_the_path(command, option):
    assert ignores_injection(command) == option


def test_recorders_are_chosen_by_name(monkeypatch, tmp_path):
    assert [choose_recorder(r.name).name for r in RECORDERS if r.missing() is None]
    with pytest.raises(UsageError, match="choose auto, "):
        choose_recorder("magic")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RecordingError, match="nsys is not on PATH"):
        choose_recorder("nsys")
    assert choose_recorder("auto").name == "torch"
