"""A headless Chromium that notes everything a page must not do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.requirements import require

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


class OpenPage:
    """A page in the browser, and what it complained about or asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("popup", lambda popup: self.complaints.append(f"popup {popup.url}"))

    def go(self, path: Path, fragment: str = "") -> None:
        """Open the file and wait until it has drawn itself."""
        self.page.goto(path.as_uri() + fragment)
        self.page.locator("[data-ready]").wait_for(timeout=30_000)

    def js(self, expression: str) -> Any:
        """Return what a JavaScript expression evaluates to in the page."""
        return self.page.evaluate(f"() => ({expression})")

    def redrawn(self, action: str) -> None:
        """Run ``action`` and wait until the picture has been drawn again."""
        before = self.js("traceprof.redraws")
        self.page.evaluate(f"() => {{ {action} }}")
        for _ in range(600):
            if self.js("traceprof.redraws") > before:
                return
            self.page.wait_for_timeout(10)
        pytest.fail(f"the page did not draw again after {action}")

    def show_all(self) -> None:
        """Show the whole trace: a page opens at the window that is judged."""
        self.redrawn("traceprof.jumpTo(0, traceprof.trace.duration_ns)")

    def hover(self, time_ns: float, row: int) -> dict[str, str]:
        """Move the pointer to an instant of a row; return what the tooltip says."""
        x, y = self.js(
            f"[traceprof.xOf({time_ns}), (() => {{ const line = traceprof.lines.find("
            f"(l) => l.type === 'row' && l.row === {row}); return line.y + line.height / 2; }})()]"
        )
        box = self.page.locator(".overlay").bounding_box()
        self.page.mouse.move(box["x"] + x, box["y"] + y)
        title = self.page.locator(".tip b").inner_text()
        facts = self.page.locator(".tip .fact")
        return {
            "title": title,
            **{
                facts.nth(i).locator("span").nth(0).inner_text(): facts.nth(i)
                .locator("span")
                .nth(1)
                .inner_text()
                for i in range(facts.count())
            },
        }


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a headless browser; skip where there is none."""
    program = require("chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
