import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from traceprof.measures.steps.from_kernels import find_period


def repeated(turn: list[int], n_turns: int) -> np.ndarray:
    return np.array(turn * n_turns, np.int64)


def test_a_turn_is_cut_at_its_longest_pause() -> None:
    codes = repeated([0, 1, 2, 3, 4], 6)
    pauses = np.zeros(30, np.int64)
    pauses[2::5] = 100
    period = find_period(codes, pauses)
    assert period is not None
    assert (period.length, period.match_ratio) == (5, 1.0)
    assert period.lasts.tolist() == [2, 7, 12, 17, 22, 27]


def test_layers_inside_a_turn_are_not_turns() -> None:
    turn = [0, 1, 2, 3] * 24 + [5, 6]
    period = find_period(repeated(turn, 8), np.zeros(8 * len(turn), np.int64))
    assert period is not None
    assert period.length == len(turn)


def test_another_beginning_and_a_missing_kernel_do_not_matter() -> None:
    turn = list(range(20))
    codes = np.concatenate([[50, 51, 52], repeated(turn, 9)])
    codes = np.delete(codes, 70)
    pauses = np.zeros(len(codes), np.int64)
    pauses[codes == 19] = 9
    period = find_period(codes, pauses)
    assert period is not None
    assert period.length == 20
    assert period.lasts.tolist() == np.flatnonzero(codes == 19).tolist()


def test_a_turn_may_be_one_kernel() -> None:
    period = find_period(repeated([3], 12), np.zeros(12, np.int64))
    assert period is not None
    assert (period.length, period.lasts.tolist()) == (1, [*range(12)])


@pytest.mark.parametrize("n_symbols", [0, 1, 5])
def test_too_short_to_repeat(n_symbols: int) -> None:
    assert find_period(np.arange(n_symbols), np.zeros(n_symbols, np.int64)) is None


@given(st.integers(4, 40), st.integers(6, 12))
def test_the_length_of_distinct_symbols_is_found(length: int, n_turns: int) -> None:
    codes = repeated(list(range(length)), n_turns)
    period = find_period(codes, np.zeros(len(codes), np.int64))
    assert period is not None
    assert period.length == length


def test_of_many_symbols_a_sample_tells_whether_they_repeat() -> None:
    chance = np.random.default_rng(3)
    turn = chance.integers(0, 200, 5000)
    repeated = np.tile(turn, 12)
    wrong = chance.random(len(repeated)) < 0.05
    repeated[wrong] = chance.integers(0, 200, int(wrong.sum()))
    found = find_period(repeated, np.ones(len(repeated), np.int64))
    assert found is not None
    assert found.length == len(turn)
    shuffled = chance.permutation(repeated)
    assert find_period(shuffled, np.ones(len(shuffled), np.int64)) is None


def changed_before(lasts: list[int], codes: np.ndarray) -> np.ndarray:
    """Return ``codes`` with another symbol before each of ``lasts``: these turns end unlike."""
    changed = codes.copy()
    for last in lasts:
        changed[last - 1] = 77
    return changed


def test_turns_that_end_a_little_differently_are_not_merged() -> None:
    codes = repeated([*range(20)], 40)
    pauses = np.zeros(len(codes), np.int64)
    pauses[codes == 19] = 9
    period = find_period(changed_before([10 * 20 + 19, 11 * 20 + 19, 30 * 20 + 19], codes), pauses)
    assert period is not None
    assert period.length == 20
    assert period.lasts.tolist() == np.flatnonzero(codes == 19).tolist()


def test_a_missed_end_is_where_the_last_symbol_comes_again() -> None:
    # The twelfth turn has two symbols more, so that its end is not half way.
    turn = [*range(20)]
    codes = np.array(turn * 11 + [5, 5, *turn] + turn * 28, np.int64)
    pauses = np.zeros(len(codes), np.int64)
    pauses[codes == 19] = 9
    period = find_period(changed_before([11 * 20 + 21], codes), pauses)
    assert period is not None
    assert period.lasts.tolist() == np.flatnonzero(codes == 19).tolist()


def test_a_pause_of_no_whole_number_of_turns_is_not_cut() -> None:
    # Half a turn of other work between two turns: there is nothing to cut it at.
    turn = [*range(20)]
    codes = np.array(turn * 5 + [*range(100, 110)] + turn * 35, np.int64)
    pauses = np.zeros(len(codes), np.int64)
    pauses[codes == 19] = 9
    period = find_period(codes, pauses)
    assert period is not None
    assert period.lasts.tolist() == np.flatnonzero(codes == 19).tolist()


@given(st.sets(st.integers(5, 54), max_size=5))
@example({37, 39, 41, 43, 45})
@example({9, 14, 27, 45, 50})
def test_whichever_turns_end_unlike_all_are_found(unlike: set[int]) -> None:
    codes = repeated([*range(12)], 60)
    pauses = np.zeros(len(codes), np.int64)
    pauses[codes == 11] = 9
    period = find_period(changed_before([12 * i + 11 for i in unlike], codes), pauses)
    assert period is not None
    assert period.lasts.tolist() == np.flatnonzero(codes == 11).tolist()
