from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.model import combining
from traceprof.model.combining import (
    combine,
    compacted,
    counted_together,
    median_of_counted,
    medians_of,
    medians_of_groups,
)
from traceprof.model.results import Result, ResultSpec, Samples, TableSpec, Unit, key, total
from traceprof.model.table import Table

SPEC = ResultSpec(
    (TableSpec("own", "of a test", (key("name", "of what"), total("n", Unit.COUNT, "how many"))),)
)

ranks = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(-5, 5), min_size=1), min_size=1),
    min_size=1,
    max_size=4,
)


def result_of(values: dict[str, list[int]]) -> Result:
    table = Table({"name": list(values), "n": [len(own) for own in values.values()]})
    rows = np.repeat(np.arange(len(values)), table["n"])
    every = np.array([value for own in values.values() for value in own], np.int64)
    return Result("own", SPEC, {"own": table}, samples={"own": Samples(rows, every)})


@given(ranks)
def test_medians_of_counted_samples_are_those_of_single_ones(
    values: list[dict[str, list[int]]],
) -> None:
    results = [result_of(one) for one in values]
    found = combine([compacted(one) for one in results])
    for place, name in enumerate(found.table["name"]):
        single = [value for one in values for value in one.get(name, ())]
        assert medians_of(found.table, found.samples["own"])[place] == np.median(single)


def test_samples_of_many_ranks_are_put_together_some_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(combining, "_MAX_PIECE_SAMPLES", 5)
    results = [result_of({"a": [rank, 7], "b": [rank % 2] * 3}) for rank in range(20)]
    found = combine([compacted(one) for one in results])
    samples = found.samples["own"]
    assert medians_of(found.table, samples).tolist() == [7.0, 0.5]
    assert samples.counts is not None
    assert int(samples.counts.sum()) == 20 * 5
    assert len(samples.values) == 20 + 2


def test_many_equal_samples_are_few() -> None:
    found = compacted(result_of({"a": [7] * 1000, "b": [1, 2] * 50})).samples["own"]
    assert found.values.tolist() == [7, 1, 2]
    assert found.counts is not None
    assert found.counts.tolist() == [1000, 50, 50]


@given(st.dictionaries(st.integers(-9, 9), st.integers(1, 9)))
def test_the_median_of_counted_values(counted: dict[int, int]) -> None:
    values, counts = np.array([*counted], np.int64), np.array([*counted.values()], np.int64)
    every = np.repeat(values, counts)
    found = median_of_counted(values, counts)
    assert found == np.median(every) if len(every) else np.isnan(found)


@pytest.mark.parametrize("most_rows", [0, 1000])
def test_medians_of_few_rows_are_those_of_many(
    most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combining, "_MAX_PARTITIONED_ROWS", most_rows)
    samples = Samples(np.array([3, 1, 3, 1, 3, 1, 0]), np.array([9, 4, -2, 1, 5, 2**53 + 2, 8]))
    found = medians_of(Table({}, 4), samples)
    assert found.tolist()[:2] + found.tolist()[3:] == [8.0, 4.0, 5.0]
    assert np.isnan(found[2])


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9), st.integers(1, 300)), max_size=9),
        min_size=1,
        max_size=9,
    ),
    st.integers(1, 9),
)
def test_what_is_counted_in_pieces_is_what_one_counts_by_hand(
    ranks: list[list[tuple[int, int, int]]], n_at_once: int
) -> None:
    every = []
    by_hand: Counter[tuple[int, int]] = Counter()
    for samples in ranks:
        rows, values, counts = np.array(samples, np.int64).reshape(-1, 3).T
        every.append(Samples(rows.astype(np.int8), values, counts))
        for row, value, count in samples:
            by_hand[row, value] += count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combining, "_MAX_PIECE_SAMPLES", n_at_once)
        found = counted_together(every)
    assert found.counts is not None
    told = zip(found.rows.tolist(), found.values.tolist(), found.counts.tolist(), strict=True)
    assert list(told) == [(*own, by_hand[own]) for own in sorted(by_hand)]


def test_medians_of_groups_leave_out_what_is_not_known() -> None:
    group, values = np.array([1, 0, 1, 3, 1]), np.array([4.0, np.nan, 2.0, 7.0, np.nan])
    np.testing.assert_array_equal(medians_of_groups(group, values, 4), [np.nan, 3, np.nan, 7])
