"""No regular expression of ours takes more than its text is long, however that is made."""

from __future__ import annotations

import os
import random
import re

import pytest

from tests.reliability.growth import ALLOWED, growth
from tests.reliability.patterns import Used, all_patterns
from tests.reliability.stepper import Stepper

_PUMPS = 10_000 if "TRACEPROF_THOROUGH" in os.environ else 24
_PARTS = 8


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"(a+)+b", r"a*?b|c", r"(?:a|ab)(c|bcd)*", r"(?>a+)b", r"a++b", r"(?<=x)a", r"(?<!x)a+"),
        *(r"(a)(?=b)b\b", r"(?i)AB+[^c]", r"(?:a*)*b", r"\s*(\w+)\s*=\s*(\d+(?:\.\d*)?)?"),
        *(r"(?=(?P<n>a*))(?P=n)b", r"^a|b$", r"x{2,4}?y{0,2}", r"(?m)^a.|.$", r"a(?!b)\W*"),
    ],
)
def test_the_counting_matcher_finds_what_re_finds(pattern: str) -> None:
    rng = random.Random(1)
    for _ in range(200):
        text = "".join(rng.choice("aabbcdx =1.y\n") for _ in range(rng.randrange(12)))
        own = Stepper(pattern)
        spans = [match.span() for match in re.finditer(pattern, text)]
        assert own.find_all(text) == spans, text
        assert own.search(text) == (spans[0][0] if spans else None), text
        assert own.full_match(text) == (re.fullmatch(pattern, text) is not None), text


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+b",  # as many ways as there are subsets
        r"\d+x",  # from every digit anew
        r"a.*b",  # from every a to the end
        r"^\s*:?\s*x",  # two repeats that share what they match
        r"^(?:.*?;)?.*=.*x",
        r"━(?!.*•)",  # looks to the end from everywhere
        r"(?:^|\|)[^|]*done[^|]*$",
        r"softmax_warp\w*<",  # from every beginning to the end of the word
    ],
)
def test_growth_is_seen(pattern: str) -> None:
    assert growth(pattern).ratio > 2 * ALLOWED


@pytest.mark.parametrize(
    "pattern",
    [
        r"softmax_warp\w{0,40}<",
        *(r"(?<!\d)\d++x", r"^(?>.*?a).*b", r"^\s*+:?\s*+x", r"a.{0,99}b", r"\b(?>\w*?a)\w*b"),
    ],
)
def test_what_is_linear_does_not_grow(pattern: str) -> None:
    assert growth(pattern).ratio <= ALLOWED


@pytest.mark.slow
def test_every_pattern_of_the_package_is_among_those_that_are_tried() -> None:
    used = all_patterns()
    assert len(used) > 450
    wheres = " ".join(one.where for one in used)
    for where in ("logs.lines._PREFIX", "secrets._NAMED", "logs: lightning, a mark", "cells.py:"):
        assert where in wheres


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
def test_no_pattern_takes_more_than_its_text_is_long(part: int) -> None:
    grown = [_told(one) for one in all_patterns()[part::_PARTS]]
    assert [told for told in grown if told] == []


def _told(one: Used) -> str:
    found = growth(one.pattern, one.flags, one.modes, _PUMPS)
    return f"{one.where}: {found}" if found.ratio > ALLOWED else ""
