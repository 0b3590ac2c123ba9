"""Two ranks over gloo that print their own rounds: who is late is named, rounds are as long."""

import json

import numpy as np
import pytest

from tests.recording.conftest import PROGRAMS, TORCHRUN, record
from tests.requirements import require
from traceprof.comparison.iterations import iterations_of_run
from traceprof.comparison.nodes import NODES, nodes
from traceprof.session.run import open_run

pytestmark = [pytest.mark.torch]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """What each rank says of itself, by rank, and the run."""
    require("torch")
    path = tmp_path_factory.mktemp("late") / "run.sqlite"
    # --standalone: this torchrun takes port 29500 else, which another test may hold
    command = [*TORCHRUN, "--standalone", str(PROGRAMS / "late_rank.py")]
    found = record(path, command, "--with", "torch", TRACEPROF_DISABLE="windows")
    assert found.done.returncode == 0, found.done.stderr
    lines = (one for one in found.done.stdout.splitlines() if "truth {" in one)
    told = [json.loads(one.partition("truth ")[2]) for one in lines]
    return {one["rank"]: one for one in told}, open_run([path])


def test_the_rank_that_is_late_is_named_with_what_the_others_lost(recorded):
    told, run = recorded
    table = run.within("all").result("stragglers").table
    row = next(iter(table.in_order("-cost_ns").rows()))
    assert row["rank"] == 1
    # What rank 0 was in all-reduces longer than rank 1 it waited for it; the first takes set-up.
    lost_ns = np.subtract(told[0]["reducing_ns"], told[1]["reducing_ns"])[1:].sum()
    assert row["cost_ns"] == pytest.approx(lost_ns, rel=0.1)


def test_rounds_are_as_long_as_each_rank_says(recorded):
    told, run = recorded
    steps = run.within("all").result("steps").table
    ranks = run.within("all").of_ranks().table("processes")
    rank_of = dict(zip(ranks["process"].tolist(), ranks["rank"].tolist(), strict=True))
    for process in set(steps["process"].tolist()):
        true = np.diff(told[rank_of[process]]["starts_ns"])[1:]
        ns = steps["period_ns"][steps["process"] == process][1:-1]
        assert np.median(ns) == pytest.approx(np.median(true), rel=0.02)
        assert ns.mean() == pytest.approx(true.mean(), rel=0.02)


def test_phases_of_nodes_make_the_round_and_no_more(recorded):
    told, run = recorded
    found = nodes(iterations_of_run(run, "late")).results[NODES].table
    for row in found.rows():
        true = np.diff(told[int(row["rank"])]["starts_ns"])
        steady = true[int(row["warmup_count"]) :]
        # Rounds that are slow by chance do not count.
        assert row["round_ns"] == pytest.approx(np.median(steady), rel=0.02)
        assert row["other_ns"] >= 0
