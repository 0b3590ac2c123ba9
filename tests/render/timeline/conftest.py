"""A timeline that several tests share: each begins where a reader begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.render.browser import OpenPage
from tests.render.timeline.tasks import Reader, two_ranks
from traceprof.render.timeline.render import render_timeline


@pytest.fixture(scope="module")
def shared_page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenPage]:
    """Return the timeline of `two_ranks`, open in a browser that may use its clipboard."""
    file: Path = tmp_path_factory.mktemp("tasks") / "two.html"
    file.write_text(render_timeline(two_ranks(), title="two ranks"), "utf-8")
    context = browser.new_context(
        viewport={"width": 1400, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )
    opened = OpenPage(context.new_page())
    opened.go(file)
    yield opened
    assert opened.complaints == []
    context.close()


@pytest.fixture
def reader(shared_page: OpenPage) -> Reader:
    """Return somebody who has just opened the page."""
    reader = Reader(shared_page)
    reader.begin()
    reader.until("document.querySelector('.details h3').textContent.startsWith('In view')")
    return reader
