from traceprof.recording.captured import RankProcesses, find_ranks, without_inherited_ranks
from traceprof.recording.spool import ProcessRecord as Record


def ranks(records, n_events, children=None):
    found = find_ranks(records, children or {}, n_events)
    return [(one.main, one.rank, sorted(one.pids)) for one in found]


def test_helpers_belong_to_the_rank_that_started_them():
    records = [
        Record(10, (5, 1)),  # the launcher: no events
        Record(11, (10, 5, 1), rank=0),
        Record(12, (10, 5, 1), rank=1),
        Record(21, (11, 10, 5, 1), rank=0),  # a data loader that was spawned: RANK is inherited
        Record(22, (20, 12, 10, 5, 1), rank=1),  # one of a fork server, which has no record
    ]
    n_events = {11: 50, 12: 50, 22: 3}
    assert ranks(records, n_events, {31: 11, 32: 31}) == [
        (11, 0, [11, 21, 31, 32]),
        (12, 1, [12, 22]),
    ]
    found = find_ranks(records, {}, n_events)
    own = {one.pid: one.rank for one in without_inherited_ranks(records, found)}
    assert own == {10: None, 11: 0, 12: 1, 21: None, 22: None}


def test_trainers_that_a_process_spawned_are_ranks_of_their_own():
    records = [
        Record(10),
        Record(11, (10,), rank=0),
        Record(12, (10,), rank=1),
        Record(13, (11, 10)),
    ]
    assert ranks(records, {10: 5, 11: 9, 12: 9, 13: 1}) == [
        (11, 0, [11, 13]),
        (12, 1, [12]),
        (10, None, [10]),
    ]


def test_programs_that_run_as_one_rank_one_after_another_are_one_rank():
    records = [Record(11, (10,), rank=0), Record(12, (10,), rank=0)]
    assert ranks(records, {11: 5, 12: 900}) == [(12, 0, [11, 12])]


def test_each_start_by_an_agent_is_a_life_of_its_own():
    def worker(pid, above, rank=0):
        return Record(pid, above, rank=rank, run_id="job")

    records = [
        Record(10, (5,)),  # the agent
        worker(11, (10, 5)),
        worker(12, (10, 5), 1),
        worker(21, (10, 5)),  # rank 0 again
        worker(31, (30, 10, 5), 1),  # rank 1 again, inside a shell that runs two programs
        worker(32, (30, 10, 5), 1),
        worker(41, (21, 10, 5)),  # a data loader
    ]
    n_events = {11: 5, 12: 5, 21: 9, 31: 2, 32: 7, 41: 1}
    assert ranks(records, n_events) == [
        (11, 0, [11]),
        (21, 0, [21, 41]),
        (12, 1, [12]),
        (32, 1, [31, 32]),
    ]


def test_ids_that_were_given_twice_do_no_harm():
    assert ranks([Record(11, (12, 11))], {11: 5, 12: 4}, {12: 11}) == [(12, None, [11, 12])]


def test_without_events_there_is_no_rank():
    assert find_ranks([Record(11, rank=0)], {}, {}) == []
    assert find_ranks([], {}, {7: 1}) == [RankProcesses(7, None, frozenset({7}))]
