"""Columns as SQLite takes them."""

from __future__ import annotations

import numpy as np

from traceprof.model.table import Names, objects
from traceprof.model.tables import ABSENT, ColumnKind
from traceprof.query.columns import plain_values


def test_unknown_values_are_none() -> None:
    assert plain_values(np.array([1, ABSENT, 2**62]), ColumnKind.NUMBER) == [1, None, 2**62]
    assert plain_values(np.array([1.5, np.nan]), ColumnKind.FLOAT) == [1.5, None]


def test_times_count_from_zero_even_where_that_is_minus_one() -> None:
    assert plain_values(np.array([99, 101]), ColumnKind.TIME, 100) == [-1, 1]


def test_text_that_is_no_utf8_can_be_stored() -> None:
    assert plain_values(objects(["a\ud800", "ü"]), ColumnKind.TEXT) == ["a?", "ü"]
    assert plain_values(Names.of(["ü", "a\ud800"]), ColumnKind.NAME) == ["ü", "a?"]
