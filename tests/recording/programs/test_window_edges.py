"""Windows of the embedded recorder take only their own time from the steps at their edges."""

import json
import sys
from itertools import pairwise

import numpy as np
import pytest

from tests.recording.conftest import PROGRAMS, record
from tests.requirements import require
from tests.running import run
from traceprof.measures.steps.base import counted_steps
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks

pytestmark = [pytest.mark.torch]

ROUNDS = 40
EVALUATED = [17, 29]
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


def true_ns(trace, spans):
    """Return how long each span of the program was without the recorder's own time in it."""
    ranges = trace.ranges.take(trace.ranges["name"].isin(PROFILER))
    recorder = Intervals.union_of(*(ranges[one] for one in ("start_ns", "end_ns")))
    starts, ends = (np.array(side) - trace.info.utc_epoch_ns for side in zip(*spans, strict=True))
    return ends - starts - recorder.covered_ns(starts, ends)


def rounds_of(told, trace):
    """Of the last one nobody sees where it ends, in the first one torch builds what it needs."""
    return true_ns(trace, list(pairwise(told["starts_ns"]))[1:])


def test_rounds_at_the_edges_of_windows_are_as_long_as_the_program_says(rounds):
    told, trace = rounds
    table = run("steps", trace).table
    assert len(table) == ROUNDS
    ns, true = table["period_ns"][1:-1], rounds_of(told, trace)
    assert np.median(ns) == pytest.approx(np.median(true), rel=0.02)
    assert ns.mean() == pytest.approx(true.mean(), rel=0.02)
    assert np.abs(ns - true).max() < 0.25 * np.median(true)


def test_an_evaluation_after_a_window_is_in_its_period(rounds):
    told, trace = rounds
    table = run("steps", trace).table
    own = table.take(table["between_cause"] == "evaluation")
    assert own["step"].tolist() == EVALUATED
    assert own["between_ns"] == pytest.approx(true_ns(trace, told["evaluated_ns"]), rel=0.05)


def counted_rounds(told, trace):
    """How long the rounds were that the step time is the mean of.

    On a busy machine a round may take longer than the others: it is slow, and does not count.
    """
    ranks = Ranks.of(trace)
    is_counted = counted_steps(ranks, ranks.span)[1:-1]
    assert is_counted.sum() >= 10
    assert not is_counted[[one - 1 for one in EVALUATED]].any()
    return rounds_of(told, trace)[is_counted]


def test_samples_per_second_are_those_of_the_program(rounds):
    told, trace = rounds
    scalars = run("steps", trace).scalars
    if "samples_per_s" not in scalars:  # nobody tells the size of batches that are made
        return
    rate = 1e9 * told["batch"] / counted_rounds(told, trace).mean()
    assert scalars["samples_per_s"] == pytest.approx(rate, rel=0.02)


def test_the_mean_of_even_rounds_is_not_that_of_a_cut_one(rounds):
    told, trace = rounds
    scalars = run("steps", trace).scalars
    even = counted_rounds(told, trace)
    assert scalars["mean_ns"] == pytest.approx(even.mean(), rel=0.02)
    assert scalars["median_ns"] == pytest.approx(np.median(even), rel=0.02)
    assert scalars["min_ns"] > 0.95 * even.min()
