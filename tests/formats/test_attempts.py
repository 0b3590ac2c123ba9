"""Starts of a program are told apart, and one of them is looked at."""

from pathlib import Path

import pytest

from tests.attempts import S, write_job
from traceprof.errors import UsageError
from traceprof.formats.runs.files import attempts_of_run, open_run, outline_run
from traceprof.formats.runs.manifest import attempts_in, chosen_attempt, warning_on_attempts


def row(rank, start, end, size=2, **more):
    return {"rank": rank, "started_ns": start * S, "ended_ns": end * S, "world_size": size, **more}


def groups(*rows):
    told = {Path(f"{place}.sqlite"): {"run_id": "job", **one} for place, one in enumerate(rows)}
    return [(one.number, one.rank, one.start_ns // S) for one in attempts_in(told)]


def test_ranks_that_run_together_are_one_life():
    rows = [row(1, 0, 5), row(0, 0, 6), row(0, 8, 12, 1), row(0, 13, 20), row(1, 13, 20)]
    assert groups(*rows) == [(0, 0, 0), (0, 1, 0), (1, 0, 8), (2, 0, 13), (2, 1, 13)]


def test_a_rank_that_comes_before_the_others_belongs_to_them():
    """The node that joined starts its rank a moment before the one that was there."""
    rows = [row(0, 8, 12, 1), row(1, 13, 20), row(0, 14, 20)]
    assert groups(*rows) == [(0, 0, 8), (1, 1, 13), (1, 0, 14)]


def test_a_world_of_another_size_is_another_life():
    assert groups(row(0, 0, 9, 1), row(1, 8, 20), row(0, 9, 20)) == [
        (0, 0, 0),
        (1, 1, 8),
        (1, 0, 9),
    ]


def test_ranks_of_one_start_need_not_overlap():
    """Nobody started anything again: no launcher of elastic jobs, no rank twice."""
    told = {Path(f"{rank}.sqlite"): row(rank, rank * 10, rank * 10 + 1) for rank in (0, 1)}
    assert {one.number for one in attempts_in(told)} == {0}


def test_where_one_file_does_not_say_when_nothing_is_known():
    told = {Path("a.sqlite"): row(0, 0, 1), Path("b.sqlite"): {"rank": 0}}
    assert attempts_in(told) == ()


def test_a_rank_that_was_killed_at_once_belongs_to_its_start():
    told = {
        Path("a"): {"rank": 0, "started_ns": 0, "world_size": 2, "run_id": "job"},
        Path("b"): {**row(1, 0, 3), "run_id": "job"},
        Path("c"): {**row(0, 4, 9), "run_id": "job"},
    }
    assert [(one.number, one.rank, one.end_ns // S) for one in attempts_in(told)] == [
        (0, 0, 0),
        (0, 1, 3),
        (1, 0, 9),
    ]


def test_the_longest_life_is_looked_at_of_equals_the_last():
    told = {Path(str(n)): row(0, at, at + 5, 1) for n, at in enumerate((0, 10, 20))}
    attempts = attempts_in(told)
    assert chosen_attempt(attempts, None) == 2
    assert chosen_attempt(attempts, 1) == 1
    assert chosen_attempt((), None) == 0
    with pytest.raises(UsageError, match="--attempt 3: no such attempt; choose one of 0, 1, 2"):
        chosen_attempt(attempts, 3)
    assert warning_on_attempts(attempts[:1], 0, is_wanted=False) == ""


def test_lives_of_one_rank_are_no_two_ranks(tmp_path):
    folder = write_job(tmp_path / "job")
    run = open_run([folder])
    assert (run.attempt, run.ranks, run.world_size) == (1, (0,), 1)
    (warning,) = run.warnings
    assert "was started 2 times; traceprof shows attempt 1, the longest" in warning
    assert "attempt 0: ranks 0, 1, 6.000 s; attempt 1: rank 0, 7.000 s" in warning
    earlier, _ = outline_run([folder], attempt=0)
    assert (earlier.attempt, earlier.ranks, earlier.world_size) == (0, (0, 1), 2)
    assert len(earlier.attempts) == 3


def test_events_of_agents_are_read_with_their_launcher(tmp_path):
    _, agents, chosen = attempts_of_run([write_job(tmp_path / "job")])
    assert [(event["kind"], event["launcher"]) for event in agents] == [
        ("restart", "manifest-a.json"),
        ("rendezvous", "manifest-a.json"),
    ]
    assert chosen == 1
