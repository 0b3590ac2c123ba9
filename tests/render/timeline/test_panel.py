"""What people look up in a timeline: how many actions it takes, and whether it is true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.measures.generated_run import Plan, make_trace_of
from tests.render.browser import OpenPage
from tests.render.timeline.tasks import MS, Reader, steps_of_ten, two_ranks
from traceprof.comparison.explaining import explain_ranks
from traceprof.formats import open_trace
from traceprof.measures.idle.gaps import find_gaps
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.names.kernels import short_name
from traceprof.render.timeline.render import render_timeline
from traceprof.units import format_count, format_duration

pytestmark = pytest.mark.chromium


def _gaps(trace: Trace, device: int) -> tuple[np.ndarray, np.ndarray]:
    """Where nothing runs on a device, at the edges too, ns from the start of the trace."""
    gaps = find_gaps(trace)
    own = gaps.take(gaps["device"] == device)
    zero = trace.span.start_ns
    return own["start_ns"] - zero, own["end_ns"] - zero


def test_the_panel_is_in_the_first_viewport_and_tells_of_the_view(reader: Reader) -> None:
    box = reader.page.page.locator(".panel").bounding_box()
    assert box
    assert box["y"] + box["height"] <= 900
    assert reader.title.startswith("In view: step 1 to step 5")
    assert reader.facts["steps"] == "5 of 6 in view"
    starts, ends = _gaps(two_ranks(), 1)
    idle = reader.table("GPUs in view")["rank 1 · GPU 1"]
    assert idle[1] == f"{(ends - starts).max() / MS:.3f} ms"


def test_the_longest_gap_of_a_device_is_one_click_away(reader: Reader) -> None:
    reader.click(reader.page.page.get_by_role("button", name="rank 1 · GPU 1"))
    starts, ends = _gaps(two_ranks(), 1)
    longest = int((ends - starts).argmax())
    facts = reader.facts
    assert reader.actions <= 3
    assert f"({format_count(int(starts[longest]))} ns)" in facts["start"]
    assert f"({format_count(int((ends - starts)[longest]))} ns)" in facts["duration"]
    # Rank 1 is late in step 3: between its forward and its backward kernel.
    assert (facts["before"], facts["after"]) == ("gemm", "dgrad")
    assert facts["position"] == f"the longest of {len(starts)} on this GPU"
    assert facts["launched"].startswith("2.500 ms before it starts")


@pytest.mark.traces
def test_where_devices_were_recorded_in_windows_shares_are_of_these(
    real_trace: Callable[[str], Path], open_page: Callable[..., OpenPage]
) -> None:
    trace = open_trace(real_trace("h100/gpt-embedded.sqlite.gz"))
    page = open_page(render_timeline(trace, title="gpt"))
    reader = Reader(page)
    page.show_all()
    reader.until("document.querySelector('.details table th:last-child').innerText === 'Recorded'")
    ((idle, _, recorded),) = reader.table("GPUs in view").values()
    assert (idle, recorded) == ("30.2%", "2.0%")  # as breakdown has it


@pytest.mark.traces
def test_so_it_is_on_a_real_trace(
    real_trace: Callable[[str], Path], open_page: Callable[..., OpenPage]
) -> None:
    trace = open_trace(real_trace("nsys/2026.2-2gpu-nccl-before.sqlite"))
    reader = Reader(open_page(render_timeline(trace, title="real")))
    _show_all(reader, trace)
    reader.click(reader.page.page.get_by_role("button", name="GPU 1"))
    starts, ends = _gaps(trace, 1)
    longest = int((ends - starts).argmax())
    kernels = trace.kernels.take(trace.kernels["device"] == 1)
    at = starts[longest] + trace.span.start_ns
    facts = reader.facts
    assert reader.actions == 1
    assert f"({format_count(int((ends - starts)[longest]))} ns)" in facts["duration"]
    # It is the time from the last work to the end of the recording.
    assert facts["before"] == short_name(str(kernels["name"][kernels["end_ns"] == at][0]))
    assert facts["after"] == "no event in this page"


def _show_all(reader: Reader, trace: Trace) -> None:
    """A page opens at the window that is judged; the panel follows when the view rests."""
    reader.page.show_all()
    whole = f"In view: {format_duration(trace.span.duration_ns)}"
    reader.until(f"document.querySelector('.details h3').textContent === {whole!r}")


def late_and_early() -> Trace:
    """GPU 0 works from 30 ms on until 50 of 100 ms, GPU 1 from 5 to 60 ms with short pauses."""
    builder = TraceBuilder().range("whole", 0, 100 * MS)
    for device, first, last, pause in ((0, 30, 50, 200_000), (1, 5, 60, 900_000)):
        builder.device(device, "H100")
        for at in range(first * MS, last * MS, MS):
            builder.kernel("gemm", at, at + MS - pause, device=device)
    return builder.build()


@pytest.mark.parametrize("max_items", [10_000, 40])
def test_gaps_at_the_edges_are_in_the_table_as_a_click_has_them(
    open_page: Callable[..., OpenPage], max_items: int
) -> None:
    trace = late_and_early()
    page = render_timeline(trace, title="edges", max_items=max_items)
    reader = Reader(open_page(page))
    _show_all(reader, trace)
    told = reader.table("GPUs in view")
    for device, name in enumerate(("GPU 0", "GPU 1")):
        starts, ends = _gaps(trace, device)
        longest = int((ends - starts).argmax())
        (row,) = (cells for first, cells in told.items() if name in first)
        assert row[1] == f"{(ends - starts)[longest] / MS:.2f} ms"
        reader.click(reader.page.page.get_by_role("button", name=name))
        assert reader.title == f"Idle: {row[1]}"
        assert f"({format_count(int((ends - starts)[longest]))} ns)" in reader.facts["duration"]
        assert f"({format_count(int(starts[longest]))} ns)" in reader.facts["start"]
        reader.press("Escape")
    reader.press("g")  # the longest of all devices, then the next longest
    assert reader.title == "Idle: 50.20 ms"
    reader.press("g")
    assert reader.title == "Idle: 40.90 ms"
    reader.press("g")
    assert reader.title == "Idle: 30.00 ms"


def test_a_click_on_a_kernel_names_the_ranges_of_all_threads_that_launched_it(
    reader: Reader,
) -> None:
    reader.click_at(23 * MS, "Stream 7")
    facts = reader.facts
    assert reader.actions == 1
    assert reader.title == "gemm"
    assert facts["launched by"] == "cudaLaunchKernel"
    assert {"forward", "layer"} <= set(facts)
    # The backward kernel is launched by another thread: the range is open on the main one.
    reader.click_at(17 * MS, "Stream 7")
    assert reader.title == "dgrad"
    assert "backward" in reader.facts
    captions = reader.page.page.locator(".details caption").all_inner_texts()
    assert any("Main thread" in text and "another thread" in text for text in captions)


def test_the_panel_places_an_event_among_its_name_and_beside_other_ranks(reader: Reader) -> None:
    reader.click_at(53 * MS, "Stream 7")
    facts = reader.facts
    # Six on each rank, a microsecond longer from step to step.
    assert facts["position"] == "the longest of 12"
    assert facts["min, median, max"] == "2.000 ms, 2.003 ms, 2.005 ms"
    assert reader.page.page.locator(".bars i.own").count() == 1
    reader.click_at(38.5 * MS, "Stream 20")
    others = reader.table("Same event on other ranks (matched by number")
    assert others["rank 1 · GPU 1"] == ["+2.000 ms", "1.490 ms"]
    assert reader.title == "ncclDevKernel_AllReduce"


def test_bytes_and_neighbors_of_a_copy(reader: Reader) -> None:
    reader.click_at(9.05 * MS, "Stream 7")
    facts = reader.facts
    assert facts["rate"] == "25.00 GB/s"
    assert facts["previous in this lane"] == "dgrad, 1.000 ms apart"
    assert facts["next in this lane"] == "gemm, 2.900 ms apart"


def test_gaps_states_and_steps_can_be_clicked(reader: Reader) -> None:
    reader.click_at(14.8 * MS, "Stream 7")
    assert reader.title.startswith("Gap: ")
    assert (reader.facts["before"], reader.facts["after"]) == ("gemm", "dgrad")
    reader.click_at(8.5 * MS, "GPU 0")
    assert reader.title == "Exposed communication: 1.000 ms"
    reader.click_at(35 * MS, "Steps")
    assert reader.title == "step 3"
    assert reader.facts["duration"].startswith("10.00 ms")
    devices = reader.table("GPU activity during the step")
    assert devices["rank 0 · GPU 0"][0] == "44.0%"
    assert len(devices) == 2


def test_what_the_panel_says_is_copied_as_text(reader: Reader) -> None:
    reader.click_at(23 * MS, "Stream 7")
    reader.click(reader.page.page.get_by_role("button", name="Copy as text"))
    text = reader.page.page.evaluate("() => navigator.clipboard.readText()")
    assert text.splitlines()[0] == "gemm"
    assert "duration\t2.002 ms (2,002,000 ns)" in text


def test_the_panel_is_moved_sized_and_remembered(reader: Reader) -> None:
    page = reader.page.page
    reader.click(page.get_by_role("button", name="Dock below the lanes"))
    grip = page.get_by_role("separator")
    before = page.locator(".panel").bounding_box()["height"]
    grip.focus()
    reader.press("ArrowUp")
    after = page.locator(".panel").bounding_box()
    assert after["height"] == before + 24
    assert after["y"] + after["height"] <= 901
    page.reload()
    page.locator("[data-ready]").wait_for()
    assert page.locator(".panel").bounding_box()["height"] == before + 24


def test_two_clicks_measure_between_two_events(reader: Reader) -> None:
    reader.click_at(13 * MS, "Stream 7")
    reader.click_at(17 * MS, "Stream 7", shift=True)
    assert reader.actions == 2
    facts = reader.facts
    assert facts["end → start"] == "1.499 ms (1,499,000 ns)"
    assert facts["start → start"] == "3.500 ms (3,500,000 ns)"
    assert facts["end → end"] == "3.999 ms (3,999,000 ns)"
    assert reader.page.page.locator(".selection").inner_text() == "Δ 1.499 ms"


def test_back_and_forward_lead_through_what_was_chosen(reader: Reader) -> None:
    page = reader.page.page
    titles = []
    for at, start in ((13, 12_000_000), (17, 15_500_000)):
        reader.click_at(at * MS, "Stream 7")
        titles.append(reader.title)
        reader.until(rf"/event=R\d+@{start}/.test(location.hash)")
    assert titles == ["gemm", "dgrad"]
    page.go_back()
    reader.until("document.querySelector('.details h3').textContent === 'gemm'")
    page.go_forward()
    reader.until("document.querySelector('.details h3').textContent === 'dgrad'")
    # The address alone shows the same to somebody else.
    page.reload()
    page.locator("[data-ready]").wait_for()
    assert reader.title == "dgrad"


def test_every_event_is_reached_by_keyboard(reader: Reader) -> None:
    page = reader.page.page
    page.locator(".plot").focus()
    reader.press("Enter")
    seen = set()
    for key in ("ArrowDown", *"....", *",,,,", *["ArrowDown"] * 40):
        seen.add(reader.title)
        reader.press(key)
    copied = "Memcpy host → device (pinned → device)"
    assert {copied, "ncclDevKernel_AllReduce", "forward", "layer", "cudaLaunchKernel"} <= seen
    reader.press("0", "g")
    assert reader.title == "Idle: 3.497 ms"
    first = reader.title
    reader.press(".")
    assert reader.title != first


def test_few_tabs_lead_through_the_page(reader: Reader) -> None:
    page = reader.page.page
    stops = 0
    page.evaluate("() => document.body.focus()")
    for _ in range(60):
        page.keyboard.press("Tab")
        stops += 1
        if reader.page.js("document.activeElement.closest('.panel') !== null"):
            break
    assert stops <= 30


def test_a_search_lists_counts_and_goes_through_its_results(reader: Reader) -> None:
    page = reader.page.page
    trace = two_ranks()
    page.keyboard.press("/")
    page.keyboard.type("all-reduce")
    kernels = trace.kernels.to_frame()[
        trace.kernels.to_frame()["name"] == "ncclDevKernel_AllReduce"
    ]
    durations = (kernels["end_ns"] - kernels["start_ns"]).sort_values(ascending=False)
    note = page.locator(".search .note")
    reader.until("document.querySelector('.results table') !== null")
    assert note.inner_text() == f"{len(kernels)} events"
    rows = page.locator(".results tbody tr")
    assert rows.count() == len(kernels)
    assert rows.first.locator("td").nth(1).inner_text() == f"{durations.iloc[0] / MS:.3f} ms"
    assert f"{len(kernels)} events of one name" in page.locator(".results caption").inner_text()
    # The shortest is that of the late rank: the last of the longest, the eighth in time.
    reader.click(rows.last.get_by_role("button"))
    assert reader.actions == 1
    assert (
        reader.facts["lane"]
        == "rank 1 · host node2 · python · process 2 › GPU 1 · H100 › Stream 20"
    )
    reader.until("document.querySelector('.search .note').textContent === '8 of 12'")
    page.locator(".plot").focus()
    reader.press("n")
    reader.until("document.querySelector('.search .note').textContent.endsWith(' of 12')")
    assert rows.filter(has=page.locator("button")).count() == 12
    assert page.locator(".results tr.chosen").count() == 1
    reader.press("Escape")
    assert page.locator(".results").is_hidden()


def test_a_search_takes_regular_expressions_and_says_what_is_none(reader: Reader) -> None:
    page = reader.page.page
    box = page.locator(".search input")
    box.fill("/^(gemm|dgrad)$/")
    reader.until("document.querySelector('.search .note').textContent === '24 events'")
    box.fill("/(/")
    reader.until(
        "document.querySelector('.search .note').textContent === 'invalid regular expression'"
    )
    box.fill("matmul")
    reader.until("document.querySelector('.results table') !== null")
    assert "Also searched for: gemm" in page.locator(".results caption").inner_text()


def test_a_slow_step_says_why_as_explain_does_and_leads_there(
    open_page: Callable[..., OpenPage],
) -> None:
    trace = steps_of_ten(0, slower_ms=5)  # of steps 2 and 3 gemm takes 5 ms more
    reader = Reader(open_page(render_timeline(trace, title="slow")))
    reader.click_at(38 * MS, "Steps")
    assert reader.title == "step 3"
    _, result = explain_ranks(Ranks.of(trace), "step:3")
    (cause,) = result.tables["causes"].rows()[:1]
    assert (cause["name"], cause["difference_ns"]) == ("gemm", 5 * MS)
    told = reader.table(f"Why this step took 5.000 ms longer than {result.scalars['reference']}")
    assert told["gemm"] == ["+5.000 ms"]
    reader.click(reader.page.page.locator(".details").get_by_role("button", name="gemm").first)
    assert reader.title == "gemm"
    assert "(7,000,000 ns)" in reader.facts["duration"].replace("\u202f", " ").replace("\xa0", " ")
    assert reader.actions == 2


def test_of_a_step_that_waits_the_late_rank_is_named_and_shown(
    open_page: Callable[..., OpenPage],
) -> None:
    late = {(2, "backward", 4): 100 * MS}
    trace = make_trace_of(Plan(n_ranks=4, n_steps=6, extra_of_step_ns=late))
    reader = Reader(open_page(render_timeline(trace, title="late")))
    step = steps_of_ranks(Ranks.of(trace)).table
    at = int(step["start_ns"][step["step"] == 4][0]) - trace.span.start_ns
    reader.page.redrawn(f"traceprof.jumpTo({at}, {at + 200 * MS})")
    reader.click_at(at + 50 * MS, "Steps")
    caption = reader.page.js("document.querySelectorAll('.details caption')[0].textContent")
    assert caption.startswith("Why this step took")
    reader.click(reader.page.page.get_by_role("button", name="waiting for rank 2"))
    assert reader.title == "gemm backward"
    assert "rank 2" in reader.facts["lane"]
