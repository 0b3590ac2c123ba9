"""Whatever way a program ends, its exit code passes through and its trace can be read."""

import os
import signal
import subprocess
import sys

import pytest

from tests.recording.conftest import (
    NAMED_STEPS,
    TORCHRUN,
    environment_of_test,
    record,
    require_tool,
)
from tests.requirements import ROOT, require
from traceprof.formats import open_trace

TOOLS = ["torch", pytest.param("nsys", marks=pytest.mark.nsys)]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("how", "code"), [("0", 0), ("3", 3), ("raise", 1), ("segfault", 139), ("kill", 137)]
)
def test_exit_code_and_ranges_survive(tmp_path, tool, how, code):
    if tool == "nsys":
        require("nsys")
    recorded = record(tmp_path / "run.sqlite", [*NAMED_STEPS, how], "--with", tool)
    assert recorded.done.returncode == code, recorded.done.stderr
    ranges = recorded.trace.ranges.to_frame()
    assert (ranges["name"] == "work").sum() == 3
    assert (ranges["name"] == "user_step").sum() == 3
    assert ranges.loc[ranges["name"] == "user_step", "payload"].tolist() == [0, 1, 2]


def test_metrics_and_batches_are_on_the_same_clock(tmp_path):
    trace = record(tmp_path / "run.sqlite", [*NAMED_STEPS, "0"], "--with", "torch").trace
    loss = trace.samples.to_frame()[trace.samples.to_frame()["metric"] == "loss"]
    assert loss["value"].tolist() == [1, 0.5, 1 / 3]
    batches = trace.marks.to_frame()[trace.marks.to_frame()["name"] == "batch"]
    assert batches["payload"].tolist() == [8, 8, 8]
    steps = trace.ranges.to_frame()[trace.ranges.to_frame()["name"] == "user_step"]
    for step_end, time, next_start in zip(
        steps["end_ns"], loss["start_ns"], [*steps["start_ns"][1:], trace.span.end_ns], strict=True
    ):
        assert step_end <= time <= next_start
    (epoch,) = (
        trace.ranges.to_frame()
        .loc[trace.ranges.to_frame()["name"] == "epoch", ["start_ns", "end_ns"]]
        .to_numpy()
    )
    assert epoch[0] <= steps["start_ns"].min() < steps["end_ns"].max() <= epoch[1]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_forked_process_has_events_of_its_own(tmp_path, tool):
    if tool == "nsys":
        require("nsys")
    recorded = record(tmp_path / "run.sqlite", [*NAMED_STEPS, "fork"], "--with", tool)
    assert recorded.done.returncode == 0, recorded.done.stderr
    work = recorded.trace.ranges.to_frame()[recorded.trace.ranges.to_frame()["name"] == "work"]
    assert sorted(work["process"].value_counts()) == [1, 3]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("tool", TOOLS)
def test_signals_reach_the_program_and_leave_a_trace(tmp_path, tool, number):
    if tool == "nsys":
        require("nsys")
    path = tmp_path / "run.sqlite"
    recorder = subprocess.Popen(
        [
            *(sys.executable, "-m", "traceprof", "record", "-o", path, "--with", tool),
            *("--", *NAMED_STEPS, "wait"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment_of_test(),
    )
    assert recorder.stdout is not None
    assert recorder.stdout.readline() == "waiting\n"
    recorder.send_signal(number)
    _, said = recorder.communicate(timeout=60)
    assert recorder.returncode == 128 + number, said
    assert (open_trace(path).ranges.to_frame()["name"] == "work").sum() == 3


SAVES_AT_THE_END = """
import signal, time, traceprof
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
signal.signal(signal.SIGINT, lambda *_: told.append(1))
print("waiting", flush=True)
while not told:
    time.sleep(0.001)
for _ in range(20):
    with traceprof.range("saving"):
        pass
print(len(told), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("tool", TOOLS)
def test_what_a_program_does_after_a_signal_is_recorded_and_its_end_believed(
    tmp_path, tool, number
):
    require_tool(tool)
    path = tmp_path / "run.sqlite"
    recorder = subprocess.Popen(
        [
            *(sys.executable, "-m", "traceprof", "record", "-o", path, "--with", tool),
            *("--", sys.executable, "-c", SAVES_AT_THE_END),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment_of_test(),
    )
    assert recorder.stdout is not None
    assert recorder.stdout.readline() == "waiting\n"
    recorder.send_signal(number)
    out, said = recorder.communicate(timeout=60)
    assert (recorder.returncode, out) == (0, "1\n"), said
    assert (open_trace(path).ranges.to_frame()["name"] == "saving").sum() == 20
    assert "nsys exited before" not in said
    assert "the profiler did not record all ranges" not in said


def test_a_program_without_anything_to_record_leaves_no_trace(tmp_path):
    recorded = record(
        tmp_path / "run.sqlite", ["sh", "-c", "echo hello; exit 4"], "--with", "torch"
    )
    assert recorded.done.returncode == 4
    assert recorded.done.stdout == "hello\n"
    assert "no process imported torch" in recorded.done.stderr
    assert "no trace was written" in recorded.done.stderr
    assert not recorded.path.exists()


def test_of_a_program_without_torch_that_names_nothing_the_machine_is_recorded(tmp_path):
    code = (
        "import time\nwhile time.process_time() < 1.1: sum(range(1000))\n"
        "time.sleep(3)\nraise SystemExit(3)"
    )
    recorded = record(tmp_path / "run.sqlite", [sys.executable, "-c", code], "--with", "torch")
    assert recorded.done.returncode == 3
    said = "recorded only machine samples with torch: "
    assert said + f"{recorded.path} (the program ended with exit code 3)" in recorded.done.stderr
    samples = recorded.trace.samples.to_frame()
    seconds = samples.loc[samples["metric"] == "cpu_seconds", "value"]
    assert 1 <= seconds.max() < 2
    assert recorded.trace.ranges.to_frame().empty


@pytest.mark.parametrize("tool", TOOLS)
def test_a_missing_program_is_said_before_anything_runs(tmp_path, tool):
    if tool == "nsys":
        require("nsys")
    recorded = record(tmp_path / "run.sqlite", ["no-such-program"], "--with", tool)
    assert recorded.done.returncode == 5
    assert (
        recorded.done.stderr == "traceprof: no-such-program: program not found; nothing was run\n"
    )


def test_streams_pass_through(tmp_path):
    for tool in ("torch", "nsys"):
        if tool == "nsys" and not require("nsys"):
            continue
        done = subprocess.run(
            [
                *(sys.executable, "-m", "traceprof", "record", "-o", f"{tool}.sqlite"),
                *("--with", tool, "--", "sh", "-c", "read line; echo out $line; echo err >&2"),
            ],
            input="hello\n",
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env=environment_of_test(),
            check=False,
        )
        assert done.stdout == "out hello\n"
        assert done.stderr.splitlines()[0] == "err"


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_options_of_python_that_switch_instrumentation_off_are_named(tmp_path, option):
    command = [sys.executable, option, "-c", "pass"]
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch")
    assert recorded.done.returncode == 0
    assert f"python {option} ignores PYTHONPATH" in recorded.done.stderr


def test_the_users_own_sitecustomize_runs_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("name = __name__\n")
    command = [sys.executable, "-c", "import sitecustomize as s; print(s.name, s.__file__)"]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch", PYTHONPATH=path)
    assert recorded.done.stdout == f"sitecustomize {tmp_path / 'sitecustomize.py'}\n"


@pytest.mark.parametrize(
    ("output", "reason"),
    [("missing/run.sqlite", "no such folder"), (".", "is a folder")],
)
def test_an_output_that_cannot_be_written_is_said_before_anything_runs(tmp_path, output, reason):
    recorded = record(tmp_path / output, ["touch", str(tmp_path / "ran")])
    assert recorded.done.returncode == 2
    assert reason in recorded.done.stderr
    assert not (tmp_path / "ran").exists()


SECRET_NAMES = """
import sys, traceprof
for name in ("login password=" + "range" + "secret7", "pull with " + sys.argv[-1], "pull"):
    with traceprof.range(name):
        pass
"""


@pytest.mark.parametrize("tool", TOOLS)
def test_no_secret_is_in_the_names_of_ranges(tmp_path, tool):
    require_tool(tool)
    command = [sys.executable, "-c", SECRET_NAMES, "--api-key", "hunter2secret"]
    recorded = record(tmp_path / "run.sqlite", command, "--with", tool, "-v")
    assert recorded.done.returncode == 0, recorded.done.stderr
    for secret in ("hunter2secret", "rangesecret7"):
        assert secret.encode() not in recorded.path.read_bytes()
        assert secret not in recorded.done.stderr
    names = set(recorded.trace.ranges.to_frame()["name"])
    assert {"login password=***", "pull with ***", "pull"} <= names


@pytest.mark.parametrize("tool", TOOLS)
def test_no_secret_of_command_line_or_environment_is_in_the_trace(tmp_path, tool):
    if tool == "nsys":
        require("nsys")
    command = [*NAMED_STEPS, "0", "--api-key", "hunter2secret"]
    recorded = record(
        tmp_path / "run.sqlite",
        command,
        "--with",
        tool,
        WANDB_API_KEY="envsecret77",
        NCCL_X="seen8",
    )
    data = recorded.path.read_bytes()
    assert b"hunter2secret" not in data
    assert b"envsecret77" not in data
    environment = recorded.trace.environment.to_frame()
    assert environment.loc[environment["name"] == "env.NCCL_X", "value"].tolist() == ["seen8"]
    assert environment.loc[environment["name"] == "command", "value"].item().endswith("***")


@pytest.mark.parametrize("tool", TOOLS)
def test_arguments_that_are_no_text_stop_nothing(tmp_path, tool):
    if tool == "nsys":
        require("nsys")
    command = [*NAMED_STEPS, "0", os.fsdecode(b"bad\xff<b>")]
    recorded = record(tmp_path / "run.sqlite", command, "--with", tool)
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert (recorded.trace.ranges.to_frame()["name"] == "work").sum() == 3
    assert "bad\ufffd" in "".join(recorded.trace.environment.to_frame()["value"])


@pytest.mark.torch
@pytest.mark.parametrize("tool", TOOLS)
def test_a_rank_that_ends_before_its_collective_does_is_not_aborted(tmp_path, tool):
    """Threads of gloo come to our callback after its last line, as on a busy machine.

    Without recording it waits for the other at its end, too.
    """
    require("torch")
    if tool == "nsys":
        require("nsys")
    program = tmp_path / "train.py"
    program.write_text(
        "import os, sys, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "tensor, is_there = torch.ones(4), sys.argv[1]\n"
        "if dist.get_rank():\n"
        "    while not os.path.exists(is_there): time.sleep(.01)\n"
        "    time.sleep(1.6)\n"
        "dist.all_reduce(tensor, async_op=True)\n"
        "open(is_there, 'w').close()\n"
    )
    command = [*TORCHRUN, str(program), str(tmp_path / "there")]
    recorded = record(tmp_path / "run.sqlite", command, "--with", tool)
    assert recorded.done.returncode == 0, recorded.done.stderr
    calls = recorded.trace.collectives.to_frame()
    assert calls["op"].tolist() == ["all_reduce"] * 2
    # The rank that came first was in it until the other one had come.
    assert (calls["end_ns"] - calls["start_ns"]).max() > 1_500_000_000
