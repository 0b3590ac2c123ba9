"""Sends and receives: who sends to whom, which receive took which send, how fast."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder, plain
from traceprof.facts.collectives.matches import find_matches
from traceprof.analysis.communication.messages import measure_messages
from traceprof.facts.collectives.point_to_point import find_messages
from traceprof.facts.collectives.work import find_collectives
from traceprof.analysis.ranks.peers import measure_peers
from traceprof.facts.ranks.stages import find_chains
from traceprof.analysis.ranks.shared import measure_shared
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

SEND_RECV = "ncclDevKernel_SendRecv"


def ranks(n: int) -> TraceBuilder:
    builder = TraceBuilder()
    for rank in range(n):
        builder.process(rank + 1, rank=rank)
    return builder


def add(
    builder: TraceBuilder, op: str, own: int, other: int, times: tuple[int, int], **more: object
) -> TraceBuilder:
    """A send or receive of rank ``own`` over gloo in a group of 4, told by global ranks."""
    facts = {"n_bytes": 1000, "group_size": 4, "backend": "gloo", "peer_rank": other, **more}
    return builder.collective(op, *times, process=own + 1, **facts)


def routes(trace: Trace) -> list[tuple[int, int, int, int]]:
    messages = find_messages(trace)
    columns = ("source_rank", "target_rank", "send_start_ns", "recv_start_ns")
    return plain(messages, *columns)


def test_messages_of_a_large_group_are_matched_by_their_ends() -> None:
    builder = ranks(4)
    add(builder, "send", 0, 1, (0, 50))
    add(builder, "send", 0, 2, (60, 90))
    add(builder, "recv", 2, 0, (10, 95))
    add(builder, "recv", 1, 0, (20, 55))
    assert routes(builder.build()) == [(0, 1, 0, 20), (0, 2, 60, 10)]
    matches = find_matches(builder.build())
    assert plain(matches.table, "op", "members", "duration_ns", "told_by") == [
        ("send", 2, 35, "peer"),
        ("send", 2, 30, "peer"),
    ]
    table = measure_shared(builder.build()).to_frame()
    assert table["route"].tolist() == ["rank 0 → rank 1", "rank 0 → rank 2"]


def test_ends_may_be_told_by_their_numbers_in_the_group() -> None:
    # Numbers 0 and 1 of this group are the ranks 3 and 1 of the job.
    builder = ranks(4)
    for op, own, number, peer in (("send", 3, 0, 1), ("recv", 1, 1, 0)):
        more = {"peer_rank": ABSENT, "group_rank": number, "peer": peer, "group": "pp"}
        add(builder, op, own, ABSENT, (0, 10), **more)
    assert routes(builder.build()) == [(3, 1, 0, 0)]


def test_messages_keep_their_order_within_a_tag() -> None:
    builder = ranks(2)
    for start, tag in ((0, 7), (10, 8), (20, 7)):
        add(builder, "send", 0, 1, (start, start + 5), tag=tag)
    for start, tag in ((100, 8), (110, 7), (120, 7)):
        add(builder, "recv", 1, 0, (start, start + 5), tag=tag)
    assert routes(builder.build()) == [(0, 1, 10, 100), (0, 1, 0, 110), (0, 1, 20, 120)]


def test_what_has_no_other_end_is_listed_alone() -> None:
    builder = ranks(2)
    add(builder, "send", 0, 1, (0, 5))
    add(builder, "send", 0, 9, (10, 15))
    add(builder, "recv", 1, ABSENT, (20, 25), group_size=4)
    messages = find_messages(builder.build())
    assert plain(messages, "source_rank", "target_rank", "is_matched") == [
        (0, 1, False),
        (0, 9, False),
        (ABSENT, 1, False),
    ]
    assert messages["duration_ns"].isna().all()


def test_a_rank_that_recorded_later_is_lined_up() -> None:
    builder = ranks(2)
    for i in range(6):
        add(builder, "send", 0, 1, (1000 * i, 1000 * i + 100), n_bytes=100 * i)
        if i >= 2:
            add(builder, "recv", 1, 0, (1000 * i, 1000 * i + 101), n_bytes=100 * i)
    found = [(send, recv) for *_, send, recv in routes(builder.build()) if recv != ABSENT]
    assert found == [(1000 * i, 1000 * i) for i in range(2, 6)]


def exchange(n: int, peers: dict[int, list[int]], n_bytes: int = 100) -> TraceBuilder:
    """Each rank sends to and receives from its peers in one kernel, over NCCL."""
    builder = TraceBuilder()
    for rank in range(n):
        builder.process(rank + 1, rank=rank).device(rank, "NVIDIA H100 80GB HBM3")
        for op in ("send", "recv"):
            for peer in peers[rank]:
                facts = {"group_size": n, "group_rank": rank, "peer": peer, "n_bytes": n_bytes}
                builder.collective(op, 0, 5, process=rank + 1, correlation=1, **facts)
        times = (100 + rank, 200)
        builder.kernel(SEND_RECV, *times, correlation=1, process=rank + 1, device=rank)
    return builder


def test_sends_to_all_and_receives_from_all_are_an_all_to_all() -> None:
    trace = exchange(4, {rank: [0, 1, 2, 3] for rank in range(4)}).build()
    assert set(find_collectives(trace)["op"]) == {"all_to_all"}
    ((match),) = find_matches(trace).table.itertuples()
    # S = 400 bytes of one rank over the 97 ns of the last; factor 3/4.
    assert (match.members, match.duration_ns, match.bus_bytes) == (4, 97, 300)
    edges = {(e.source, e.target): e.size_bytes for e in measure_peers(trace).edges}
    assert edges == {(f"rank {a}", f"rank {b}"): 100 for a in range(4) for b in range(4)}


def test_an_annotation_names_an_all_to_all_whose_peers_are_not_told() -> None:
    builder = TraceBuilder().kernel(SEND_RECV, 100, 200, correlation=1)
    builder.range("nccl:all_to_all, op_id = 7", 0, 50)
    for start, op in ((10, "send"), (12, "recv"), (14, "send"), (16, "recv")):
        builder.collective(op, start, start + 1, correlation=1)
    assert find_collectives(builder.build())["op"].tolist() == ["all_to_all"]


def test_an_uneven_exchange_in_an_all_to_all_has_no_busbw() -> None:
    builder = TraceBuilder().kernel(SEND_RECV, 100, 200, correlation=1)
    builder.range("nccl:all_to_all", 0, 50)
    for start, op, n_bytes in ((10, "send", 1), (12, "recv", 2), (14, "send", 3)):
        builder.collective(op, start, start + 1, correlation=1, n_bytes=n_bytes)
    work = find_collectives(builder.build())
    assert plain(work, "op", "n_bytes") == [("all_to_all_v", 4)]


def test_pairs_that_exchange_are_matched_and_chains_are_not() -> None:
    pairs = find_matches(exchange(4, {0: [1], 1: [0], 2: [3], 3: [2]}).build())
    assert [set(own) for _, own in pairs.rows.groupby("match")["member"]] == [{0, 1}, {2, 3}]
    chain = find_matches(exchange(3, {0: [1], 1: [0, 2], 2: [1]}).build())
    assert chain.table.empty
    # The messages themselves are known.
    edges = measure_peers(exchange(3, {0: [1], 1: [0, 2], 2: [1]}).build()).edges
    assert len(edges) == 4
    assert all(edge.matched_count == 1 for edge in edges)


def test_in_a_group_of_two_several_sends_in_one_kernel_may_go_to_oneself() -> None:
    builder = TraceBuilder()
    for process in (1, 2):
        for op in ("send", "recv", "send", "recv"):
            builder.collective(op, 0, 5, process=process, correlation=1, n_bytes=10)
        builder.kernel(SEND_RECV, 100, 200, correlation=1, process=process, device=process)
    result = measure_peers(builder.build())
    assert all("not known" in (edge.source, edge.target) for edge in result.edges)
    assert result.notes[0].startswith("of 8 messages the trace does not tell the other end")


def test_the_rate_between_two_ranks_holds_no_waiting() -> None:
    builder = exchange(2, {0: [], 1: []})
    for op, rank, times in (("send", 0, (1000, 1100)), ("recv", 1, (1040, 1100))):
        facts = {"group_rank": rank, "peer": 1 - rank, "n_bytes": 9000, "correlation": 5}
        builder.collective(op, 300, 310, process=rank + 1, **facts)
        builder.kernel(SEND_RECV, *times, correlation=5, process=rank + 1, device=rank)
    (edge,) = measure_peers(builder.build()).edges
    assert (edge.source, edge.target, edge.size_bytes, edge.moving_ns) == (
        "rank 0",
        "rank 1",
        9000,
        60,
    )
    assert edge.rate_bytes_per_s == pytest.approx(150e9)
    assert edge.peak_ratio == pytest.approx(150 / 450)  # the NVLinks of an H100
    assert (edge.sender_waited_ns, edge.receiver_waited_ns) == (40, 0)


def test_peer_copies_stand_beside_messages() -> None:
    builder = TraceBuilder()
    builder.copy("p2p", 0, 10, n_bytes=500, src_device=0, dst_device=3, device=0)
    builder.copy("p2p", 5, 20, n_bytes=500, src_device=0, dst_device=3, device=0)
    (edge,) = measure_peers(builder.build()).edges
    assert (edge.source, edge.target, edge.via, edge.size_bytes) == (
        "GPU 0",
        "GPU 3",
        "peer copy",
        1000,
    )
    assert (edge.moving_ns, edge.rate_bytes_per_s) == (20, pytest.approx(50e9))


def test_each_call_names_its_other_end() -> None:
    builder = exchange(3, {0: [1, 2], 1: [], 2: []})
    add(builder, "send", 0, 2, (300, 310))
    add(builder, "recv", 1, 7, (310, 320))
    table = measure_messages(builder.build()).to_frame()
    assert [peer for peer in table["peer"] if peer] == ["{0,1,2}", "to rank 2", "from rank 7"]


def test_calls_that_only_begin_a_transfer_have_no_rate() -> None:
    builder = ranks(2)
    add(builder, "send", 0, 1, (0, 5), backend="mpi, non-blocking")
    add(builder, "recv", 1, 0, (0, 50), backend="mpi")
    (edge,) = measure_peers(builder.build()).edges
    assert (edge.matched_count, edge.size_bytes) == (1, 1000)
    assert (edge.moving_ns, edge.rate_bytes_per_s) == (None, None)


def test_chains_are_told_by_who_sends_first() -> None:
    forward = {(0, 1): 10, (1, 2): 20, (2, 3): 30}
    back = {(3, 2): 40, (2, 1): 50, (1, 0): 60}
    assert find_chains({**forward, **back}) == [[0, 1, 2, 3]]
    assert find_chains({(3, 1): 10, (1, 3): 20, (2, 0): 12, (0, 2): 30}) == [[2, 0], [3, 1]]
    # Interleaved stages: the last hands on to the first for the second round.
    ring = {(3, 0): 35, (0, 3): 36}
    assert find_chains({**forward, **back, **ring}) == [[0, 1, 2, 3]]
    # Ring attention: everyone passes on in one direction.
    assert find_chains({**forward, (3, 0): 10}) == []
    # Inference sends forward only.
    assert find_chains(forward) == [[0, 1, 2, 3]]
