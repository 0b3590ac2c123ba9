"""Values come back exactly as they were, and bytes of others make nothing but values."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Names, Table, objects
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import RecordingCost, TraceInfo
from traceprof.session.kept_answers import CodecError, decode, encode
from traceprof.session.selection import Selection

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.integers(-5, 5) | st.text("ab"), inner)
    ),
    max_leaves=10,
)


@given(values)
def test_plain_values_come_back_with_their_types(value: Any) -> None:
    assert repr(decode(encode(value))) == repr(value)


@pytest.mark.parametrize(
    "value",
    [np.int64(-1), np.float32(0.1), np.bool_(True), np.uint8(255), np.float64("nan")],
)
def test_numbers_of_numpy_stay_what_they_are(value: Any) -> None:
    again = decode(encode(value))
    assert type(again) is type(value)
    assert again == value or np.isnan(value)


@pytest.mark.parametrize(
    "column",
    [
        np.array([1, -(2**63)], np.int64),
        np.array([0.1, np.nan]),
        np.array([True, False]),
        np.array([1, 2], np.int8),
        np.array([None, "a"], object),
        np.array(["b", "a"], object),
        objects([(1, 2), [3]]),
        Names(np.array([1, 0], np.int8), ["b", "a", "c"]),
    ],
    ids=str,
)
def test_a_table_comes_back_with_its_types(column: Any) -> None:
    table = Table({"n": np.array([1, 2]), "x": column})
    for one in (table, table.head(0)):
        again = decode(encode(one))
        assert [*again] == ["n", "x"]
        assert type(again["x"]) is type(column)
        assert_frame_equal(again.to_frame(), one.to_frame(), check_exact=True)


def test_tables_without_columns_or_rows() -> None:
    for table in (Table({}), Table({"a": (), "b": ()}), Table({"c": np.array([2])})):
        assert_frame_equal(decode(encode(table)).to_frame(), table.to_frame())


def test_objects_of_answers_come_back() -> None:
    selection = Selection(TimeWindow(1, 2), "all", (Note.of("{n:count} of", n=np.int64(3)),))
    assert decode(encode(selection)) == selection
    info = TraceInfo("a", warnings=("w",), recording=RecordingCost((0.1, 0.3), "w"))
    known = {"info": (info, None), "recorded": frozenset({"kernels", "copies"})}
    assert decode(encode(known)) == known


class Other:
    """Nothing that answers hold."""


@pytest.mark.parametrize(
    "value",
    [
        Other(),
        2**64,
        {"a": Other()},
        Table({"a": objects([Other()])}),
        Table({"a": np.array(["2026-01-01"], "datetime64[s]")}),
        np.array([[1]]),
        1j,
        Result("breakdown", ResultSpec(()), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_known_is_refused(value: Any) -> None:
    with pytest.raises(CodecError):
        encode(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pickle.dumps(Other),
        *(
            msgspec.msgpack.encode(plain)
            for plain in (
                ["no such kind"],
                [],
                [5],
                ["tuple"],
                ["object", "Popen", {"args": "true"}],
                ["object", "os", {}],
                ["object", "TimeWindow", {"start_ns": 1}],
                ["numbers", "|O", b"12345678"],
                ["numbers", "<i8", b"123"],
                ["names", ["numbers", "<i8", b"\5" + bytes(7)], ["a", "b"]],
                ["names", ["numbers", "<i8", bytes(8)], [5]],
                ["table", 1, [["a", 5]]],
                ["table", 2, [["a", ["numbers", "<i8", bytes(8)]]]],
                ["result", "no such analysis", ["dict", []], ["dict", []], ["tuple", []]],
            )
        ),
    ],
)
def test_bytes_of_others_are_an_error(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(data)


@given(st.binary())
def test_any_bytes_make_a_value_or_an_error(data: bytes) -> None:
    try:
        decode(data)
    except CodecError:
        return
