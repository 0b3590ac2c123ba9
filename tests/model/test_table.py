"""Tables of numpy arrays: what a column is, what is not known, rows one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.model import grouping
from traceprof.model.activity import Activity
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import groups_of
from traceprof.model.names import _shared
from traceprof.model.table import Names, Table, is_known
from traceprof.model.tables import TABLES, sort_order

TEXTS = st.lists(st.sampled_from(("", "a", "b", "ä")), max_size=8)


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_names_of_parts_stand_one_after_another(parts: list[list[str]]) -> None:
    joined = Names.joined([Names.of(part) for part in parts])
    every = [text for part in parts for text in part]
    assert joined.tolist() == every
    assert len(set(joined.texts)) == len(joined.texts)
    assert (joined == "a").tolist() == [text == "a" for text in every]
    assert joined.isin(("a", "ä")).tolist() == [text in ("a", "ä") for text in every]
    few = joined[np.arange(min(len(every), 1))]  # fewer than there are texts, most often
    assert few.isin(("a", "ä")).tolist() == [text in ("a", "ä") for text in every[:1]]
    assert joined.counts() == {text: every.count(text) for text in joined.distinct()}
    assert joined[np.argsort(joined.places())].tolist() == sorted(every)


def test_texts_that_are_given_twice_are_one() -> None:
    names = Names.coded(["b", "a", "b"], np.array([2, 1, 0]))
    assert (names.tolist(), names.texts.tolist()) == (["b", "a", "b"], ["b", "a"])
    assert Names.coded(["b", "a"], np.array([0, 1]), is_sorted=True).texts.tolist() == ["a", "b"]


def test_texts_that_no_row_has_are_left_out() -> None:
    names = Names.coded(["a", "b", "c"], np.array([2, 0, 2]))
    assert (names.used().tolist(), names.used().texts.tolist()) == (["c", "a", "c"], ["a", "c"])
    assert names[:0].used().texts.tolist() == []
    whole = Names.of(["a", "b"])
    assert whole.used() is whole


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        ([1, 2], "i", [1, 2]),
        ([1, None], "f", [1.0, None]),
        ([1, 0.5], "f", [1.0, 0.5]),
        ([True, False], "b", [True, False]),
        ([True, None], "O", [True, None]),
        (["a", None], "O", ["a", None]),
        ([1 << 70, 2], "O", [1 << 70, 2]),
    ],
)
def test_rows_make_columns_of_their_kind(values: list[object], kind: str, found: object) -> None:
    table = Table.of_rows([{"x": value} for value in values])
    assert table["x"].dtype.kind == kind
    plain = [None if value != value else value for value in table["x"].tolist()]
    assert plain == found
    assert is_known(table["x"]).tolist() == [value is not None for value in values]


def test_what_a_part_lacks_is_not_known() -> None:
    both = Table.stacked([Table({"n": [1, 2], "text": ["a", "b"]}), Table({"n": [3], "s": [0.5]})])
    assert both["n"].tolist() == [1, 2, 3] and both["n"].dtype == np.int64
    assert both["text"].tolist() == ["a", "b", None]
    assert np.isnan(both["s"][:2]).all() and both["s"][2] == 0.5
    fewer = Table.stacked([Table({"n": [1]}), Table({"m": [7]})])
    assert fewer["n"].dtype == fewer["m"].dtype == np.float64


@pytest.mark.parametrize("kind", [Table, CompactTable])
def test_rows_are_taken_and_sorted(kind: type[Table]) -> None:
    table = kind({"n": [2, 1, 2, 3], "share": [0.5, np.nan, 0.1, 0.2], "name": Names.of("dbca")})
    assert table.in_order("-n", "share")["name"].tolist() == ["a", "c", "d", "b"]
    assert table.in_order("share")["name"].tolist() == ["c", "a", "d", "b"]  # not known: last
    assert table.take(table["n"] == 2).rows() == [
        {"n": 2, "share": 0.5, "name": "d"},
        {"n": 2, "share": 0.1, "name": "c"},
    ]
    assert table.take([-1, 0])["n"].tolist() == [3, 2]
    assert table.row(-1)["name"] == table.take(slice(3, None)).row(0)["name"] == "a"
    assert len(table.take([])) == 0 and [*table.head(1).select("name", "n")] == ["name", "n"]
    wider = table.assign(one=1, n=table["n"] * 2)
    assert (wider["one"].tolist(), wider["n"].tolist()) == ([1] * 4, [4, 2, 4, 6])
    with pytest.raises(ValueError, match="different lengths"):
        kind({"a": [1], "b": [1, 2]})


def test_which_groups_have_different_values() -> None:
    groups = groups_of(np.array([5, 7, 5, 7]))
    assert groups.keys == [(5,), (7,)]
    assert groups.differ(np.array([1, 2, 1, 3])).tolist() == [False, True]


def test_all_rows_are_the_table_itself_and_no_row_has_its_columns() -> None:
    table = Table({"a": np.array([3, 1]), "b": Names.of(["x", "y"])})
    every, none = np.array([True, True]), np.array([False, False])
    assert table.take(every) is table
    nothing: list[Any] = [none, [], np.empty(0, np.int64), slice(0)]
    for rows in nothing:
        chosen = table.take(rows)
        assert (len(chosen), [*chosen]) == (0, ["a", "b"])
        assert chosen["a"].dtype == np.int64
        assert chosen["b"].tolist() == []
        assert chosen.take(none[:0]) is chosen
    assert table.take([1, 1])["a"].tolist() == [1, 1]
    with pytest.raises(IndexError):
        table.take(np.array([True, True, False]))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12), st.integers(1, 4))
def test_rows_are_sorted_alike_however_many_at_a_time(
    spans: list[tuple[int, int]], at_once: int
) -> None:
    """By start, what ends later first, and what stood first before its equals."""
    starts, ends = (np.array([own[at] for own in spans], np.int64) for at in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "_PIECE_ROWS", at_once)
        order = sort_order({"start_ns": starts, "end_ns": starts + ends}, TABLES["kernels"])
    expected = sorted(range(len(spans)), key=lambda row: (spans[row][0], -spans[row][1]))
    assert (expected if order is None else order.tolist()) == expected


@pytest.mark.parametrize("equal", [np.str_("gemm"), Activity.GEMM])
def test_texts_that_names_share_are_plain_whoever_came_first(equal: str) -> None:
    _shared.cache_clear()
    Names.of([equal])
    (text,) = Names.of(["gemm"]).texts
    assert type(text) is str
