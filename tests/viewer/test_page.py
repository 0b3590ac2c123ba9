"""The viewer in a real browser."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.render.browser import OpenPage
from tests.render.test_escape import HOSTILE
from tests.viewer.conftest import View
from traceprof.model.trace import Trace, TraceInfo
from traceprof.units import format_count

pytestmark = pytest.mark.chromium


def _small_trace() -> Trace:
    """Two steps of forward, a GEMM, an all-reduce and a copy, in round numbers."""
    builder = TraceBuilder().device(0, "H100").thread_name(1, "python")
    for number, t in enumerate((0, 1_000_000)):
        builder.step(t, t + 900_000, number)
        builder.range("forward", t + 10_000, t + 400_000)
        builder.kernel("gemm", t + 100_000, t + 300_000, launched_ns=(t + 20_000, t + 25_000))
        builder.kernel("ncclAllReduce", t + 250_000, t + 500_000, stream=20)
        builder.copy("h2d", t + 600_000, t + 700_000, n_bytes=2_500_000)
    return builder.build()


def _crowded_trace() -> Trace:
    """40,000 kernels of 500 ns, one every microsecond, the last one called needle."""
    builder = TraceBuilder()
    for i in range(40_000):
        builder.kernel("needle" if i == 39_990 else f"k{i % 5}", i * 1_000, i * 1_000 + 500)
    return builder.build()


def _frame(page: OpenPage, place: int = 0) -> Any:
    return page.page.frames[1 + place]


def _js(page: OpenPage, expression: str, place: int = 0) -> Any:
    return _frame(page, place).evaluate(f"() => ({expression})")


def _until(page: OpenPage, expression: str, place: int = 0) -> None:
    for _ in range(1_000):
        if _js(page, expression, place):
            return
        page.page.wait_for_timeout(10)
    pytest.fail(f"never true: {expression}")


def _go_to(page: OpenPage, t0: int, t1: int) -> None:
    _js(page, f"traceprof.goTo({t0}, {t1})")
    _until(page, "traceprof.isSettled")


def _at(page: OpenPage, time_ns: float, row: str) -> tuple[float, float]:
    """Return where an instant of a row is on the screen."""
    x, y = _js(
        page,
        f"[traceprof.xOf({time_ns}), (() => {{ const line = traceprof.lines.find((l) =>"
        f" l.type === 'row' && traceprof.trace.rows[l.row].label === '{row}');"
        " return line.y + line.height / 2; })()]",
    )
    box = _frame(page).locator(".overlay").bounding_box()
    return box["x"] + x, box["y"] + y


def _table(page: OpenPage, name: str, place: int = 0) -> list[str]:
    rows = page.page.locator(f"#table-{place}-{name} tbody tr")
    texts: list[str] = rows.all_inner_texts()
    return texts


def test_it_opens_silently_and_asks_nobody_else(view: View) -> None:
    page = view(small=_small_trace())
    assert page.complaints == []
    own = page.page.url.split("/")[2]
    assert own.startswith("127.0.0.1:")
    assert {url.split("/")[2] for url in page.requests if url.startswith("http")} == {own}
    assert all(url.startswith(("http:", "data:", "blob:")) for url in page.requests)
    assert "token" not in page.page.url
    lanes = _frame(page).locator(".lane .name").all_inner_texts()
    assert {"Main thread · python", "GPU 0 · H100", "Stream 7"} <= set(lanes)
    assert any(row.startswith("gemm") for row in _table(page, "kernels"))


def test_zooming_fetches_what_the_screen_can_show_and_hover_tells_it(view: View) -> None:
    page = view(many=_crowded_trace())
    _until(page, "traceprof.isSettled")
    assert _js(page, "traceprof.trace.bin_ns") == 16_000
    before = _js(page, "[traceprof.redraws, traceprof.remote.requests]")
    _go_to(page, 20_000_000, 20_010_000)
    _until(page, f"traceprof.redraws > {before[0]}")
    assert _js(page, "traceprof.remote.requests") == before[1] + 1
    assert _js(page, "traceprof.trace.bin_ns") == 0
    assert 10 <= _js(page, "traceprof.scene.boxCount") <= 12
    page.page.mouse.move(*_at(page, 20_005_250, "Stream 7"))
    tip = _frame(page).locator(".tip")
    assert tip.locator("b").inner_text() == "k0"
    facts = dict(text.split("\n") for text in tip.locator(".fact").all_inner_texts())
    assert facts["start"] == f"20.01 ms ({format_count(20_005_000)} ns)"
    assert facts["duration"] == "500 ns"
    assert page.complaints == []


def test_keys_move_the_first_timeline_before_any_click(view: View) -> None:
    page = view(many=_crowded_trace())
    _until(page, "traceprof.isSettled")
    before = _js(page, "traceprof.t1 - traceprof.t0")
    page.page.keyboard.press("w")
    _until(page, f"traceprof.t1 - traceprof.t0 < {before}")
    # What is typed into a field is text.
    now = _js(page, "traceprof.t1 - traceprof.t0")
    page.page.locator("#window").focus()
    page.page.keyboard.press("w")
    assert _js(page, "traceprof.t1 - traceprof.t0") == now


def test_while_data_is_on_its_way_nothing_looks_idle(view: View) -> None:
    page = view(many=_crowded_trace())
    _go_to(page, 20_000_000, 20_010_000)
    page.page.route("**/data/**", lambda _: None)  # answers nothing
    _js(page, "traceprof.goTo(30000000, 30400000)")
    _until(page, "!traceprof.frame && traceprof.trace === traceprof.overview")
    assert not _js(page, "traceprof.isSettled")
    page.page.mouse.move(*_at(page, 30_200_000, "Stream 7"))
    assert "short events" in _frame(page).locator(".tip b").inner_text()
    page.page.unroute_all()


def test_search_counts_all_events_and_goes_where_nothing_is_loaded(view: View) -> None:
    page = view(many=_crowded_trace())
    _go_to(page, 0, 10_000)
    _frame(page).locator(".search input").fill("needle")
    _until(page, "document.querySelector('.search .note').textContent === '1 events'")
    _js(page, "traceprof.stepMatch(1)")
    _until(page, "document.querySelector('.details h3')?.textContent === 'needle'")
    t0, t1 = _js(page, "[traceprof.t0, traceprof.t1]")
    assert t0 < 39_990_000 < t1
    _js(page, "traceprof.stepEvent(-1)")
    _until(page, "document.querySelector('.details h3')?.textContent === 'k4'")


def test_a_selection_drives_the_tables(view: View) -> None:
    page = view(small=_small_trace())
    assert any(row.startswith("ncclAllReduce") for row in _table(page, "kernels"))
    start = _at(page, 1_050_000, "Stream 7")
    end = _at(page, 1_240_000, "Stream 7")
    page.page.keyboard.down("Shift")
    page.page.mouse.move(*start)
    page.page.mouse.down()
    page.page.mouse.move(*end, steps=4)
    page.page.mouse.up()
    page.page.keyboard.up("Shift")
    page.page.locator("#table-0-kernels tbody tr").nth(0).wait_for()
    page.page.wait_for_url("**?window=*ns..*ns*")
    for _ in range(1_000):
        if len(_table(page, "kernels")) == 1:
            break
        page.page.wait_for_timeout(10)
    (row,) = _table(page, "kernels")
    assert row.startswith("gemm")
    assert "\t1\t" in row
    page.page.locator("#reset").click()
    page.page.locator("#table-0-kernels tbody tr", has_text="nccl").wait_for()
    assert page.complaints == []


def test_an_address_names_view_window_and_tables(view: View) -> None:
    page = view("&window=step:1&tables=copies#at=600000..700000", small=_small_trace())
    assert _js(page, "[traceprof.t0, traceprof.t1]") == [600_000, 700_000]
    assert page.page.locator("#window").input_value() == "step:1"
    assert page.page.locator(".result h3").all_inner_texts() == ["copies"]
    assert "step:1" in page.page.locator(".tables .sub").inner_text()
    page.page.evaluate("() => { location.hash = '#at=100000..300000' }")
    _until(page, "traceprof.t0 === 100000 && traceprof.t1 === 300000")


def test_a_window_that_makes_no_sense_is_said_in_words(view: View) -> None:
    page = view("&window=range:nothing", small=_small_trace())
    assert "nothing" in page.page.locator(".tables .missing").inner_text()
    assert page.complaints == []


def test_a_row_of_a_table_leads_to_its_place(view: View) -> None:
    page = view("&tables=gaps&window=all", small=_small_trace())
    page.page.locator("#table-0-gaps tbody a").first.click()
    _until(page, "traceprof.t1 - traceprof.t0 < 1_000_000")
    assert page.page.url.split("#")[1].startswith("at=")


def test_a_view_that_is_told_meanwhile_does_not_take_a_link_back(view: View) -> None:
    page = view("&tables=gaps&window=all", small=_small_trace())
    link = page.page.locator("#table-0-gaps tbody a").first.get_attribute("href")
    _until(page, "window.traceprof?.isSettled")  # tables may be there before the timeline is
    page.page.evaluate(
        "(link) => { location.hash = link; history.replaceState(null, '', '#') }", link
    )
    _until(page, "traceprof.t1 - traceprof.t0 < 1_000_000")


def test_runs_stand_side_by_side_and_move_together(view: View) -> None:
    slower = TraceBuilder().kernel("gemm", 0, 900_000).kernel("relu", 900_000, 1_900_000).build()
    page = view(first=_small_trace(), second=slower)
    assert page.page.locator(".tables section h2").all_inner_texts() == ["first", "second"]
    assert any(row.startswith("relu") for row in _table(page, "kernels", 1))
    assert not any(row.startswith("relu") for row in _table(page, "kernels", 0))
    _frame(page, 0).locator(".plot").focus()
    page.page.keyboard.press("w")
    _until(page, "traceprof.t1 - traceprof.t0 < 1_400_000", 1)
    assert _js(page, "[traceprof.t0, traceprof.t1]", 1) == _js(page, "[traceprof.t0, traceprof.t1]")
    assert page.complaints == []


def test_hostile_names_stay_text(view: View) -> None:
    builder = TraceBuilder().device(0, HOSTILE[1])
    names = [name for name in HOSTILE if name != "\ud800"]  # a table cannot hold it
    for i, name in enumerate(names):
        builder.range(name, i * 1_000, i * 1_000 + 900)
        builder.kernel(name, i * 1_000, i * 1_000 + 900, launched_ns=(i * 1_000, i * 1_000 + 9))
    info = TraceInfo(path="x", host=HOSTILE[0], profiler=HOSTILE[1], warnings=tuple(names))
    traces = {HOSTILE[1]: builder.build(info=info)}
    page = view("&tables=kernels,ranges,quality&window=all", **traces)
    assert len(_table(page, "kernels")) > 5
    page.page.mouse.move(*_at(page, 1_450, "Stream 7"))
    assert _frame(page).locator(".tip b").inner_text()
    own = page.page.url.split("/")[2]
    assert {url.split("/")[2] for url in page.requests if url.startswith("http")} == {own}
    assert page.page.locator("main img, main script, main a[href^='http']").count() == 0
    assert page.complaints == []


def test_when_the_server_is_gone_the_picture_stays_and_says_so(view: View) -> None:
    page = view(many=_crowded_trace())
    _until(page, "traceprof.isSettled")
    page.page.route("**/data/**", lambda route: route.abort())
    _js(page, "traceprof.goTo(1000000, 1010000)")
    _until(page, "document.querySelector('.range').textContent.includes('not responding')")
    requests = _js(page, "traceprof.remote.requests")
    _js(page, "traceprof.redraw()")
    _until(page, "!traceprof.frame")
    assert _js(page, "traceprof.remote.requests") == requests


def test_each_run_has_its_own_notes_and_choice_in_the_address(view: View) -> None:
    other = TraceBuilder().kernel("other", 0, 900_000).kernel("relu", 900_000, 1_900_000).build()
    page = view(first=_small_trace(), second=other)
    frame = _frame(page, 1)
    frame.locator(".plot").focus()
    for key in (*"/other", "Enter"):
        page.page.keyboard.press(key)
    _until(page, "traceprof.chosen !== null", 1)
    frame.locator(".plot").focus()
    page.page.keyboard.press("b")
    page.page.keyboard.type("late")
    page.page.keyboard.press("Enter")
    _until(page, "parent.location.hash.includes('notes2=')", 1)
    address = page.page.url
    assert "notes=" not in address
    assert "of=2" in address
    page.page.evaluate("() => localStorage.clear()")
    page.page.reload()
    for place in (0, 1):
        frame = page.page.frame_locator(f"iframe[src='/timeline/{place}']")
        frame.locator("[data-ready]").wait_for()
    assert _frame(page, 1).locator(".flag").inner_text().strip() == "⚑ late"
    assert _frame(page, 1).locator(".details h3").inner_text() == "other"
    assert _frame(page, 0).locator(".flag").count() == 0
    assert _js(page, "traceprof.chosen") is None
    assert page.complaints == []
