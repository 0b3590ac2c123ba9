"""Collectives that ranks share: time without waiting, bandwidth, who came last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.measures.generated_run import Plan, make_ranks_of
from tests.measures.ranks.two_ranks import two_ranks
from tests.running import run
from traceprof.model.timing import TimeWindow
from traceprof.render.formatting import sentences


def test_the_shortest_of_the_ranks_is_the_time_without_waiting() -> None:
    trace = two_ranks()
    (row,) = run("shared", trace).table.to_frame().to_dict("records")
    assert (row["op"], row["ranks"], row["duration_ns"]) == ("all_reduce", 2, 40)
    assert (row["arrival_skew_ns"], row["spread_ns"], row["last"]) == (60, 0, "rank 1")
    assert row["waited_ns"] == 0  # the first that they share: nobody knows who was late
    assert row["busbw_bytes_per_s"] == pytest.approx(25e9)


def test_an_uneven_all_to_all_has_the_mean_of_its_ranks_and_an_imbalance() -> None:
    builder = TraceBuilder()
    for process, n_bytes in ((1, 100), (2, 500)):
        more = {"process": process, "n_bytes": n_bytes, "backend": "gloo", "sequence": 1}
        builder.collective("all_to_all_v", 0, 100, **more)
        builder.collective("all_to_all", 200, 300, **{**more, "n_bytes": 100})
    told = sentences(run("collectives", builder.build()).notes)
    assert "1 uneven all-to-all: one rank sends 1.67 times the mean size." in told
    table = run("shared", builder.build()).table.to_frame()
    assert table["size_bytes"].tolist() == [300, 100]
    assert table["imbalance"].tolist() == pytest.approx([500 / 300, np.nan], nan_ok=True)
    assert table["algbw_bytes_per_s"].tolist() == pytest.approx([3e9, 1e9])
    assert np.isnan(table["busbw_bytes_per_s"].iloc[0])


def test_a_collective_keeps_its_number_in_every_window() -> None:
    ranks = make_ranks_of(Plan(n_steps=6))
    whole = run("shared", ranks).table.to_frame()
    third = whole.iloc[2]
    start = ranks.span.start_ns + int(third["at_ns"])
    (row,) = run("shared", ranks.within(TimeWindow(start, start + 1))).table.rows()
    assert (row["number"], row["at_ns"]) == (2, third["at_ns"])


def test_a_collective_of_one_rank_alone_has_a_row_of_its_own() -> None:
    builder = TraceBuilder()
    for rank in (0, 1):
        builder.process(1 + rank, rank=rank)
        shared: dict[str, Any] = {"group": "a", "group_size": 2, "n_bytes": 8}
        builder.collective("all_reduce", 10, 20, process=1 + rank, backend="gloo", **shared)
    alone: dict[str, Any] = {"group": "b", "group_size": 4, "backend": "gloo"}
    builder.collective("all_gather", 30, 37, process=2, n_bytes=64, **alone)
    builder.collective("broadcast", 50, 51, process=2, n_bytes=-1, **alone)
    found = run("shared", builder.build()).table.to_frame()
    shown = found[["op", "group", "group_size", "ranks", "duration_ns", "last"]]
    assert shown.to_numpy().tolist() == [
        ["all_reduce", "a", 2, 2, 10, "rank 0"],
        ["all_gather", "b", 4, 1, 7, "rank 1"],
        ["broadcast", "b", 4, 1, 1, "rank 1"],
    ]
    assert found["size_bytes"].tolist() == pytest.approx([8, 64, np.nan], nan_ok=True)
    assert found["number"].tolist() == [0, 1, 2]
