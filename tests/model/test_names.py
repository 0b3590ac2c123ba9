"""Many texts in few bytes: to whoever asks they are the array that they were."""

from __future__ import annotations

import pickle
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from traceprof.cache import scratch
from traceprof.formats import open_trace
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model import names
from traceprof.model.names import Names, PackedTexts, objects
from traceprof.names.ranges import are_matched, numbers_in, plain_names

TEXTS = st.lists(st.text(st.sampled_from("aä\n0🙂"), max_size=4), min_size=1, unique=True)


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file of texts be one of many, on the disk."""
    monkeypatch.setattr(names, "MANY_TEXTS", 1)
    monkeypatch.setattr(scratch, "MIN_DISK_BYTES", 1)
    monkeypatch.setattr(scratch, "MAX_KEPT_BYTES", 0)


def packed(*texts: str) -> PackedTexts:
    found = Names(np.arange(len(texts)), texts).texts
    assert isinstance(found, PackedTexts)
    return found


@given(TEXTS, st.data())
def test_packed_texts_are_as_their_array(texts: list[str], data: st.DataObject) -> None:
    own, array = packed(*texts), objects(texts)
    row = data.draw(st.integers(-len(texts), len(texts) - 1))
    rows = np.array(data.draw(st.lists(st.integers(0, len(texts) - 1))), np.int64)
    assert (len(own), own.tolist(), list(own)) == (len(texts), texts, texts)
    assert own[row] == texts[row]
    assert isinstance(own[np.int64(row)], str)
    choices: list[Any] = [slice(1, None), slice(None, None, -1), rows, array > "a", rows[:0]]
    for chosen in choices:
        assert own[chosen].tolist() == array[chosen].tolist()
    for text in (texts[row], "no such"):
        assert (own == text).tolist() == [one == text for one in texts]
        assert (own != text).tolist() == [one != text for one in texts]
    assert (own == array[::-1]).tolist() == (array == array[::-1]).tolist()
    assert np.append(own, "").tolist() == [*texts, ""]
    assert pickle.loads(pickle.dumps(own)).tolist() == texts


@given(TEXTS, st.lists(st.sampled_from(["a", "ä", "", "no such", *map(str, range(20))])))
def test_which_are_among_some_is_told_of_few_and_of_many(texts: list[str], some: list[str]) -> None:
    column = Names(np.arange(len(texts))[::-1], texts)
    assert isinstance(column.texts, PackedTexts)
    assert column.isin(some).tolist() == [text in some for text in texts[::-1]]
    assert (column == "a").tolist() == [text == "a" for text in texts[::-1]]
    assert column[:1].tolist() == texts[-1:]
    assert column[:1].used().texts.tolist() == texts[-1:]
    assert column[np.argsort(column.places())].tolist() == sorted(texts)


@given(TEXTS, TEXTS)
def test_more_texts_stand_where_they_belong(texts: list[str], more: list[str]) -> None:
    texts, more = sorted(texts), sorted({*more} - {*texts})
    places = np.searchsorted(objects(texts), objects(more))
    assert packed(*texts).inserted(places, more).tolist() == sorted([*texts, *more])


def test_texts_that_cannot_be_told_apart_as_bytes_stay_an_array() -> None:
    for texts in (["a\0b", "c"], ["\ud800", "c"]):
        found = Names(np.arange(2), texts).texts
        assert isinstance(found, np.ndarray)
        assert found.tolist() == texts
    own = packed("a", "b")
    assert not (own == "\ud800").any()


def test_patterns_find_the_same_in_packed_names() -> None:
    texts = [f"aten::mm, op_id = {n}" for n in range(12)] + ["step 7", "step 8", ", seq = ", "mm1"]
    for own in (packed(*texts), objects(texts)):
        column = Names(np.arange(len(texts)), own)
        plain = {", seq = ": 1, "aten::mm": 12, "mm1": 1, "step 7": 1, "step 8": 1}
        assert plain_names(column).counts() == plain
        for pattern, n in (("mm", 13), ("step 7", 1), (r"mm1|ep \d", 3)):
            assert are_matched(own, re.compile(pattern)).sum() == n
        numbers = numbers_in(own, re.compile(r"op_id = (?P<number>\d+)"))
        assert numbers.tolist() == [*range(12), -1, -1, -1, -1]


@pytest.mark.parametrize("odd", ["ä".encode(), b"a\0b", b"\xff"])
def test_names_of_ranges_are_the_same_however_many_there_are(
    odd: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = TraceBuilder()
    for n in range(20):
        builder.range(f"aten::mm, op_id = {n}", 10 * n, 10 * n + 5)
    path = tmp_path / "trace.sqlite"
    write_nsys(builder.kernel("k", 0, 10).build(), path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            """INSERT INTO StringIds VALUES (9001, 'aardvark'), (9002, 'zebra'), (9003, 'step 1');
            UPDATE NVTX_EVENTS SET text = 'aten::mm, op_id = ' || (start / 10), textId = NULL;
            UPDATE NVTX_EVENTS SET text = NULL, textId = 9001 WHERE start = 30;
            UPDATE NVTX_EVENTS SET text = NULL, textId = 9002 WHERE start = 60;
            UPDATE NVTX_EVENTS SET text = 'step 1' WHERE start = 90;
            UPDATE NVTX_EVENTS SET text = NULL, textId = 9003 WHERE start = 100;"""
        )
        as_text = "UPDATE NVTX_EVENTS SET text = CAST(? AS TEXT) WHERE start = 120"
        connection.execute(as_text, [odd])
    many = open_trace(path).ranges["name"]
    monkeypatch.setattr(names, "MANY_TEXTS", 1_000)
    few = open_trace(path).ranges["name"]
    assert isinstance(few.texts, np.ndarray)
    assert isinstance(many.texts, np.ndarray) == (b"\0" in odd)
    assert many.tolist() == few.tolist()
    assert many.texts.tolist() == few.texts.tolist()
    assert [few[n] for n in (3, 6, 9, 10)] == ["aardvark", "zebra", "step 1", "step 1"]
