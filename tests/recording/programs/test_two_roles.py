"""A trainer and a rollout over gloo, in one file: each waits as long as the program says."""

import json

import numpy as np
import pytest

from tests.recording.conftest import PROGRAMS, TORCHRUN, record
from tests.requirements import require
from traceprof.measures.collectives.members import find_members
from traceprof.measures.collectives.waits import find_waits, waiting_of_members
from traceprof.measures.ranks.roles import find_roles
from traceprof.measures.steps.costs import one_off_costs
from traceprof.session.run import open_run

pytestmark = [pytest.mark.torch]
TENSORS = 3  # in each round: a batch, the weight, and the bias


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """When each rank called each broadcast, by rank, and the run."""
    require("torch")
    path = tmp_path_factory.mktemp("roles") / "run.sqlite"
    command = [*TORCHRUN, "--standalone", str(PROGRAMS / "two_roles.py")]
    found = record(path, command, "--with", "torch", TRACEPROF_DISABLE="windows")
    assert found.done.returncode == 0, found.done.stderr
    lines = (one for one in found.done.stdout.splitlines() if "truth {" in one)
    told = [json.loads(one.partition("truth ")[2]) for one in lines]
    return {one["rank"]: np.array(one["called_ns"]) for one in told}, open_run([path])


def test_a_rank_that_generates_is_a_rollout(recorded):
    _, run = recorded
    ranks = run.of_ranks().whole
    assert len(ranks) == 2  # although they are in one file
    assert [*find_roles(ranks).of_member.values()] == ["trainer", "rollout"]
    assert "evaluation" not in one_off_costs(ranks)["kind"].tolist()


def test_each_role_waits_as_long_as_the_program_says(recorded):
    """In broadcasts that both ranks began within a millisecond of reading their clock.

    Otherwise the system took the processor away in between.
    """
    called_ns, run = recorded
    ranks = run.of_ranks().whole
    waits, epoch_ns = find_waits(ranks), ranks.info.utc_epoch_ns
    starts_ns, waits_ns = (
        np.array([waits[name][waits["member"] == member] for member in (0, 1)])
        for name in ("start_ns", "wait_ns")
    )
    called = np.array([called_ns[0], called_ns[1]]) - epoch_ns
    is_prompt = (np.abs(starts_ns - called) < 1_000_000).all(axis=0)
    is_prompt &= np.arange(len(is_prompt)) >= TENSORS  # ranks are in step after the first round
    assert is_prompt.mean() > 0.3
    true_ns = np.maximum(0, called[::-1] - called)[:, is_prompt].sum(axis=1)
    assert waits_ns[:, is_prompt].sum(axis=1) == pytest.approx(true_ns, rel=0.03)


def test_the_page_says_who_waits_for_how_much_of_a_step(recorded):
    _, run = recorded
    ranks = run.of_ranks()
    findings = run.result("findings").table.rows()
    title = next(row["title"] for row in findings if row["rule"] == "role_waits")
    steps = run.result("steps").table
    trainer, time = find_members(ranks)[0].process, waiting_of_members(ranks.whole)[0]
    steps = steps.take((steps["kind"] == "usual") & (steps["process"] == trainer))
    waited_ns = time.covered_ns(steps["at_ns"], steps["at_ns"] + steps["duration_ns"]).sum()
    assert title.values["who"] == "trainer (rank 0)"
    true_ratio = waited_ns / steps["duration_ns"].sum()
    assert title.values["share"] == pytest.approx(true_ratio, rel=0.03)
