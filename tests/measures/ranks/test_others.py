"""A rank held against the others, without itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.measures.collectives import blame
from traceprof.measures.collectives.blame import beyond_others, pieces_of


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=12), st.integers(1, 13))
def test_beyond_the_others_is_what_one_counts_by_hand(
    rows: list[tuple[int, int]], n_at_once: int
) -> None:
    keys, values = ([row[i] for row in rows] for i in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blame, "_ROWS_PER_PIECE", n_at_once)
        found = beyond_others(np.array(values, np.int64), np.array(keys, np.int64))
    for i, (key, value) in enumerate(rows):
        theirs = [v for j, (k, v) in enumerate(rows) if k == key and j != i]
        expected = value - np.median(theirs) if theirs else np.nan
        assert found[i] == pytest.approx(expected, nan_ok=True)


def test_beyond_the_others_is_exact_on_any_clock() -> None:
    at = 1_790_000_000_000_000_000
    found = beyond_others(np.array([at + 1, at, at + 4]), np.zeros(3))
    assert found.tolist() == [-1.0, -2.5, 3.5]


@given(st.lists(st.integers(-2, 3), max_size=20), st.integers(1, 21))
def test_rows_of_one_key_are_in_one_piece(keys: list[int], n_at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blame, "_ROWS_PER_PIECE", n_at_once)
        pieces = [rows.tolist() for rows in pieces_of(np.array(keys, np.int64))]
    assert sorted(row for rows in pieces for row in rows) == [*range(len(keys))]
    held = [{keys[row] for row in rows} for rows in pieces]
    assert sum(map(len, held)) == len(set(keys))
    most = max(map(keys.count, keys), default=0)
    assert all(0 < len(rows) < n_at_once + most for rows in pieces)
