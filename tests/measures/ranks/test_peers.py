"""Who sends how much to whom, how fast."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.measures.collectives.exchanges import SEND_RECV, add, exchange, ranks
from tests.reading import rows, said
from tests.running import run


def test_an_all_to_all_has_an_edge_from_each_rank_to_each() -> None:
    trace = exchange(4, {rank: [0, 1, 2, 3] for rank in range(4)}).build()
    edges = {(e.source, e.target): e.size_bytes for e in rows(run("peers", trace))}
    assert edges == {(f"rank {a}", f"rank {b}"): 100 for a in range(4) for b in range(4)}


def test_messages_of_a_chain_are_edges() -> None:
    edges = rows(run("peers", exchange(3, {0: [1], 1: [0, 2], 2: [1]}).build()))
    assert len(edges) == 4
    assert all(edge.matched_count == 1 for edge in edges)


def test_in_a_group_of_two_several_sends_in_one_kernel_may_go_to_oneself() -> None:
    builder = TraceBuilder()
    for process in (1, 2):
        for op in ("send", "recv", "send", "recv"):
            builder.collective(op, 0, 5, process=process, correlation=1, n_bytes=10)
        builder.kernel(SEND_RECV, 100, 200, correlation=1, process=process, device=process)
    result = run("peers", builder.build())
    assert all("not known" in (edge.source, edge.target) for edge in rows(result))
    assert said(result)[0].startswith("The trace does not contain the other end of 8 messages")


def test_the_rate_between_two_ranks_holds_no_waiting() -> None:
    builder = exchange(2, {0: [], 1: []})
    for op, rank, times in (("send", 0, (1000, 1100)), ("recv", 1, (1040, 1100))):
        facts = {"group_rank": rank, "peer": 1 - rank, "n_bytes": 9000, "correlation": 5}
        builder.collective(op, 300, 310, process=rank + 1, **facts)
        builder.kernel(SEND_RECV, *times, correlation=5, process=rank + 1, device=rank)
    (edge,) = rows(run("peers", builder.build()))
    assert (edge.source, edge.target, edge.size_bytes, edge.in_transit_ns) == (
        "rank 0",
        "rank 1",
        9000,
        60,
    )
    assert edge.rate_bytes_per_s == pytest.approx(150e9)
    assert edge.peak_ratio == pytest.approx(150 / 450)  # the NVLinks of an H100
    assert (edge.sender_early_ns, edge.receiver_early_ns) == (40, 0)


def test_peer_copies_stand_beside_messages() -> None:
    builder = TraceBuilder()
    builder.copy("p2p", 0, 10, n_bytes=500, src_device=0, dst_device=3, device=0)
    builder.copy("p2p", 5, 20, n_bytes=500, src_device=0, dst_device=3, device=0)
    (edge,) = rows(run("peers", builder.build()))
    assert (edge.source, edge.target, edge.via, edge.size_bytes) == (
        "GPU 0",
        "GPU 3",
        "peer copy",
        1000,
    )
    assert (edge.in_transit_ns, edge.rate_bytes_per_s) == (20, pytest.approx(50e9))


def test_calls_that_only_begin_a_transfer_have_no_rate() -> None:
    builder = ranks(2)
    add(builder, "send", 0, 1, (0, 5), backend="mpi, non-blocking")
    add(builder, "recv", 1, 0, (0, 50), backend="mpi")
    (edge,) = rows(run("peers", builder.build()))
    assert (edge.matched_count, edge.size_bytes) == (1, 1000)
    assert (edge.in_transit_ns, edge.rate_bytes_per_s) == (None, None)
