"""What the viewer says of an event, a search and two runs, held against the Trace."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.render.browser import OpenPage
from tests.render.timeline.tasks import MS, Reader, steps_of_ten, two_ranks
from tests.viewer.conftest import View
from traceprof.model.trace import Trace
from traceprof.render.timeline.lanes import build_lanes
from traceprof.viewer.same_name import SameName

pytestmark = pytest.mark.chromium


class Framed(OpenPage):
    """A timeline in its frame, so that a `Reader` can act on it."""

    def __init__(self, page: Any, place: int) -> None:
        self.page = page
        self.frame = page.frames[1 + place]

    def js(self, expression: str) -> Any:
        return self.frame.evaluate(f"() => ({expression})")


class FramedReader(Reader):
    """Acts on the timeline of one pane."""

    def place(self, time_ns: float, lane: str, nth: int = 0) -> tuple[float, float]:
        x, y = self.page.js(
            f"[traceprof.xOf({time_ns}), (() => {{ const line = traceprof.lines.filter("
            f"(l) => l.type !== 'section' && l.label.startsWith('{lane}'))[{nth}];"
            " return line.y + line.height / 2; })()]"
        )
        box = self.page.frame.locator(".overlay").bounding_box()
        return box["x"] + x, box["y"] + y

    @property
    def title(self) -> str:
        text: str = self.page.frame.locator(".details h3").inner_text()
        return text


def _reader(page: OpenPage, place: int = 0) -> FramedReader:
    reader = FramedReader(Framed(page.page, place))
    reader.until("traceprof.isSettled")
    return reader


def test_an_event_has_its_place_among_all_of_its_name_and_a_search_its_list(view: View) -> None:
    trace = two_ranks()
    page = view(two=trace)
    _look_at_an_event(_reader(page), trace)
    page.page.keyboard.press("Escape")
    _search(_reader(page), page, trace)
    assert page.complaints == []


def _look_at_an_event(reader: FramedReader, trace: Trace) -> None:
    reader.click_at(53 * MS, "Stream 7")
    assert (reader.title, reader.actions) == ("gemm", 1)
    reader.until("document.querySelector('.bars') !== null")
    kernels = trace.kernels.to_frame()[trace.kernels.to_frame()["name"] == "gemm"]
    durations = kernels["end_ns"] - kernels["start_ns"]
    facts = reader.facts
    assert facts["position"] == f"the longest of {len(kernels)}"
    # Six on each rank, a microsecond longer from step to step.
    assert facts["min, median, max"] == "2.000 ms, 2.003 ms, 2.005 ms"
    assert facts["total"] == f"{durations.sum() / MS:.2f} ms"
    assert reader.page.frame.locator(".bars i.own").count() == 1
    reader.click_at(38.5 * MS, "Stream 20")
    reader.until(
        "document.querySelector('.details h3').textContent.startsWith('nccl') &&"
        " document.querySelector('.details').textContent.includes('Same event on other ranks')"
    )
    others = reader.table("Same event on other ranks (matched by number")
    assert others["rank 1 · GPU 1"] == ["+2.000 ms", "1.490 ms"]
    # A click there leads to it, and its lanes are opened and loaded.
    reader.click(reader.page.frame.get_by_role("button", name="rank 1 · GPU 1"))
    reader.until("document.querySelector('.facts')?.textContent.includes('rank 1')")
    assert reader.facts["duration"].startswith("1.490 ms")


def _search(reader: FramedReader, page: OpenPage, trace: Trace) -> None:
    frame = reader.page.frame
    frame.locator(".plot").focus()
    page.page.keyboard.press("/")
    page.page.keyboard.type("all-reduce")
    reader.until("document.querySelector('.results table') !== null")
    kernels = trace.kernels.to_frame()[
        trace.kernels.to_frame()["name"] == "ncclDevKernel_AllReduce"
    ]
    durations = (kernels["end_ns"] - kernels["start_ns"]).sort_values(ascending=False)
    # The list of what is loaded comes first, then that of all.
    expected = json.dumps([f"{ns / MS:.3f} ms" for ns in durations])
    told = (
        "[...document.querySelectorAll('.results tbody tr')].map((row) => row.cells[1].innerText)"
    )
    reader.until(f"JSON.stringify({told}) === JSON.stringify({expected})")
    reader.click(frame.locator(".results tbody tr").last.get_by_role("button"))
    reader.until("document.querySelector('.search .note').textContent === '8 of 12'")
    assert reader.actions == 1
    assert reader.facts["duration"].startswith("1.490 ms")


def _color(reader: FramedReader, lane: str, time_ns: int) -> list[int]:
    """The color of a pixel of a lane."""
    reader.until("!traceprof.frame && !traceprof.isAskingLit")
    found: list[int] = reader.page.js(
        "(() => { const copy = document.createElement('canvas').getContext('2d');"
        f" const line = traceprof.lines.find(({{ label }}) => label.startsWith('{lane}'));"
        f" const x = Math.floor(traceprof.xOf({time_ns})), y = line.y + line.height / 2;"
        " copy.drawImage(traceprof.canvas, x, y, 1, 1, 0, 0, 1, 1);"
        " return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3); })()"
    )
    return found


def test_a_search_lights_lanes_that_are_folded_and_not_loaded(view: View) -> None:
    reader = _reader(view(two=two_ranks()))
    hit = [224, 168, 0]
    reader.page.js("traceprof.jumpTo(0, traceprof.trace.duration_ns)")
    reader.page.js("traceprof.arrange(({ open }) => open.clear())")
    reader.page.js("traceprof.searchFor('all-reduce')")
    reader.until("traceprof.lit?.groups.size === 2")
    # Rank 0 reduces from 5.51 to 9 ms of a step.
    assert _color(reader, "GPU 0", 7 * MS) == hit
    assert _color(reader, "GPU 0", 3 * MS) != hit
    reader.page.js("traceprof.searchFor('', 'ranges')")
    reader.until("traceprof.lit?.key.endsWith('ranges')")
    assert _color(reader, "Main thread", 7 * MS) == hit
    assert _color(reader, "GPU 0", 7 * MS) != hit


def test_the_server_answers_nothing_of_events_that_are_not_there() -> None:
    trace = two_ranks(n_steps=2)
    alike = SameName(build_lanes(trace, trace.span))
    assert alike.of(99, 0, 0) is None
    assert alike.of(0, 9, 0) is None
    assert alike.of(0, 0, 1) is None


def test_two_runs_move_step_under_step_and_lie_on_one_axis(view: View) -> None:
    page = view(base=steps_of_ten(5), new=steps_of_ten(30, slower_ms=3))
    reader, other = _reader(page), _reader(page, 1)
    reader.page.frame.locator(".plot").focus()
    reader.page.js("traceprof.goTo(25e6, 35e6)")  # step 2, which the new run begins at 50 ms
    other.until("traceprof.t0 === 50e6 && traceprof.t1 === 60e6")
    page.page.get_by_label("Synchronize views by time").check()
    reader.page.frame.locator(".plot").focus()
    reader.page.js("traceprof.goTo(15e6, 25e6)")
    other.until("traceprof.t0 === 15e6")
    links = page.page.locator("a[data-beside]")
    assert links.count() == 1
    page.page.fill("#window", "step:2..3")
    page.page.keyboard.press("Enter")
    with page.page.context.expect_page() as opened:
        reader.click(links)
    beside = OpenPage(opened.value)
    beside.page.locator("[data-ready]").wait_for(timeout=30_000)
    assert "window=step" in beside.page.url
    assert beside.js("traceprof.trace.beside.sides.map(({ name }) => name).join()") == "A,B"
    assert "step 2 to step 3" in Reader(beside).title
    assert reader.actions == 1
    answer = page.page.request.get(
        f"{page.page.url.split('/?')[0].rstrip('/')}/beside/1?window=nonsense"
    )
    assert answer.status == 400
    beside.page.close()


def test_collectives_are_matched_by_their_ends_however_late_a_rank_arrives() -> None:
    built = TraceBuilder().device(0).device(1)
    for start, end in ((0, 10), (100, 1200)):
        built.kernel("ncclAllReduce", start, end)
    for start, end in ((0, 10), (98, 106), (1188, 1200)):
        built.kernel("ncclAllReduce", start, end, device=1)
    trace = built.build()
    lanes = build_lanes(trace, trace.span)
    places = [
        (row, channel)
        for row, (_, _, one) in enumerate(SameName(lanes)._rows)
        for channel, events in enumerate(one.channels)
        if one.kind == "gpu" and events.starts[-1] == 100
    ]
    found = SameName(lanes).of(*places[0], 100)
    assert found is not None
    assert found["matched_by"] == "end"
    assert [(peer["start"], peer["is_own"]) for peer in found["peers"]] == [
        (100, True),
        (1188, False),
    ]
