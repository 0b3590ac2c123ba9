import os
import sys
from pathlib import Path

import pytest

from tests.recording.conftest import record
from tests.requirements import require
from traceprof.errors import RecordingError, UsageError
from traceprof.formats.nsys.tools import find_importer
from traceprof.recording import RECORDERS, choose_recorder, nsys_report
from traceprof.recording.child import ignores_injection
from traceprof.recording.nsys_options import nsys_options, profile_options
from traceprof.recording.nsys_report import convert_qdstrm, find_report

OLD = dict.fromkeys(["--force-overwrite", "--output", "--trace", "--sample"], "")


def test_only_options_that_this_version_knows_are_used():
    chosen = profile_options(OLD, Path("/t/report"), "s1", with_gpu=True)
    assert chosen == [
        "--force-overwrite=true",
        "--output=/t/report",
        "--trace=cuda,nvtx",
        "--sample=none",
    ]
    newer = OLD | dict.fromkeys(["--session-new", "--cuda-graph-trace", "--wait"], "")
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
    assert {"--output", "--trace", "--wait", "--session-new", "--capture-range"} <= options.keys()
    assert "true" in options["--nic-metrics"]
    assert "--type" in nsys_options(require("nsys"), "export")


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ("  --gpu-metrics-device=\n  --nic-metrics=\n Possible values are 'true' or 'false'.\n",
         ["--gpu-metrics-device=all", "--nic-metrics=true"]),
        ("  --gpu-metrics-devices=\n See --gpu-metrics-device.\n  --nic-metrics=\n"
         " One of 'none', 'lf', 'hf'.\n",
         ["--gpu-metrics-devices=all", "--nic-metrics=lf"]),
        ("  --output=\n", []),
    ],
)  # fmt: skip
def test_counters_are_sampled_as_the_version_at_hand_calls_it(tmp_path, described, expected):
    program = tmp_path / "nsys"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{described}END\n")
    program.chmod(0o755)
    known = nsys_options(str(program), "profile")
    chosen = profile_options(
        known, Path("/t/report"), "s1", with_gpu=True, with_counters=True, with_rdma=True
    )
    assert [option for option in chosen if "metrics" in option] == expected
    without = profile_options(known, Path("/t/report"), "s1", with_gpu=True)
    assert not any("metrics" in option for option in without)


@pytest.mark.parametrize("option", ["--nsys-arg=--stats=true", "--nvprof-arg=-s", "--gpu-metrics"])
def test_options_of_another_recorder_are_refused_before_anything_runs(tmp_path, option):
    recorded = record(tmp_path / "run.sqlite", ["touch", "ran"], "--with", "torch", option)
    assert recorded.done.returncode == 2
    assert f"{option.partition('=')[0]} is for n" in recorded.done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.nsys
def test_arguments_for_nsys_reach_it(tmp_path):
    require("nsys")
    options = ("--with", "nsys", "-v", "--nsys-arg=--stats=false")
    recorded = record(tmp_path / "run.sqlite", [sys.executable, "-c", "pass"], *options)
    assert recorded.done.returncode == 0
    assert "--stats=false" in recorded.done.stderr


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


def test_without_an_importer_the_message_says_what_to_install(tmp_path, monkeypatch):
    stream = tmp_path / "x.qdstrm"
    stream.write_bytes(b"x")
    monkeypatch.setattr(nsys_report, "find_importer", lambda _: None)
    with pytest.raises(RecordingError, match="complete Nsight Systems package"):
        convert_qdstrm(str(tmp_path / "bin" / "nsys"), stream)


def test_the_importer_of_the_same_package_comes_first(tmp_path, monkeypatch):
    """Debian cuts the package in two, and nsys is a link into one of them."""
    debian, other = tmp_path / "usr/lib", tmp_path / "bin"
    target = debian / "x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys"
    own = debian / "nsight-systems/host-linux-x64/QdstrmImporter"
    for tool in (target, own, other / "QdstrmImporter"):
        tool.parent.mkdir(parents=True)
        tool.touch(0o755)
    (other / "nsys").symlink_to(target)
    monkeypatch.setenv("PATH", str(other))
    assert find_importer(other / "nsys") == own
    own.unlink()
    assert find_importer(other / "nsys") == other / "QdstrmImporter"
    monkeypatch.setenv("PATH", "")
    assert find_importer(other / "nsys", packages=()) is None


def test_an_importer_that_lacks_a_library_is_not_taken_for_a_damaged_file(tmp_path, monkeypatch):
    importer = tmp_path / "QdstrmImporter"
    importer.write_text("#!/bin/sh\necho libssh.so: cannot open shared object file >&2; exit 127\n")
    importer.chmod(0o755)
    monkeypatch.setattr(nsys_report, "find_importer", lambda _: importer)
    stream = tmp_path / "x.qdstrm"
    stream.write_bytes(b"x")
    with pytest.raises(RecordingError, match=r"does not start, x\.qdstrm stays .*libssh"):
        convert_qdstrm("nsys", stream)


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
