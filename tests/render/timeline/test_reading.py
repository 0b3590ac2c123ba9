"""Selections, lanes, fingers, files and accessibility of a timeline, as people use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.render.browser import OpenPage
from tests.render.timeline.tasks import MS, Reader, two_ranks
from tests.requirements import require
from traceprof.render.timeline.render import render_timeline

pytestmark = pytest.mark.chromium


def _drag(reader: Reader, start: tuple[float, float], end: tuple[float, float]) -> None:
    page = reader.page.page
    reader.actions += 1
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()


def test_a_drawn_span_snaps_and_is_summed_per_device(reader: Reader) -> None:
    page = reader.page.page
    (x0, y), (x1, _) = reader.place(12 * MS, "Stream 7"), reader.place(18 * MS, "Stream 7")
    page.keyboard.down("Shift")
    _drag(reader, (x0 + 3, y), (x1 - 3, y))
    page.keyboard.up("Shift")
    assert reader.actions == 1
    # Step 1: gemm 2.001 ms, idle until 15.5, then dgrad until 18, all-reduce beside and beyond it.
    assert reader.page.js("traceprof.selection") == [12 * MS, 18 * MS]
    device = reader.table("GPU time (the shares")["rank 0 · GPU 0"]
    idle, compute, both = (float(cell.removesuffix("%")) for cell in device[:3])
    assert (idle, compute, both) == (25.0, 33.5, 41.5)
    assert reader.table("GPU time (the shares")["mean of 2"] == device
    names = reader.table("GPU: activity in the selection")
    assert names["gemm"] == ["33.4%", "2.001 ms", "2", *["2.001 ms"] * 3]
    assert names["ncclDevKernel_AllReduce"][:3] == ["41.5%", "2.490 ms", "2"]


@pytest.mark.parametrize(
    ("choice", "row"),
    [
        ("Launching range", "layer"),
        ("Thread", "Main thread · python"),
        ("Lane", "GPU 0 · Stream 7"),
    ],
)
def test_a_selection_is_put_together_by_what_one_asks(
    reader: Reader, choice: str, row: str
) -> None:
    reader.click_at(35 * MS, "Steps")
    reader.page.page.locator(".plot").focus()
    reader.press("m")
    reader.click(reader.page.page.get_by_role("button", name=choice, exact=True))
    assert reader.actions == 3
    rows = reader.table("GPU: activity in the selection")
    assert row in rows
    shares = [float(cells[0].removesuffix("%")) for cells in rows.values()]
    assert max(shares) <= 100


def test_a_span_is_selected_and_extended_by_keyboard(reader: Reader) -> None:
    reader.click_at(23 * MS, "Stream 7")
    reader.page.page.locator(".plot").focus()
    reader.press("m")
    assert reader.page.js("traceprof.selection") == [22 * MS, 24 * MS + 2000]
    reader.press(">")
    assert reader.page.js("traceprof.selection") == [22 * MS, 25 * MS + 500_000]
    reader.press("<", "<")
    assert reader.page.js("traceprof.selection")[1] <= 24 * MS + 2000


def test_nested_ranges_of_the_host_cover_no_more_than_the_span(reader: Reader) -> None:
    reader.page.page.locator(".plot").focus()
    reader.press("0", "m")
    rows = reader.table("CPU: time covered")
    assert all(float(cells[0].removesuffix("%")) <= 100 for cells in rows.values())
    # Two ranks, six steps: forward is open 4 of 10 ms, on both at the same time.
    assert rows["forward"][0] == "40.0%"


def test_shift_and_click_on_two_steps_selects_both_with_what_is_between(reader: Reader) -> None:
    trace = two_ranks()
    reader.press("0")
    reader.click_at(15 * MS, "Steps")
    reader.click_at(35 * MS, "Steps", shift=True)
    assert reader.page.js("traceprof.selection") == [10 * MS, 40 * MS]
    assert reader.title == "Selection: step 1 to step 3, 30.00 ms"
    assert reader.facts["steps"] == "step 1 to step 3 (3)"
    kernels = trace.kernels.to_frame().query("device == 1 and name == 'dgrad'")
    own = kernels[(kernels["start_ns"] < 40 * MS) & (kernels["end_ns"] > 10 * MS)]
    busy = (own["end_ns"] - own["start_ns"]).sum()
    row = reader.table("GPU: activity in the selection")["dgrad"]
    # Of rank 0 three times 2.5 ms; rank 1 is 2 ms late once.
    assert row[1] == f"{(busy + 7.5 * MS) / 2 / MS:.3f} ms"
    assert row[3:] == ["500.0 µs", "2.500 ms", "2.500 ms"]


def test_steps_are_selected_by_their_number(reader: Reader) -> None:
    page = reader.page.page
    page.locator(".search input").fill("step:2..3")
    assert page.locator(".search .note").inner_text() == "Enter selects these steps"
    page.locator(".search input").press("Enter")
    assert reader.page.js("traceprof.selection") == [18 * MS, 38 * MS]  # on the devices
    assert reader.title == "Selection: step 2 to step 3, 20.00 ms"
    page.goto(page.url.partition("#")[0] + "#at=step:4&sel=step:4..5")
    reader.until("traceprof.selection?.[0] === 38e6")
    assert reader.page.js("[...traceprof.selection, traceprof.t0, traceprof.t1]") == [
        *(38 * MS, 58 * MS),
        *(38 * MS, 48 * MS),
    ]


def test_what_the_host_did_is_clipped_to_the_selection(open_page: Any) -> None:
    builder = TraceBuilder().range("epoch", 0, 70 * MS).range("forward", 18 * MS, 24 * MS)
    builder.kernel("gemm", 19 * MS, 21 * MS, launched_ns=(18 * MS, 18 * MS + 1000))
    reader = Reader(open_page(render_timeline(builder.build(), title="clipped")))
    reader.page.redrawn(
        f"traceprof.select({20 * MS}, {30 * MS}); traceprof.showSelection(); traceprof.redraw()"
    )
    host = reader.table("CPU: time covered")
    assert host["epoch"] == ["100.0%", "10.00 ms", "1", *["10.00 ms"] * 3]
    assert host["forward"] == ["40.0%", "4.000 ms", "1", *["4.000 ms"] * 3]
    device = reader.table("GPU: activity in the selection")
    assert device["gemm"] == ["10.0%", "1.000 ms", "1", *["1.000 ms"] * 3]


def test_lanes_are_filtered_folded_hidden_moved_and_remembered(reader: Reader) -> None:
    page = reader.page.page
    lanes = page.locator(".lane.section")
    reader.click(page.get_by_role("button", name="Lanes", exact=True))
    page.get_by_label("Show only lanes that match this rank").fill("rank 1")
    assert lanes.all_inner_texts() == ["rank 1 · host node2 · python · process 2"]
    page.get_by_label("Show only lanes that match this rank").fill("")
    before = page.locator(".lane.row").count()
    page.get_by_role("checkbox", name="CUDA API").uncheck()
    assert page.locator(".lane.row").count() < before
    reader.click(page.get_by_role("button", name="Show hidden"))
    assert page.locator(".lane.row").count() == before
    reader.click(page.get_by_role("button", name="Fold all"))
    assert page.locator(".lane.group[aria-expanded='true']").count() == 0
    page.keyboard.press("Escape")
    box = lanes.nth(1).bounding_box()
    _drag(
        reader,
        (box["x"] + 40, box["y"] + 10),
        (box["x"] + 40, lanes.nth(0).bounding_box()["y"] + 12),
    )
    assert lanes.all_inner_texts()[0].startswith("rank 1")
    lanes.nth(0).press("Alt+ArrowDown")
    assert lanes.all_inner_texts()[0].startswith("rank 0")
    lanes.nth(0).press("h")
    assert [text[:6] for text in lanes.all_inner_texts()] == ["rank 1"]
    page.reload()
    page.locator("[data-ready]").wait_for()
    assert [text[:6] for text in lanes.all_inner_texts()] == ["rank 1"]


def test_a_thousand_steps_are_all_marked(open_page: Any) -> None:
    page = open_page(render_timeline(two_ranks(n_steps=1319), title="many steps"))
    page.show_all()
    strip = page.js(
        "[...document.querySelector('canvas').getContext('2d')"
        ".getImageData(0, 10, traceprof.width, 1).data]"
        ".filter((value, i) => i % 4 === 3 && value < 60).length"
    )
    assert strip == 0
    assert page.page.locator(".lane.row").first.inner_text() == "Steps on CPU (1319)"
    assert "1,319 steps, marked only in the step lane" in page.page.locator(".range").inner_text()
    reader = Reader(page)
    reader.click_at(5005 * MS, "Steps")
    assert reader.title.startswith("step ")
    assert reader.facts["duration"] == "10.00 ms (10,000,000 ns)"


@pytest.fixture(scope="module")
def phone(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenPage]:
    """Return the timeline on the screen of a phone."""
    file: Path = tmp_path_factory.mktemp("phone") / "two.html"
    file.write_text(render_timeline(two_ranks(), title="two ranks"), "utf-8")
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    opened = OpenPage(context.new_page())
    opened.go(file)
    yield opened
    context.close()


def _fingers(session: Any, kind: str, *points: tuple[float, float]) -> None:
    touches = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)]
    session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})


def test_two_fingers_zoom_and_a_long_press_selects(phone: OpenPage) -> None:
    reader = Reader(phone)
    page = phone.page
    assert phone.js("document.documentElement.scrollWidth") <= 390
    lane = page.locator(".lane.group", has_text="GPU 0")
    lane.evaluate("(node) => node.scrollIntoView({ block: 'start' })")
    screen = page.context.new_cdp_session(page)
    whole = phone.js("traceprof.t1 - traceprof.t0")
    (a, y), (b, _) = reader.place(20 * MS, "Stream 7"), reader.place(40 * MS, "Stream 7")
    _fingers(screen, "touchStart", (a, y))
    _fingers(screen, "touchStart", (a, y), (b, y))
    for step in range(1, 5):
        _fingers(screen, "touchMove", (a - 6 * step, y), (b + 6 * step, y))
    _fingers(screen, "touchEnd")
    zoomed = phone.js("traceprof.t1 - traceprof.t0")
    assert zoomed == pytest.approx(whole * (b - a) / (b - a + 48), rel=0.05)
    reader.until("!traceprof.frame")
    x, y = reader.place(23 * MS, "Stream 7")
    _fingers(screen, "touchStart", (x, y))
    reader.until("traceprof.selection !== null")
    _fingers(screen, "touchEnd")
    assert phone.js("traceprof.selection") == [22 * MS, 24 * MS + 2000]
    assert page.locator(".panel").bounding_box()["y"] < 844
    assert phone.complaints == []


def test_a_phone_shows_the_lanes_until_something_is_chosen(phone: OpenPage) -> None:
    page, reader = phone.page, Reader(phone)
    reader.begin()
    reader.until("document.querySelector('.panel.resting') !== null")
    lanes = page.locator(".grid").bounding_box()
    assert page.locator(".panel").bounding_box()["y"] >= lanes["y"] + lanes["height"]
    assert page.locator(".lane.group", has_text="GPU 0").bounding_box()["y"] < 600
    page.locator(".lane.group", has_text="GPU 0").evaluate(
        "(node) => node.scrollIntoView({ block: 'start' })"
    )
    page.touchscreen.tap(*reader.place(23 * MS, "Stream 7"))
    box = page.locator(".panel").bounding_box()
    assert box["y"] + box["height"] <= 845
    page.locator(".panel").get_by_role("button", name="Clear the selection").tap()
    reader.until("document.querySelector('.panel.resting') !== null")


def test_a_tap_fills_the_panel_which_a_thumb_scrolls_and_follows(phone: OpenPage) -> None:
    page, reader = phone.page, Reader(phone)
    reader.begin()
    page.locator(".lane.group", has_text="GPU 0").evaluate(
        "(node) => node.scrollIntoView({ block: 'start' })"
    )
    page.touchscreen.tap(*reader.place(23 * MS, "Stream 7"))
    assert reader.title == "gemm"
    assert reader.facts["duration"] == "2.002 ms (2,002,000 ns)"
    details = page.locator(".details")
    box = details.bounding_box()
    assert box["y"] + box["height"] <= 844
    assert box["height"] > 100
    assert details.evaluate("(node) => node.scrollWidth <= node.clientWidth")
    screen = page.context.new_cdp_session(page)
    scrolled = page.evaluate("() => scrollY")
    x, y = box["x"] + 60, box["y"] + box["height"] - 20
    _fingers(screen, "touchStart", (x, y))
    for step in range(1, 7):
        _fingers(screen, "touchMove", (x, y - 15 * step))
    _fingers(screen, "touchEnd")
    reader.until("document.querySelector('.details').scrollTop > 30")
    assert page.evaluate("() => scrollY") == scrolled
    launch = details.get_by_role("button", name="cudaLaunchKernel").first
    launch.tap()
    assert reader.title == "cudaLaunchKernel"
    assert phone.js("document.documentElement.scrollWidth") <= 390
    assert phone.complaints == []


def _violations(page: OpenPage) -> list[str]:
    page.page.evaluate(Path(require("axe")).read_text("utf-8"))
    rules = "rules: { 'target-size': { enabled: true } }"
    options = f"{{ resultTypes: ['violations'], {rules} }}"
    found = page.page.evaluate(f"() => axe.run({options})")["violations"]
    return [
        f"{v['id']}: {v['nodes'][0]['html'][:80]}"
        for v in found
        if v["impact"] in ("serious", "critical")
    ]


def test_axe_finds_nothing_serious_in_light_and_dark(reader: Reader) -> None:
    page = reader.page
    assert _violations(page) == []
    reader.click(page.page.get_by_role("button", name="Lanes", exact=True))
    page.page.locator(".search input").fill("gemm")
    reader.click_at(23 * MS, "Stream 7")
    assert _violations(page) == []
    small = page.js(
        "[...document.querySelectorAll('.toolbar button, .panel-actions button, .menu button')]"
        ".map((node) => [node.textContent, node.getBoundingClientRect()])"
        ".filter(([, { width, height }]) => width && Math.min(width, height) < 24)"
    )
    assert small == []
    page.redrawn("traceprof.toggleTheme(); traceprof.clear(); traceprof.selectChosen()")
    assert _violations(page) == []
    page.redrawn("traceprof.toggleTheme()")


def test_what_one_sees_is_saved_as_a_drawing_and_a_table(reader: Reader) -> None:
    page = reader.page.page
    with page.expect_download() as download:
        reader.click(page.get_by_role("button", name="SVG"))
    drawing = Path(download.value.path()).read_text("utf-8")
    assert drawing.startswith("<svg")
    assert "Stream 20" in drawing
    reader.click_at(23 * MS, "Stream 7")
    with page.expect_download() as download:
        reader.click(page.get_by_role("button", name="CSV"))
    table = Path(download.value.path()).read_text("utf-8")
    assert 'duration,"2.002 ms (2,002,000 ns)"\n' in table
    assert download.value.suggested_filename == "timeline.csv"
