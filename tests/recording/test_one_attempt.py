"""One file contains one attempt of a restarted job: the one with the most events of all ranks."""

from pathlib import Path

from traceprof.recording.captured import Captured, find_ranks
from traceprof.recording.spool import ProcessEvents, ProcessRecord

AGENT, NO_FILE = 1, Path("none")


def captured(n_events):
    """Return two attempts of two ranks, and a loader worker of the first process.

    ``n_events`` are those of ranks 0 and 1 in attempt 0, then in attempt 1: processes 10 to 13.
    """
    records = [ProcessRecord(AGENT)] + [
        ProcessRecord(
            10 + place, ancestors=(AGENT,), rank=place % 2, run_id="job", restart_count=place // 2
        )
        for place in range(4)
    ]
    events = [ProcessEvents(10 + place, NO_FILE, n_ranges=n) for place, n in enumerate(n_events)]
    events.append(ProcessEvents(20, NO_FILE, n_ranges=3))
    ranks = find_ranks(records, {20: 10}, {part.pid: part.n_events for part in events})
    return Captured(records, events, ranks=ranks)


def test_events_of_other_attempts_are_left_out():
    found = captured([30, 30, 40, 40]).with_one_attempt()
    assert found.pids() == [12, 13]
    assert [(rank.main, rank.rank) for rank in found.ranks] == [(12, 0), (13, 1)]
    # The processes were started, and are no ranks of this attempt.
    known = [(record.pid, record.rank) for record in found.processes]
    assert known == [(1, None), (10, None), (11, None), (12, 0), (13, 1)]


def test_all_ranks_are_of_one_attempt():
    """Rank 0 has more events in attempt 0, all ranks together have more in attempt 1."""
    assert captured([50, 10, 40, 40]).with_one_attempt().pids() == [12, 13]
    assert captured([60, 30, 40, 40]).with_one_attempt().pids() == [10, 11, 20]
