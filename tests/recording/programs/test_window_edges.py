"""Windows of the embedded recorder take only their own time from the steps at their edges."""

import json
import sys

import numpy as np
import pytest

from tests.recording.conftest import PROGRAMS, record
from tests.requirements import require
from tests.running import run

pytestmark = [pytest.mark.torch]

ROUNDS = 40
PROFILER = ("traceprof.window.start", "traceprof.window.stop")


@pytest.fixture(scope="module", params=[(), ("--loader",)], ids=["by hand", "loader"])
def rounds(request, tmp_path_factory):
    """What the program says of its rounds, and its trace."""
    require("torch")
    path = tmp_path_factory.mktemp("even") / "run.sqlite"
    command = [sys.executable, str(PROGRAMS / "even_rounds.py"), *request.param]
    recorded = record(path, command, "--with", "torch")
    assert recorded.done.returncode == 0, recorded.done.stderr
    told = json.loads(recorded.done.stdout.removeprefix("truth "))
    assert recorded.trace.ranges["name"].isin(PROFILER).sum() >= 4
    return told, recorded.trace


def test_rounds_at_the_edges_of_windows_are_as_long_as_the_program_says(rounds):
    told, trace = rounds
    table = run("steps", trace).to_frame().set_index("step")
    assert len(table) == ROUNDS
    # Of the last one nobody sees where it ends, in the first one torch builds what it needs.
    true_ns = 1e9 * np.array(told["rounds_s"])[1:-1]
    ns = table["period_ns"].to_numpy(np.float64)[1:-1]
    assert np.median(ns) == pytest.approx(np.median(true_ns), rel=0.02)
    assert ns.mean() == pytest.approx(true_ns.mean(), rel=0.02)
    assert np.abs(ns - true_ns).max() < 0.25 * np.median(true_ns)


def test_an_evaluation_after_a_window_is_in_its_period(rounds):
    told, trace = rounds
    table = run("steps", trace).to_frame()
    own = table[table["between_cause"] == "evaluation"]
    assert own["step"].tolist() == [17, 29]
    true_ns = 1e9 * np.array(told["evaluated_s"])
    assert own["between_ns"].to_numpy() == pytest.approx(true_ns, rel=0.05)


def test_samples_per_second_are_those_of_the_program(rounds):
    told, trace = rounds
    scalars = run("steps", trace).scalars
    if "mean_samples_per_s" not in scalars:  # nobody tells the size of batches that are made
        return
    steady = told["rounds_s"][scalars["warmup_count"] : -1]
    rate = told["batch"] * len(steady) / sum(steady)
    assert scalars["mean_samples_per_s"] == pytest.approx(rate, rel=0.02)


def test_the_mean_of_even_rounds_is_not_that_of_a_cut_one(rounds):
    told, trace = rounds
    scalars = run("steps", trace).scalars
    even = sorted(told["rounds_s"][1:-1])[: -len(told["evaluated_s"])]
    assert scalars["mean_ns"] == pytest.approx(1e9 * np.mean(even), rel=0.02)
    assert scalars["median_ns"] == pytest.approx(1e9 * np.median(even), rel=0.02)
    assert scalars["min_ns"] > 0.95 * 1e9 * min(even)
