"""The nsys of the next Debian (2023.4), which keeps more of a program than the one before."""

from __future__ import annotations

import os

import pytest

from tests.recording.conftest import DDP, record
from tests.recording.programs.test_training import N_STEPS, PARAMETER_BYTES, counts
from tests.requirements import require
from traceprof.formats.runs.files import open_run

pytestmark = pytest.mark.newer_nsys


def path_of_newer_nsys() -> str:
    return f"{require('newer_nsys')}{os.pathsep}{os.environ['PATH']}"


def test_two_ranks_under_it_are_two_files_with_every_range(tmp_path):
    folder = f"{tmp_path}/run/"
    recorded = record(*(tmp_path, DDP, "-o", folder, "--with", "nsys"), PATH=path_of_newer_nsys())
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert sorted(path.name for path in (tmp_path / "run").glob("rank*.sqlite")) == [
        "rank0.sqlite",
        "rank1.sqlite",
    ]
    for member in open_run([tmp_path / "run"]):
        assert member.trace.info.profiler.startswith("NVIDIA Nsight Systems 2023.4")
        found = counts(member.trace.ranges.to_frame())
        for phase in ("backward", "optimizer", "zero_grad", "step"):
            assert found[phase] == N_STEPS, phase
        calls = member.trace.collectives.to_frame()
        reduced = calls[calls["op"] == "all_reduce"]
        assert int(reduced["n_bytes"].sum()) == N_STEPS * PARAMETER_BYTES


def test_nothing_secret_that_it_writes_down_is_left(tmp_path):
    program = ["python3", "-c", "pass", "--api-key", "hunter2secret", "-t", "--token=short"]
    recorded = record(
        *(tmp_path / "run.sqlite", program, "--with", "nsys", "-v"),
        PATH=path_of_newer_nsys(),
        WANDB_API_KEY="envsecret77",
    )
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert recorded.path.exists(), recorded.done.stderr
    data = recorded.path.read_bytes()
    assert b"PROCESS_0:ARGUMENT_" in data  # it does write the arguments down
    for secret in (b"hunter2secret", b"envsecret77", b"--token=short"):
        assert secret not in data
