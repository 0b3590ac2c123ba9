"""The page with the verdict as HTML has the layout of the report's first screen."""

from __future__ import annotations

import re

from tests.builders import TraceBuilder
from traceprof.model.ranks import Ranks
from traceprof.model.trace import TraceInfo
from traceprof.render.registry import Options, render
from traceprof.session.answer import page
from traceprof.session.run import run_of

MS = 1_000_000


def _html(options: Options | None = None) -> str:
    """Return the page of four steps of 1 ms, of which the GPU is idle for 300 µs."""
    builder = TraceBuilder().process(1, rank=0).device(0, "H100")
    for number in range(4):
        t = number * MS
        builder.step(t, t + MS, number)
        builder.kernel("gemm", t, t + 600_000, launched_ns=(t, t + 5_000))
        called = (t + 5_000, t + 6_000)
        builder.kernel("ncclAllReduce", t + 500_000, t + 700_000, stream=20, launched_ns=called)
    trace = builder.build(span=(0, 4 * MS), info=TraceInfo(path="/tmp/a b.sqlite"))
    return render("html", page(run_of(Ranks.of(trace))), options)


def test_numbers_bar_and_findings_come_before_the_tables() -> None:
    html = _html().replace("\N{NO-BREAK SPACE}", " ")
    marks = (
        *("<h1>a b.sqlite</h1>", '<div class="key-numbers">', '<p class="answer">GPU-bound'),
        *('<ul class="legend">', ">Findings</h2>", '<ol class="findings"', "→ ", "<table>"),
    )
    places = [html.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "traceprof report &#x27;/tmp/a b.sqlite&#x27;" in html


def test_findings_are_a_list_and_no_table() -> None:
    html = _html()
    headings = re.findall(r"<th [^>]*>(.*?)</th>", html)
    assert "exposed communication" in headings
    assert not {"action", "base ns", "claim kind"} & set(headings)


def test_the_large_numbers_lead_to_parts_of_the_page() -> None:
    html = _html()
    assert (links := re.findall(r'href="#([\w-]+)"', html))
    assert all(f'id="{link}"' in html for link in links)


def test_columns_that_the_user_chose_are_a_table() -> None:
    html = _html(Options(columns=("action",)))
    assert ">action</th>" in html
    assert '<ol class="findings"' not in html
