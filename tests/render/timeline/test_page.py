"""The timeline in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.render.browser import OpenPage
from tests.render.test_escape import HOSTILE
from traceprof.formats import open_trace
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace, TraceInfo
from traceprof.render.escape import plain_text
from traceprof.render.timeline.render import render_timeline
from traceprof.units import format_count

Open = Callable[..., OpenPage]
NAMES = [name for name in HOSTILE if name != "\ud800"]  # a table cannot hold it

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
    """10,000 kernels of 50 ns, one every 100 ns, and one of a millisecond."""
    builder = TraceBuilder()
    for i in range(10_000):
        builder.kernel(f"k{i % 5}", i * 100, i * 100 + 50)
    return builder.kernel("long", 1_000_000, 2_000_000).build()


def _row(page: OpenPage, label: str) -> int:
    row: int = page.js(f"traceprof.trace.rows.findIndex((row) => row.label === {label!r})")
    assert row >= 0
    return row


def _labels(page: OpenPage) -> list[str]:
    """What the boxes on the canvas are labeled with."""
    labels: list[str] = page.js("traceprof.scene.drawn.labels.map(({ text }) => text)")
    return labels


def test_the_page_opens_silently_with_its_lanes_and_legend(open_page: Open) -> None:
    page = open_page(render_timeline(_small_trace(), title="small"))
    assert page.complaints == []
    assert all(url.startswith(("file:", "data:")) for url in page.requests)
    lanes = page.page.locator(".lane .name").all_inner_texts()
    for label in ("Main thread · python", "Ranges", "CUDA API", "GPU 0 · H100", "Stream 7"):
        assert label in lanes
    chips = page.page.locator(".chip").all_inner_texts()
    assert {"Compute", "Communication", "Copy host → device", "Range (NVTX)"} <= set(chips)
    assert {"step 0", "gemm"} <= set(_labels(page))


def test_hover_says_what_the_trace_says(open_page: Open) -> None:
    page = open_page(render_timeline(_small_trace(), title="small"))
    page.show_all()
    copy = page.hover(1_650_000, _row(page, "Stream 7"))
    assert copy["title"] == "Memcpy host → device (pinned → device)"
    assert copy["start"] == "1.600 ms (1,600,000 ns)"
    assert copy["duration"] == "100.0 µs (100,000 ns)"
    assert copy["bytes"] == "2.500 MB (2,500,000)"
    assert copy["rate"] == "25.00 GB/s"
    kernel = page.hover(200_000, _row(page, "Stream 7"))
    assert kernel["title"] == "gemm"
    assert kernel["launched by"] == "cudaLaunchKernel"
    assert kernel["launch → start"] == "80.00 µs (80,000 ns)"
    assert kernel["in range"].split(" › ")[-1] == "forward"


def test_zooming_draws_a_bounded_number_of_boxes_and_loses_nothing(open_page: Open) -> None:
    page = open_page(render_timeline(_crowded_trace(), title="crowded"))
    row = _row(page, "Stream 7")
    crowd = page.hover(500_000, row)
    assert re.fullmatch(r"\d+ events in this pixel", crowd["title"])
    assert page.js("traceprof.scene.boxCount") == 1
    page.redrawn("traceprof.goTo(500000, 510000)")
    assert 95 <= page.js("traceprof.scene.boxCount") <= 105
    page.redrawn("traceprof.goTo(500000, 502000)")
    single = page.hover(501_025, row)
    assert single["start"] == "501.0 µs (501,000 ns)"
    assert single["duration"] == "50 ns"
    assert "of 10,001 events drawn as boxes" in page.page.locator(".range").inner_text()
    assert page.complaints == []


def test_boxes_never_exceed_the_limit(open_page: Open) -> None:
    builder = TraceBuilder()
    for stream in range(30):
        for i in range(400):
            builder.kernel("k", i * 1_000, i * 1_000 + 990, stream=stream)
    page = open_page(render_timeline(builder.build(), title="many"))
    page.redrawn("traceprof.goTo(0, 195000)")
    assert page.js("traceprof.scene.boxCount") == 2500


def test_the_keyboard_zooms_pans_and_searches(open_page: Open) -> None:
    page = open_page(render_timeline(_small_trace(), title="small"))
    page.page.locator(".plot").focus()
    page.page.keyboard.press("0")
    page.page.keyboard.press("w")
    assert page.js("traceprof.t1 - traceprof.t0") == pytest.approx(0.7 * 1_900_000)
    page.page.keyboard.press("0")
    assert page.js("traceprof.t1 - traceprof.t0") == 1_900_000
    page.page.keyboard.press("/")
    page.page.keyboard.type("ALLREDUCE")
    assert page.page.locator(".search .note").inner_text() == "2 events"
    page.page.keyboard.press("Enter")
    assert page.page.locator(".search .note").inner_text() == "1 of 2"
    details = page.page.locator(".details")
    assert "ncclAllReduce" in details.inner_text()
    page.page.keyboard.press("Escape")
    assert page.js("traceprof.matches") is None


def test_shift_and_drag_measures_and_sums_up(open_page: Open) -> None:
    page = open_page(render_timeline(_small_trace(), title="small"))
    box = page.page.locator(".overlay").bounding_box()
    assert box
    xs = [box["x"] + page.js(f"traceprof.xOf({t})") for t in (1_100_000, 1_300_000)]
    page.page.keyboard.down("Shift")
    page.page.mouse.move(xs[0], box["y"] + 120)
    page.page.mouse.down()
    page.page.mouse.move(xs[1], box["y"] + 120, steps=4)
    page.page.mouse.up()
    page.page.keyboard.up("Shift")
    start, end = page.js("traceprof.selection")
    pixel = page.js("traceprof.binNs")
    assert (start, end) == pytest.approx((1_100_000, 1_300_000), abs=2 * pixel)
    rows = page.js(
        "[...document.querySelectorAll('.details tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    sums = {cells[0]: cells[1:] for cells in rows}
    # Snapped to the edges of the kernel; for its last quarter the all-reduce runs too.
    assert (start, end) == (1_100_000, 1_300_000)
    assert sums["process 1 · GPU 0"] == ["0.0%", "75.0%", "25.0%", *["0.0%"] * 3]
    assert sums["gemm"] == ["100.0%", "200.0 µs", "1", *["200.0 µs"] * 3]


def test_a_link_opens_at_its_place(open_page: Open) -> None:
    page = open_page(render_timeline(_small_trace(), title="small"), "#at=600000..700000")
    assert page.js("[traceprof.t0, traceprof.t1]") == [600_000, 700_000]


def test_a_window_draws_whole_events_on_the_clock_of_the_trace(open_page: Open) -> None:
    window = TimeWindow(1_200_000, 1_700_000)
    page = open_page(render_timeline(_small_trace(), title="part", window=window))
    gemm = page.hover(50_000, _row(page, "Stream 7"))
    assert gemm["start"] == "1.100 ms (1,100,000 ns)"
    assert gemm["duration"] == "200.0 µs (200,000 ns)"
    assert page.js("traceprof.trace.n_events") == 5


def test_hostile_names_stay_text(open_page: Open) -> None:
    builder = TraceBuilder()
    for i, name in enumerate(NAMES):
        start = i * 1_000_000
        builder.range(name, start, start + 900_000)
        builder.kernel(name, start, start + 900_000, launched_ns=(start, start + 10), api=name)
        builder.thread_name(1, HOSTILE[1]).process(1, name=HOSTILE[1]).device(0, HOSTILE[1])
    info = TraceInfo(path="x", host=HOSTILE[0], profiler=HOSTILE[1], warnings=tuple(NAMES))
    page = open_page(render_timeline(builder.build(info=info), title=HOSTILE[3]))
    row = _row(page, "Stream 7")
    for i in range(len(NAMES)):
        title = page.hover(i * 1_000_000 + 450_000, row)["title"]
        assert title == page.js(f"traceprof.trace.names[{_name_id(page, i)}]").strip()
        page.js(f"traceprof.choose({{row: {row}, channel: 0, item: {i}}})")
    assert page.page.locator(".details h3").count() == 1
    assert page.complaints == []
    assert all(url.startswith(("file:", "data:")) for url in page.requests)
    assert (
        page.page.locator(".plot a, .plot svg [href*='evil'], .tip img, .details img").count() == 0
    )
    assert page.page.title() == HOSTILE[3]


def _name_id(page: OpenPage, item: int) -> int:
    found: int = page.js(
        "traceprof.trace.rows[traceprof.trace.rows.findIndex((r) => r.kind === 'gpu')]"
        f".channels[0].names[{item}]"
    )
    return found


def test_a_condensed_page_says_so_and_counts_every_event(open_page: Open) -> None:
    page = open_page(render_timeline(_crowded_trace(), title="many", max_items=2_000))
    warning = page.page.locator("header li").inner_text()
    assert re.match(r"[\d,]+ events shorter than [\d.]+ .?s are merged", warning)
    total = page.js(
        "traceprof.trace.rows.flatMap((r) => r.channels)"
        ".reduce((s, c) => s + Array.from(c.counts).reduce((a, b) => a + b), 0)"
    )
    assert total == 10_001
    page.redrawn("traceprof.goTo(500000, 520000)")
    assert re.fullmatch(r"\d+ short events", page.hover(510_000, _row(page, "Stream 7"))["title"])
    assert page.complaints == []


def test_nothing_to_draw_is_a_page_all_the_same(open_page: Open) -> None:
    page = open_page(render_timeline(TraceBuilder().build(), title="empty"))
    assert page.complaints == []


def test_dark_follows_the_reader(open_page: Open) -> None:
    page = open_page(render_timeline(_small_trace(), title="small"))
    before = page.js("document.documentElement.dataset.theme")
    page.redrawn("traceprof.toggleTheme()")
    assert {before, page.js("document.documentElement.dataset.theme")} == {"light", "dark"}
    assert page.complaints == []


def test_saving_a_picture_gives_a_png_with_lanes(open_page: Open) -> None:
    page = open_page(render_timeline(_small_trace(), title="small <b>picture</b>"))
    with page.page.expect_download() as download:
        page.page.get_by_text("Save picture").click()
    picture = Path(download.value.path()).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000
    assert page.complaints == []


def test_a_lane_can_be_folded_and_pinned_by_keyboard(open_page: Open) -> None:
    page = open_page(render_timeline(_small_trace(), title="small"))
    lanes = page.page.locator(".lane")
    before = lanes.count()
    page.page.locator(".lane.group", has_text="GPU 0").press("Enter")
    assert lanes.count() == before - 2
    page.page.locator(".lane.row", has_text="CUDA API").press("p")
    assert page.page.locator(".lane.section").first.inner_text() == "Pinned"


def test_a_category_can_be_switched_off(open_page: Open) -> None:
    page = open_page(render_timeline(_small_trace(), title="small"))
    assert "gemm" in _labels(page)
    before = page.js("traceprof.redraws")
    page.page.locator(".chip", has_text="Compute").first.click()
    while page.js("traceprof.redraws") == before:
        page.page.wait_for_timeout(10)
    assert "gemm" not in _labels(page)


def test_samples_are_charts_on_the_same_axis(open_page: Open) -> None:
    builder = TraceBuilder().kernel("k", 0, 10_000)
    for i in range(100):
        builder.sample("rx_bytes_per_s", i * 100, i * 1.5, source="<b>mlx5_0</b>")
        builder.sample("rx_bytes_per_s", i * 100, 7.0, source="mlx5_1")
    page = open_page(render_timeline(builder.build(), title="samples"))
    assert "rx, bytes/s" in page.page.locator(".lanes").inner_text()
    y = page.js("traceprof.height + 30 + (traceprof.charts.length - 1) * 100")
    box = page.page.locator(".overlay").bounding_box()
    assert box
    page.page.mouse.move(box["x"] + page.js("traceprof.xOf(5050)"), box["y"] + y)
    facts = page.page.locator(".tip .fact").all_inner_texts()
    assert facts == ["<b>mlx5_0</b>\n75 B/s", "mlx5_1\n7 B/s"]
    assert page.complaints == []


@pytest.mark.traces
@pytest.mark.parametrize(
    "name", ["nsys/2026.2-2gpu-nccl-before.sqlite", "kineto/2025-h100-bert-small.json.gz"]
)
def test_hover_equals_the_table_of_a_real_trace(
    name: str, real_trace: Callable[[str], Path], open_page: Open
) -> None:
    trace = open_trace(real_trace(name))
    page = open_page(render_timeline(trace, title=name))
    page.js("traceprof.trace.groups.forEach((_, i) => traceprof.open.add(i))")
    page.redrawn("traceprof.layout(); traceprof.redraw();")
    for table in ("kernels", "copies"):
        rows = trace.table(table).to_frame()
        for i in range(0, len(rows), max(1, len(rows) // 4)):
            row = rows.iloc[i]
            start, end = int(row["start_ns"]) - trace.span.start_ns, int(row["end_ns"])
            duration = end - int(row["start_ns"])
            place = page.js(
                "traceprof.trace.rows.findIndex((r) => r.kind === 'gpu' && r.channels.some("
                f"(c) => c.starts.indexOf({start}) >= 0 && c.ends.indexOf({start + duration}) >= 0"
                f" && (c.bytes !== null) === {str(table == 'copies').lower()}))"
            )
            page.redrawn(f"traceprof.goTo({start} - 400, {start + duration} + 400)")
            page.page.locator(
                f".lane.row >> nth={_screen_row(page, place)}"
            ).scroll_into_view_if_needed()
            facts = page.hover(start + duration / 2, place)
            assert f"{format_count(start)} ns" in facts["start"]
            assert f"{format_count(duration)} ns" in facts["duration"]
            if table == "kernels":
                assert facts["title"] == plain_text(row["name"])
            else:
                assert f"({format_count(int(row['n_bytes']))})" in facts["bytes"]


def _screen_row(page: OpenPage, row: int) -> int:
    found: int = page.js(
        f"traceprof.lines.filter((l) => l.type === 'row').findIndex((l) => l.row === {row})"
    )
    return found
