"""What two ranks over gloo exchange, as traceprof sees it and as the loopback interface counts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reading import records
from tests.recording.programs.test_training import PARAMETER_BYTES
from tests.running import run
from traceprof.measures.collectives.callers import steps_of_collectives
from traceprof.measures.collectives.matches import find_matches
from traceprof.measures.collectives.messages import find_messages
from traceprof.measures.steps.find import find_steps
from traceprof.model.ranks import Ranks

pytestmark = pytest.mark.xdist_group("nsys")


def test_every_step_reduces_the_gradients_and_the_loopback_carries_them(ddp) -> None:
    trace = ddp.trace
    steps = find_steps(trace)
    matches = find_matches(Ranks.of(trace))
    reduced = matches.rows.take(matches.rows["op"] == "all_reduce")
    place = steps_of_collectives(trace)[reduced["row"]]
    assert (place >= 0).all()
    by_step = np.bincount(place, reduced["n_bytes"])
    assert len(by_step) == len(steps)
    assert set(by_step) == {PARAMETER_BYTES}
    # Every all-reduce has its partner on the other rank.
    assert (reduced["match"] >= 0).all()
    assert (matches.table.to_frame()["members"] == 2).all()

    # Two ranks in a ring send 2 (n-1)/n = 1 times what they hand in, each, plus headers. Other
    # programs use the loopback, too, but nobody else the sockets of these processes.
    handed_in = len(steps) * PARAMETER_BYTES
    sent = {
        row.source: row
        for row in records(run("network", trace).to_frame())
        if row.direction == "sent"
    }
    assert sent["nic:lo"].size_bytes >= handed_in
    ranks = trace.processes.to_frame().loc[trace.processes.to_frame()["rank"] >= 0, "process"]
    sockets = [sent[name] for process in ranks if (name := f"process:{process}") in sent]
    assert sum(row.size_bytes for row in sockets) <= 1.2 * handed_in


def test_messages_of_a_pipeline_find_their_other_end(pipeline) -> None:
    steps, micro_batches = 4, 3
    forward, back = 4 * 1000 * (1 + 2 + 3), 4 * 500 * micro_batches
    found = records(run("peers", pipeline.trace).to_frame())
    edges = {(edge.source[-1] + edge.target[-1]): edge for edge in found}
    assert {route: edge.size_bytes for route, edge in edges.items()} == {
        "01": steps * forward,
        "12": steps * forward,
        "21": steps * back,
        "10": steps * back,
        "20": steps * 4 * 77,
    }
    assert all(edge.matched_count == edge.count for edge in found)
    # A receive ends after its send began: what is timed is the message, not the call.
    messages = find_messages(Ranks.of(pipeline.trace))
    assert (messages["recv_end_ns"] > messages["send_start_ns"]).all()
    table = find_matches(Ranks.of(pipeline.trace)).table.to_frame()
    together = table[table["op"] == "all_reduce"]
    assert together["members"].tolist() == [3] * steps
    assert set(together["matched_by"]) == {"number"}
