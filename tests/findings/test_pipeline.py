"""The bubble of a pipeline as a finding: where stages stand still, and where they send."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.requirements import require
from tests.truth.loops import Pipeline
from tests.truth.machine import MS, Machine, run
from traceprof.measures.steps.find import decide_steps
from traceprof.model.ranks import Ranks
from traceprof.render.formatting import note_text
from traceprof.session.answer import page
from traceprof.session.run import open_run, run_of


def pipeline(**more: int | bool) -> Ranks:
    machines = [Machine(rank=rank, n_ranks=4) for rank in range(4)]

    def program(machine: Machine):  # type: ignore[no-untyped-def]
        return Pipeline(machine.rank, 4, **more)(machine)  # type: ignore[arg-type]

    return decide_steps(run(machines, program))


def test_waiting_in_a_closing_all_reduce_is_bubble() -> None:
    # Stages end their work one after another; the all-reduce of all holds them until the last has.
    table = run_of(pipeline(is_closed=True)).result("pipeline").table
    ratios = table["bubble_ratio"]
    assert max(ratios) - min(ratios) < 0.03


def test_links_that_are_slow_are_no_bubble() -> None:
    found = run_of(pipeline(send_ns=10 * MS)).result("findings").table
    claimed = dict(zip(found["rule"], found["claimed_ratio"], strict=True))
    assert claimed["exposed_communication"] > 0.5
    assert claimed["pipeline_bubble"] < 0.3


@pytest.mark.traces
@pytest.mark.parametrize("name", ["megatron691-pipeline", "megatron691b-no-allreduce"])
def test_a_pipeline_of_four_stages_and_eight_micro_batches(name: str) -> None:
    path = Path(require("traces")).parent / "wild" / name
    opened = open_run([path])
    stages = opened.result("pipeline").table
    assert [round(one, 3) for one in stages["bubble_ratio"]] == [0.293] * 4
    first = opened.result("findings").table.row(0)
    assert first["rule"] == "pipeline_bubble"
    assert first["show"] == "pipeline"
    told = " ".join(map(note_text, first["evidence"]))
    assert "each of 4 stages is idle 29.3% of the time" in told
    assert "8 micro-batches per step have a bubble of at least 27.3% (15.8% with twice" in told
    assert "micro-batches" in first["action"]
    assert "interleaved" in first["action"]
    verdict = page(opened).verdict
    assert verdict is not None
    assert verdict.next_command.startswith("traceprof show ranks --by stage ")
