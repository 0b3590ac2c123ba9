"""Columns that are put into a database, against rows that are put there one by one."""

import sqlite3

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.formats.sqlite.inserting import insert_columns, without_absent
from traceprof.model.tables import ABSENT

values = st.none() | st.integers(-(2**63), 2**63 - 1) | st.text("aé\0", max_size=3)
columns = st.integers(1, 99).flatmap(
    lambda n: st.lists(st.lists(values, min_size=n, max_size=n), min_size=1, max_size=4)
)


def inserted(columns, n_columns):
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE t ({', '.join(f'c{i}' for i in range(n_columns))})")
    insert_columns(connection, "t", columns)
    return connection.execute("SELECT * FROM t ORDER BY rowid").fetchall()


@given(columns)
def test_every_row_is_there_in_its_order(columns):
    named = {f"c{i}": np.array(values, object) for i, values in enumerate(columns)}
    assert inserted(named, len(columns)) == list(zip(*columns, strict=True))


@pytest.mark.parametrize("n_rows", [0, 1, 19, 20, 21, 40])
def test_a_value_stands_in_every_row_and_nothing_in_none(n_rows):
    given = {"c0": np.arange(n_rows), "c1": "x", "c2": None, "c3": np.full(n_rows, np.nan)}
    assert inserted(given, 4) == [(i, "x", None, None) for i in range(n_rows)]


def test_a_table_of_more_columns_than_a_statement_of_many_rows_has_variables():
    given = {f"c{i}": [i] * 50 for i in range(700)}
    assert inserted(given, 700) == [tuple(range(700))] * 50


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        inserted({"c0": [1] * 25, "c1": [1] * 24}, 2)


def test_what_is_absent_is_none():
    assert without_absent([1, ABSENT, 0]) == [1, None, 0]
    assert without_absent([ABSENT, ABSENT]) is None
    assert without_absent([0, 1]) == [0, 1]
