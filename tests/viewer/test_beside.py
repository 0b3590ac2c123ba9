"""The viewer as a person uses it: findings as cards, tables beside the timeline, for everybody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.render.accessibility import serious_violations
from tests.render.browser import OpenPage
from tests.requirements import ROOT
from tests.viewer.conftest import Serve
from traceprof.session.run import Run, open_run
from traceprof.units import parse_duration, sentence_duration

pytestmark = pytest.mark.chromium


@pytest.fixture
def run() -> Run:
    return open_run([ROOT / "fixtures" / "traces" / "before.sqlite.gz"])


@pytest.fixture
def viewer(browser: Any, serve: Serve, run: Run) -> Iterator[OpenPage]:
    """The viewer of the run of the example notebook on a wide screen."""
    server = serve(example=run.within("all").trace())
    context = browser.new_context(viewport={"width": 1600, "height": 900})
    opened = OpenPage(context.new_page())
    opened.page.goto(server.address.url)
    opened.page.frame_locator("iframe").locator("[data-ready]").wait_for(timeout=30_000)
    opened.page.locator("#table-0-findings .findings li").first.wait_for()
    yield opened
    context.close()


def test_a_reader_finds_cards_beside_the_timeline_and_everybody_can_read_them(
    viewer: OpenPage, run: Run
) -> None:
    page = viewer.page
    timeline, tables = (page.locator(s).bounding_box() for s in ("iframe", ".answers"))
    assert tables["x"] >= timeline["x"] + timeline["width"]
    assert tables["y"] < 200

    finding = run.result("findings").table.to_frame().iloc[0]
    start, end = map(parse_duration, finding["window"].split(".."))
    card = page.locator(".findings > li").first
    words = card.inner_text()
    assert "Input-bound: the GPU is idle during data loading for 24.5% of step time" in words
    of = f"of {sentence_duration(finding['base_ns'])} per step (24.5%, measured)"
    assert f"saves {sentence_duration(finding['saving_ns'])} {of}" in words
    card.locator("a").click()  # one action
    frame = page.frames[1]
    for _ in range(500):
        shown = frame.evaluate("[traceprof.t0, traceprof.t1]")
        if shown[1] - shown[0] < 2 * (end - start):
            break
        page.wait_for_timeout(10)
    assert shown[0] <= start < end <= shown[1] <= end + (end - start)

    assert serious_violations(page) == []
    assert serious_violations(frame) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert viewer.js("document.documentElement.scrollWidth") <= 390
    assert viewer.complaints == []
