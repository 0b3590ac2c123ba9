"""Communicators without a name: told by launches and times, never asserted against physics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import pandas as pd
import pytest

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.formats import open_trace
from traceprof.measures.collectives.matches import Matches, find_matches
from traceprof.model.ranks import Ranks
from traceprof.render.formatting import sentences

NCCL = "ncclKernel_AllReduce_RING_LL_Sum_float"


def kernels(
    builder: TraceBuilder, spans: dict[int, tuple[int, int]], stream: int, **more: object
) -> TraceBuilder:
    """One all-reduce: device → when its kernel ran."""
    for device, (start, end) in spans.items():
        builder.kernel(NCCL, start, end, device=device, stream=stream + device, **more)
    return builder


def groups(matches: Matches) -> set[frozenset[tuple[int, int]]]:
    """Each match as the devices and starts of its rows."""
    rows = matches.shared.to_frame()
    return {
        frozenset(zip(own["device"], own["start_ns"], strict=True))
        for _, own in rows.groupby("match")
    }


def two_communicators() -> TraceBuilder:
    """Devices 0–1 and 0–2 in turn: device 0 has two streams, which run one after the other."""
    builder = TraceBuilder()
    for start in range(0, 5000, 1000):
        kernels(builder, {0: (start, start + 300), 1: (start + 100, start + 305)}, 20)
        kernels(builder, {0: (start + 310, start + 700), 2: (start + 50, start + 705)}, 40)
    return builder


def test_streams_that_end_together_are_one_communicator() -> None:
    matches = find_matches(Ranks.of(two_communicators().build()))
    expected = {
        frozenset(pair)
        for start in range(0, 5000, 1000)
        for pair in (
            ((0, start), (1, start + 100)),
            ((0, start + 310), (2, start + 50)),
        )
    }
    assert groups(matches) == expected
    assert set(matches.table.to_frame()["matched_by"]) == {"time"}
    (note,) = sentences(run("shared", two_communicators().build()).notes)
    assert note == (
        "10 collectives have no communicator name. traceprof matched them by order and time."
    )


def test_kernels_of_one_launch_are_one_collective_whatever_the_times() -> None:
    builder = TraceBuilder()
    for start in (0, 1000):
        launched = {"launched_ns": (start, start + 5), "thread": 3}
        kernels(builder, {0: (start, start + 300), 1: (start + 400, start + 800)}, 20, **launched)
    matches = find_matches(Ranks.of(builder.build()))
    assert groups(matches) == {
        frozenset({(0, 0), (1, 400)}),
        frozenset({(0, 1000), (1, 1400)}),
    }
    assert set(matches.table.to_frame()["matched_by"]) == {"launch"}


def test_kernels_that_never_run_side_by_side_are_no_match() -> None:
    builder = TraceBuilder()
    for start in range(0, 5000, 1000):
        kernels(builder, {0: (start, start + 300), 1: (start + 400, start + 800)}, 20)
    assert find_matches(Ranks.of(builder.build())).table.empty


def test_where_two_streams_fit_about_as_well_it_is_called_a_guess() -> None:
    builder = TraceBuilder()
    for start in range(0, 5000, 1000):
        kernels(builder, {0: (start, start + 300), 1: (start + 10, start + 301)}, 20)
        builder.kernel(NCCL, start + 2, start + 299, device=0, stream=90)
    matches = find_matches(Ranks.of(builder.build()))
    assert set(matches.table.to_frame()["matched_by"]) == {"guess"}
    notes = sentences(run("shared", builder.build()).notes)
    assert "5 matches are guesses: another match fits about as well." in notes


def test_ranks_whose_clocks_tell_nothing_and_whose_sequences_shift_are_a_guess() -> None:
    builder = TraceBuilder()
    for process, clock in ((1, 0), (2, 10**13)):
        for i in range(20):
            times = (clock + 1000 * i, clock + 1000 * i + 100)
            builder.collective("all_reduce", *times, process=process, backend="gloo", n_bytes=8)
    assert set(find_matches(Ranks.of(builder.build())).table["matched_by"]) == {"guess"}


def test_ranks_of_one_clock_are_lined_up_by_it() -> None:
    builder = TraceBuilder()
    for i in range(10):
        builder.kernel(NCCL, 100 * i, 100 * i + 50, device=0)
        if i >= 4:
            builder.kernel(NCCL, 100 * i + 1, 100 * i + 51, device=1)
    matches = find_matches(Ranks.of(builder.build()))
    assert groups(matches) == {frozenset({(0, 100 * i), (1, 100 * i + 1)}) for i in range(4, 10)}


REAL = "nvprof/v16-nccl-4gpu.nvvp"


@pytest.mark.traces
def test_nccl_on_4_gpus_by_launch_and_by_time_alone(real_trace: Callable[[str], Path]) -> None:
    trace = open_trace(real_trace(REAL))
    by_launch = find_matches(Ranks.of(trace))
    assert set(by_launch.table.to_frame()["matched_by"]) == {"launch"}
    assert sorted(by_launch.table.to_frame()["members"]) == [2, 2, 3, 3, 3, 3, 4, 4]
    blind = find_matches(Ranks.of(replace(trace, api_calls=trace.api_calls.head(0))))
    assert set(blind.table.to_frame()["matched_by"]) == {"time"}
    assert groups(blind) == groups(by_launch)


@pytest.mark.traces
def test_no_other_communicators_fit_the_4_gpus_better(real_trace: Callable[[str], Path]) -> None:
    trace = open_trace(real_trace(REAL))
    found = find_matches(Ranks.of(trace)).rows.to_frame()
    ours = {frozenset(zip(own["device"], own["stream"], strict=True)) for own in _matched(found)}
    feasible = sorted(_feasible(found), key=lambda item: item[0])
    assert len(feasible) == 12  # of 3456
    best, second = feasible[:2]
    assert set(map(frozenset, best[1])) == ours
    assert second[0] > 10 * best[0]


def _matched(rows: pd.DataFrame) -> list[pd.DataFrame]:
    return [own for _, own in rows.groupby("match")]


def _feasible(rows: pd.DataFrame) -> Iterator[tuple[int, list[list[tuple[int, int]]]]]:
    """Yield (sum of the spreads of ends, communicators) of every way in which all ran together.

    Each device has one stream for each communicator that it takes part in, and device 0 takes
    part in all four.
    """
    streams = {int(d): sorted(set(own)) for d, own in rows.groupby("device")["stream"]}
    spans = {
        lane: list(zip(own["start_ns"], own["end_ns"], strict=True))
        for lane, own in rows.sort_values("start_ns").groupby(["device", "stream"])
    }
    places = [permutations(range(4), len(streams[device])) for device in (1, 2, 3)]
    for chosen in product(*map(list, places)):
        groups = [[(0, stream)] for stream in streams[0]]
        for device, order in enumerate(chosen, start=1):
            for stream, place in zip(streams[device], order, strict=True):
                groups[place].append((device, stream))
        collectives = [list(zip(*(spans[lane] for lane in own), strict=True)) for own in groups]
        flat = [spans_ for own in collectives for spans_ in own]
        if all(max(s for s, _ in own) < min(e for _, e in own) for own in flat):
            yield sum(max(e for _, e in own) - min(e for _, e in own) for own in flat), groups
