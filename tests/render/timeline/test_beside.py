"""Two runs side by side: what a reader asks, in how many actions, and whether it is true."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.render.browser import OpenPage
from tests.render.timeline.tasks import MS, Reader, steps_of_ten
from traceprof.formats import open_trace
from traceprof.measures.steps.find import find_pattern
from traceprof.model.intervals import Intervals
from traceprof.render.timeline.beside import TimelineSide, render_side_by_side

pytestmark = pytest.mark.chromium


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenPage]:
    """Return the runs on one page: the new one sets up longer, and its gemm is 3 ms slower."""
    sides = [
        TimelineSide("A", "base", steps_of_ten(5)),
        TimelineSide("B", "new", steps_of_ten(30, slower_ms=3)),
    ]
    file: Path = tmp_path_factory.mktemp("beside") / "two.html"
    file.write_text(render_side_by_side(sides, title="base vs new"), "utf-8")
    opened = OpenPage(browser.new_page(viewport={"width": 1500, "height": 1000}))
    opened.go(file)
    yield opened
    assert opened.complaints == []
    opened.page.close()


@pytest.fixture
def reader(page: OpenPage) -> Reader:
    reader = Reader(page)
    reader.begin()
    reader.until("document.querySelector('.details h3').textContent.startsWith('In view')")
    return reader


def test_the_panel_says_at_once_what_differs_in_view(reader: Reader) -> None:
    assert reader.title == "In view: step 0 to step 3"
    facts = reader.facts
    assert facts["A: base"] == "40.00 ms (40,000,000 ns), starting at 5.000 ms"
    assert facts["B: new"] == "46.00 ms (46,000,000 ns), starting at 30.00 ms"
    assert facts["B − A"] == "+6.000 ms (+15.0%)"
    device = reader.table("GPU 0")
    # Four gemm of 2 ms; four "late", of the last one 1 ms after the last step.
    assert device["busy"] == ["15.00 ms", "21.00 ms", "+6.000 ms", "+40.0%"]
    assert device["idle"] == ["25.00 ms", "25.00 ms", "no change", ""]
    names = reader.table("GPU activity")
    assert names["gemm"] == ["8.000 ms", "14.00 ms", "+6.000 ms", "+75.0%", "4"]
    assert names["late"][:3] == ["7.000 ms", "7.000 ms", "no change"]
    assert reader.table("CPU ranges")["forward"][2] == "+6.000 ms"
    assert reader.table("Busy time of each lane")["GPU 0 › Stream 7"][2] == "+6.000 ms"
    assert reader.actions == 0


def test_steps_lie_under_one_another_and_the_shorter_one_is_followed_by_nothing(
    reader: Reader,
) -> None:
    starts = reader.page.js(
        "traceprof.trace.rows.map((row, i) => row.kind === 'gpu' && row.label === 'Stream 7'"
        " ? [...row.channels[0].starts] : null).filter(Boolean)"
    )
    # The axis: 30 ms before, then steps of 10, 10, 13 and 13 ms.
    assert starts[0] == starts[1] == [32 * MS, 42 * MS, 52 * MS, 65 * MS]
    pauses = reader.page.js("traceprof.trace.beside.sides[0].clock.pauses(52e6, 76e6)")
    assert pauses == [[60 * MS, 63 * MS], [73 * MS, 76 * MS]]


def test_a_click_says_how_the_same_event_is_in_the_other_run(reader: Reader) -> None:
    reader.click_at(53 * MS, "Stream 7")
    assert reader.actions == 1
    facts = reader.facts
    assert reader.title == "gemm"
    assert facts["start"].startswith("27.00 ms (27,000,000 ns)")
    assert facts["duration"] == "2.000 ms (2,000,000 ns)"
    assert facts["start in the step"] == "at the same time"
    assert facts["duration there"] == "5.000 ms (5,000,000 ns)"
    assert facts["compared with here"] == "+3.000 ms (+150.0%)"
    assert facts["position"] == "the longest of 4"
    reader.press("o")
    assert (
        reader.page.js(
            "traceprof.trace.groups[traceprof.trace.rows[traceprof.chosen.row].group].side"
        )
        == 1
    )
    assert reader.facts["compared with here"] == "−3.000 ms (−60.0%)"
    # Before the slower one are 30 ms of set-up, two steps of 10 ms and 2 ms of the third.
    assert reader.facts["start"].startswith("52.00 ms")


def test_what_crosses_the_border_of_steps_keeps_its_length(reader: Reader) -> None:
    reader.click_at(61.5 * MS, "Stream 9")
    assert reader.title == "late"
    assert reader.facts["duration"] == "2.000 ms (2,000,000 ns)"
    assert reader.facts["start in the step"] == "3.000 ms later"


def test_a_step_is_compared_by_a_click(reader: Reader) -> None:
    reader.click_at(55 * MS, "Steps")
    assert reader.title == "step 2"
    assert reader.table("This step in both traces")["duration"] == [
        "10.00 ms",
        "13.00 ms",
        "+3.000 ms",
        "+30.0%",
    ]
    assert reader.table("GPU 0")["busy"] == ["4.000 ms", "7.000 ms", "+3.000 ms", "+75.0%"]
    reader.page.page.locator(".plot").focus()
    reader.press("f")
    shown = "[traceprof.t0, traceprof.t1]"
    reader.until(f"!traceprof.frame && {shown}[1] - {shown}[0] < 25e6")
    assert reader.page.js(shown)[0] < 52 * MS
    assert reader.actions == 2


def test_a_selection_is_measured_on_both_clocks(reader: Reader) -> None:
    reader.click_at(55 * MS, "Steps")
    reader.page.page.locator(".plot").focus()
    reader.press("m")
    assert reader.title == "Selection: step 2"
    facts = reader.facts
    assert facts["A: base"] == "10.00 ms (10,000,000 ns), starting at 25.00 ms"
    assert facts["B: new"] == "13.00 ms (13,000,000 ns), starting at 50.00 ms"
    shares = reader.table("GPU time (the shares")
    assert shares["GPU 0 · A"][0] == "60.0%"
    assert shares["GPU 0 · B"][0] == "46.2%"


@pytest.mark.traces
def test_two_real_runs_differ_by_what_their_traces_hold(
    real_trace: Callable[[str], Path], open_page: Callable[..., OpenPage]
) -> None:
    traces = [
        open_trace(real_trace(f"nsys/2026.2-2gpu-nccl-{name}.sqlite"))
        for name in ("before", "after")
    ]
    turns = [find_pattern(trace).table.to_frame() for trace in traces]
    turns = [table[table["process"] == table["process"].mode().iloc[0]] for table in turns]
    n_shared = min(map(len, turns))
    html = render_side_by_side(
        [TimelineSide(n, "", t) for n, t in zip("AB", traces, strict=True)], title="real"
    )
    reader = Reader(open_page(html))
    shown = reader.page.js(
        "traceprof.trace.beside.sides.map(({ clock }) =>"
        " [clock.ownOf(traceprof.t0), clock.ownOf(traceprof.t1)])"
    )
    busy = []
    for trace, table, own in zip(traces, turns, shown, strict=True):
        start = int(table["start_ns"].iloc[0])
        assert own[0] + trace.span.start_ns == start
        end = int(table["start_ns"].iloc[n_shared]) if len(table) > n_shared else None
        assert end is None or own[1] + trace.span.start_ns == end
        rows = [
            frame[frame["device"] == 0]
            for frame in (trace.kernels.to_frame(), trace.copies.to_frame())
        ]
        work = Intervals.union_of(
            np.concatenate([r["start_ns"] for r in rows]),
            np.concatenate([r["end_ns"] for r in rows]),
        )
        lo, hi = (int(t) + trace.span.start_ns for t in own)
        busy.append(int((np.minimum(work.ends, hi) - np.maximum(work.starts, lo)).clip(0).sum()))
    told = reader.table("GPU 0, process 1 of 2")["busy"]
    assert told[:2] == [f"{ns / MS:.1f} ms" for ns in busy]


def test_a_search_counts_what_was_merged_on_both_sides(open_page: Any) -> None:
    builders = [TraceBuilder(), TraceBuilder()]
    for n_events, builder in zip((6_000, 7_000), builders, strict=True):
        for i in range(n_events):
            builder.kernel("needle" if i % 3 == 0 else f"hay{n_events}", 100 * i, 100 * i + 40)
    sides = [TimelineSide(name, name, b.build()) for name, b in zip("AB", builders, strict=True)]
    page = open_page(render_side_by_side(sides, title="A vs B", max_items=1_000))
    page.page.evaluate("() => traceprof.search('needle')")
    reader = Reader(page)
    reader.until("document.querySelector('.results').textContent !== ''")
    told = page.page.locator(".results, .search").all_inner_texts()
    assert any("4,334" in re.sub(r"\s", " ", text) for text in told), told  # 2,000 + 2,334
    assert page.complaints == []
