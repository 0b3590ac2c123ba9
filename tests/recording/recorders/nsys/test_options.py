import sys
from pathlib import Path

import pytest

from tests.recording.conftest import record
from tests.requirements import require
from traceprof.recording.recorders.nsys.recorder import nsys_options, profile_options

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


@pytest.mark.nsys
def test_arguments_for_nsys_reach_it(tmp_path):
    require("nsys")
    options = ("--with", "nsys", "-v", "--nsys-arg=--stats=false")
    recorded = record(tmp_path / "run.sqlite", [sys.executable, "-c", "pass"], *options)
    assert recorded.done.returncode == 0
    assert "--stats=false" in recorded.done.stderr
