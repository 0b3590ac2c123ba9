from traceprof.recording.lineage import Family, find_families, with_ranks_of_heads
from traceprof.recording.spool_files import Card


def families(cards, n_events, children=None):
    found = find_families(cards, children or {}, n_events)
    return [(family.head, family.rank, sorted(family.members)) for family in found]


def test_helpers_belong_to_the_rank_that_started_them():
    cards = [
        Card(10, (5, 1)),  # the launcher: no events
        Card(11, (10, 5, 1), rank=0),
        Card(12, (10, 5, 1), rank=1),
        Card(21, (11, 10, 5, 1), rank=0),  # a data loader that was spawned: RANK is inherited
        Card(22, (20, 12, 10, 5, 1), rank=1),  # one of a fork server, which has no card
    ]
    n_events = {11: 50, 12: 50, 22: 3}
    assert families(cards, n_events, {31: 11, 32: 31}) == [
        (11, 0, [11, 21, 31, 32]),
        (12, 1, [12, 22]),
    ]
    found = find_families(cards, {}, n_events)
    ranks = {card.pid: card.rank for card in with_ranks_of_heads(cards, found)}
    assert ranks == {10: None, 11: 0, 12: 1, 21: None, 22: None}


def test_trainers_that_a_process_spawned_are_ranks_of_their_own():
    cards = [Card(10), Card(11, (10,), rank=0), Card(12, (10,), rank=1), Card(13, (11, 10))]
    assert families(cards, {10: 5, 11: 9, 12: 9, 13: 1}) == [
        (11, 0, [11, 13]),
        (12, 1, [12]),
        (10, None, [10]),
    ]


def test_programs_that_run_as_one_rank_one_after_another_are_one_family():
    cards = [Card(11, (10,), rank=0), Card(12, (10,), rank=0)]
    assert families(cards, {11: 5, 12: 900}) == [(12, 0, [11, 12])]


def test_ids_that_were_given_twice_do_no_harm():
    assert families([Card(11, (12, 11))], {11: 5, 12: 4}, {12: 11}) == [(12, None, [11, 12])]


def test_without_events_there_is_no_family():
    assert find_families([Card(11, rank=0)], {}, {}) == []
    assert find_families([], {}, {7: 1}) == [Family(7, None, frozenset({7}))]
