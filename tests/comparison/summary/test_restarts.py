"""What a restart cost, part by part, from starts that are made by hand."""

import numpy as np

from traceprof.comparison.summary.history import Started
from traceprof.comparison.summary.restarts import attempts_at_once, find_restarts
from traceprof.model.ranks import Attempt
from traceprof.model.table import Table


def start(attempt, ran, work=(), *, saves=(), loads=(), epochs=None):
    """Return a start of rank 0, in ns; ``epochs`` is number → (start, end)."""
    known = Attempt(attempt, 0, f"{attempt}.sqlite", "here", *ran, ended="killed")
    rows = [(number, *span) for number, span in (epochs or {}).items()]
    names = ("epoch", "start_ns", "end_ns")
    numbered = Table.of_rows([dict(zip(names, row, strict=True)) for row in rows], names)
    return Started(
        attempt=known,
        work=spans(work),
        begin_ns=work[0][0] if work else None,
        end_ns=ran[1],
        epochs=numbered,
        are_numbered=epochs is not None,
        initialization=spans([(ran[0] + 1, ran[0] + 3)]),
        saves=spans(saves),
        loads=spans(loads),
        evaluations=spans([]),
        batches=Table({"at": [], "size": []}),
    )


def spans(pairs):
    return np.array(list(pairs), np.int64).reshape(-1, 2)


def found(*started, agents=()):
    return find_restarts([one.attempt for one in started], list(started), agents)


def parts(restart):
    return {part.kind: (part.at_ns, part.duration_ns) for part in restart.parts}


def agent(kind, start_ns, **more):
    return {"kind": kind, "start_ns": start_ns, "end_ns": start_ns + 1, **more}


def test_a_checkpoint_that_was_loaded_keeps_the_work_before_it():
    old = start(0, (0, 60), [(10, 20), (20, 30), (40, 50)], saves=[(30, 35)])
    new = start(1, (70, 200), [(90, 100)], loads=[(80, 84)])
    (restart,) = found(old, new)
    assert (restart.kept_ns, restart.begin_ns, restart.redone_count) == (35, 90, 1)
    assert parts(restart) == {
        "redone": (35, 15),
        "initialization": (71, 2),
        "loading": (80, 4),
        "setup": (70, 14),
    }
    # No agent was recorded: from 50 to 70 nothing is explained.
    assert sum(part.duration_ns for part in restart.parts) == 55 - 20
    assert restart.why == "ranks were killed"


def test_without_a_checkpoint_no_work_is_said_to_be_lost():
    (restart,) = found(start(0, (0, 60), [(10, 20)]), start(1, (70, 200), [(90, 100)]))
    assert (restart.kept_ns, restart.redone_count) == (20, 0)
    assert "redone" not in parts(restart)


def test_an_epoch_that_begins_again_is_lost_whatever_was_saved():
    old = start(0, (0, 60), [(10, 20), (20, 30)], saves=[(30, 35)], epochs={3: (10, 60)})
    new = start(1, (70, 200), [(90, 100)], loads=[(80, 84)], epochs={3: (88, 200)})
    (restart,) = found(old, new)
    assert (restart.kept_ns, restart.epoch, restart.redone_count) == (10, 3, 2)


def test_an_epoch_that_follows_loses_no_work():
    old = start(0, (0, 60), [(10, 20)], saves=[(20, 25)], epochs={3: (10, 60)})
    new = start(1, (70, 200), [(90, 100)], epochs={4: (88, 200)})
    (restart,) = found(old, new)
    assert (restart.kept_ns, restart.epoch, restart.redone_count) == (25, 4, 0)


def test_starts_that_failed_are_a_part_of_the_lost_time():
    attempts = [
        start(0, (0, 60), [(10, 50)]),
        start(1, (70, 80)),
        start(2, (100, 200), [(120, 130)]),
    ]
    agents = [agent("restart", 55), agent("rendezvous", 56), agent("rendezvous", 90)]
    (restart,) = found(*attempts, agents=agents)
    assert restart.attempt == 2
    assert parts(restart) == {
        "noticing": (50, 5),
        "rendezvous": (55, 15),
        "failed": (70, 30),
        "initialization": (101, 2),
        "setup": (100, 18),
    }
    assert sum(part.duration_ns for part in restart.parts) == restart.begin_ns - restart.kept_ns
    assert restart.why == "a rank failed"


def test_until_new_agents_were_started_nothing_ran_and_nobody_noticed():
    attempts = [start(0, (0, 60), [(10, 50)]), start(1, (900, 1000), [(920, 930)])]
    agents = [agent("rendezvous", -5, agent=7), agent("rendezvous", 850, agent=8)]
    (restart,) = found(*attempts, agents=agents)
    own = parts(restart)
    assert (own["down"], own["rendezvous"]) == ((60, 790), (850, 50))
    assert "noticing" not in own
    # Had the same agent met again, it would have been its to notice.
    (restart,) = found(*attempts, agents=[agents[0], {**agents[1], "agent": 7}])
    assert parts(restart)["noticing"] == (50, 800)


def test_nodes_that_came_are_told_from_failures():
    (restart,) = found(
        start(0, (0, 60), [(10, 50)]),
        start(1, (70, 200), [(90, 100)]),
        agents=[agent("membership", 55)],
    )
    assert restart.why == "nodes joined"


def test_a_job_that_never_trained_again_lost_the_rest():
    (restart,) = found(start(0, (0, 60), [(10, 50)]), start(1, (70, 80)), start(2, (90, 95)))
    assert (restart.attempt, restart.kept_ns, restart.begin_ns) == (2, 50, 95)
    assert restart.why == "training did not resume"


def test_starts_that_train_at_the_same_time_are_no_restarts_of_one_another():
    """Two jobs in one folder, or agents that lost one another: each has work of its own."""
    starts = [
        start(0, (0, 400), [(10, 50), (300, 350)]),
        start(1, (70, 380), [(90, 100), (300, 360)]),
        start(2, (390, 500), [(410, 420)]),
    ]
    assert attempts_at_once(starts) == [(0, 1)]
    assert [one.attempt for one in found(*starts)] == [2]
