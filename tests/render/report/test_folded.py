"""A report shows the sections that matter first and folds the rest."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.measures.generated_run import Plan, make_trace_of
from tests.render.browser import OpenPage
from tests.render.report.test_report import _report

_FOLDED = re.compile(r'<section class="card" id="([\w-]+)"[^>]*><details class="section">')
_ALL = re.compile(r'<section class="card" id="([\w-]+)"')


def test_the_sections_after_the_summary_are_folded() -> None:
    page = _report(make_trace_of(Plan(n_ranks=2, n_steps=6)))
    folded = set(_FOLDED.findall(page))
    assert {"gaps", "idle", "copies", "ranks"} & folded
    shown = [key for key in _ALL.findall(page) if key not in folded]
    assert shown[0] == "verdict"
    assert len(shown) <= 6


def test_a_straggler_unfolds_the_sections_about_it() -> None:
    def folded(plan: Plan) -> set[str]:
        return set(_FOLDED.findall(_report(make_trace_of(plan))))

    of_ranks = {"stragglers", "rank-steps"}
    assert of_ranks <= folded(Plan(n_ranks=2, n_steps=6))
    assert not of_ranks & folded(Plan(n_ranks=2, n_steps=6, extra_ns={(1, "forward"): 20_000_000}))


def test_one_rank_has_no_sections_that_compare_ranks() -> None:
    one = set(_ALL.findall(_report(make_trace_of(Plan(n_ranks=1, n_steps=6)))))
    two = set(_ALL.findall(_report(make_trace_of(Plan(n_ranks=2, n_steps=6)))))
    assert {"rank-steps", "ranks"} <= two
    assert not {"rank-steps", "ranks", "stragglers", "shared"} & one


@pytest.mark.chromium
def test_a_link_unfolds_its_section(open_page: Callable[..., OpenPage]) -> None:
    opened = open_page(_report(make_trace_of(Plan(n_ranks=2, n_steps=6))))
    page = opened.page
    table = page.locator("#idle table").first
    assert not table.is_visible()
    page.evaluate("() => { location.hash = '#idle'; }")
    table.wait_for(state="visible")
    assert opened.complaints == []
