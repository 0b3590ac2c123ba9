"""Which ranks are stages of a pipeline."""

from __future__ import annotations

from traceprof.measures.ranks.pipeline import find_chains


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
