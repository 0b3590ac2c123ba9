"""The ranks of a run side by side give what they give as one trace."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks, RankTrace, RunFiles
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
NAMES = (
    "collectives",
    "collective-events",
    "callers",
    "buckets",
    "transfers",
    "bandwidth",
    "network",
    "network-time",
)


def rank_of(rank: int, n_ranks: int) -> Trace:
    """Steps of a rank that is 7 ns late for each rank before it, with copies, sends, samples."""
    builder = TraceBuilder().process(1, rank=rank).device(0, "NVIDIA H100 80GB HBM3")
    for number in range(4):
        start, late = 1000 * number, 7 * rank
        builder.step(start, start + 1000, number)
        builder.phase("data", start, start + 90)
        builder.phase("backward", start + 100, start + 900)
        builder.range(f"layer{number % 2}", start + 120, start + 300)
        builder.copy("h2d", start + late, start + 80, n_bytes=4096 * (number + 1))
        builder.copy("p2p", start + 500, start + 560, n_bytes=300, src_device=0, dst_device=0)
        for place, at in enumerate((130, 400)):
            name = 10 * number + place + 1
            facts = {"n_bytes": 8000 * (place + 1), "group_size": n_ranks, "correlation": name}
            builder.collective("all_reduce", start + at, start + at + 9, **facts)
            builder.kernel(NCCL, start + at + 50 + late, start + at + 200, correlation=name)
        builder.kernel("gemm", start + 300, start + 380, stream=8)
        peer = {"group_size": n_ranks, "backend": "gloo", "peer_rank": (rank + 1) % n_ranks}
        builder.collective("send", start + 600, start + 640, n_bytes=500, **peer)
        peer["peer_rank"] = (rank - 1) % n_ranks
        builder.collective("recv", start + 600 + late, start + 645, n_bytes=500, **peer)
        builder.sample("bytes_sent", start, 7000.0 * number, source="nic:eth0")
        builder.sample("pcie_bytes_sent", start, 900.0 * number * (rank + 1), source="gpu:0")
        builder.sample("tcp_bytes_sent", start, 50.0 * number, source="process:1")
    return builder.build(span=(0, 4000))


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    members = tuple(RankTrace(rank_of(rank, 3), rank) for rank in range(3))
    return place_run(RunFiles("run", members), [0, 0, 0])


@pytest.mark.parametrize("window", [None, (900, 3100)])
@pytest.mark.parametrize("name", NAMES)
def test_several_parts_give_what_one_trace_gives(
    name: str, window: tuple[int, int] | None, ranks: Ranks
) -> None:
    seen = ranks if window is None else ranks.within(TimeWindow(*window))
    side_by_side, together = run(name, seen), run(name, Ranks.of(seen.merged()))
    assert not together.table.to_frame().empty
    assert set(side_by_side.tables) == set(together.tables)
    for table in together.tables:
        keys = list(together.spec.table(table).keys)
        frames = [result.to_frame(table) for result in (side_by_side, together)]
        assert not frames[0].duplicated(keys).any()
        ordered = (frame.sort_values(keys, ignore_index=True) for frame in frames)
        pd.testing.assert_frame_equal(*ordered, check_dtype=False)
    assert dict(side_by_side.scalars) == pytest.approx(dict(together.scalars))
    assert [note.text for note in side_by_side.notes] == [note.text for note in together.notes]
