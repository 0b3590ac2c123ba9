"""Nodes beside one another: means without warm-up; independent ranks averaged, others not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from traceprof.comparison.nodes import NodeIterations, nodes
from traceprof.errors import NotRecordedError, UsageError
from traceprof.model.table import Table
from traceprof.render.formatting import sentences

MS = 1_000_000
FORWARD = {"forward": 60 * MS}
BOTH = {"forward": 60 * MS, "backward": 120 * MS, "data": 10 * MS}


def rank(run: str, number: int, **more: Any) -> NodeIterations:
    """Return ten rounds of one of two ranks, 20 ms each, that exchange nothing."""
    usual: dict[str, Any] = {
        "ranks_count": 2,
        "iterations_count": 10,
        "warmup_count": 2,
        "iterations_ns": 200 * MS,
        "phases": BOTH,
        "calls_count": 0,
    }
    return NodeIterations(run, number, "vm", **{**usual, **more})


def rows_of(*ranks: NodeIterations, name: str = "nodes") -> list[dict[str, Any]]:
    return [
        {str(key): value for key, value in row.items()}
        for row in nodes(ranks).results[name].table.to_frame().to_dict("records")
    ]


def test_times_are_means_over_the_rounds() -> None:
    (row,) = rows_of(rank("a", 0, samples_count=400))
    assert row["round_ns"] == 20 * MS
    assert (row["forward_ns"], row["backward_ns"], row["data_ns"]) == (6 * MS, 12 * MS, MS)
    assert row["other_ns"] == MS
    assert row["samples_per_s"] == 2000
    assert (row["rounds_count"], row["warmup_count"]) == (10, 2)


def test_independent_ranks_are_averaged() -> None:
    rows = rows_of(rank("a", 1, iterations_ns=300 * MS), rank("a", 0, iterations_ns=100 * MS))
    assert [row["rank"] for row in rows] == ["0", "1", "mean"]
    assert [row["round_ns"] for row in rows] == [10 * MS, 30 * MS, 20 * MS]
    assert {row["ranks"] for row in rows} == {"independent"}


def test_ranks_with_different_roles_are_neither_averaged_nor_compared() -> None:
    """An actor that only runs forward passes, in rounds of 2 ms, and its learner."""
    of_job = (rank("a", 0), rank("a", 1, iterations_ns=20 * MS, phases={"forward": 10 * MS}))
    for calls_count in (0, 10):
        of_roles = [replace(one, calls_count=calls_count) for one in of_job]
        assert [row["rank"] for row in rows_of(*of_roles)] == ["0", "1"]
        found = nodes(of_roles)
        (verdict,) = sentences(found.verdict)
        assert verdict == "a: a round takes 20.0 ms on the slowest of 2 ranks (rank 0)"
        assert not any("averages" in note for note in sentences(found.notes))


def test_synchronized_ranks_are_not() -> None:
    rows = rows_of(rank("a", 0, calls_count=30), rank("a", 1, calls_count=30))
    assert [row["rank"] for row in rows] == ["0", "1"]
    assert {row["ranks"] for row in rows} == {"synchronized"}


def test_what_ranks_exchange_is_per_second_and_per_call() -> None:
    (row,) = rows_of(
        rank(
            "a",
            0,
            calls_count=18,
            calls_iterations_ns=180 * MS,
            calls_bytes=18e6,
            calls_ns=36 * MS,
            waited_ns=50 * MS,
        )
    )
    assert row["syncs_per_s"] == 100
    assert row["sync_bytes"] == 1e6
    assert row["sync_ns"] == 2 * MS
    assert row["sync_bytes_per_s"] == 5e8
    assert row["waited_ns"] == 5 * MS


def test_modes_and_kinds_are_held_against_one_another() -> None:
    forward = {"phases": FORWARD, "iterations_ns": 80 * MS}
    runs = [
        *(rank("alone", i) for i in range(2)),
        *(rank("forward", i, **forward) for i in range(2)),
        rank("together", 0, calls_count=9, iterations_ns=250 * MS),
        rank("together", 1, calls_count=9, iterations_ns=260 * MS),
    ]
    said = sentences(nodes(runs).verdict)
    assert said == [
        "forward+backward: a round takes 26.0 ms if the ranks are synchronized and 20.0 ms if "
        "not (30.0% more).",
        "independent nodes: a forward round takes 8.00 ms. A round with the backward pass takes "
        "20.0 ms (2.50× as long).",
    ]


def layers(forward: int, backward: int | None = None) -> Table:
    about = {"layer": ["stem", "head"], "type": "Conv2d", "count": 10, "host_ns": 1}
    table = Table({**about, "device_ns": [forward, 2 * forward]})
    return table if backward is None else table.assign(backward_ns=backward)


def test_layers_are_told_by_node_and_mode() -> None:
    rows = rows_of(
        rank("alone", 0, layers=layers(10 * MS)),
        rank("alone", 1, layers=layers(30 * MS)),
        rank("together", 0, calls_count=9, layers=layers(50 * MS, 70 * MS)),
        name="node-layers",
    )
    assert [(row["layer"], row["run"], row["rank"], row["forward_ns"]) for row in rows] == [
        ("stem", "alone", "mean", 2 * MS),
        ("stem", "together", "0", 5 * MS),
        ("head", "alone", "mean", 4 * MS),
        ("head", "together", "0", 10 * MS),
    ]
    assert rows[1]["both_ns"] == 12 * MS
    assert pd.isna(rows[0]["both_ns"])


def test_one_rank_is_neither_and_an_unknown_exchange_is_unknown() -> None:
    assert rank("a", 0, ranks_count=1).ranks == "one"
    assert rank("a", 0, calls_count=None).ranks == ""
    assert rank("a", 0, phases={}).mode == ""


def test_ranks_without_rounds_are_named_and_none_at_all_refused() -> None:
    empty = replace(rank("b", 3), iterations_count=0)
    said = sentences(nodes([rank("a", 0), empty]).notes)
    assert any("b rank 3" in text for text in said)
    with pytest.raises(NotRecordedError, match="no rounds"):
        nodes([empty])


def test_nothing_is_said_of_phases_that_others_may_not_have_named() -> None:
    forward = {"phases": FORWARD, "are_phases_from_recorder": False}
    assert rank("a", 0, **forward).mode == ""
    assert rank("a", 0, phases=BOTH, are_phases_from_recorder=False).mode == "forward+backward"


def test_runs_are_averaged_as_independent_nodes_on_request() -> None:
    alone = {"ranks_count": 1, "calls_count": None}
    runs = [
        rank("a", 0, iterations_ns=100 * MS, program="train.py", **alone),
        rank("b", 0, iterations_ns=300 * MS, program="train.py", **alone),
    ]
    assert [row["rank"] for row in rows_of(*runs)] == ["0", "0"]
    table = nodes(runs, are_independent=True).results["nodes"].table
    assert table["round_ns"].tolist() == [10 * MS, 30 * MS, 20 * MS]
    assert table["run"].tolist() == ["a", "b", "(all)"]
    other = replace(runs[1], program="other.py")
    with pytest.raises(UsageError, match=r"programs differ: other.py, train.py"):
        nodes([runs[0], other], are_independent=True)
    with pytest.raises(UsageError, match="kinds of rounds differ"):
        nodes([runs[0], replace(runs[1], phases=FORWARD)], are_independent=True)
    together = [rank("c", number, calls_count=30) for number in (0, 1)]
    with pytest.raises(UsageError, match="ranks of c are synchronized"):
        nodes(together, are_independent=True)
