"""Unmodified programs of many shapes: their recordings say what they print of themselves."""

import os
import socket
import sys

import pytest

from tests.recording.conftest import PROGRAMS, TORCHRUN, Recorded, record, require_tool
from tests.recording.shapes.told import check, truths
from tests.requirements import nsys_in_turn, require
from traceprof.facts.steps.find import find_steps

pytestmark = pytest.mark.torch

PHASES = "recorded phases"
TWO = "recorded phases, 2 optimizers a step"
BACKWARD = "backward passes: no optimizer of torch was seen"
LOOPS = {
    "hand_made": PHASES,
    "gan": TWO,
    "gan_of_loader": TWO,
    "by_hand": BACKWARD,
    "compiled": PHASES,
    "accumulation": PHASES,
    "endless": PHASES,
    "in_turn": PHASES,
    "mid_epoch": PHASES,
    "critic": TWO,
}
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
    ranks = dict(zip(trace.processes["rank"], trace.processes["process"], strict=True))
    trained = find_steps(trace).table["process"].unique()
    assert len(trained) == len(told)
    for one in told:
        check(one, trace, int(ranks[one.rank] if len(told) > 1 else trained[0]))


@pytest.mark.parametrize(("name", "source"), LOOPS.items())
def test_loops_of_torch(name, source, tmp_path):
    recorded = recorded_with("torch", tmp_path, program("shapes", name))
    hold_against_truth(recorded)
    assert find_steps(recorded.trace).source == source


@pytest.mark.nsys
@pytest.mark.parametrize("name", ["hand_made", "gan", "by_hand"])
def test_loops_of_torch_under_nsys(name, tmp_path):
    with nsys_in_turn():
        hold_against_truth(recorded_with("nsys", tmp_path, program("shapes", name)))


@pytest.mark.parametrize(("name", "package"), LIBRARIES.items())
def test_libraries_that_train(name, package, tmp_path):
    require(package)
    hold_against_truth(recorded_with("torch", tmp_path, program(f"shape_{name}")))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_ranks_of_torchrun(kind, tmp_path):
    command = [*TORCHRUN, *program("shape_ranks", kind)[1:]]
    hold_against_truth(recorded_with("torch", tmp_path, command))


def test_ranks_that_the_program_spawns(tmp_path):
    hold_against_truth(recorded_with("torch", tmp_path, program("shape_ranks", "spawn")))


def test_ranks_of_mpirun(tmp_path):
    require("mpirun")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = ["mpirun", *root, "--oversubscribe", "-n", "2", *program("shape_ranks", "mpi", port)]
    hold_against_truth(recorded_with("torch", tmp_path, command))


def test_a_program_without_torch_that_names_its_steps(tmp_path):
    recorded = recorded_with("torch", tmp_path, program("shape_numpy", "named"))
    hold_against_truth(recorded)
    assert find_steps(recorded.trace).source == "traceprof.step()"


def test_a_program_without_torch_that_names_nothing_is_told_what_it_may(tmp_path):
    recorded = record(tmp_path / "run.sqlite", program("shape_numpy"), "--with", "torch")
    assert recorded.done.returncode == 0
    assert "traceprof.step()" in recorded.done.stderr


@pytest.mark.parametrize("asked", ["optimizer", "backward"])
def test_what_a_step_is_can_be_chosen(asked, tmp_path):
    command = program("shapes", "gan")
    recorded = recorded_with("torch", tmp_path, command, "--step-from", asked, "--steps", "10..19")
    steps = find_steps(recorded.trace)
    assert steps.source == f"--step-from {asked}"
    assert steps.table["step"].tolist() == list(range(10, 20))
