"""Searching by kind, matches in what is folded, and the longest kernels with what launched them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.render.browser import OpenPage
from tests.render.timeline.tasks import MS, Reader, two_ranks
from traceprof.formats import open_trace
from traceprof.names.kernels import short_name
from traceprof.render.timeline.render import render_timeline
from traceprof.units import format_count, format_duration

pytestmark = pytest.mark.chromium


def _among(reader: Reader, kind: str) -> None:
    reader.actions += 1
    reader.page.page.get_by_label("Search in").select_option(label=kind)


def _results(reader: Reader) -> list[list[str]]:
    reader.until("document.querySelector('.results table') !== null")
    rows: list[list[str]] = reader.page.js(
        "[...document.querySelectorAll('.results tbody tr')]"
        ".map((row) => [...row.cells].flatMap((cell) => [...cell.childNodes]))"
        ".map((nodes) => nodes.map((node) => node.textContent))"
    )
    return rows


def test_the_longest_kernels_come_with_the_range_that_launched_them(reader: Reader) -> None:
    _among(reader, "Kernels")
    assert reader.actions == 1
    rows = _results(reader)
    trace = two_ranks()
    kernels = trace.kernels.to_frame()
    longest = (kernels["end_ns"] - kernels["start_ns"]).sort_values(ascending=False)
    assert len(rows) == len(kernels)
    assert [row[2] for row in rows] == [format_duration(int(ns)) for ns in longest]
    by_name = {row[0]: row[1] for row in rows}
    # gemm is launched 1.1 ms into a step, in "layer"; dgrad by a thread that has no ranges.
    assert by_name["gemm"] == "layer"
    assert by_name["dgrad"] == "outside any range"
    assert by_name["ncclDevKernel_AllReduce"] == "unknown launch"
    assert reader.page.page.locator(".search .note").inner_text() == f"{len(kernels)} events"


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("Kernels", "kernels"),
        ("Copies", "copies"),
        ("Ranges", "ranges"),
        ("CUDA API calls", "api_calls"),
    ],
)
def test_all_of_a_kind_are_as_many_as_the_trace_has(reader: Reader, kind: str, table: str) -> None:
    _among(reader, kind)
    rows = two_ranks().table(table)
    total = int((rows["end_ns"] - rows["start_ns"]).sum())
    _results(reader)
    caption = reader.page.page.locator(".results caption").inner_text()
    assert caption.startswith(f"{len(rows)} events of ")
    assert f", {format_duration(total)} in total" in caption


def test_text_is_sought_among_the_kind_and_both_are_in_the_address(reader: Reader) -> None:
    page = reader.page.page
    page.locator(".search input").fill("ward")
    assert page.locator(".search .note").inner_text() == "24 events"
    _among(reader, "CUDA API calls")
    reader.until("document.querySelector('.search .note').textContent === '0 events'")
    _among(reader, "Ranges")
    reader.until("document.querySelector('.search .note').textContent === '24 events'")
    reader.until("/find=ward&among=ranges/.test(location.hash)")
    page.reload()
    page.locator("[data-ready]").wait_for()
    assert page.get_by_label("Search in").input_value() == "ranges"
    assert {row[0] for row in _results(reader)} == {"forward", "backward"}
    page.locator(".plot").focus()
    reader.press("Escape")
    assert page.get_by_label("Search in").input_value() == ""


def test_enter_goes_down_the_list_as_it_stands(reader: Reader) -> None:
    page = reader.page.page
    box = page.locator(".search input")
    box.fill("all-reduce")
    starts = [row[2] for row in _results(reader)]
    chosen = page.locator(".results tr.chosen td").nth(2)
    for key, place in (("Enter", 0), ("Enter", 1), ("Enter", 2), ("Shift+Enter", 1)):
        box.press(key)
        own = "document.querySelector('.results tr.chosen')?.cells[2].textContent"
        reader.until(f"{own} === '{starts[place]}'")
        assert reader.facts["start"].startswith(starts[place])
    # In the order of time the next one is the next in time.
    reader.click(page.get_by_role("button", name="Start"))
    own = "[...document.querySelectorAll('.results tbody tr')].findIndex((r) => r.className)"
    reader.until(f"{own} !== {starts.index(chosen.inner_text())}")
    place = reader.page.js(own)
    box.press("Enter")
    reader.until(f"{own} === {place + 1}")


def _lit(reader: Reader, lane: str, time_ns: int) -> bool:
    """Whether a pixel of a lane has the color of matches."""
    reader.until("!traceprof.frame")
    found: bool = reader.page.js(
        f"(() => {{ const line = traceprof.lines.find(({{ label }}) => label.startsWith('{lane}'));"
        f" const x = Math.floor(traceprof.xOf({time_ns})), y = line.y + line.height / 2;"
        " const copy = document.createElement('canvas').getContext('2d');"
        " copy.drawImage(traceprof.canvas, x, y, 1, 1, 0, 0, 1, 1);"
        " const [r, g, b] = copy.getImageData(0, 0, 1, 1).data;"
        " return `rgb(${r},${g},${b})` === 'rgb(224,168,0)'; })()"
    )
    return found


def test_matches_are_lit_in_folded_lanes(reader: Reader) -> None:
    page = reader.page.page
    reader.press("0")
    reader.click(page.get_by_role("button", name="Lanes", exact=True))
    reader.click(page.get_by_role("button", name="Fold all"))
    page.keyboard.press("Escape")
    page.locator(".search input").fill("all-reduce")
    # Rank 0 reduces from 5.51 to 9 ms of a step, on a stream that is folded.
    assert _lit(reader, "GPU 0", 7 * MS)
    assert not _lit(reader, "GPU 0", 3 * MS)
    page.locator(".search input").fill("layer")
    assert _lit(reader, "Main thread", int(1.5 * MS))
    assert not _lit(reader, "Main thread", 5 * MS)
    assert not _lit(reader, "GPU 0", 7 * MS)
    _among(reader, "Kernels")
    reader.until("document.querySelector('.search .note').textContent === '0 events'")
    assert not _lit(reader, "Main thread", int(1.5 * MS))


@pytest.mark.traces
def test_so_it_is_on_a_real_trace(
    real_trace: Callable[[str], Path], open_page: Callable[..., OpenPage]
) -> None:
    trace = open_trace(real_trace("nsys/2026.2-2gpu-nccl-before.sqlite"))
    reader = Reader(open_page(render_timeline(trace, title="real")))
    _among(reader, "Kernels")
    rows = _results(reader)
    lengths = trace.kernels["end_ns"] - trace.kernels["start_ns"]
    order = np.argsort(-lengths, kind="stable")[:20]
    assert [row[0] for row in rows[:20]] == [
        short_name(str(trace.kernels["name"][int(i)])) for i in order
    ]
    caption = reader.page.page.locator(".results caption").inner_text()
    assert caption.startswith(f"{format_count(len(lengths))} events")
