"""What one arranges, the address carries: who opens it sees the same; a filter finds any lane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.render.browser import OpenPage
from tests.render.timeline.tasks import MS, Reader

pytestmark = pytest.mark.chromium


@pytest.fixture
def elsewhere(browser: Any, shared_page: OpenPage) -> Iterator[OpenPage]:
    """Return the page of a colleague: the same file in a browser that has seen nothing of it."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    opened = OpenPage(context.new_page())
    yield opened
    assert opened.complaints == []
    context.close()


def _open(elsewhere: OpenPage, address: str) -> Reader:
    elsewhere.page.goto(address)
    elsewhere.page.locator("[data-ready]").wait_for()
    return Reader(elsewhere)


def _lines(page: OpenPage) -> list[str]:
    """The names of all lanes and charts from top to bottom."""
    found: list[str] = page.page.locator(".lane .name").all_inner_texts()
    return found


def _filter(reader: Reader, text: str) -> None:
    if reader.page.page.locator(".menu").is_hidden():
        reader.click(reader.page.page.get_by_role("button", name="Lanes", exact=True))
    reader.page.page.locator(".menu input[type=search]").fill(text)


def test_a_colleague_sees_the_lanes_as_they_were_sent(reader: Reader, elsewhere: OpenPage) -> None:
    page = reader.page.page
    # Hide a lane, a thread and a chart, open a thread, put rank 1 first, switch calls off.
    lanes = page.locator(".lane")
    lanes.filter(has_text="Stream 20").first.press("h")
    lanes.filter(has_text="Main thread").first.press("h")
    lanes.filter(has_text="rank 0").first.press("Alt+ArrowDown")
    lanes.filter(has_text="CUDA API").first.press("p")
    reader.click(page.locator(".chip", has_text="CUDA API"))
    reader.click(page.get_by_role("button", name="Lanes (some hidden)"))
    reader.click(page.get_by_role("checkbox", name="Copy rate GB/s"))
    page.keyboard.press("Escape")
    shown = _lines(reader.page)
    assert shown.count("Stream 20") == 1
    assert "Copy rate GB/s" not in shown
    assert "GPU busy %" in shown
    reader.until("location.hash.includes('hide=') && location.hash.includes('order=')")
    other = _open(elsewhere, page.url)
    assert _lines(elsewhere) == shown
    off = elsewhere.page.locator(".chip[aria-pressed=false]").all_inner_texts()
    assert off == ["CUDA API"]
    # What was hidden is offered there, too, and all of it comes back.
    other.click(elsewhere.page.get_by_role("button", name="Lanes (some hidden)"))
    other.click(elsewhere.page.get_by_role("button", name="Show hidden"))
    assert _lines(elsewhere).count("Stream 20") == 2
    assert "Copy rate GB/s" in _lines(elsewhere)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("stream", ["Stream 7", "Stream 20"] * 2),
        ("stream 20", ["Stream 20"] * 2),
        ("rank 1 stream 7", ["Stream 7"]),
        ("node2 cuda api", ["CUDA API"] * 2),
        # Lanes of nested ranges are called by their depth alone.
        ("rank 0 ranges", ["Ranges", "└ depth 1", "└ depth 2"]),
    ],
)
def test_a_filter_finds_any_lane_also_in_what_is_folded(
    reader: Reader, text: str, found: list[str]
) -> None:
    page = reader.page.page
    reader.click(page.get_by_role("button", name="Lanes", exact=True))
    reader.click(page.get_by_role("button", name="Fold all"))
    _filter(reader, text)
    host, devices, *rows = page.locator(".lane.row:not(.chart) .name").all_inner_texts()
    assert host.startswith("Steps on CPU")
    assert devices.startswith("Steps on GPU")
    assert rows == found
    page.keyboard.press("Escape")


def test_a_filter_is_in_the_address_and_gives_way_to_what_one_goes_to(
    reader: Reader, elsewhere: OpenPage
) -> None:
    page = reader.page.page
    _filter(reader, "stream 20")
    reader.until("location.hash.includes('filter=stream%2020')")
    other = _open(elsewhere, page.url)
    rows = elsewhere.page.locator(".lane.row:not(.chart) .name")
    assert rows.all_inner_texts()[2:] == ["Stream 20"] * 2
    other.click_at(38.5 * MS, "Stream 20")
    assert other.title == "ncclDevKernel_AllReduce"
    # The launch of dgrad is on a lane that the filter leaves out.
    elsewhere.page.locator(".search input").fill("dgrad")
    elsewhere.page.locator(".search input").press("Enter")
    other.until("document.querySelector('.details h3').textContent === 'dgrad'")
    assert "Stream 7" in rows.all_inner_texts()


def test_a_chart_is_hidden_by_mouse_and_takes_no_room(reader: Reader) -> None:
    page = reader.page.page
    height = reader.page.js("traceprof.plot.offsetHeight")
    chart = page.locator(".lane.chart", has_text="GPU busy %")
    chart.hover()
    reader.click(chart.locator(".hide"))
    assert page.locator(".lane.chart .name").all_inner_texts() == ["Copy rate GB/s"]
    reader.until(f"traceprof.plot.offsetHeight === {height} - 100")
    reader.until("/hide=C0(&|$)/.test(location.hash)")
    # The curve that is left is that of the copies: 2.5 MB in 100 µs are 25 GB/s.
    x, _ = reader.place(9.05 * MS, "Steps")
    top = page.locator(".lane.chart").bounding_box()["y"]
    page.mouse.move(x, top + 40)
    assert page.locator(".tip b").inner_text().startswith("Copy rate GB/s at")


def test_a_link_of_a_finding_shows_lanes_that_were_hidden(reader: Reader) -> None:
    page = reader.page.page
    page.locator(".lane.section", has_text="rank 1").press("h")
    reader.until("location.hash.includes('hide=')")
    page.evaluate(
        f"() => {{ location.hash = '#at=0..{60 * MS}&mark={34 * MS}..{37 * MS}&rank=1' }}"
    )
    reader.until("traceprof.lines.some(({ label }) => label.startsWith('rank 1'))")


def test_what_one_hid_is_remembered_unless_an_address_says_otherwise(reader: Reader) -> None:
    page = reader.page.page
    plain = page.url.partition("#")[0]
    page.locator(".lane.section", has_text="rank 1").press("h")
    page.goto(f"{plain}#at=step:3")
    page.reload()
    page.locator("[data-ready]").wait_for()
    # On the devices, from the end of what step 2 launched to the end of its own.
    assert reader.page.js("[traceprof.t0, traceprof.t1]") == [28 * MS, 38 * MS]
    assert not any(text.startswith("rank 1") for text in _lines(reader.page))
    # One that was sent says so where nothing was hidden.
    page.goto(f"{plain}#at=step:3&hide=none")
    page.reload()
    page.locator("[data-ready]").wait_for()
    assert any(text.startswith("rank 1") for text in _lines(reader.page))
