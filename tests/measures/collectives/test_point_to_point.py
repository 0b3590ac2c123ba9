"""Sends and receives: who sends to whom, which receive took which send, how fast."""

from __future__ import annotations

import numpy as np

from tests.builders import TraceBuilder, plain
from tests.measures.collectives.exchanges import SEND_RECV, add, exchange, ranks
from traceprof.measures.collectives.matches import find_matches
from traceprof.measures.collectives.messages import find_messages
from traceprof.measures.collectives.operations import find_collectives
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace


def routes(trace: Trace) -> list[tuple[int, int, int, int]]:
    messages = find_messages(Ranks.of(trace))
    columns = ("source_rank", "target_rank", "send_start_ns", "recv_start_ns")
    return plain(messages, *columns)


def test_messages_of_a_large_group_are_matched_by_their_ends() -> None:
    builder = ranks(4)
    add(builder, "send", 0, 1, (0, 50))
    add(builder, "send", 0, 2, (60, 90))
    add(builder, "recv", 2, 0, (10, 95))
    add(builder, "recv", 1, 0, (20, 55))
    assert routes(builder.build()) == [(0, 1, 0, 20), (0, 2, 60, 10)]
    matches = find_matches(Ranks.of(builder.build()))
    assert plain(matches.table.to_frame(), "op", "members", "duration_ns", "matched_by") == [
        ("send", 2, 35, "peer"),
        ("send", 2, 30, "peer"),
    ]


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
    messages = find_messages(Ranks.of(builder.build()))
    assert plain(messages, "source_rank", "target_rank", "is_matched") == [
        (0, 1, False),
        (0, 9, False),
        (ABSENT, 1, False),
    ]
    assert np.isnan(messages["duration_ns"]).all()


def test_a_rank_that_recorded_later_is_lined_up() -> None:
    builder = ranks(2)
    for i in range(6):
        add(builder, "send", 0, 1, (1000 * i, 1000 * i + 100), n_bytes=100 * i)
        if i >= 2:
            add(builder, "recv", 1, 0, (1000 * i, 1000 * i + 101), n_bytes=100 * i)
    found = [(send, recv) for *_, send, recv in routes(builder.build()) if recv != ABSENT]
    assert found == [(1000 * i, 1000 * i) for i in range(2, 6)]


def test_sends_to_all_and_receives_from_all_are_an_all_to_all() -> None:
    trace = exchange(4, {rank: [0, 1, 2, 3] for rank in range(4)}).build()
    assert set(find_collectives(trace)["op"]) == {"all_to_all"}
    ((match),) = find_matches(Ranks.of(trace)).table.to_frame().itertuples()
    # S = 400 bytes of one rank over the 97 ns of the last; factor 3/4.
    assert (match.members, match.duration_ns, match.bus_bytes) == (4, 97, 300)


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
    pairs = find_matches(Ranks.of(exchange(4, {0: [1], 1: [0], 2: [3], 3: [2]}).build()))
    assert [set(own) for _, own in pairs.rows.to_frame().groupby("match")["member"]] == [
        {0, 1},
        {2, 3},
    ]
    chain = find_matches(Ranks.of(exchange(3, {0: [1], 1: [0, 2], 2: [1]}).build()))
    assert chain.table.to_frame().empty
    # The messages themselves are known.
    messages = find_messages(Ranks.of(exchange(3, {0: [1], 1: [0, 2], 2: [1]}).build()))
    assert len(messages) == 4
    assert messages["is_matched"].all()
