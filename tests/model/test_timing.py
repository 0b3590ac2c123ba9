"""Windows as one types them."""

from __future__ import annotations

import pytest

from traceprof.model.timing import typed_window
from traceprof.units import parse_duration


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "text"),
    [
        (0, 999, "0us..0.999us"),
        (400_000, 600_000, "400us..600us"),
        (2_029_299_785, 2_031_778_568, "2.029299s..2.031779s"),
        (1_200_394_317, 6_288_833_684, "1.2s..6.289s"),
    ],
)
def test_a_window_is_as_short_as_a_thousandth_of_it_allows(
    start_ns: int, end_ns: int, text: str
) -> None:
    assert typed_window(start_ns, end_ns) == text
    start, end = map(parse_duration, text.split(".."))
    assert start <= start_ns
    assert end_ns <= end
    assert end - start <= 1.002 * (end_ns - start_ns) + 2
