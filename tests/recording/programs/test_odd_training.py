"""Training loops that are not plain: all in one recording, each in a range of its name."""

import sys
from functools import partial

import pytest

from tests.recording.conftest import PROGRAMS, record
from tests.requirements import require
from traceprof.measures.steps.find import find_steps
from traceprof.model.timing import TimeWindow

pytestmark = pytest.mark.torch
N_STEPS = 4
CASES = ["workers", "accumulation", "validation", "adversarial", "scaled", "attributes"]
LATE_CASES = ["compiled", "own_profiler"]  # they change how torch works from then on


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    require("torch")
    path = tmp_path_factory.mktemp("odd") / "run.sqlite"
    command = [sys.executable, str(PROGRAMS / "train_odd.py"), *CASES, *LATE_CASES]
    recorded = record(path, command, "--with", "torch", "--layers", "2")
    assert recorded.done.returncode == 0, recorded.done.stderr
    return recorded


@pytest.fixture
def case(odd):
    return partial(part_of, odd.trace)


def part_of(trace, name):
    """Return the part of the trace inside the range ``name``."""
    (span,) = (
        trace.ranges.to_frame()
        .loc[trace.ranges.to_frame()["name"] == name, ["start_ns", "end_ns"]]
        .to_numpy()
    )
    return trace.within(TimeWindow(*map(int, span)))


def count(trace, name):
    """Return how many ranges of that name start inside the window of ``trace``."""
    ranges = trace.ranges.to_frame()[trace.ranges.to_frame()["name"] == name]
    return int((ranges["start_ns"] > trace.span.start_ns).sum())


def count_steps(trace):
    """Return how many steps of the recording start inside the window of ``trace``."""
    return int(
        trace.span.holds(find_steps(trace.whole).table.to_frame()["start_ns"].to_numpy()).sum()
    )


def test_data_loading_processes_of_every_kind_stay_silent(case):
    trace = case("workers")
    assert trace.ranges.to_frame()["process"].nunique() == 1
    assert count(trace, "data") == 3 * (N_STEPS + 1)
    assert count(trace, "step") == 3 * N_STEPS


def test_accumulated_batches_are_one_step(case):
    trace = case("accumulation")
    assert count(trace, "backward") == 2 * N_STEPS
    assert count(trace, "step") == count_steps(trace) == N_STEPS


def test_validation_is_no_training_step(case):
    trace = case("validation")
    assert count(trace, "eval") == 4
    assert count(trace, "step") == count_steps(trace) == 4


def test_two_optimizers_per_batch_are_one_step(case):
    trace = case("adversarial")
    names = trace.ranges.to_frame()["name"].astype(str)
    assert names.str.startswith("optimizer").sum() == 2 * N_STEPS
    assert names[names.str.startswith("optimizer")].nunique() == 2
    assert count(trace, "step") == count_steps(trace) == N_STEPS


def test_a_step_that_the_gradient_scaler_skips_has_no_optimizer(case):
    trace = case("scaled")
    assert count(trace, "backward") == N_STEPS
    assert count(trace, "optimizer") == N_STEPS - 1


def test_nothing_is_stored_on_models_and_optimizers(odd):
    assert "attributes [] ['0.bias', '0.weight', '2.bias', '2.weight']\n" in odd.done.stdout


def test_layers_have_ranges_with_their_names(case):
    assert count(case("attributes"), "layer:0:Linear") == N_STEPS
    assert count(case("attributes"), "layer:2:Linear") == N_STEPS


def test_layers_have_ranges_in_the_backward_pass_one_after_another(case):
    ranges = case("attributes").ranges.to_frame()
    names = ranges["name"].astype(str)
    backward = ranges[names == "backward"]
    layers = ranges[names.str.startswith("layer.backward:")]
    assert len(backward) == N_STEPS
    for start, end in zip(backward["start_ns"], backward["end_ns"], strict=True):
        inside = layers[layers["start_ns"].between(start, end)]
        assert inside["name"].tolist() == [
            "layer.backward:2:Linear",
            "layer.backward:1:ReLU",
            "layer.backward:0:Linear",
        ]
        assert inside["end_ns"].tolist()[:2] <= inside["start_ns"].tolist()[1:]
        assert inside["end_ns"].max() <= end


def test_compiled_models_stay_one_graph(odd, case):
    assert "graphs 1\n" in odd.done.stdout
    assert count(case("compiled"), "forward") == N_STEPS


def test_the_programs_own_profiler_sees_everything(odd, case):
    assert f"own steps {N_STEPS}\n" in odd.done.stdout
    assert (case("own_profiler").marks.to_frame()["name"] == "traceprof.window.ceded").sum() == 1


def test_a_trainer_that_is_forked_is_recorded(tmp_path):
    require("torch")
    command = [sys.executable, str(PROGRAMS / "train_odd.py"), "forked"]
    recorded = record(tmp_path / "run.sqlite", command, "--with", "torch")
    assert recorded.done.returncode == 0, recorded.done.stderr
    # The hooks wake up with the first backward pass.
    assert (recorded.trace.ranges.to_frame()["name"] == "backward").sum() == N_STEPS
    assert (recorded.trace.ranges.to_frame()["name"] == "optimizer").sum() == N_STEPS
    assert (recorded.trace.ranges.to_frame()["name"] == "forward").sum() == N_STEPS - 1
