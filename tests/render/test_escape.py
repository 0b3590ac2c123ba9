"""No name of a trace takes effect anywhere."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.render.escape import (
    html_sentence,
    html_text,
    plain_text,
    plotly_text,
    visible_text,
)
from traceprof.render.formatting import to_json
from traceprof.render.page.document import _breakable

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "</script><script>alert(1)</script>",
    '<a href="http://evil.example">x</a>',
    '<span style="background:url(http://evil.example)">x</span>',
    "%{x}<extra></extra>",
    r"$\href{http://evil.example}{x}$",
    "\x1b[31mred\x1b[0m",
    "abc\u202edef",
    "\u2028\u2029\ufeff",
    "\ud800",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_html_text_holds_no_markup(name: str) -> None:
    assert not set(html_text(name)) & set("<>\"'")


@pytest.mark.parametrize("name", HOSTILE)
def test_plotly_text_holds_nothing_that_plotly_interprets(name: str) -> None:
    assert not set(plotly_text(name)) & set("<>$")
    assert "%{" not in plotly_text(name)


def test_plain_text_strips_controls_and_caps_the_length() -> None:
    assert plain_text("a\x00b\u202ec\nd") == "a b c d"
    assert plain_text("x" * 5000, 10) == "x" * 9 + "…"


def test_ordinary_names_stay_as_they_are() -> None:
    name = "ampere_sgemm_128x64_tn – größe µ 漢字"
    assert plain_text(name) == html_text(name) == plotly_text(name) == name


@given(st.text(max_size=300))
def test_every_text_can_be_written_as_utf8(name: str) -> None:
    for escaped in (plain_text(name), html_text(name), plotly_text(name)):
        escaped.encode("utf-8")
        assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", escaped)


@pytest.mark.parametrize("bad", ["\x1b[2J", "\x07", "\x9b31m", "\u202e", "\u2066", "\ud800"])
def test_json_holds_no_control_and_means_the_same(bad: str) -> None:
    text = to_json({"name": f"a{bad}b"})
    assert bad[0] not in text
    assert json.loads(text) == {"name": f"a{bad}b"}


def test_visible_text_keeps_lines_and_tabs() -> None:
    assert visible_text("a\tb\n\x1b[31mred\r") == "a\tb\n\\u001b[31mred\\u000d"


def test_a_long_name_breaks_between_words_and_never_within_an_entity() -> None:
    html = _breakable("operators' inputs::of_a<kernel>&more#27_items")
    assert "<wbr>" in html
    assert re.sub(r"<wbr>", "", html) == html_text("operators' inputs::of_a<kernel>&more#27_items")
    assert not re.search(r"&[^;]*<wbr>", html)


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    told = html_sentence("1.248 GB at the peak, 3 steps of 2 ms")
    assert told == "1.248\N{NO-BREAK SPACE}GB at the peak, 3 steps of 2\N{NO-BREAK SPACE}ms"
