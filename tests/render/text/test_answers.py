"""Lines of blocks."""

from __future__ import annotations

from traceprof.render.text.answers import sparkline


def test_heights_are_in_proportion_to_the_largest() -> None:
    assert sparkline([1, 2, 4, 8], 10) == "▁▂▄█"
    assert sparkline([5, 5], 10) == "██"


def test_a_slow_one_among_many_is_still_seen() -> None:
    values = [1.0] * 1000
    values[503] = 8.0
    line = sparkline(values, 20)
    assert len(line) == 20
    assert line[10] == "█"
    assert set(line[:10] + line[11:]) == {"▁"}


def test_nothing_and_zeros() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([0, 0], 10) == "▁▁"
