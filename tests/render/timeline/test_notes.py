"""Notes that a reader writes at places: in the address, kept by the browser, and plain text."""

from __future__ import annotations

import re

import pytest

from tests.render.timeline.tasks import MS, Reader

pytestmark = pytest.mark.chromium
HEADING = "document.querySelector('.details h3').textContent"


def _write(reader: Reader, text: str) -> None:
    page = reader.page.page
    page.locator(".plot").focus()
    reader.press("b")
    page.keyboard.type(text)
    reader.press("Enter")


def test_a_note_is_written_in_three_actions_and_leads_back(reader: Reader) -> None:
    page = reader.page.page
    reader.click_at(23 * MS, "Stream 7")
    _write(reader, "why so long?")
    assert reader.actions == 3
    reader.until("location.hash.includes('notes=')")
    address = reader.page.js("location.hash")
    span = f"{22 * MS}..{24 * MS + 2000}"
    assert re.search(rf"notes={span},R\d+@{22 * MS},why%2520so%2520long%253F", address)
    reader.press("Escape")
    reader.until(f"{HEADING}.startsWith('In view')")
    assert page.locator(".notes button").first.inner_text() == "why so long?"
    reader.click(page.locator(".flag"))
    reader.until(f"{HEADING} === 'gemm'")
    assert reader.facts["duration"] == "2.002 ms (2,002,000 ns)"
    # Somebody else has the address alone, the reader the page alone.
    for kept in (address, ""):
        page.evaluate(f"() => {'localStorage.clear()' if kept else '0'}")
        page.goto(page.url.split("#")[0] + kept)
        page.reload()
        page.locator("[data-ready]").wait_for()
        if kept:
            assert page.locator(".flag").inner_text().strip() == "⚑ why so long?"
            page.evaluate("() => traceprof.notes.change(traceprof.notes.list)")
        else:
            assert reader.page.js("traceprof.notes.list.map(({ text }) => text)") == [
                "why so long?"
            ]
    reader.press("Escape")
    reader.until("document.querySelector('.notes') !== null")
    page.get_by_role("button", name="Remove note why so long?").click()
    assert page.locator(".flag").count() == 0
    assert reader.page.js("localStorage.getItem('traceprof-notes')").endswith('":[]}')


def test_notes_of_an_address_are_text_and_few(reader: Reader) -> None:
    page = reader.page.page
    evil = "%253Cimg%2520src%253Dx%2520onerror%253Dalert(1)%253E%25E2%2580%25AE"
    words = [f"1..2,,{evil}", f"3..4,,{'a' * 900}", "5..4,,no span", "x,,no span", "7..8,,%25FF"]
    words += [f"{i}..{i + 1},R99999@7,{i}" for i in range(10, 90)]
    page.goto(page.url.split("#")[0] + "#at=0..60000000&notes=" + "|".join(words))
    reader.until("traceprof.notes.list.length > 2")
    texts = reader.page.js("traceprof.notes.list.map(({ text }) => text)")
    assert texts[0] == "<img src=x onerror=alert(1)>"
    assert len(texts[1]) == 200
    assert len(texts) == 47
    reader.until("document.querySelectorAll('.flag').length === 47")
    assert page.locator(".flag img").count() == 0
    page.goto(page.url.split("#")[0])
    page.evaluate("() => localStorage.clear()")
    page.reload()
    page.locator("[data-ready]").wait_for()
