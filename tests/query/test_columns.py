"""Columns as SQLite takes them."""

from __future__ import annotations

import numpy as np

from traceprof.model.table import Names, Table, objects
from traceprof.model.tables import ABSENT, ColumnKind
from traceprof.query.columns import plain_columns, plain_values


def test_unknown_values_are_none() -> None:
    assert plain_values(np.array([1, ABSENT, 2**62]), ColumnKind.NUMBER) == [1, None, 2**62]
    assert plain_values(np.array([1.5, np.nan]), ColumnKind.FLOAT) == [1.5, None]


def test_times_count_from_zero_even_where_that_is_minus_one() -> None:
    assert plain_values(np.array([99, 101]), ColumnKind.TIME, 100) == [-1, 1]


def test_text_that_is_no_utf8_can_be_stored() -> None:
    assert plain_values(objects(["a\ud800", "ü"]), ColumnKind.TEXT) == ["a?", "ü"]
    assert plain_values(Names.of(["ü", "a\ud800"]), ColumnKind.NAME) == ["ü", "a?"]


def test_ranks_come_from_the_processes_where_the_table_has_none() -> None:
    kinds = {"process": ColumnKind.NUMBER, "start_ns": ColumnKind.TIME, "end_ns": ColumnKind.TIME}
    times = {"start_ns": np.array([10, 20, 30, 40]), "end_ns": np.array([11, 22, 33, 44])}
    table = Table({"process": np.array([5, 6, 7, 5]), **times})
    ranks = {5: 3, 6: ABSENT}  # of process 7 nothing is known
    wanted = ["start_ns", "duration_ns", "rank"]
    found = plain_columns(table, kinds, wanted, 10, ranks)
    assert found == {
        "start_ns": [0, 10, 20, 30],
        "duration_ns": [1, 2, 3, 4],
        "rank": [3, None, None, 3],
    }
    assert plain_columns(table, kinds, ["process"], 0, ranks) == {"process": [5, 6, 7, 5]}


def test_ranks_of_the_table_itself_stay() -> None:
    table = Table({"process": np.array([5, 5]), "rank": np.array([8, ABSENT])})
    kinds = {"process": ColumnKind.NUMBER, "rank": ColumnKind.NUMBER}
    assert plain_columns(table, kinds, ["rank"], 0, {5: 3}) == {"rank": [8, None]}
