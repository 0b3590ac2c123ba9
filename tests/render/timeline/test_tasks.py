"""Tasks of a reader that once ended at the wrong place or nowhere, each with its planted truth."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.builders import TraceBuilder
from tests.measures.generated_run import Plan, make_trace_of
from tests.render.browser import OpenPage
from tests.render.timeline.tasks import MS, Reader, two_ranks
from traceprof.measures.steps.ledger import step_ledger
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.render.timeline.marks import describe_steps
from traceprof.render.timeline.render import render_timeline

Open = Callable[..., OpenPage]


def _late_kernels() -> Trace:
    """Three operators of a millisecond each; it runs during the next one."""
    builder = TraceBuilder().device(0, "H100")
    for place, (name, n_kernels) in enumerate((("conv", 2), ("norm", 1), ("view", 0))):
        t = place * MS
        builder.host_op(name, t, t + MS)
        for number in range(n_kernels):
            call = (t + 100_000 * (number + 1), t + 100_000 * (number + 1) + 10_000)
            start = t + MS + 300_000 * number
            builder.kernel(f"{name}_kernel", start, start + 200_000, launched_ns=call)
    return builder.build()


@pytest.mark.chromium
def test_an_operator_lists_what_it_launched_and_not_what_ran_meanwhile(open_page: Open) -> None:
    reader = Reader(open_page(render_timeline(_late_kernels(), title="late")))
    reader.page.show_all()
    reader.click_at(0.5 * MS, "Operators")
    assert reader.title == "conv"
    assert reader.table("Launched by conv: 2 on the GPU, 400.0 µs in total") == {
        "conv_kernel": ["+1.300 ms", "200.0 µs"]  # both rows have this name; the last one is kept
    }
    reader.press("m")
    assert "conv_kernel" in reader.table("Launched by conv")
    reader.press("Escape")
    # While norm lasts, the kernels of conv run. It launched one that runs later.
    reader.click_at(1.5 * MS, "Operators")
    assert [*reader.table("Launched by norm: 1 on the GPU")] == ["norm_kernel"]
    reader.press("m")
    assert [*reader.table("Launched by norm")] == ["norm_kernel"]
    reader.press("Escape")
    reader.click_at(2.5 * MS, "Operators")
    assert reader.title == "view"
    assert reader.table("Launched by") == {}


def _stacks() -> Trace:
    """Main calls a layer of torch, which launches a kernel; autograd's thread launches another."""
    builder = TraceBuilder().device(0, "H100")
    builder.function("train.py(3): main", 0, 10 * MS)
    builder.function("model/attention.py(42): forward", MS, 3 * MS)
    builder.function("torch/nn/modules/linear.py(134): forward", MS, 2 * MS)
    builder.function("<built-in function linear>", MS, 2 * MS)
    builder.kernel("mm", 4 * MS, 5 * MS, launched_ns=(1_200_000, 1_210_000))
    builder.function("torch/autograd/__init__.py(1): backward", 5 * MS, 9 * MS)
    builder.kernel("dmm", 8 * MS, 9 * MS, launched_ns=(6 * MS, 6_010_000), thread=77)
    return builder.build()


@pytest.mark.chromium
def test_a_kernel_shows_the_line_of_the_program_that_asked_for_it(open_page: Open) -> None:
    reader = Reader(open_page(render_timeline(_stacks(), title="stacks")))
    reader.page.show_all()
    reader.click_at(4.5 * MS, "Stream 7")
    assert reader.title == "mm"
    assert reader.facts["source line"] == "model/attention.py(42): forward"
    reader.click_at(8.5 * MS, "Stream 7")
    assert reader.title == "dmm"
    assert reader.facts["source line (waiting thread)"] == "train.py(3): main"
    reader.page.page.get_by_role("button", name="train.py(3): main").first.click()
    assert reader.title == "train.py(3): main"


@pytest.mark.chromium
def test_a_search_for_a_rank_leads_to_its_device(open_page: Open) -> None:
    trace = make_trace_of(Plan(n_ranks=24, n_steps=3))
    reader = Reader(open_page(render_timeline(trace, title="ranks")))
    reader.page.page.locator(".search input").fill("rank 3")
    reader.until("document.querySelector('.search .note').textContent === '1 lane'")
    rows = reader.page.page.locator(".results tbody tr")
    assert rows.all_inner_texts()[0].startswith("rank 3")
    assert rows.count() == 1  # neither rank 13 nor rank 23
    rows.first.get_by_role("button").click()
    assert "rank 3 " in reader.facts["gap"] + " "
    shown = "traceprof.lines.some(({group}) => traceprof.trace.groups[group]?.section.startsWith"
    assert reader.page.js(f"{shown}('rank 3'))")
    reader.page.page.locator(".search input").fill("rank 99")
    reader.until("document.querySelector('.search .note').textContent === '0 events'")
    assert "No event" in reader.page.page.locator(".results").inner_text()


def _one_waits() -> Trace:
    """Four GPUs that all pause for 2 ms; GPU 2 alone pauses for 1 ms more."""
    builder = TraceBuilder()
    for device in range(4):
        builder.device(device, "H100")
        builder.kernel("a", 0, 10 * MS, device=device)
        if device == 2:
            builder.kernel("b", 12 * MS, 20 * MS, device=device)
            builder.kernel("c", 21 * MS, 30 * MS, device=device)
        else:
            builder.kernel("b", 12 * MS, 30 * MS, device=device)
    return builder.build()


@pytest.mark.chromium
def test_the_row_of_a_gpu_that_waits_alone_leads_to_its_own_gap(open_page: Open) -> None:
    reader = Reader(open_page(render_timeline(_one_waits(), title="alone")))
    reader.until("document.querySelector('.details table') !== null")
    rows = {name.split(" · ")[-1]: cells for name, cells in reader.table("GPUs in view").items()}
    assert rows["GPU 2"][1:3] == ["2.000 ms", "1.000 ms"]
    assert rows["GPU 1"][1:3] == ["2.000 ms", "–"]
    panel = reader.page.page.locator(".details")
    panel.get_by_role("button", name="GPU 2").click()
    assert reader.facts["start"].startswith("20.00 ms")
    reader.press("Escape")
    reader.until("document.querySelector('.details h3').textContent.startsWith('In view')")
    panel.get_by_role("button", name="GPU 1").click()
    assert reader.facts["start"].startswith("10.00 ms")


@pytest.mark.chromium
def test_without_a_device_the_panel_says_which_ranges_take_the_time(open_page: Open) -> None:
    builder = TraceBuilder()
    for number in range(4):
        t = number * 10 * MS
        builder.range("load", t, t + 2 * MS).range("find_centers", t + 2 * MS, t + 10 * MS)
    reader = Reader(open_page(render_timeline(builder.build(), title="cpu")))
    reader.until("document.querySelector('.details table') !== null")
    assert reader.facts["duration"] == "40.00 ms"
    assert reader.table("CPU time in view") == {
        "find_centers": ["80.0%", "32.00 ms", "4"],
        "load": ["20.0%", "8.000 ms", "4"],
    }


@pytest.mark.chromium
def test_a_page_says_how_many_events_are_merged_only_where_some_are(open_page: Open) -> None:
    builder = TraceBuilder().device(0, "H100")
    for number in range(5_000):
        builder.kernel("k", number * 1_000, number * 1_000 + 400)
    trace = builder.build()
    told = "document.querySelector('.range').textContent"
    merged = open_page(render_timeline(trace, title="merged", max_items=500))
    assert "5,000 short events are merged in this file: use traceprof view" in merged.js(told)
    whole = open_page(render_timeline(trace, title="whole"))
    assert "merged" not in whole.js(told)


@pytest.mark.chromium
def test_a_move_draws_on_the_canvas_and_the_axes_follow_when_it_rests(reader: Reader) -> None:
    calls, figure, is_axis_hidden = reader.page.js(
        "(() => { const { plotly } = traceprof; const { react } = plotly; let calls = 0;"
        " plotly.react = (...all) => { calls += 1; return react.apply(plotly, all); };"
        " for (let i = 0; i < 5; i++) { traceprof.zoom(0.9, 20e6); traceprof.draw(); }"
        " const during = calls; plotly.react = react;"
        " return [during, traceprof.figure.querySelectorAll('path.js-fill').length,"
        " traceprof.axis.node.hidden]; })()"
    )
    assert (calls, figure) == (0, 0)
    assert is_axis_hidden is False  # until plotly shows the view
    settled = "traceprof.axis.settled === traceprof.scene"
    reader.until(settled)
    assert reader.page.js("traceprof.axis.node.hidden")
    assert reader.page.js("traceprof.figure.layout.xaxis.range") == reader.page.js(
        "[traceprof.t0, traceprof.t1]"
    )


_COLOR = (
    "(() => {{ const line = traceprof.lines.filter((l) => l.label.startsWith('{lane}'))[0];"
    " const copy = document.createElement('canvas').getContext('2d');"
    " const at = [Math.round(traceprof.xOf({at})), Math.round(line.y + line.height - 4)];"
    " copy.drawImage(traceprof.canvas, ...at, 1, 1, 0, 0, 1, 1);"
    " return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3).join(); }})()"
)


@pytest.mark.chromium
def test_steps_ranges_and_kernels_have_colors_of_their_own(reader: Reader) -> None:
    reader.page.show_all()
    places = {"Steps": 25 * MS, "Stream 7": 23 * MS, "Ranges": 20.5 * MS}
    colors = {reader.page.js(_COLOR.format(lane=lane, at=at)) for lane, at in places.items()}
    assert len(colors) == 3


@pytest.mark.chromium
def test_the_lanes_begin_near_the_top_and_the_legend_gives_way(reader: Reader) -> None:
    page = reader.page.page
    first = page.locator(".lane").first.bounding_box()
    assert first
    assert first["y"] <= 180
    assert page.locator(".panel .chip").first.is_visible()
    reader.click_at(23 * MS, "Stream 7")
    assert not page.locator(".panel .chip").first.is_visible()
    reader.press("Escape")
    assert page.locator(".panel .chip").first.is_visible()


def test_a_step_has_one_number_in_the_lane_and_in_the_tables() -> None:
    trace = two_ranks()
    ranks = Ranks.of(trace)
    lane = describe_steps(ranks, ranks.span)
    ledger = step_ledger(ranks)
    tables = {
        int(start) - ranks.span.start_ns: int(step)
        for start, step in zip(ledger["start_ns"], ledger["step"], strict=True)
    }
    told = [int(label.removeprefix("step ")) for label in lane["labels"]]
    assert told == [tables[start] for start in lane["starts"]]
    assert told == [0, 1, 2, 3, 4, 5]
