"""How numbers of each unit look, and how notes become sentences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from traceprof.comparison.specs import spec_of
from traceprof.model.results import Note, Unit, same
from traceprof.model.table import Table
from traceprof.render.formatting import (
    STYLES,
    heading,
    headings,
    in_words,
    note_text,
    saving_words,
    sentence_value,
    value_text,
)
from traceprof.render.shown import shown_table


def test_every_unit_has_a_style() -> None:
    assert set(STYLES) == set(Unit)


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (Unit.NS, 1_500_000, "1.500 ms"),
        (Unit.AT_NS, 61_234_567_890, "61.23 s"),
        (Unit.BYTES, 2_500_000, "2.500 MB"),
        (Unit.BYTES_PER_S, 25e9, "25.00 GB/s"),
        (Unit.FLOP, 2.7164e12, "2.716 TFLOP"),
        (Unit.FLOP, 512, "512 FLOP"),
        (Unit.FLOP_PER_S, 255.1e12, "255.1 TFLOP/s"),
        (Unit.PER_S, 12_345.6, "12,345.6 /s"),
        (Unit.RATIO, 0.1234, "12.3%"),
        (Unit.FACTOR, 1.845, "1.84×"),
        (Unit.COUNT, 1_234_567, "1,234,567"),
        (Unit.COUNT, np.int64(1_234_567), "1,234,567"),
        (Unit.COUNT, 12.5, "12.5"),
        (Unit.NUMBER, 4_711_123, "4711123"),
        (Unit.NUMBER, 3.0, "3"),
        (Unit.NUMBER, 0.123456, "0.1235"),
        (Unit.NUMBER, 12_345.67, "12,345.7"),
        (Unit.NUMBER, "3+5", "3+5"),
        (Unit.TEXT, "void gemm\n", "gemm "),
        (Unit.FLAG, True, "yes"),
        (Unit.FLAG, np.False_, ""),
    ],
)
def test_values_look_the_same_everywhere(unit: Unit, value: Any, text: str) -> None:
    assert value_text(unit, value) == text


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("value", [None, math.nan, np.float64("nan")])
def test_what_is_not_known_is_a_dash(unit: Unit, value: Any) -> None:
    assert value_text(unit, value) == "–"


@pytest.mark.parametrize(
    ("name", "unit", "text"),
    [
        ("compute_ns", Unit.NS, "compute"),
        ("at_ns", Unit.AT_NS, "at"),
        ("share_ratio", Unit.RATIO, "share %"),
        ("rate_bytes_per_s", Unit.BYTES_PER_S, "rate"),
        ("size_bytes", Unit.BYTES, "size"),
        ("samples_per_s", Unit.PER_S, "samples"),
        ("collectives_count", Unit.COUNT, "collectives count"),
        ("drift_ppm", Unit.NUMBER, "drift ppm"),
        ("queue_bytes", Unit.COUNT, "queue bytes"),
    ],
)
def test_headings_come_from_the_declaration(name: str, unit: Unit, text: str) -> None:
    assert heading(same(name, unit, "")) == text


def test_headings_that_would_be_alike_keep_their_units() -> None:
    columns = (same("large_ns", Unit.NS, ""), same("large_bytes", Unit.BYTES, ""))
    assert list(headings(columns).values()) == ["large ns", "large bytes"]
    assert list(headings(columns[:1]).values()) == ["large"]


def test_a_note_says_its_values_in_their_units() -> None:
    note = Note.of(
        "{lost:ns} in {n:count} launches of {name} ({share:ratio})",
        lost=1_500,
        n=12_345,
        name="void gemm",
        share=0.5,
    )
    assert note_text(note) == "1.50 µs in 12,345 launches of void gemm (50.0%)"


def test_sentences_have_fewer_digits_than_tables() -> None:
    note = Note.of(
        "{t:ns}, {at:at_ns}, {n:count}, {low:ns}–{high:ns}",
        t=23_123_456,
        at=1_234_567,
        n=2_774,
        low=23_401_000,
        high=23_441_000,
    )
    assert note_text(note) == "23.1 ms, 1.235 ms, 2,774, 23.4 ms"
    assert value_text(Unit.NS, 23_123_456) == "23.12 ms"
    assert note_text(Note.of("{t:ns}", t=23_123_456)) == "23.12 ms"  # a cell of mixed units
    assert sentence_value(Unit.RATIO, 0.96543) == "96.5%"
    assert sentence_value(Unit.BYTES, None) == "–"


def test_a_note_is_tolerant() -> None:
    note = Note.of("{who}: {n:pints} of {{x}} {missing:ns} }", who="{n:ns}", n=3)
    assert note_text(note) == "{n:ns}: 3 of {x} {missing:ns} }"


@pytest.mark.parametrize(
    ("n", "words"), [(1, "1 step, 1 copy"), (2, "2 steps, 2 copies"), (0, "0 steps, 0 copies")]
)
def test_words_are_written_as_their_number_asks(n: int, words: str) -> None:
    assert note_text(Note.of("{n:count} step(s), {n:count} cop(y|ies)", n=n)) == words


def test_a_plural_without_a_number_stays() -> None:
    assert note_text(Note.of("the step(s) of {n:count}", n=2)) == "the step(s) of 2"


def test_notes_within_notes_and_lists() -> None:
    inner = Note.of("{a:ns}", a=5)
    assert note_text(Note.of("{why}, {all}", why=inner, all=[inner, "x"])) == "5 ns, 5 ns; x"
    assert value_text(Unit.TEXT, (inner, inner)) == "5 ns; 5 ns"


def test_a_range_whose_ends_are_written_alike_is_left_out() -> None:
    row = {"kind": "estimated", "saving_ns": 500, "base": "a step", "base_ns": 1_000}
    least = row | {"min_saving_ns": 500, "max_saving_ns": 500}
    assert saving_words(least) == "saves about 500 ns of 1.00 µs per step (50.0%, estimated)"
    more = least | {"max_saving_ns": 510}
    assert saving_words(more).endswith("(50.0%, estimated, range 500–510 ns)")


def test_a_note_is_one_line_of_printable_text() -> None:
    assert note_text(Note.of("{name}", name="a\x1b[31m\nb")) == "a [31m b"


def test_a_key_of_minus_one_is_unknown_and_an_unknown_column_is_not_shown() -> None:
    spec = spec_of(
        """
        table path: paths
        key process: process
        key step: step; -1 for the window
        total ns: time
        """
    ).tables[0]
    known = Table({"process": [7, 7], "step": [-1, 3], "ns": [1, 2]})
    shown = in_words(tuple(spec), known)[1]
    assert shown["step"].tolist() == [None, 3]
    window = shown_table(spec, in_words(tuple(spec), known.head(1))[1])
    assert [column.name for column in window] == ["process", "ns"]
