"""The oldest torch that we record (2.1.2), in the oldest Python that it is found for."""

import re
import sys

import pytest

from tests.recording.conftest import DDP, PROGRAMS, record
from tests.recording.programs.test_training import (
    BATCH,
    N_STEPS,
    PARAMETER_BYTES,
    assert_agrees,
    counts,
)
from tests.requirements import require

# Which any nsys that runs beside this one may leave.
_LEFTOVER = re.compile(
    r"traceprof: removed /dev/shm/NSys-\S+, a leftover that stops nsys from starting"
)


def record_with(python, path, command, *options):
    recorded = record(path, [python, *command], *options)
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert all(
        line.startswith("traceprof: recorded")
        for line in recorded.done.stderr.splitlines()
        if line.startswith("traceprof:") and not _LEFTOVER.fullmatch(line)
    ), recorded.done.stderr
    return recorded


@pytest.mark.oldest_torch
def test_steps_phases_layers_and_operators(tmp_path):
    python = require("oldest_torch")
    program = [str(PROGRAMS / "train_cnn.py"), "--steps", str(N_STEPS), "--batch", str(BATCH)]
    recorded = record_with(
        python, tmp_path / "run.sqlite", program, "--with", "torch", "--layers", "2"
    )
    trace = recorded.trace
    found = counts(trace.ranges.to_frame())
    for phase in ("backward", "optimizer", "zero_grad", "step", "layer:blocks.1:ResidualBlock"):
        assert found[phase] == N_STEPS, phase
    assert found["layer.backward:blocks.1:ResidualBlock"] == N_STEPS
    assert found["data"] == N_STEPS + 1
    batches = trace.marks.to_frame()[trace.marks.to_frame()["name"] == "batch"]
    assert batches["payload"].tolist() == [BATCH] * N_STEPS
    assert_agrees(trace, int(trace.ranges.to_frame()["process"].iloc[0]), recorded, BATCH)
    optimizer = trace.ranges.to_frame()[trace.ranges.to_frame()["name"] == "optimizer"]
    inner = trace.host_ops.to_frame()[
        trace.host_ops.to_frame()["name"] == "Optimizer.step#SGD.step"
    ]
    assert len(inner) >= 2
    slack_ns = 1_000  # this torch writes times in microseconds
    for start, end in zip(inner["start_ns"], inner["end_ns"], strict=True):
        starts, ends = optimizer["start_ns"] - slack_ns, optimizer["end_ns"] + slack_ns
        assert ((starts <= start) & (ends >= end)).sum() == 1
    facts = dict(
        zip(
            trace.environment.to_frame()["name"], trace.environment.to_frame()["value"], strict=True
        )
    )
    assert facts["torch"].startswith("2.1.2")
    if "+cu121" in facts["torch"]:  # a build for CUDA tells its versions without a GPU, too
        versions = {name: facts[name] for name in ("cuda", "cudnn", "nccl")}
        assert versions == {"cuda": "12.1", "cudnn": "8.9.2", "nccl": "2.18.1"}


@pytest.mark.oldest_torch
@pytest.mark.parametrize("tool", ["torch", pytest.param("nsys", marks=pytest.mark.nsys)])
def test_two_ranks_and_their_collectives(tmp_path, tool):
    python = require("oldest_torch")
    if tool == "nsys":
        require("nsys")
    # --standalone: this torchrun takes port 29500 else, which another test may hold
    command = [*DDP[1:3], "--standalone", *DDP[3:]]
    recorded = record_with(python, tmp_path / "run.sqlite", command, "--with", tool)
    trace = recorded.trace
    ranks = trace.processes.to_frame()[trace.processes.to_frame()["rank"] >= 0]
    assert sorted(ranks["rank"]) == [0, 1]
    for pid in ranks["process"]:
        ranges = trace.ranges.to_frame()[trace.ranges.to_frame()["process"] == pid]
        found = counts(ranges)
        for phase in ("backward", "optimizer", "zero_grad", "step"):
            assert found[phase] == N_STEPS, phase
        calls = trace.collectives.to_frame()[trace.collectives.to_frame()["process"] == pid]
        reduced = calls[calls["op"] == "all_reduce"]
        assert len(reduced) == found["comm:allreduce"] == found["comm.async:allreduce"]
        assert set(reduced["backend"]) == {"gloo"}
        assert set(reduced["group_size"]) == {2}
        assert set(reduced["dtype"]) == {"float32"}
        assert int(reduced["n_bytes"].sum()) == N_STEPS * PARAMETER_BYTES
        returned = ranges.loc[ranges["name"] == "comm:allreduce", "end_ns"]
        assert (reduced["end_ns"].to_numpy() > returned.to_numpy()).all()  # complete, not asked for
    pid = int(ranks.loc[ranks["rank"] == 0, "process"].iloc[0])
    assert_agrees(trace, pid, recorded, 2 * BATCH)


@pytest.mark.parametrize(
    "which",
    [
        pytest.param("torch", marks=pytest.mark.torch),
        pytest.param("oldest_torch", marks=pytest.mark.oldest_torch),
    ],
)
def test_compiling_exporting_and_the_programs_own_profiler_work_as_without_us(tmp_path, which):
    found = require(which)
    python = sys.executable if which == "torch" else found
    recorded = record_with(
        python,
        tmp_path / "run.sqlite",
        [str(PROGRAMS / "compile_and_profile.py")],
        "--with",
        "torch",
        "--layers",
        "3",
    )
    assert recorded.done.stdout == "graphs 1\nexported\nown steps 4\n"
    assert counts(recorded.trace.ranges.to_frame())["step"] == 3 * 4
    assert (recorded.trace.marks.to_frame()["name"] == "traceprof.window.ceded").sum() == 1
