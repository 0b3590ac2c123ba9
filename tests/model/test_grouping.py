from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.model import grouping
from traceprof.model.grouping import (
    find_matching_rows,
    first_rows,
    grouped_by,
    groups_of,
    is_in,
    joined,
    numbered,
    places_of,
    rows_by_first,
    rows_by_value,
    rows_by_values,
)
from traceprof.model.table import Names, Table, at_rows

NUMBERS = st.sampled_from((-1, 0, 3, 2**62, -(2**62)))


WAYS: dict[str, tuple[int, int]] = {"pieces": (3, -1), "whole": (1 << 20, -1), "few": (1 << 20, 64)}


@pytest.fixture(autouse=True, params=[*WAYS.values()], ids=[*WAYS], scope="module")
def at_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """So many rows at a time, as of a long table; up to so many by Python, as of a short one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, number in zip(("_PIECE_ROWS", "_MAX_PYTHON_ROWS"), request.param, strict=True):
            patch.setattr(grouping, name, number)
        yield


@given(st.lists(st.tuples(NUMBERS, st.sampled_from((0, 1)), st.booleans()), max_size=30))
def test_groups_are_made_of_the_same_types_of_few_rows_and_of_many(
    rows: list[tuple[int, int, bool]],
) -> None:
    table = Table.of_rows([{"a": a, "b": b, "c": c} for a, b, c in rows], ["a", "b", "c"])
    for names in ("a", "b", "ab", "ba", "abc"):
        columns = [np.asarray(table[name], np.int64 if name < "c" else np.bool_) for name in names]
        made: list[list[npt.NDArray[Any]]] = []
        for most in (-1, 64):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(grouping, "_MAX_PYTHON_ROWS", most)
                own = groups_of(*columns)
                made.append([*own.values, own.number, own.first, own.first_rows, own.order])
        for one, other in zip(*made, strict=True):
            assert (one.dtype, one.tolist()) == (other.dtype, other.tolist())


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.booleans()), max_size=30))
def test_rows_are_those_of_pandas(rows: list[tuple[int, int, bool]]) -> None:
    frame = pd.DataFrame(rows, columns=["a", "b", "c"]).astype({"a": np.int64, "b": np.int64})
    wanted = {} if frame.empty else frame.groupby(["a", "b", "c"]).indices
    found = rows_by_values(frame["a"], frame["b"], frame["c"].to_numpy(np.int8))
    assert list(found) == sorted(wanted)
    assert {key: own.tolist() for key, own in found.items()} == {
        key: own.tolist() for key, own in wanted.items()
    }


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=30))
def test_combinations_are_numbered_as_they_come_first(rows: list[tuple[int, int]]) -> None:
    frame = pd.DataFrame(rows, columns=["a", "b"]).astype(np.int64)
    wanted = frame.groupby(["a", "b"], sort=False).ngroup()
    number, first = numbered(frame["a"], frame["b"])
    assert number.tolist() == wanted.tolist()
    assert first.tolist() == wanted.drop_duplicates().index.tolist()
    found = rows_by_first(frame["a"], frame["b"])
    assert [own.tolist() for own in found] == [
        wanted.index[wanted == own].tolist() for own in range(len(first))
    ]


def test_rows_of_more_values_than_fit_small_numbers() -> None:
    values = np.random.default_rng(1).permutation(70_000) - 5
    found = rows_by_value(values)
    assert list(found) == list(range(-5, 69_995))
    assert all(values[rows].tolist() == [value] for value, rows in found.items())


def test_numbers_far_apart_have_places_as_numpy_says() -> None:
    some = np.random.default_rng(1)
    for n_distinct in (1, 3, 500, 50_000):
        numbers = some.integers(-(2**63), 2**63 - 1, n_distinct)
        values = numbers[some.integers(0, n_distinct, 20_000)]
        distinct, place = np.unique(values, return_inverse=True)
        found, told = places_of(values)
        assert told == distinct.tolist()
        assert found.tolist() == place.tolist()


@pytest.mark.parametrize("stray", [None, 7, 700_000, 3_000_000])
def test_a_few_numbers_in_many_rows_and_one_that_no_sample_shows(stray: int | None) -> None:
    values = np.repeat([4_000_000, 5, 4_000_000, -3], [40_000, 70_000, 10, 20_000])
    if stray is not None:
        values[65] = stray
    places, distinct = places_of(values)
    known, expected, counts = np.unique(values, return_inverse=True, return_counts=True)
    assert distinct == known.tolist()
    np.testing.assert_array_equal(places, expected)
    groups = groups_of(values, np.ones(len(values), np.int64))
    np.testing.assert_array_equal(groups.counts, counts)
    np.testing.assert_array_equal(groups.first_rows, np.unique(values, return_index=True)[1])


def test_one_value_and_none() -> None:
    assert {key: rows.tolist() for key, rows in rows_by_value([7, 7]).items()} == {7: [0, 1]}
    assert rows_by_values([], []) == {}


def test_groups_are_reduced() -> None:
    groups = groups_of([3, 1, 3, 1, 3])
    values = np.array([1, 10, 2, 20, 4])
    assert (groups.keys, groups.counts.tolist()) == ([(1,), (3,)], [2, 3])
    assert groups.number.tolist() == [1, 0, 1, 0, 1]
    assert groups.reduced(np.add, values).tolist() == [30, 7]
    assert groups.reduced(np.minimum, values).tolist() == [10, 1]
    assert groups_of([]).reduced(np.add, values[:0]).tolist() == []


def test_means_and_quantiles_are_those_of_each_group() -> None:
    groups = groups_of(np.array([7, 3, 7, 7, 3, 7]))
    values = np.array([1, 10, 4, 2, 30, 100])
    assert groups.means(values).tolist() == [20, 26.75]
    assert groups.quantiles(values).tolist() == [20, 3]
    assert groups.quantiles(values, 0.25).tolist() == [15, 1.75]
    assert groups_of(np.empty(0, np.int64)).quantiles(values[:0]).tolist() == []


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.uint8])
def test_what_is_computed_of_small_types_is_as_wide_as_all_else(
    kind: type[np.integer[Any]],
) -> None:
    most = int(np.iinfo(kind).max)
    values = np.array([most, most - 1, most] * 30, kind)
    groups = groups_of(values)
    for found in (*groups.values, groups.number, groups.reduced(np.add, values)):
        assert found.dtype == np.int64
    assert groups.reduced(np.add, values).tolist() == [30 * (most - 1), 60 * most]
    for found in (places_of(values)[0].wide(), *numbered(values)):
        assert found.dtype == np.int64


def test_more_pairs_than_numbers_of_32_bits_are_told_apart() -> None:
    first, second = np.arange(70_000), np.arange(70_000)[::-1].copy()
    groups = groups_of(first, second)
    assert groups.counts.tolist() == [1] * 70_000
    assert groups.number.tolist() == first.tolist()
    assert numbered(second, first)[0].tolist() == first.tolist()


def test_rows_are_grouped_by_columns_of_any_kind_in_their_order() -> None:
    table = Table(
        {
            "name": Names.of(["b", "a", "b", "a"]),
            "unit": ["s", None, "s", None],
            "ratio": [0.5, 0.25, 0.5, np.nan],
            "ns": [1, 2, 3, 4],
            "value": [np.nan, 5.0, 7.0, np.nan],
        }
    )
    keys, groups = grouped_by(table, "name", "unit", "ratio")
    assert keys["name"].tolist() == ["a", "a", "b"]
    assert keys["unit"].tolist() == [None, None, "s"]
    assert keys["ratio"].tolist()[::2] == [0.25, 0.5]
    assert groups.sums(table["ns"]).tolist() == [2, 4, 4]
    np.testing.assert_array_equal(groups.sums(table["value"]), [5.0, np.nan, 7.0])
    np.testing.assert_array_equal(groups.first_known(table["value"]), [5.0, np.nan, 7.0])
    assert len(grouped_by(table.head(0), "name")[0]) == 0


def test_rows_are_found_in_another_table_by_their_values() -> None:
    table = Table({"name": ["a", "b", "c"], "rank": [0, 1, 2]})
    other = Table({"name": Names.of(["c", "b", "b"]), "rank": [2, 1, 1], "ns": [7, 8, 9]})
    rows = find_matching_rows(table, other, "name", "rank")
    assert rows.tolist() == [-1, 1, 0]
    np.testing.assert_array_equal(at_rows(other["ns"], rows), [np.nan, 8.0, 7.0])
    assert at_rows(other["ns"], rows[1:]).dtype == np.int64
    assert at_rows(other["name"], rows).tolist() == [None, "b", "c"]
    assert find_matching_rows(table, other.head(0), "name").tolist() == [-1, -1, -1]


def test_rows_of_two_tables_are_joined_in_the_order_of_their_values() -> None:
    first = Table({"rank": [2, 0], "step": [1, 5], "ns": [7, 8]})
    second = Table({"step": [5, 3], "rank": [0, 1], "name": Names.of(["b", "a"])})
    table = joined(first, second, "rank", "step")
    assert table["rank"].tolist() == [0, 1, 2]
    assert table["step"].tolist() == [5, 3, 1]
    np.testing.assert_array_equal(table["ns"], [8, np.nan, 7])
    assert table["name"].tolist() == ["b", "a", None]


def test_how_many_rows_of_the_same_values_come_before() -> None:
    values = np.array([4, 2, 4, 4, 2])
    assert (
        groups_of(values).earlier.tolist() == pd.Series(values).groupby(values).cumcount().tolist()
    )
    assert groups_of(values[:0]).earlier.tolist() == []


@pytest.mark.parametrize(
    "numbers", [[], [7], [5, 3, 5, -2, 3], [1 << 40, 3, 1 << 40, 3], [0, 10**7]]
)
def test_the_first_row_with_each_number(numbers: list[int]) -> None:
    asked = np.array([*numbers, -3, 4, 6, 1 << 41, -(1 << 41)])
    found = first_rows(np.array(numbers, np.int64), asked)
    among = is_in(asked, np.array(numbers, np.int64))
    assert among.tolist() == np.isin(asked, numbers).tolist()
    assert found.tolist() == [numbers.index(n) if n in numbers else -1 for n in asked.tolist()]


def test_names_are_grouped_as_their_codes_are():
    names = Names.of(["gemm", "copy", "gemm", "copy", "copy"])
    numbers = np.array([1, 1, 1, 2, 1])
    for groups in (groups_of(names, numbers), groups_of(names.codes, numbers)):
        found = {
            (names.texts[code], number): rows.tolist()
            for (code, number), rows in zip(groups.keys, groups.rows, strict=True)
        }
        assert found == {("gemm", 1): [0, 2], ("copy", 1): [1, 4], ("copy", 2): [3]}
