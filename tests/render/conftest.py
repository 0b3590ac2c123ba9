"""Pages from text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.render.browser import OpenPage


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[[str], OpenPage]]:
    """Return a function that opens HTML text as a file in a new page."""
    pages: list[Any] = []

    def open_html(text: str, fragment: str = "", width: int = 1400) -> OpenPage:
        file = tmp_path / f"page{len(pages)}.html"
        file.write_text(text, "utf-8")
        page = browser.new_page(viewport={"width": width, "height": 900})
        pages.append(page)
        opened = OpenPage(page)
        opened.go(file, fragment)
        return opened

    yield open_html
    for page in pages:
        page.close()
