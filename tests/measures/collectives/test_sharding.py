"""Sharded parameters: what is gathered, whether before the layer that needs it, what is exposed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.model.placement import place_run
from traceprof.model.ranks import RankTrace, RunFiles
from traceprof.model.trace import Trace
from traceprof.render.formatting import sentences

GATHER = "ncclDevKernel_AllGather_RING_LL"
REDUCE = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"


class Steps(TraceBuilder):
    """Two steps of a model of two layers, whose parameters lie on four ranks."""

    def __init__(self, *, is_ahead: bool) -> None:
        super().__init__()
        self.number = 0
        for number, start in enumerate((0, 1000)):
            self.step(start, start + 1000, number)
            self.phase("forward", start, start + 40)
            self.phase("backward", start + 40, start + 90)
            # The first gather of a step has nothing to hide behind; the next is hidden, or is not.
            self.sharded("all_gather", start + 10, start + 100, 100, n_bytes=250)
            self.kernel("gemm_first", start + 200, start + 400)
            at = start + (250 if is_ahead else 400)
            self.sharded("all_gather", start + 20, at, 100, n_bytes=500)
            self.kernel("gemm_next", start + 500, start + 700)
            self.kernel("gemm_back", start + 700, start + 800)
            # A quarter of the reduction is beside the backward pass.
            self.sharded("reduce_scatter", start + 50, start + 775, 100, n_bytes=2000)

    def sharded(self, op: str, call: int, start: int, length: int, n_bytes: int) -> None:
        """Add a collective of four ranks."""
        self.number += 1
        name = GATHER if op == "all_gather" else REDUCE
        told = {"group": "dp", "group_size": 4, "correlation": self.number}
        self.collective(op, call, call + 5, n_bytes=n_bytes, **told)
        self.kernel(name, start, start + length, stream=9, correlation=self.number)


def rows_of(trace: Trace) -> dict[str, dict[str, Any]]:
    return {row["op"]: row for row in run("callers", trace).table.rows()}


def test_a_gather_that_begins_before_the_layer_that_needs_it_is_hidden() -> None:
    rows = rows_of(Steps(is_ahead=True).build())
    gathers = rows["all_gather"]
    assert (gathers["phase"], gathers["count"], gathers["sharded_count"]) == ("forward", 4, 4)
    assert (gathers["total_ns"], gathers["exposed_ns"], gathers["hidden_ns"]) == (400, 200, 200)
    assert gathers["without_compute_count"] == 2
    reduces = rows["reduce_scatter"]
    assert (reduces["phase"], reduces["sharded_count"], reduces["without_compute_count"]) == (
        "backward",
        2,
        0,
    )
    assert (reduces["total_ns"], reduces["exposed_ns"]) == (200, 150)


def test_one_that_begins_once_the_layer_before_is_done_is_alone() -> None:
    result = run("callers", Steps(is_ahead=False).build())
    gathers = result.table.row(0)
    assert (gathers["op"], gathers["without_compute_count"]) == ("all_gather", 4)
    assert gathers["exposed_ratio"] == 1
    said = sentences(result.notes)
    assert any("4 of 4 parameter all-gathers did not overlap" in words for words in said)


def test_what_is_gathered_is_all_shards_together() -> None:
    result = run("callers", Steps(is_ahead=True).build())
    rows = {row["op"]: row["gathered_bytes"] for row in result.table.rows()}
    assert rows == {"all_gather": 2 * 4 * 750, "reduce_scatter": 0}
    assert result.notes[0].values == {"n": 4, "size": 6000}


def test_activations_that_are_reduced_in_the_forward_pass_are_no_parameters() -> None:
    built = Steps(is_ahead=True)
    built.sharded("reduce_scatter", 30, 600, 50, n_bytes=100)
    result = run("callers", built.build())
    assert {row["sharded_count"] for row in result.table.rows()} == {0}
    assert not result.notes


@pytest.mark.parametrize("name", ["FSDP::all_gather (layers.1)", "FullyShardedDataParallel"])
def test_ranges_of_fsdp_tell_parameters_whatever_the_phase(name: str) -> None:
    built = Steps(is_ahead=True).range(name, 18, 28)
    built.sharded("reduce_scatter", 30, 600, 50, n_bytes=100)
    rows = run("callers", built.build()).table.rows()
    assert [(row["op"], row["sharded_count"], row["count"]) for row in rows] == [
        ("all_gather", 3, 3),
        ("reduce_scatter", 2, 2),
        ("all_gather", 1, 1),
        ("reduce_scatter", 1, 1),
    ]


def test_a_size_that_was_not_recorded_is_no_zero() -> None:
    built = Steps(is_ahead=True)
    built.sharded("all_gather", 31, 850, 50, n_bytes=-1)
    result = run("callers", built.build())
    row = next(row for row in result.table.rows() if row["op"] == "all_gather")
    assert row["gathered_bytes"] != row["gathered_bytes"]
    assert not any("gather {size" in note.text for note in result.notes)


def test_gathers_on_no_device_are_not_said_to_be_alone() -> None:
    built = TraceBuilder().phase("backward", 0, 500)
    for start, op in ((10, "all_gather"), (200, "reduce_scatter")):
        built.collective(op, start, start + 100, n_bytes=8, backend="gloo")
    rows = run("callers", built.build()).table.rows()
    assert [row["sharded_count"] for row in rows] == [1, 1]
    assert np.isnan([row["without_compute_count"] for row in rows]).all()


def test_ranks_side_by_side_add_up() -> None:
    parts = [Steps(is_ahead=True).process(1, rank=rank).build() for rank in range(2)]
    members = tuple(RankTrace(part, rank) for rank, part in enumerate(parts))
    ranks = place_run(RunFiles("run", members), [0, 0])
    result, one = run("callers", ranks), run("callers", parts[0])
    for both, alone in zip(result.table.rows(), one.table.rows(), strict=True):
        for name in ("sharded_count", "gathered_bytes", "without_compute_count"):
            assert both[name] == 2 * alone[name]
