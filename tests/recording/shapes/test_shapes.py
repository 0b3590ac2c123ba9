"""Unmodified programs of many shapes: their recordings say what they print of themselves."""

import os
import socket
import sys

import pytest

from tests.recording.conftest import PROGRAMS, TOOLS, TORCHRUN, Recorded, record, require_tool
from tests.recording.shapes.told import check, truths
from tests.requirements import require
from traceprof.formats import open_trace
from traceprof.measures.steps.find import find_steps

pytestmark = pytest.mark.torch

PHASES = "recorded phases"
TWO = "recorded phases, 2 optimizers per step"
BACKWARD = "backward passes (no PyTorch optimizer found)"
LOOPS = {
    "hand_made": PHASES,
    "gan": TWO,
    "gan_of_loader": TWO,
    "by_hand": BACKWARD,
    "added_by_hand": BACKWARD,
    "scaled": PHASES,
    "compiled": PHASES,
    "accumulation": PHASES,
    "endless": PHASES,
    "in_turn": PHASES,
    "mid_epoch": PHASES,
    "critic": TWO,
    "pictures": PHASES,
}
# of make_model() in shapes.py: weights and biases, four bytes each
PARAMETER_BYTES = 4 * (64 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10)
LIBRARIES = {
    "lightning": "lightning",
    "trainer": "transformers",
    "accelerate": "accelerate",
    "notebook": "nbclient",
}


def program(name, *arguments):
    return [sys.executable, str(PROGRAMS / f"{name}.py"), *arguments]


def recorded_with(tool, folder, command, *options, prefix=()):
    require("torch")
    require_tool(tool)
    recorded = record(folder / "run.sqlite", command, "--with", tool, *options, prefix=prefix)
    assert recorded.done.returncode == 0, recorded.done.stderr
    return recorded


def hold_against_truth(recorded: Recorded) -> None:
    trace = recorded.trace
    told = truths(recorded.done.stdout)
    ranks = dict(
        zip(trace.processes.to_frame()["rank"], trace.processes.to_frame()["process"], strict=True)
    )
    trained = find_steps(trace).table.to_frame()["process"].unique()
    assert len(trained) == len(told)
    for one in told:
        check(one, trace, int(ranks[one.rank] if len(told) > 1 else trained[0]))


@pytest.fixture(params=TOOLS if os.environ.get("TRACEPROF_THOROUGH") else ["torch"])
def tool(request):
    """The embedded recorder, and nsys, which takes twice as long, on demand."""
    return request.param


def record_loops(tool, folder):
    """Record all loops, one program after the other; return the recorded trace of each."""
    one_by_one = 'program=$1; shift; for name; do "$0" "$program" "$name" || exit; done'
    command = ["sh", "-c", one_by_one, *program("shapes"), *LOOPS]
    recorded = recorded_with(tool, folder, command, "-o", f"{folder}/run/")
    traces = [open_trace(path) for path in (folder / "run").glob("*.sqlite")]
    traces.sort(key=lambda trace: int(trace.ranges.to_frame()["start_ns"].min()))
    told = truths(recorded.done.stdout)
    return dict(zip(LOOPS, zip(told, traces, strict=True), strict=True))


@pytest.fixture(scope="module")
def loops_with_torch(tmp_path_factory):
    return record_loops("torch", tmp_path_factory.mktemp("loops"))


@pytest.fixture(scope="module")
def loops_with_nsys(tmp_path_factory):
    return record_loops("nsys", tmp_path_factory.mktemp("loops"))


@pytest.mark.parametrize("recorder", TOOLS)
@pytest.mark.parametrize(("name", "source"), LOOPS.items())
def test_loops_of_torch(name, source, recorder, request):
    told, trace = request.getfixturevalue(f"loops_with_{recorder}")[name]
    (process,) = find_steps(trace).table.to_frame()["process"].unique()
    check(told, trace, int(process))
    assert find_steps(trace).source == source


@pytest.mark.parametrize(("name", "package"), LIBRARIES.items())
def test_libraries_that_train(name, package, tool, tmp_path):
    require(package)
    hold_against_truth(recorded_with(tool, tmp_path, program(f"shape_{name}")))


def test_ranks_of_torchrun(tool, tmp_path):
    command = [*TORCHRUN, *program("shape_ranks", "ddp")[1:]]
    hold_against_truth(recorded_with(tool, tmp_path, command))


def test_sharded_parameters_are_gathered_and_gradients_scattered(tool, tmp_path):
    command = [*TORCHRUN, *program("shape_ranks", "fsdp")[1:]]
    recorded = recorded_with(tool, tmp_path, command)
    hold_against_truth(recorded)
    trace, n_steps = recorded.trace, truths(recorded.done.stdout)[0].updates
    calls = trace.collectives.to_frame()[
        trace.collectives.to_frame()["process"] == trace.processes.to_frame()["process"].min()
    ]
    gathered = calls[calls["op"] == "all_gather"]
    scattered = calls[calls["op"] == "reduce_scatter"]
    assert len(scattered) == n_steps
    assert len(gathered) >= n_steps
    assert set(scattered["dtype"]) == set(gathered["dtype"]) == {"float32"}
    assert set(scattered["n_bytes"]) == {PARAMETER_BYTES}
    assert set(gathered["n_bytes"]) == {PARAMETER_BYTES // 2}  # one half on each rank


def test_ranks_that_the_program_spawns(tool, tmp_path):
    hold_against_truth(recorded_with(tool, tmp_path, program("shape_ranks", "spawn")))


def test_ranks_of_mpirun(tool, tmp_path):
    require("mpirun")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = ["mpirun", *root, "--oversubscribe", "-n", "2", *program("shape_ranks", "mpi", port)]
    hold_against_truth(recorded_with(tool, tmp_path, command))


def test_a_program_without_torch_that_names_its_steps(tool, tmp_path):
    recorded = recorded_with(tool, tmp_path, program("shape_numpy", "named"))
    hold_against_truth(recorded)
    assert find_steps(recorded.trace).source == "traceprof.step()"


def test_a_program_without_torch_that_names_nothing_is_told_what_it_may(tmp_path):
    recorded = record(tmp_path / "run.sqlite", program("shape_numpy"), "--with", "torch")
    assert recorded.done.returncode == 0
    assert "traceprof.step()" in recorded.done.stderr


def test_steps_that_were_asked_for_bear_their_numbers(tool, tmp_path):
    recorded = recorded_with(tool, tmp_path, program("shapes", "hand_made"), "--steps", "5..7")
    assert find_steps(recorded.trace).table.to_frame()["step"].tolist() == [5, 6, 7]


def test_steps_that_never_come_are_said(tool, tmp_path):
    recorded = recorded_with(tool, tmp_path, program("shapes", "hand_made"), "--steps", "500..509")
    assert "--steps starts at 500, but the program ran 24 steps" in recorded.done.stderr
    assert "no trace was written" in recorded.done.stderr


@pytest.mark.parametrize("asked", ["optimizer", "backward"])
def test_what_a_step_is_can_be_chosen(asked, tmp_path):
    command = program("shapes", "gan")
    recorded = recorded_with("torch", tmp_path, command, "--step-from", asked, "--steps", "10..19")
    steps = find_steps(recorded.trace)
    assert steps.source == f"--step-from {asked}"
    assert steps.table.to_frame()["step"].tolist() == list(range(10, 20))
